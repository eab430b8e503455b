"""The commands `score`, with its format `surprisal`, and `minimal-pairs`, of inputs of any size."""

import itertools
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualnet._checks import ArgumentError
from dualnet._contexts import progress_bar
from dualnet._fields import choice, field
from dualnet._files import check_output_file
from dualnet.cli import console
from dualnet.cli.command import Options, argument
from dualnet.cli.console import Result, Table
from dualnet.cli.evaluating import ChoosesRule, with_published_rule
from dualnet.cli.options import OfRun, OfTexts, name_of, open_language_model
from dualnet.cli.outputs import FORMATS, Lines, Parts, Row
from dualnet.corpora.records import WHOLE, Block, Records
from dualnet.corpora.sentence_pairs import SentencePair, files_of_pairs, pair_of
from dualnet.requests import Scoring, Surprising
from dualnet.runs import Run
from dualnet.text.files import Line

if TYPE_CHECKING:
    from dualnet.evaluation import Accuracy
    from dualnet.scorers import Scorer, TextScorer

# Of the options: what the rows depend on, beside the model and the input.
DECISIVE = {
    "adapt",
    "bow_correction",
    "entropy",
    "format",
    "shard",
    "split_punctuation",
    "temperature",
    "words",
}
HIDDEN = {"sentence_id", "log_probability"}  # of a row, in the list that --json prints


def check_shard(name: str, value: str) -> tuple[int, int]:
    """Return the number of a shard, and how many there are."""
    match = re.fullmatch(r"([1-9]\d{0,8})/([1-9]\d{0,8})", value)
    if not match or int(match[1]) > int(match[2]):
        raise ArgumentError(name, "must be I/N, I from 1 to N, such as 3/16.", **{name: value})
    return int(match[1]), int(match[2])


def check_output(name: str, value: str) -> None:
    """Raise `ArgumentError` unless `value` can be written and its suffix names a format."""
    if Path(value).suffix not in FORMATS:
        raise ArgumentError(
            name,
            f"must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, which says the format.",
            **{name: value},
        )
    if Path(value).suffix != ".parquet":
        check_output_file(name, value)


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

    def read(self, line: Line) -> Any:
        """Return the item of a line, as the scorer takes it."""
        return line.text

    def part(self) -> tuple[int, int]:
        return check_shard("shard", self.shard) if self.shard else WHOLE


class Score(OfTexts, Streaming, ChoosesRule, Surprising):
    """Options of `score`."""

    format: str | None = choice(None, ["surprisal"], metavar="surprisal", group="surprisal")
    """'surprisal': print a tab-separated row for each token, with its surprisal in bits."""

    needs = {"format": ["entropy", "words", "adapt"]}
    excludes = {"adapt": ["resume", "shard"]}  # the weights depend on all texts before


def score(options: Score) -> Result | None:
    """Compute the log-probability, in nats, of each word of texts, and the perplexity.

    Examples:
        dualnet score runs/dual --text "the cat sat"
        dualnet score runs/dual book.txt --format surprisal --words
        dualnet score runs/dual corpus.txt.gz --shard 3/16 --output scores-03.jsonl --resume
    """
    texts = options.records()
    if options.format == "surprisal":
        return _surprisal(options, texts)
    way_out = "dualnet translate`, or in Python `dualnet.score(model, translation, source=text)"
    run = open_language_model(options.run_folder, use=way_out)
    scorers = console.quietly("dualnet.scorers")
    model = run.model()
    scorer = scorers.TextScorer(model, Scoring(temperature=options.temperature))
    rows = _rows(options, run, texts, scorer)
    if options.output is not None or options.json:
        return _totals(options, scorer, [*itertools.chain.from_iterable(rows)])
    columns = shutil.get_terminal_size().columns
    words = "words" if model.vocabulary.kind == "words" else "whole_words"
    for number, block in enumerate(rows):
        if number == 0:  # errors are raised before anything is printed
            print("perplexity  tokens  text")
        for row in block:
            figures = f"{console.number(row['perplexity']):<10}  {row['tokens']:<6,}  "
            text = console.printable(" ".join(row[words]))
            print(figures + console.truncate(text, columns - len(figures)))
        sys.stdout.flush()
    print()
    return _totals(options, scorer)


def _totals(options: Score, scorer: "TextScorer", rows: list[Row] | None = None) -> Result:
    """Return the figures of all texts, and in JSON the rows that are not in a file."""
    totals = scorer.totals
    comparable = totals.comparable().figures()
    texts = [
        {name: value for name, value in row.items() if name not in HIDDEN} for row in rows or []
    ]
    result = {
        "perplexity": totals.perplexity,
        "tokens": totals.tokens,
        "texts": texts if options.output is None else totals.texts,
        "temperature": options.temperature,
        **comparable,
        "log_probability": -totals.nats,
    }
    return Result(
        result,
        f"perplexity {console.number(totals.perplexity)} on {totals.tokens:,} tokens of "
        f"{totals.texts:,} text{'s' * (totals.texts != 1)}",
        textwrap.fill(console.comparison(comparable), max(shutil.get_terminal_size().columns, 20)),
    )


def _surprisal(options: Score, texts: Records) -> Result | None:
    """Print or write the surprisal of texts: rows with tabs between, as they come, or JSON."""
    run = open_language_model(options.run_folder)
    settings, corpus = Surprising.fields_of(options.changed()), run.trained_on.get("name", "")
    request = Surprising(**with_published_rule(settings, run, corpus, by_text=True))
    scorers = console.quietly("dualnet.scorers")
    from dualnet.adaptation.surprisals import surprisals

    model = run.model()
    with surprisals(model, request) as of_texts:
        scorer = scorers.SurprisalScorer(model, request, of_texts)
        rows = _rows(options, run, texts, scorer)
        if options.output is None:
            return _printed(options, rows, scorer)
        return _totals(options, scorer)


