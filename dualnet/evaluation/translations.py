"""Metrics of translations and headlines: BLEU, chrF and ROUGE."""

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from dualnet._checks import ArgumentError, as_texts, check_choice, extra

EXTRA = ("translate", "BLEU, chrF and ROUGE need sacrebleu, sacremoses and rouge-score")
PROTOCOLS = ("sacrebleu", "multi30k")
ROUGES = {"rouge1": "rouge_1", "rouge2": "rouge_2", "rougeL": "rouge_l"}


def translation_metrics(
    hypotheses: str | Sequence[str],
    references: str | Sequence[str],
    *,
    protocol: str = "sacrebleu",
    language: str = "en",
) -> dict[str, Any]:
    """Return the BLEU of translations, and how it was computed.

    Compare numbers of one protocol only. "sacrebleu" reads plain text, cased and not
    tokenised, and adds chrF. "multi30k" is what papers on Multi30k report: it lower-cases both
    sides and splits them into tokens as Moses does.

    Needs the packages of `pip install "dualnet[translate]"`.

    Args:
        hypotheses: Translations, not tokenised.
        references: One for each, likewise.
        protocol: "sacrebleu" or "multi30k".
        language: str. That of the texts, e.g. "de". "multi30k" needs one that sacremoses knows, for
            abbreviations; "sacrebleu" divides "zh", "ja" and "ko" into tokens of their own, as it
            does by default.

    Returns:
        A dict for JSON: `protocol`, `bleu` (0 to 100), `bleu_signature`, `hypothesis_length`
        and `reference_length` in tokens; with "sacrebleu" also `chrf` (0 to 100) and
        `chrf_signature`; with "multi30k" also `language`.

    Raises:
        ImportError: if a package of the extra is missing.
        ValueError: if there are no texts, or not as many references as hypotheses.

    References: Post, 2018, https://arxiv.org/abs/1804.08771 (BLEU and signatures); Popovic,
    2015, https://aclanthology.org/W15-3049 (chrF)

    Example:

    >>> from dualnet.evaluation import translation_metrics
    >>> result = translation_metrics(["The cat sat on a mat."], ["The cat sat on the mat."])
    >>> round(result["bleu"], 1), result["bleu_signature"].split("|version")[0]
    (48.9, 'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp')
    """
    check_choice("protocol", protocol, PROTOCOLS)
    hypotheses, references = _check_pairs(hypotheses, references)
    with extra(*EXTRA):
        import sacrebleu

        if protocol == "multi30k":
            import sacremoses
    result = {"protocol": protocol}
    code = language.rpartition(".")[2].lower()  # "de" of "lc.norm.tok.de"
    if protocol == "multi30k":
        result["language"] = code = _moses_code(sacremoses, code)
        split = sacremoses.MosesTokenizer(lang=code).tokenize
        hypotheses, references = (
            [split(text.lower(), return_str=True, escape=False) for text in texts]
            for texts in (hypotheses, references)
        )
        bleu = sacrebleu.BLEU(tokenize="none", lowercase=True, force=True)
    else:
        try:
            bleu = sacrebleu.BLEU(trg_lang=code)
        except RuntimeError as error:  # Japanese and Korean need packages of their own
            raise ImportError(" ".join(str(error).split())) from None
    score = bleu.corpus_score(hypotheses, [references])
    result |= {
        "bleu": score.score,
        "bleu_signature": str(bleu.get_signature()),
        "hypothesis_length": score.sys_len,
        "reference_length": score.ref_len,
    }
    if protocol == "sacrebleu":
        chrf = sacrebleu.CHRF()
        result["chrf"] = chrf.corpus_score(hypotheses, [references]).score
        result["chrf_signature"] = str(chrf.get_signature())
    return result


def rouge(
    hypotheses: str | Sequence[str], references: str | Sequence[str], *, stem: bool = True
) -> dict[str, Any]:
    """Return ROUGE-1, ROUGE-2 and ROUGE-L of summaries, e.g. headlines.

    Words are lower-cased runs of the letters a to z and digits, as in ROUGE-1.5.5; so it
    suits English alone. For the recall of the first 75 bytes, cut the hypotheses first.

    Needs the packages of `pip install "dualnet[translate]"`.

    Args:
        hypotheses: Summaries.
        references: One for each.
        stem: bool. Whether Porter's stemmer is applied to words of more than three letters
            first, as papers do (option `-m` of ROUGE-1.5.5).

    Returns:
        A dict for JSON: `rouge_1`, `rouge_2` and `rouge_l`, each a dict of `recall`,
        `precision` and `f1`, the means over all texts from 0 to 100; and `stem`.

    Raises:
        ImportError: if a package of the extra is missing.
        ValueError: if there are no texts, or not as many references as hypotheses.

    Reference: Lin, 2004, https://aclanthology.org/W04-1013

    Example:

    >>> from dualnet.evaluation import rouge
    >>> result = rouge(["a cat sat"], ["the cats sat down"])
    >>> {name: round(value, 1) for name, value in result["rouge_1"].items()}
    {'recall': 50.0, 'precision': 66.7, 'f1': 57.1}
    """
    hypotheses, references = _check_pairs(hypotheses, references)
    with extra(*EXTRA):
        from rouge_score import rouge_scorer
    scorer = rouge_scorer.RougeScorer(list(ROUGES), use_stemmer=stem)
    scores = [scorer.score(*texts) for texts in zip(references, hypotheses)]
    result = {
        name: {
            key: 100 * math.fsum(getattr(score[kind], field) for score in scores) / len(scores)
            for key, field in (("recall", "recall"), ("precision", "precision"), ("f1", "fmeasure"))
        }
        for kind, name in ROUGES.items()
    }
    return {**result, "stem": stem}


def check_packages(protocol: str, language: str = "en") -> None:
    """Raise `ImportError` if `protocol` lacks a package, `ArgumentError` for another language."""
    if protocol == "rouge":
        rouge(["a"], ["a"])
    else:
        translation_metrics(["a"], ["a"], protocol=protocol, language=language)


def _moses_code(sacremoses: ModuleType, code: str) -> str:
    """Return the code by which sacremoses knows a language."""
    known = sacremoses.corpus.NonbreakingPrefixes().available_langs  # by code and by name
    if code not in known:
        raise ArgumentError(
            "language",
            f"must be one that sacremoses knows, {', '.join(sorted({*known.values()}))}. "
            f"Received: {code!r}. In Python, give `language`; for --pairs, name its sides "
            "by their languages, e.g. --source en --target de.",
        )
    return str(known[code])


def _check_pairs(
    hypotheses: str | Sequence[str], references: str | Sequence[str]
) -> tuple[list[str], list[str]]:
    pairs = as_texts(hypotheses), as_texts(references)
    if len(pairs[0]) != len(pairs[1]):
        received = f"Received: {len(pairs[1])} references for {len(pairs[0])} hypotheses."
        raise ArgumentError("references", f"must be as many as the hypotheses. {received}")
    if not pairs[0]:
        raise ArgumentError("hypotheses", "must hold at least one text. Received: none.")
    return pairs
