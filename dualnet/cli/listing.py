"""The commands that show what there is: `list`, `card`, `data` and `tokenizer`."""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dualnet import zoo
from dualnet._checks import ArgumentError, is_number
from dualnet._fields import field
from dualnet._files import check_output_file, read_json
from dualnet.cli.command import Options, argument
from dualnet.cli.console import Result, Table
from dualnet.cli.options import OfModel, ReadingPairs, check_no_table
from dualnet.corpora import SPLITS, PairCorpus
from dualnet.requests import Dividing
from dualnet.runs import Run
from dualnet.runs.folder import RESULTS
from dualnet.runs.shipped import card_of_run, find_run
from dualnet.text import Tokenizer


class List(Options):
    """Options of `list`."""

    pattern: str = argument("*", nargs="?", metavar="PATTERN")
    """List only names that match, e.g. "dual_*"."""

    pretrained: bool = False
    """List the trained models that are shipped, with their test results."""


def list_models(options: List) -> Result:
    """List the models of the zoo.

    Examples:
        dualnet list "dual_*"
    """
    names = zoo.list_models(options.pattern, pretrained=options.pretrained)
    if not names:
        way_out = "`dualnet list` and `dualnet list --pretrained` show what there is."
        return Result(names, f"No model matches {options.pattern!r}. {way_out}")
    if options.pretrained:
        return Result(names, _pretrained_table(names), PRETRAINED_NOTE)
    return Result(names, _published_table(names), PUBLISHED_NOTE)


PUBLISHED_NOTE = """
Parameters and perplexities (validation/test) are for the first corpus. Where the paper reports
no static perplexity, the one after fine-tuning or over dropout samples is shown.
`dualnet list --pretrained` lists trained models."""
PRETRAINED_NOTE = """
Figures of the test text: perplexity per token and bits per byte, each static and with
dynamic evaluation. A name may stand wherever a command takes a RUN."""


def _published_table(names: list[str]) -> Table:
    rows = []
    for card in map(zoo.card, names):
        static = translation_results(card) or printed_pair(card, "static", "finetuned", "samples")
        results = [static, printed_pair(card, "dynamic")]
        rows.append([card.name, f"{card.parameters:,}", *results, ", ".join(card.corpora)])
    return Table(["model", "parameters", "published", "dynamic", "corpora"], rows)


def _pretrained_table(names: list[str]) -> Table:
    rows = []
    for name in names:
        results = read_json(find_run(name) / RESULTS)
        static, dynamic = (results[protocol]["test"] for protocol in ("static", "dynamic"))
        figures = [f"{figure['perplexity']:.2f}" for figure in (static, dynamic)]
        figures += [f"{figure['bits_per_byte']:.3f}" for figure in (static, dynamic)]
        rows.append([name, f"{results['parameters']:,}", *figures])
    return Table(["model", "parameters", "perplexity", "dynamic", "bits per byte", "dynamic"], rows)


class ShownCard(OfModel):
    """Options of `card`."""

    corpus: str | None = None
    """Published corpus to show the card for (default: the first one)."""


def card(options: ShownCard) -> Result:
    """Show the card of a model: paper, sizes, recipe, results.

    Examples:
        dualnet card dual_mdlstm --corpus wikitext-2
    """
    card = zoo.card(options.name, options.corpus)
    run = Run.open_folder(options.name) if card_of_run(options.name) else None
    lines = [*_about(options.name, card, run), *_settings(card)]
    return Result(dataclasses.asdict(card), *lines)


def _about(name: str, card: zoo.Card, run: Run | None) -> Iterator[str]:
    """Yield the lines about model `name`, that of `run` if it is one: paper, sizes and results."""
    if run is not None:
        kind = "a trained model " + ("that is shipped" if run.is_shipped else "of your own")
        yield f"{run.path.resolve().name}, {kind}, of the model {card.name}: {card.file}"
        if not run.is_shipped:
            yield f"trained on  {run.trained_on['name']} from {run.trained_on['source']}"
        if start := run.table.get("weights"):
            yield f"began from  the weights of {start}"
    elif card.file:
        yield f"{card.name}, your own card: {card.file}"
    else:
        yield f"{card.name} on {card.corpus} (cards for: {', '.join(card.corpora)})"
    yield "\n".join([*filter(None, (card.paper, card.table, card.note)), ""])
    if card.parameters is not None:
        printed = f" (in the paper: {card.printed})" if card.printed else ""
        yield f"parameters  {card.parameters:,}{printed}"
    if card.seed is not None:
        yield f"seed        {card.seed}"
    if card.lowercase:
        yield "text        lower-cased"
    for key in card.published:
        valid, test = printed_pair(card, key).split("/")
        if key == "bleu" or key.startswith("rouge"):
            yield f"published   {key.upper().replace('_', '-')} {test} test"
        else:
            yield f"published   {key}: perplexity {valid} validation, {test} test"
    for result in card.also_published:
        yield f"also        {listed_result(result)}"
    for result in card.measured:
        command = f" ({result['command']})" if "command" in result else ""
        yield f"measured    {listed_result(result)}{command}"


