"""The commands `score`, with its format `surprisal`, and `minimal-pairs`, of inputs of any size."""

import itertools
import math
import operator
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dualnet._checks import ArgumentError
from dualnet._fields import choice, field
from dualnet._files import check_output_file, sha256_of
from dualnet.cli import console
from dualnet.cli.command import Options, argument
from dualnet.cli.evaluating import learning_of, little_gain
from dualnet.cli.options import AdaptingOptions, OfRun, OfTexts, name_of, open_language_model
from dualnet.cli.outputs import FORMATS, Output
from dualnet.corpora.records import WHOLE, Block, Records
from dualnet.corpora.sentence_pairs import files_of_pairs, pair_of
from dualnet.requests import RULES, Scoring, Surprising
from dualnet.runs import Run
from dualnet.runs.folder import WEIGHTS
from dualnet.text import Tokenizer
from dualnet.text.plain_text import tokenisation_warning

WARNING_TEXTS = 1000  # that decide whether to warn of untokenised text
# Of the options: what the rows depend on, beside the model and the input.
DECISIVE = {"adapt", "format", "shard", "temperature", "entropy", "words", "split_punctuation"}
TEXT = operator.attrgetter("text")
Blocks = Iterator[tuple[Block, list[dict[str, Any]]]]  # with the rows of each


def check_shard(name: str, value: str) -> tuple[int, int]:
    """Return the number of a shard, and how many there are."""
    match = re.fullmatch(r"([1-9]\d{0,8})/([1-9]\d{0,8})", value)
    if not match or int(match[1]) > int(match[2]):
        raise ArgumentError(name, "must be I/N, I from 1 to N, such as 3/16.", **{name: value})
    return int(match[1]), int(match[2])


def check_output(name: str, value: str) -> None:
    """Raise `ArgumentError` unless `value` can be written and its suffix names a format."""
    if Path(value).suffix not in FORMATS:
        required = f"must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, which says the format."
        raise ArgumentError(name, required, **{name: value})
    if Path(value).suffix != ".parquet":
        check_output_file(f"--{name}", value)


class Streaming(Options):
    """How rows of large inputs are written."""

    group = "large inputs"

    output: str | None = field(None, check_output, metavar="FILE")
    """Write the rows to FILE: .jsonl (an object of JSON a line), .tsv (a table with tabs) or
    .parquet (a folder of numbered parts), and print the totals alone."""

    resume: bool = False
    """Go on where a killed command stopped to write --output, or begin."""

    shard: str | None = field(None, check_shard, metavar="I/N")
    """Read one of N parts of the input, I from 1 to N. The outputs of all, one after another, are
    that of the whole."""

    needs = {"output": ["resume"]}

    def part(self) -> tuple[int, int]:
        return check_shard("shard", self.shard) if self.shard else WHOLE


class Score(OfTexts, Streaming, AdaptingOptions, Surprising):
    """Options of `score`."""

    group = "surprisal"

    format: str | None = choice(None, ["surprisal"], metavar="surprisal")
    """'surprisal': print a tab-separated row for each token, with its surprisal in bits."""

    rule: str | None = choice(None, [*RULES, "published"])
    """Update rule of --adapt: nadam, sgd, rms or published (default: nadam; shipped models have a
    rule of their own)."""

    file: str | None = argument(None, nargs="?", metavar="FILE", group="")
    """File with one text per line, which gzip may have compressed; '-' or omitted: standard input.
    """

    texts: list[str] | None = field(
        None, flags=["--text"], action="append", metavar="TEXT", group=""
    )
    """Text to score, in which a newline is <eos>; repeatable."""

    entropy: bool = False
    """With --format surprisal: add the entropy, in bits, of each prediction."""

    words: bool = False
    """With --format surprisal: print a row for each word, with the sum over its tokens; white space
    separates words."""

    split_punctuation: bool = False
    """With --words: print the punctuation before and after a word as rows of its own."""

    adapt: bool = False
    """With --format surprisal: learn from each text, in one step, after scoring it."""

    set: list[str] = field([], metavar="KEY=VALUE")
    """Override settings of --adapt, e.g. learning_rate=0.001."""

    needs = {"format": ["entropy", "words", "adapt"]}
    excludes = {"adapt": ["resume", "shard"]}  # the weights depend on all texts before


def score(options: Score) -> None:
    """Compute the log-probability, in nats, of each word of texts, and the perplexity.

    Examples:
        dualnet score runs/dual --text "the cat sat"
        dualnet score runs/dual book.txt --format surprisal --words
        dualnet score runs/dual corpus.txt.gz --shard 3/16 --output scores-03.jsonl --resume
    """
    texts = console.records_of(options, again=options.adapt)
    if options.format == "surprisal":
        _score_surprisal(options, texts)
        return
    way_out = "dualnet translate`, or in Python `dualnet.score(model, translation, source=text)"
    run = open_language_model(options.run_folder, use=way_out)
    scorers = console.quietly("dualnet.scorers")
    model = run.model()
    scorer = scorers.TextScorer(model, Scoring(temperature=options.temperature))
    output = _output(options, run, texts, scorer)
    blocks = _scored(options, texts, scorer, after=output.after if output else 0)
    blocks = _warned(blocks, model.vocabulary, "the text")
    if output is not None:
        output.write(blocks)
    elif options.json:
        rows = itertools.chain.from_iterable(rows for _, rows in blocks)
        console.report_list(map(_entry, rows), lambda: _around(options, scorer))
        return
    else:
        _print_table(blocks, of_words=model.vocabulary.kind == "words")
    _report_totals(options, scorer)