# --- inputs and outputs of any size


def _rows(
    options: Streaming,
    run: Run,
    records: Records,
    scorer: "Scorer",
) -> Iterator[list[Row]]:
    """Yield the rows of each block, or write all into `--output`; with `--resume`, the rest."""
    if options.output is None:
        blocks = records.blocks(options.part())
        return (rows for _, rows in _scored(options, records, scorer, blocks))
    from dualnet.evaluation.arguments import vocabulary_of

    settings = {name: value for name, value in options.changed().items() if name in DECISIVE}
    words = vocabulary_of(scorer.model)
    tokenizer = [words.sha256, words.documents, words.lowercase]
    settings |= {"bytes": records.size, "weights": run.weights_sha256, "tokenizer": tokenizer}
    if len(records.paths) > 1:  # in another order, they have other numbers
        settings["files"] = [Path(path).name for path in records.paths]
    path = Path(options.output)
    format = Parts if path.suffix == ".parquet" else Lines
    output = format(path, scorer, settings, shard=options.part(), resume=options.resume)
    blocks = records.blocks(options.part(), after=output.after - 1)
    output.skip_written(blocks)
    output.write(_scored(options, records, scorer, blocks))
    return iter(())


def _scored(
    options: Streaming, records: Records, scorer: "Scorer", blocks: Iterable[Block]
) -> Iterator[tuple[Block, list[Row]]]:
    """Yield each block of records and its rows."""
    shows = options.output is not None or not sys.stdout.isatty()
    began, before = time.perf_counter(), scorer.tokens
    total = records.size if shows and not records.packed else None
    with progress_bar(show=shows) as bar:
        task = bar.add_task("", total=total, figures="")
        for block in blocks:
            try:
                rows = scorer.rows([*map(options.read, block.lines)], block.first)
            except ArgumentError as error:
                if place := _culprit(options, scorer, block):
                    raise ValueError(f"{error} It is in {place}.") from None
                raise
            yield block, rows
            rate = (scorer.tokens - before) / (time.perf_counter() - began)
            bar.update(task, completed=block.lines[0].start, figures=f"{rate:,.0f} tokens/s")


def _culprit(options: Streaming, scorer: "Scorer", block: Block) -> str:
    """Return the place of the text that the model's tokeniser cannot read, or ""."""
    for line in block.lines:
        item = options.read(line)
        try:
            for text in [item] if isinstance(item, str) else [item.good, item.bad]:
                scorer.model.vocabulary.encode(text)
        except ArgumentError:
            return line.place
    return ""


def _printed(options: Streaming, blocks: Iterator[list[Row]], scorer: "Scorer") -> Result | None:
    """Print rows with tabs between their cells, under the names of the columns; or return them."""
    if options.json:
        return Result([*itertools.chain.from_iterable(blocks)])
    first = next(blocks, [])  # which is computed, and errors raised, before anything is printed
    if options.part()[0] == 1:
        print(*scorer.columns, sep="\t")
    for rows in itertools.chain([first], blocks):
        for row in rows:
            print(*map(console.cell, row.values()), sep="\t")
        sys.stdout.flush()
    return None


# --- minimal pairs


class MinimalPairs(OfRun, Streaming):
    """Options of `minimal-pairs`."""

    files: list[str] = argument(nargs="+", metavar="FILE")
    """File with one JSON object per line: sentence_good, sentence_bad and, optionally, UID and
    field. Gzip may have compressed it."""

    format: str | None = choice(None, ["pairs"], metavar="pairs")
    """'pairs': print a tab-separated row for each pair, with both log-probabilities."""

    def read(self, line: Line) -> SentencePair:
        return pair_of(line)


def minimal_pairs(options: MinimalPairs) -> Result | None:
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
    blocks = _rows(options, run, pairs, scorer)
    if options.format == "pairs" and options.output is None:
        return _printed(options, blocks, scorer)
    for _ in blocks:
        pass
    totals, overall = scorer.totals, scorer.totals.overall
    groups = {"UID": totals.by_uid, "field": totals.by_field}
    result = {
        **_accuracy(overall),
        "mean_accuracy": totals.mean_accuracy,
        "unknown": totals.unknown,
        **{group: {name: _accuracy(of[name]) for name in of} for group, of in groups.items()},
        "model": name_of(run, model),
    }
    rows = []
    for group, accuracies in {**groups, "overall": {"": overall}}.items():
        for name, accuracy in accuracies.items():
            low, high = (f"{100 * bound:.1f}" for bound in accuracy.interval)
            share, interval = f"{accuracy.accuracy:.1%}", f"{low} to {high}"
            rows.append([group, name, share, interval, accuracy.pairs, accuracy.ties])
    table = Table(["", "", "accuracy", "95% interval", "pairs", "ties"], rows)
    note = f"\naccuracy {overall.accuracy:.1%} on {overall.pairs:,} pairs, mean of the UIDs "
    return Result(result, table, f"{note}{totals.mean_accuracy:.1%}; a tie counts as wrong")


def _accuracy(result: "Accuracy") -> dict[str, object]:
    return {"accuracy": result.accuracy, "interval": result.interval, **vars(result)}