def _settings(card: zoo.Card) -> Iterator[str]:
    """Yield the lines of the settings of a model, as TOML."""
    for section in ("config", "recipe", "evaluation"):
        settings = getattr(card, section)
        if settings:
            yield f"\n[{section}]"
        for key, value in settings.items():
            ours = "  (our choice; not in the paper)" if f"{section}.{key}" in card.ours else ""
            yield f"{key} = {json.dumps(value, default=str)}{ours}"


def printed_pair(card: zoo.Card, *keys: str) -> str:
    """Return the first published result among `keys`, in the digits of all of the card, or "-"."""
    pair = next((card.published[key] for key in keys if key in card.published), [])
    return listed_figures(pair, card.published.values()) or "-"


def translation_results(card: zoo.Card) -> str:
    """Return the published BLEU or ROUGE of a model that translates, or ""."""
    if "bleu" in card.published:
        return f"BLEU {listed_figures(card.published['bleu'][1:])}"
    if "rouge_1" in card.published:
        figures = (card.published[name][1:] for name in ("rouge_1", "rouge_2", "rouge_l"))
        return f"ROUGE-1/2/L {'/'.join(map(listed_figures, figures))}"
    return ""


def listed_result(result: Mapping[str, object]) -> str:
    """Return the source, settings, parameters and figures of a result, published or our own."""
    setup, figures = [], []
    for key, value in result.items():
        if isinstance(value, list) and all(map(is_number, value)):
            figures.append(f"{key.replace('_', ' ')} {listed_figures(value)}")
        elif key == "parameters" and is_number(value):
            setup.append(f"{value:,} parameters")
        elif key != "command":
            named = key in ("source", "table", "settings")
            setup.append(str(value) if named else f"{key} {value}")
    return ": ".join(", ".join(parts) for parts in (setup, figures) if parts)


def listed_figures(values: Sequence[float], others: Iterable[Sequence[float]] = ()) -> str:
    """Return "validation/test" in the digits of the longest, with "-" for a missing figure.

    `others` are printed beside it, with as many digits.
    """
    every = itertools.chain(values, *others)
    digits = max((len(str(x).partition(".")[2]) for x in every), default=0)
    return "/".join("-" if math.isnan(value) else f"{value:.{digits}f}" for value in values)


SAMPLE = 80  # characters of the text that shows the tokens


class Data(ReadingPairs):
    """Options of `data`."""

    name: str | None = argument(None, check=check_no_table, nargs="?", metavar="CORPUS")
    """ptb, wikitext-2, wikitext-103, python-reference, a folder with train.txt, valid.txt and
    test.txt, or a text file."""

    path: str | None = field(None, metavar="FOLDER")
    """Folder with the files of a named corpus."""

    excludes = {"pairs": ["name", "path"]}


