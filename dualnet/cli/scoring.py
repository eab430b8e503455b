"""The commands `score`, with its format `surprisal`, and `minimal-pairs`."""

import itertools
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from dualnet._fields import choice
from dualnet.cli.command import Options, argument
from dualnet.cli.console import Table, comparison, number, printable, quietly, report, texts_of
from dualnet.cli.evaluating import learning_of, little_gain
from dualnet.cli.options import AdaptingOptions, OfRun, OfTexts, name_of, open_language_model
from dualnet.corpora.sentence_pairs import read_pairs
from dualnet.requests import RULES, Surprising
from dualnet.runs import Run
from dualnet.text import Tokenizer
from dualnet.text.plain_text import tokenisation_warning

WARNING_PAIRS = 1000  # that decide whether to warn of untokenised text


class Score(OfTexts, AdaptingOptions, Surprising):
    """Options of `score`.

    Args:
        texts: Text to score, in which a newline is <eos>; repeatable.
    Args (surprisal):
        format: 'surprisal': print a tab-separated row for each token, with its surprisal in bits.
        entropy: With --format surprisal: add the entropy, in bits, of each prediction.
        words: With --format surprisal: print a row for each word, with the sum over its tokens;
            white space separates words.
        split_punctuation: With --words: print the punctuation before and after a word as rows of
            its own.
        adapt: With --format surprisal: learn from each text, in one step, after scoring it.
        rule: Update rule of --adapt: nadam, sgd, rms or published (default: nadam; shipped models
            have a rule of their own).
        set: Override settings of --adapt, e.g. learning_rate=0.001.
    """

    format: str | None = choice(None, ["surprisal"], metavar="surprisal")
    rule: str | None = choice(None, [*RULES, "published"])
    needs = {"format": ["entropy", "words", "adapt"]}


def score(options: Score) -> None:
    """Compute the log-probability, in nats, of each word of texts, and the perplexity.

    Examples:
        dualnet score runs/dual --text "the cat sat"
        dualnet score runs/dual book.txt --format surprisal --words
    """
    texts = texts_of("--text", options)
    if options.format == "surprisal":
        print_surprisal(options, texts)
        return
    way_out = "dualnet translate`, or in Python `dualnet.score(model, translation, source=text)"
    run = open_language_model(options.run_folder, way_out=way_out)
    quietly("dualnet.evaluation")
    from dualnet.evaluation import comparable, score
    from dualnet.evaluation.arguments import perplexity_of

    model = run.model()
    scores = score(model, texts, temperature=options.temperature)
    tokens = sum(score.tokens for score in scores)
    losses = [-value for score in scores for value in score.log_probabilities.tolist()]
    perplexity = perplexity_of(losses)
    ids = [model.vocabulary.encode(text) for text in texts]
    figures = comparable(model.vocabulary, ids, sum(losses)).figures()
    _warn(model.vocabulary, texts, "the text")
    of_words = model.vocabulary.kind == "words"  # then the tokens are the words
    fields = ["perplexity", "tokens", "words", "log_probabilities"]
    fields += [] if of_words else ["whole_words", "whole_word_log_probabilities"]
    result = {
        "perplexity": perplexity,
        "tokens": tokens,
        "texts": [{name: getattr(score, name) for name in fields} for score in scores],
        "temperature": options.temperature,
        **figures,
    }
    rows = [
        [number(score.perplexity), f"{score.tokens:,}",
         " ".join(score.words if of_words else score.whole_words)]
        for score in scores
    ]  # fmt: skip
    columns = shutil.get_terminal_size().columns
    report(
        options,
        result,
        Table(["perplexity", "tokens", "text"], rows, columns),
        f"\nperplexity {number(perplexity)} on {tokens:,} tokens of "
        f"{len(scores):,} text{'s' * (len(scores) != 1)}",
        textwrap.fill(comparison(figures), max(columns, 20)),
    )


def _warn(tokenizer: Tokenizer, texts: Iterable[str], what: str) -> None:
    if tokenizer.kind != "words":
        return
    text = " ".join(texts)
    words = (text.lower() if tokenizer.lowercase else text).split()
    if warning := tokenisation_warning(words, what=what, known=tokenizer):
        print(warning, file=sys.stderr)


