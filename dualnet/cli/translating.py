"""Models that translate: `translate`, `evaluate` for them, and the corpora of `--pairs`."""

import contextlib
import dataclasses
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dualnet._checks import ArgumentError, StrPath
from dualnet._fields import choice, field
from dualnet._files import check_output_file, is_used, make_folder, write_whole
from dualnet.cards import Card
from dualnet.cli.console import printable, quietly, report, texts_of
from dualnet.cli.options import OfTexts, check_file
from dualnet.corpora import SPLITS
from dualnet.requests import Translating
from dualnet.runs import Run
from dualnet.runs.folder import CARD
from dualnet.runs.shipped import card_of_run, find_run

FORMATS = ("text", "moses")
LINES = 256  # that are translated and shown together
PROTOCOLS = ("sacrebleu", "multi30k", "rouge")


class Translate(OfTexts, Translating):
    """Options of `translate`."""

    output: str | None = field(None, check_file, metavar="FILE")
    """Write to FILE, whole or not at all, instead of standard output."""

    ensemble: list[str] = field([], nargs="+", metavar="RUN")
    """Further RUNs, with which to average the probabilities."""

    format: str = choice("text", FORMATS)
    """text, or moses: 'number ||| translation ||| features ||| score'."""

    plot: str | None = field(None, metavar="PNG")
    """Draw the attention of the best translation: for one text, into a file ending in .png; else
    into a new folder, with a picture for each line that is not empty."""

    texts: list[str] | None = field(None, flags=["--text"], action="append", metavar="TEXT")
    """Text to translate; repeatable."""

    excludes = {"ensemble": ["plot"]}


def translate(options: Translate) -> None:
    """Translate texts, line by line.

    Examples:
        dualnet translate runs/de-en german.txt --beam 5 --output english.txt
    """
    texts = [line.removesuffix("\n") for line in texts_of(options, may_be_empty=True)]
    runs = [Run.open(folder) for folder in (options.run_folder, *options.ensemble)]
    for run in runs:
        if run.is_folder and not run.translates:
            received = f"Received: {str(run.path)!r}, of a language model. Use `dualnet generate`."
            raise ArgumentError("RUN", f"must be of a model that translates. {received}")
    if options.plot is not None:
        _check_plot(Path(options.plot), texts)
    generation = quietly("dualnet.generation")
    from dualnet.evaluation.arguments import check_translators

    models = [run.model() for run in runs]
    check_translators(models)  # also those of .keras files
    settings = Translating.fields_of(options.arguments())
    # Text appears as it is found; what is one whole is translated whole.
    in_parts = options.plot is options.output is None and not options.json
    count = LINES if in_parts else len(texts) or 1
    for first in range(0, len(texts) or 1, count):
        some = texts[first : first + count]
        translated = generation.translations(models, some, **settings)
        if options.plot is not None:
            _plot(Path(options.plot), models[0], texts, [best for best, *_ in translated])
        if options.output is None:
            _show(options, some, translated, first)
            sys.stdout.flush()
        else:
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                _show(options, some, translated, first)
            write_whole(options.output, shown.getvalue())


def _show(options: Translate, texts: list[str], translated: list[Any], first: int) -> None:
    """Print the translations as text, as an n-best list of Moses or as JSON."""
    if options.json:
        fields = ("text", "score", "normalized_score")
        rows = [
            {"text": text, "translations": [{f: getattr(one, f) for f in fields} for one in best]}
            for text, best in zip(texts, translated)
        ]
        report(options, {"texts": rows, **options.given(["beam", "length_normalization"])})
        return
    for number, several in enumerate(translated, first):
        for each in several:
            line = " ".join(each.text.splitlines())  # one line for each, always
            if options.format == "moses":
                line = line.replace("|||", "&#124;" * 3)  # which separates the fields
                scores = f"dualnet= {each.score:.6f} ||| {each.normalized_score:.6f}"
                line = f"{number} ||| {line} ||| {scores}"
            print(printable(line))


def _check_plot(path: Path, texts: list[str]) -> None:
    if path.suffix.lower() != ".png":
        if path.exists() and (not path.is_dir() or is_used(path)):
            required = "must be a file that ends in .png, or a new or empty folder."
            raise ArgumentError("--plot", f"{required} Received: {str(path)!r}, which exists.")
    elif not any(texts):
        raise ArgumentError("--plot", "needs a text that is not empty. Received: none.")
    elif len(texts) > 1:
        required = f"must be a new folder for {len(texts)} texts."
        raise ArgumentError("--plot", f"{required} Received: {str(path)!r}.")
    else:
        check_output_file("--plot", path)