def _print_table(blocks: Blocks, *, of_words: bool) -> None:
    """Print a row for each text."""
    columns = shutil.get_terminal_size().columns
    head = True
    for _, rows in blocks:
        cells = [
            [console.number(row["perplexity"]), f"{row['tokens']:,}",
             " ".join(row["words" if of_words else "whole_words"])]
            for row in rows
        ]  # fmt: skip
        console.Table(["perplexity", "tokens", "text"], cells, columns).print(head=head)
        head = False
        sys.stdout.flush()
    print()


def _entry(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as an item of the list that --json prints, which has no numbers of texts."""
    left_out = ("sentence_id", "log_probability")
    return {name: value for name, value in row.items() if name not in left_out}


def _around(options: Score, scorer: Any) -> tuple[str, str]:
    """Return the parts of --json before and after the list of texts."""
    figures = _figures(options, scorer)
    first = {name: figures.pop(name) for name in ("perplexity", "tokens")}
    return f'{console.as_json(first)[:-1]}, "texts": [', f"], {console.as_json(figures)[1:]}"


def _figures(options: Score, scorer: Any) -> dict[str, Any]:
    """Return the figures of all texts as JSON."""
    totals = scorer.totals
    figures = {"perplexity": totals.perplexity, "tokens": totals.tokens}
    return {**figures, "temperature": options.temperature, **totals.comparable().figures()}


def _report_totals(options: Score, scorer: Any) -> None:
    """Print the figures of all texts."""
    totals = scorer.totals
    figures = _figures(options, scorer)
    console.report(
        options,
        {**figures, "texts": totals.texts, "log_probability": -totals.nats},
        f"perplexity {console.number(totals.perplexity)} on {totals.tokens:,} tokens of "
        f"{totals.texts:,} text{'s' * (totals.texts != 1)}",
        textwrap.fill(console.comparison(figures), max(shutil.get_terminal_size().columns, 20)),
    )


# --- inputs and outputs of any size


def _output(options: Any, run: Run, records: Records, scorer: Any) -> Output | None:
    """Return the file that `--output` names, if it is given; with `--resume`, restore `scorer`."""
    if options.output is None:
        return None
    weights = run.path / WEIGHTS if run.is_folder else run.path
    settings = {name: value for name, value in options.changed().items() if name in DECISIVE}
    settings |= {"bytes": records.size(unpack=False), "weights": sha256_of(weights)}
    if len(records.paths) > 1:  # in another order, they have other numbers
        settings["files"] = [Path(path).name for path in records.paths]
    path, resume = Path(options.output), options.resume
    return Output(path, scorer, settings, shard=options.part(), resume=resume)


def _scored(
    options: Streaming, records: Records, scorer: Any, item: Any = TEXT, *, after: int = 0
) -> Blocks:
    """Yield each block of records and its rows; `item` makes what the scorer reads of a record."""
    shows = options.output is not None or not sys.stdout.isatty()
    began, before = time.perf_counter(), scorer.tokens
    total = records.size(unpack=False) if shows and not records.packed else None
    with console.progress_bar(total, show=shows) as show:
        for block in records.blocks(options.part(), after=after):
            first = block.records[0]
            try:
                rows = scorer.rows([item(record) for record in block.records], first.number)
            except ArgumentError as error:
                if place := _culprit(scorer.model.vocabulary, block):
                    raise ValueError(f"{error} It is in {place}.") from None
                raise
            yield block, rows
            rate = (scorer.tokens - before) / (time.perf_counter() - began)
            show(first.start, f"{rate:,.0f} tokens/s")


def _culprit(tokenizer: Tokenizer, block: Block) -> str:
    """Return the place of the record that `tokenizer` cannot read, or ""."""
    for record in block.records:
        try:
            tokenizer.encode(record.text)
        except ArgumentError:
            return record.place
    return ""


def _warned(blocks: Blocks, tokenizer: Tokenizer, what: str, key: str = "") -> Blocks:
    """Yield `blocks`; at the end, warn if the first texts do not look tokenised."""
    texts: list[str] = []
    for block, rows in blocks:
        if not texts and tokenizer.kind == "words":
            texts = [row[key] for row in rows] if key else [each.text for each in block.records]
        yield block, rows
    text = " ".join(texts[:WARNING_TEXTS])
    words = (text.lower() if tokenizer.lowercase else text).split()
    if texts and (warning := tokenisation_warning(words, what=what, known=tokenizer)):
        print(warning, file=sys.stderr)


def _print_rows(options: Streaming, blocks: Blocks, columns: Iterable[str]) -> None:
    """Print rows with tabs between their cells, under the names of the `columns`, or as JSON."""
    if options.json:
        all_rows = itertools.chain.from_iterable(rows for _, rows in blocks)
        console.report_list(all_rows, lambda: ("[", "]"))
        return
    first = next(blocks, None)  # which is computed, and errors raised, before anything is printed
    if options.part()[0] == 1:
        print(*columns, sep="\t")
    for _, rows in itertools.chain([first] if first else [], blocks):
        for row in rows:
            print(*map(console.cell, row.values()), sep="\t")
        sys.stdout.flush()


# --- surprisal


def _score_surprisal(options: Score, texts: Records) -> None:
    """Print or write the surprisal of texts: rows with tabs between, as they come, or JSON."""
    run = open_language_model(options.run_folder)
    if options.rule != "published":
        _surprising(options, run)
    scorers = console.quietly("dualnet.scorers")
    from dualnet.adaptation.surprisals import surprisals

    request = _surprising(options, run)
    statistics = run.training_text() if options.adapt and request.rule == "rms" else None
    model = run.model()
    with surprisals(model, request, statistics=statistics) as of_texts:
        scorer = scorers.SurprisalScorer(model, request, of_texts)
        output = _output(options, run, texts, scorer)
        blocks = _scored(options, texts, scorer, after=output.after if output else 0)
        if output is None:
            _print_rows(options, blocks, scorer.columns)
        else:
            output.write(blocks)
    if output is not None:
        _report_totals(options, scorer)
    if options.adapt and scorer.tokens:
        fixed = Surprising(temperature=options.temperature)
        with surprisals(model, fixed) as of_texts:
            before = scorers.SurprisalScorer(model, fixed, of_texts)
            for _ in _scored(options, texts, before):
                pass
        gain = (before.totals.nats - scorer.totals.nats) / scorer.tokens
        if line := little_gain(1 - math.exp(min(0, -gain))):
            print(line, file=sys.stderr)


def _surprising(options: Score, run: Run) -> Surprising:
    """Return the request to the model of `run`, with the rule that --rule stands for."""
    request = {**options.arguments(), "rule": None}
    if options.adapt:
        corpus = run.trained_on.get("name", "")
        request |= learning_of(run, options.rule, options.learning(), corpus, by_text=True)
    return Surprising(**Surprising.fields_of(request))


# --- minimal pairs


class MinimalPairs(OfRun, Streaming):
    """Options of `minimal-pairs`."""

    files: list[str] = argument(nargs="+", metavar="FILE")
    """File with one JSON object per line: sentence_good, sentence_bad and, optionally, UID and
    field. Gzip may have compressed it."""

    format: str | None = choice(None, ["pairs"], metavar="pairs")
    """'pairs': print a tab-separated row for each pair, with both log-probabilities."""


def minimal_pairs(options: MinimalPairs) -> None:
    """Compute how often a RUN prefers the acceptable one of two sentences (BLiMP).

    Examples:
        dualnet minimal-pairs runs/dual blimp/*.jsonl
        dualnet minimal-pairs runs/dual pairs.jsonl --format pairs
    """
    run = open_language_model(options.run_folder)
    pairs = files_of_pairs(options.files)
    scorers = console.quietly("dualnet.scorers")
    model = run.model()
    scorer = scorers.PairScorer(model)
    output = _output(options, run, pairs, scorer)
    blocks = _scored(options, pairs, scorer, pair_of, after=output.after if output else 0)
    blocks = _warned(blocks, model.vocabulary, "the sentences", "sentence_good")
    if output is not None:
        output.write(blocks)
    elif options.format == "pairs":
        _print_rows(options, blocks, scorer.columns)
        return
    else:
        for _ in blocks:
            pass
    result = scorer.totals
    as_json = {
        **_accuracy(result.overall),
        "mean_accuracy": result.mean_accuracy,
        "unknown": result.unknown,
        "UID": {name: _accuracy(each) for name, each in result.by_uid.items()},
        "field": {name: _accuracy(each) for name, each in result.by_field.items()},
        "model": name_of(run, model),
    }
    groups = {"UID": result.by_uid, "field": result.by_field, "overall": {"": result.overall}}
    rows = [
        [kind, name, f"{each.accuracy:.1%}", " to ".join(f"{100 * x:.1f}" for x in each.interval),
         str(each.pairs), str(each.ties)]
        for kind, group in groups.items()
        for name, each in group.items()
    ]  # fmt: skip
    table = console.Table(["", "", "accuracy", "95% interval", "pairs", "ties"], rows)
    overall = result.overall
    note = (f"\naccuracy {overall.accuracy:.1%} on {overall.pairs:,} pairs, mean of the UIDs "
            f"{result.mean_accuracy:.1%}; a tie counts as wrong")  # fmt: skip
    console.report(options, as_json, table, note)


def _accuracy(result: Any) -> dict[str, Any]:
    names = ("accuracy", "interval", "pairs", "correct", "ties")
    return {name: getattr(result, name) for name in names}