def data(options: Data) -> Result:
    """Show a corpus: counts of tokens and words, first words.

    Examples:
        dualnet data book.txt --tokenizer bpe:2000
    """
    from dualnet import corpora
    from dualnet.corpora.corpus import locate

    if options.pairs is not None:
        return _pairs(options.read_pairs())
    if options.name is None:
        raise ArgumentError("CORPUS", "must be given, or --pairs FOLDER. Received: neither.")
    settings = {"path": options.path, "lowercase": options.lowercase, **options.reading()}
    corpus = corpora.load(options.name, **settings)
    tokenizer, lost = corpus.vocabulary, ""
    splits = {split: corpus.split(split) for split in SPLITS}
    # Each document ends in <eos>.
    counts = {split: int(np.sum(ids == tokenizer.eos_id)) for split, ids in splits.items()}
    sizes: dict[str, float] = {}
    result = {
        "name": corpus.name,
        "source": corpus.source,
        "lowercase": corpus.lowercase,
        "tokenizer": corpus.tokenizer,
        "documents": tokenizer.documents,
        "fractions": corpus.fractions,
        "tokens": {split: len(ids) for split, ids in splits.items()},
        "sentences": counts,
        "bytes_per_token": sizes,
        "vocabulary_size": len(tokenizer),
        "vocabulary_sha256": tokenizer.sha256,
        "sha256": corpus.sha256,
    }
    shown = 10  # tokens
    units = f"words {len(tokenizer):>12,} in the vocabulary, including <eos>"
    if tokenizer.kind != "words":
        documents, fractions = tokenizer.documents, options.fractions
        text = locate(options.name, options.path, documents=documents, fractions=fractions)
        sizes |= {split: text.size(split) / len(ids) for split, ids in splits.items()}
        shown, lost = 40, f"; {tokenizer.loses}" if tokenizer.loses else ""
        units = f"units {len(tokenizer):>12,} of {corpus.tokenizer}, including <eos>{lost}"
    ended = "sentences" if tokenizer.documents == "line" else "documents"
    lines = [f"{corpus.name} from {corpus.source}{', lower-cased' if corpus.lowercase else ''}"]
    for split, ids in splits.items():
        size = f"{sizes[split]:>6.2f} bytes per token" if sizes else ""
        lines.append(
            f"{split:6}{len(ids):>12,} tokens {counts[split]:>10,} {ended}{size}   "
            f"{tokenizer.decode(ids[:shown])!r} ..."
        )
    for name in ("fractions", "bytes_per_token"):
        if not result[name]:
            del result[name]
    return Result(result, *lines, units, corpus.note)


def _pairs(corpus: PairCorpus) -> Result:
    """Return the number and the lengths of the pairs of each split, and of those left out."""
    lower = ", lower-cased" * corpus.lowercase
    lines = [f"{corpus.name} from {corpus.folder}, {corpus.source} to {corpus.target}{lower}"]
    length = "{tokens:,} tokens, median {median:g}, longest {longest:,}"
    splits = {}
    for split in SPLITS:
        pairs = corpus.split(split)
        source, target = _lengths(pairs.source_offsets), _lengths(pairs.target_offsets)
        splits[split] = {
            "pairs": len(pairs),
            "empty": pairs.empty,
            "too_long": pairs.too_long,
            "source": source,
            "target": target,
        }
        sides = [f"{corpus.source} {length.format_map(source)}"]
        sides += [f"{corpus.target} {length.format_map(target)}"]
        lines.append(f"{split:6}{len(pairs):>10,} pairs   {'; '.join(sides)}")
    lines.append(
        f"left out of train: {corpus.train.empty:,} pairs with an empty side, "
        f"{corpus.train.too_long:,} of more than {corpus.max_tokens} tokens"
    )
    vocabularies = {
        corpus.source: corpus.source_vocabulary,
        corpus.target: corpus.target_vocabulary,
    }
    shown = {"both sides": corpus.vocabulary} if corpus.joint else vocabularies
    for side, units in shown.items():
        lost = f"; {units.loses}" if units.loses else ""
        lines.append(f"{len(units):,} units of {units.kind} for {side}, including <eos>{lost}")
    names = ["name", "folder", "source", "target", "lowercase", "tokenizer", "joint", "max_tokens"]
    result = {name: getattr(corpus, name) for name in [*names, "sha256"]}
    sizes = {
        side: {"size": len(units), "sha256": units.sha256} for side, units in vocabularies.items()
    }
    return Result({**result, "splits": splits, "units": sizes}, *lines)


def _lengths(offsets: np.ndarray) -> dict[str, float]:
    """Return the tokens of one side of pairs: all, and those of the median and longest text."""
    lengths = np.diff(offsets)
    return {
        "tokens": int(lengths.sum()),
        "median": float(np.median(lengths)),
        "longest": int(lengths.max()),
    }


# --- tokenisers