def print_surprisal(options: Score, texts: list[str]) -> None:
    """Print the surprisal of `texts`: rows with tabs between, as they come, or JSON."""
    run = open_language_model(options.run_folder)
    if options.rule != "published":
        _surprising(options, run)
    quietly("dualnet.adaptation")
    from dualnet.adaptation.surprisals import records

    request = _surprising(options, run)
    statistics = run.training_text() if options.adapt and request.rule == "rms" else None
    names = ["sentence_id", "token_id", "token", "surprisal", *["entropy"] * options.entropy]
    model = run.model()
    rows = records(model, texts, request, statistics=statistics)
    total = 0.0

    def counted() -> Iterator[dict[str, Any]]:
        nonlocal total
        for row in rows:
            total += row["surprisal"]
            yield row

    _print_rows(options, counted(), names)
    if options.adapt:
        fixed = [
            row["surprisal"]
            for row in records(model, texts, Surprising(temperature=options.temperature))
        ]
        if fixed and (line := little_gain(1 - 2 ** min(0, (total - sum(fixed)) / len(fixed)))):
            print(line, file=sys.stderr)


def _print_rows(
    options: Options, rows: Iterator[dict[str, Any]], names: Iterable[str] = ()
) -> None:
    """Print rows with tabs between their cells, under their `names`, or as JSON."""
    if options.json:
        report(options, list(rows))
        return
    first = next(rows, None)  # which is computed, and errors raised, before anything is printed
    print(*first or names, sep="\t")
    for row in itertools.chain([first] if first else [], rows):
        print(*map(_cell, row.values()), sep="\t")


def _surprising(options: Score, run: Run) -> Surprising:
    """Return the request to the model of `run`, with the rule that --rule stands for."""
    request = {**options.arguments(), "rule": None}
    if options.adapt:
        corpus = run.trained_on.get("name", "")
        request |= learning_of(run, options.rule, options.learning(), corpus, by_text=True)
    return Surprising(**Surprising.fields_of(request))


def _cell(value: Any) -> str:
    """Return a value as a cell of a row: 7 digits; control characters of a token escaped."""
    if isinstance(value, float):
        return f"{value:.7g}"
    return printable(str(value)).replace("\t", "\\t").replace("\n", "\\n")


class MinimalPairs(OfRun):
    """Options of `minimal-pairs`.

    Args:
        files: File with one JSON object per line: sentence_good, sentence_bad and, optionally,
            UID and field.
        format: 'pairs': print a tab-separated row for each pair, with both log-probabilities.
    """

    files: list[str] = argument(nargs="+", metavar="FILE")
    format: str | None = choice(None, ["pairs"], metavar="pairs")


def minimal_pairs(options: MinimalPairs) -> None:
    """Compute how often a RUN prefers the acceptable one of two sentences (BLiMP).

    Examples:
        dualnet minimal-pairs runs/dual blimp/*.jsonl
        dualnet minimal-pairs runs/dual pairs.jsonl --format pairs
    """
    run = open_language_model(options.run_folder)
    pairs = read_pairs(options.files)
    evaluation = quietly("dualnet.evaluation")
    model = run.model()
    result = evaluation.minimal_pairs(model, pairs)
    _warn(model.vocabulary, (pair.good for pair in pairs[:WARNING_PAIRS]), "the sentences")
    if options.format == "pairs":
        _print_rows(options, iter(result.rows()))
        return
    as_json = {
        **_accuracy(result.overall),
        "mean_accuracy": result.mean_accuracy,
        "unknown": result.unknown,
        "UID": {name: _accuracy(each) for name, each in result.by_uid.items()},
        "field": {name: _accuracy(each) for name, each in result.by_field.items()},
        "model": name_of(run, model),
    }
    groups = {"UID": result.by_uid, "field": result.by_field, "overall": {"": result.overall}}
    rows = []
    for kind, group in groups.items():
        for name, each in group.items():
            low, high = each.interval
            interval = f"{100 * low:.1f} to {100 * high:.1f}"
            rows.append([kind, name, f"{each.accuracy:.1%}", interval, str(each.pairs),
                         str(each.ties)])  # fmt: skip
    table = Table(["", "", "accuracy", "95% interval", "pairs", "ties"], rows)
    overall = result.overall
    note = (f"\naccuracy {overall.accuracy:.1%} on {overall.pairs:,} pairs, mean of the UIDs "
            f"{result.mean_accuracy:.1%}; a tie counts as wrong")  # fmt: skip
    report(options, as_json, table, note)


def _accuracy(result: Any) -> dict[str, Any]:
    names = ("accuracy", "interval", "pairs", "correct", "ties")
    return {name: getattr(result, name) for name in names}