def _plot(path: Path, model: Any, texts: list[str], translated: list[Any]) -> None:
    """Draw the attention of each translation into the file or the folder of `--plot`."""
    from dualnet.generation import alignments

    is_file = path.suffix.lower() == ".png"
    if not is_file:
        make_folder("--plot", path)
    for number, alignment in enumerate(alignments(model, texts, translated), start=1):
        if alignment.source:
            alignment.plot(path if is_file else path / f"{number}.png")


def evaluate_translator(options: Any, run: Run, model: Any) -> None:
    """Print the perplexity of the targets of a split, and what the translations score."""
    from dualnet import evaluation
    from dualnet.evaluation.arguments import check_translators
    from dualnet.evaluation.pair_perplexity import evaluate_pairs
    from dualnet.evaluation.translations import check_packages
    from dualnet.generation import translate

    protocol, beam = options.protocol or "sacrebleu", options.beam or 5
    check_translators([model])
    corpus, is_whole = pairs_to_evaluate(options, run, model)
    check_packages(protocol, corpus.target)
    Translating(beam=beam).check_width(len(model.vocabulary))
    split = options.split or "test"
    pairs = corpus.split(split)
    evaluated = evaluate_pairs(model, corpus, split)
    lines = translate(model, pairs.source_lines, beam=beam)
    if protocol == "rouge":
        scores = evaluation.rouge(lines, pairs.target_lines)
    else:
        how = {"protocol": protocol, "language": corpus.target}
        scores = evaluation.translation_metrics(lines, pairs.target_lines, **how)
    shown = "whole" if is_whole else split
    result: dict[str, Any] = {
        "perplexity": evaluated.perplexity, "tokens": evaluated.tokens, **evaluated.figures(),
        **scores, "beam": beam, "pairs": len(pairs), "split": shown, "corpus": corpus.name,
        "source": corpus.source, "target": corpus.target, "model": model.name,
    }  # fmt: skip
    lines = [
        f"perplexity {evaluated.perplexity:.2f} on {evaluated.tokens:,} target tokens of "
        f"{corpus.name} {shown}, {corpus.source} to {corpus.target}"
    ]
    for name, value in scores.items():
        if name.startswith("rouge"):
            figures = ", ".join(f"{key} {figure:.2f}" for key, figure in value.items())
            lines.append(f"{name.upper().replace('_', '-')}: {figures}")
    if "bleu" in scores:
        lines.append(f"BLEU {scores['bleu']:.2f}, beam {beam} ({scores['bleu_signature']})")
    if "chrf" in scores:
        lines.append(f"chrF {scores['chrf']:.2f} ({scores['chrf_signature']})")
    report(options, result, *lines)


# --- corpora of pairs: read by `--pairs` and its options, and shown by `data`


def corpus_or_pairs(options: Any, card: Card | None = None) -> Any:
    """Return the corpus of `train`, or what names it; of `--pairs`, or of the run to resume.

    Pairs that `card` is for have as many units as it says, by default.
    """
    folder = Path(options.output, f"seed-{options.seeds[0]}" if options.seeds else "")
    if options.pairs is None:
        if options.corpus is None and not options.resume:
            message = "must be given, or --pairs for a model that translates. Received: none."
            raise ArgumentError("--corpus", message)
        return options.corpus or Run.open_folder(folder).corpus()
    asked = options.asked_tokenizers()
    if options.resume and (run := _run_with_tokenizer(folder)):
        own = (run.source_vocabulary, run.vocabulary)
        most = run.trained_on.get("pairs", {}).get("max_tokens")
        return read_pairs(options, tokenizer=own, max_tokens=most)
    start = options.weights or (options.name if card_of_run(options.name) else "")
    if asked is None and start and (run := _run_with_tokenizer(start)):
        asked = (run.source_vocabulary, run.vocabulary)
    if asked is None and card is not None and (size := card.config.get("vocabulary_size")):
        asked = f"bpe:{size}"
    return read_pairs(options, tokenizer=asked)