class TrainTokenizer(Options, Dividing):
    """Options of `tokenizer train`."""

    name: str = argument(check=check_no_table, metavar="CORPUS")
    """ptb, wikitext-2, wikitext-103, python-reference, a folder with train.txt, valid.txt and
    test.txt, or a text file."""

    kind: str = "bpe"
    """bpe (of bytes: no text is unknown), unigram, word-piece or characters."""

    size: int | None = None
    """Number of tokens; not for characters."""

    output: str = field(metavar="FILE")
    """New file to write, ending in .json."""

    special: list[str] = field([], metavar="STRING")
    """Strings that are one token each wherever they occur, e.g. '<unk>'."""

    lowercase: bool = False
    """Convert all text to lower case first."""


class ShowTokenizer(Options):
    """Options of `tokenizer show`."""

    tokenizer: str = argument(metavar="TOKENIZER")
    """RUN folder of a trained model, or the name of one that is shipped, or a tokenizer.json, or a
    .model of SentencePiece."""

    texts: list[str] = field([], flags=["--text"], action="append", metavar="TEXT")
    """Text to encode; repeatable."""


def train_tokenizer(options: TrainTokenizer) -> Result:
    """Learn the tokens of a tokeniser from the train split.

    Examples:
        dualnet tokenizer train book.txt --size 2000 --output tokenizer.json
    """
    from dualnet import text
    from dualnet.corpora.corpus import locate
    from dualnet.text.plain_text import END

    path = Path(options.output)
    if path.suffix.lower() != ".json" or path.exists():
        received = f"Received: {str(path)!r}{', which exists' * path.exists()}."
        raise ArgumentError("--output", f"must be a new file ending in .json. {received}")
    check_output_file("output", path)
    source = locate(options.name, lowercase=options.lowercase, fractions=options.fractions)
    settings = options.given(["size", "special", "lowercase"])
    tokenizer = text.train_tokenizer(source.read("train"), options.kind, **settings)
    tokenizer.save(path)
    first = next(filter(str.strip, next(source.read("train")).split(END)), "")[:SAMPLE]
    units = [unit["unit"] for unit in _tokens(tokenizer, first)]
    fewer = f"Fewer than {options.size or 0:,}, since train has no more."
    return Result(
        {"path": path, **_described(tokenizer), "example": {"text": first, "units": units}},
        f"{_sentence(tokenizer)}, learnt from train of {source.name}: {path}",
        fewer * (len(tokenizer) < (options.size or 0)),
        " ".join(f"'{_shown(unit)}'" for unit in units),
    )


def show_tokenizer(options: ShowTokenizer) -> Result:
    """Show a tokeniser, and the tokens of texts.

    Examples:
        dualnet tokenizer show runs/dual --text "Hello there."
    """
    from dualnet.text import load_tokenizer
    from dualnet.text.loading import tokenizer_suffix

    path = Path(options.tokenizer)
    if tokenizer_suffix(path) or (path.is_file() and path.suffix != ".keras"):
        tokenizer = load_tokenizer(path)
    else:
        run = Run.open_folder(path)
        run.check_sums()
        tokenizer = run.vocabulary
    texts = []
    tables = []
    for text in options.texts:
        tokens = _tokens(tokenizer, text)
        texts.append({"text": text, "tokens": tokens})
        rows = [[*list(token.values())[:3], f"'{_shown(token['unit'])}'"] for token in tokens]
        tables.append(Table(["id", "start", "end", "unit"], rows))
    return Result({**_described(tokenizer), "texts": texts}, _sentence(tokenizer), *tables)


def _described(tokenizer: Tokenizer) -> dict[str, object]:
    names = ("kind", "documents", "lowercase", "loses", "sha256")
    return {"size": len(tokenizer), **{name: getattr(tokenizer, name) for name in names}}


def _sentence(tokenizer: Tokenizer) -> str:
    loses = f" ({tokenizer.loses})" if tokenizer.loses else ""
    return f"{len(tokenizer):,} units of {tokenizer.kind}{loses}"


def _shown(unit: str) -> str:
    return unit if unit.isprintable() else repr(unit)[1:-1]


def _tokens(tokenizer: Tokenizer, text: str) -> list[dict[str, Any]]:
    """Return id, first and last character, and spelling of each token of `text`."""
    ids, offsets = tokenizer.encode_with_offsets(text)
    return [
        {"id": i, "start": start, "end": end, "unit": tokenizer.words[i]}
        for i, (start, end) in zip(ids.tolist(), offsets.tolist())
    ]