def read_pairs(options: Any, splits: Sequence[str] = SPLITS, **settings: Any) -> Any:
    """Return the corpus that `--pairs` and its options name, with `settings` as defaults."""
    from dualnet import corpora

    files = options.files and dict(zip(SPLITS, zip(options.files[::2], options.files[1::2])))
    settings = {"source": options.source, "target": options.target, "files": files, **settings}
    for name in ("max_tokens", "lowercase"):  # `evaluate` has neither
        if (value := getattr(options, name, None)) is not None:
            settings[name] = value
    return corpora.load_pairs(options.pairs, splits=splits, **settings)


def pairs_to_evaluate(options: Any, run: Run, model: Any) -> tuple[Any, bool]:
    """Return the pairs of `evaluate`, and whether they are a whole table instead of a split.

    Those of `--pairs`, of which one split is enough, else those that RUN was trained on.
    """
    if options.pairs is None:
        if not run.is_folder:
            message = "must be given for a .keras file, which records no pairs."
            raise ArgumentError("--pairs", message)
        return run.corpus(), False
    is_table, own = os.path.isfile(options.pairs), run.trained_on.get("source", "")
    is_own = os.path.realpath(options.pairs) == os.path.realpath(own)
    is_divided = is_table and (options.split is not None or is_own)
    splits = SPLITS if is_divided else [options.split or "test"]
    settings: dict[str, Any] = {"tokenizer": (model.source_vocabulary, model.vocabulary)}
    if run.is_folder:
        own = run.trained_on["pairs"]
        settings["max_tokens"] = own.get("max_tokens")
        sides = {side: getattr(options, side) or own[side] for side in ("source", "target")}
        options = dataclasses.replace(options, **sides)
    return read_pairs(options, splits, **settings), is_table and not is_divided


def show_pairs(options: Any) -> None:
    """Print how many pairs each split has, how long they are, and how many were left out."""
    corpus = read_pairs(options, tokenizer=options.asked_tokenizers())
    splits = {split: _about(corpus.split(split)) for split in SPLITS}
    sides = {corpus.source: corpus.source_vocabulary, corpus.target: corpus.target_vocabulary}
    names = ("name", "folder", "source", "target", "lowercase", "tokenizer", "joint",
             "max_tokens", "sha256")  # fmt: skip
    result = {name: getattr(corpus, name) for name in names} | {"splits": splits, "units": {
        side: {"size": len(units), "sha256": units.sha256} for side, units in sides.items()
    }}  # fmt: skip
    lower = ", lower-cased" * corpus.lowercase
    lines = [f"{corpus.name} from {corpus.folder}, {corpus.source} to {corpus.target}{lower}"]
    for split, about in splits.items():
        lengths = "; ".join(
            f"{side} {about[key]['tokens']:,} tokens, median {about[key]['median']:g}, longest "
            f"{about[key]['longest']:,}"
            for key, side in (("source", corpus.source), ("target", corpus.target))
        )
        lines.append(f"{split:6}{about['pairs']:>10,} pairs   {lengths}")
    left_out = splits["train"]
    lines.append(f"left out of train: {left_out['empty']:,} pairs with an empty side, "
                 f"{left_out['too_long']:,} of more than {corpus.max_tokens} tokens")  # fmt: skip
    if corpus.joint:
        sides = {"both sides": corpus.vocabulary}
    for side, units in sides.items():
        lines.append(f"{len(units):,} units of {units.kind} for {side}, including <eos>"
                     + f"; {units.loses}" * bool(units.loses))  # fmt: skip
    report(options, result, *lines)


def _about(pairs: Any) -> dict[str, Any]:
    about: dict[str, Any] = {"pairs": len(pairs), "empty": pairs.empty, "too_long": pairs.too_long}
    for side in ("source", "target"):
        lengths = np.diff(getattr(pairs, f"{side}_offsets"))
        sizes = {"tokens": lengths.sum(), "median": np.median(lengths), "longest": lengths.max()}
        about[side] = {name: size.item() for name, size in sizes.items()}
    return about


def _run_with_tokenizer(path: StrPath) -> Run | None:
    """Return the RUN folder `path` if it holds a card and a tokeniser, else None."""
    folder = find_run(path)
    if not (folder / CARD).is_file():
        return None
    run = Run.open_folder(folder)
    return run if run.has_vocabulary else None
