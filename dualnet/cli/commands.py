"""The commands that have no module of their own: call the library and print the result."""

import contextlib
import itertools
import os
import secrets
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dualnet._checks import ArgumentError
from dualnet._fields import count, field
from dualnet._files import check_output_file
from dualnet.cli.command import Options, argument
from dualnet.cli.console import Table, printable, quietly, report, texts_of
from dualnet.cli.options import Fractions, OfRun, OfTexts, ReadingPairs, open_language_model
from dualnet.cli.translating import show_pairs
from dualnet.requests import Beaming, Drawing, Exporting
from dualnet.runs import Run


class Data(ReadingPairs):
    """Options of `data`."""

    name: str | None = argument(None, nargs="?", metavar="CORPUS")
    """ptb, wikitext-2, wikitext-103, python-reference, a folder with train.txt, valid.txt and
    test.txt, or a text file."""

    path: str | None = field(None, metavar="FOLDER")
    """Folder with the files of a named corpus."""

    lowercase: bool = False
    """Convert the text to lower case."""

    excludes = {"pairs": ["name", "path"]}

    def check(self) -> None:
        super().check()
        if self.name is None and self.pairs is None:
            raise ArgumentError("CORPUS", "must be given, or --pairs FOLDER. Received: neither.")


def data(options: Data) -> None:
    """Show a corpus: counts of tokens and words, first words.

    Examples:
        dualnet data book.txt --tokenizer bpe:2000
    """
    from dualnet import corpora

    if options.pairs is not None:
        show_pairs(options)
        return
    assert options.name is not None
    settings = {"path": options.path, "lowercase": options.lowercase, **options.reading()}
    corpus = corpora.load(options.name, **settings)
    tokenizer = corpus.vocabulary
    reads_words = tokenizer.kind == "words"
    sizes = {} if reads_words else _bytes_per_token(corpus, options)
    splits = {split: corpus.split(split) for split in corpora.SPLITS}
    # Each document ends in <eos>.
    counts = {split: int(np.sum(ids == tokenizer.eos_id)) for split, ids in splits.items()}
    result = {name: getattr(corpus, name) for name in ("name", "source", "lowercase")}
    result |= {"tokenizer": corpus.tokenizer, "documents": tokenizer.documents}
    result |= {"fractions": corpus.fractions} if corpus.fractions else {}
    result |= {"tokens": {split: len(ids) for split, ids in splits.items()}, "sentences": counts}
    result |= {"bytes_per_token": sizes} if sizes else {}
    result |= {"vocabulary_size": len(tokenizer), "vocabulary_sha256": tokenizer.sha256}
    lines = [f"{corpus.name} from {corpus.source}{', lower-cased' if corpus.lowercase else ''}"]
    ended = "sentences" if tokenizer.documents == "line" else "documents"
    for split, ids in splits.items():
        size = f"{sizes[split]:>6.2f} bytes per token" if sizes else ""
        lines.append(f"{split:6}{len(ids):>12,} tokens {counts[split]:>10,} {ended}{size}   "
                     f"{tokenizer.decode(ids[: 10 if reads_words else 40])!r} ...")  # fmt: skip
    units = f"{len(tokenizer):>12,} of {corpus.tokenizer}, including <eos>"
    loses = f"; {tokenizer.loses}" * bool(tokenizer.loses)
    words = f"words {len(tokenizer):>12,} in the vocabulary, including <eos>"
    lines.append(words if reads_words else f"units {units}{loses}")
    report(options, {**result, "sha256": corpus.sha256}, *lines, corpus.note)


def _bytes_per_token(corpus: Any, options: Data) -> dict[str, float]:
    """Return the bytes of the text of each split, in UTF-8, over the number of its tokens."""
    from dualnet.corpora.corpus import SPLITS, locate
    from dualnet.text.plain_text import END, ENDS

    name, documents = options.name or "", corpus.vocabulary.documents
    text = locate(name, options.path, options.lowercase, True, documents, options.fractions)
    end = ENDS[documents]
    return {
        split: sum(len(block.replace(END, end).encode()) for block in text.read(split))
        / len(corpus.split(split))
        for split in SPLITS
    }


class Generate(OfTexts, Drawing):
    """Options of `generate`."""

    texts: list[str] | None = field(None, flags=["--prompt"], action="append", metavar="TEXT")
    """Prompt to continue; repeatable."""

    temperature: float | None = field(None, metavar="T")  # type: ignore[assignment]
    """Divide the logits by it: low values give likelier text (default: 1)."""

    greedy: bool = False
    """Always take the likeliest token."""

    stream: bool = False
    """Show the text of one prompt as it is drawn, as is done on a terminal."""

    excludes = {"greedy": ["temperature", "beam"], "stream": ["beam", "json"]}


# What the JSON of `generate` holds of its settings.
DRAWN = [name for name in Drawing.names() if name not in Beaming.names()]
SEARCHED = ("max_tokens", "allow_unknown", *Beaming.names())


def generate(options: Generate) -> None:
    """Continue prompts with generated text.

    Examples:
        dualnet generate runs/dual --prompt "The cat" --temperature 0.8 --seed 1
    """
    settings = Drawing.fields_of(options.arguments())
    if options.temperature is None:
        settings["temperature"] = 0.0 if options.greedy else 1.0
    if options.seed is None and options.beam is None:
        settings["seed"] = secrets.randbits(32)
    prompts = texts_of(options)
    if options.texts is None:
        prompts = [line.removesuffix("\n") for line in prompts]
    if options.stream and len(prompts) > 1:
        raise ArgumentError("--stream", f"takes one prompt. Received: {len(prompts)} of them.")
    run = open_language_model(options.run_folder)
    generation, model = quietly("dualnet.generation"), run.model()
    if options.stream or (sys.stdout.isatty() and len(prompts) == 1 and not options.json
                          and options.beam is None):  # fmt: skip
        generation.generate(model, prompts[0], on_text=_show, **settings)
        print()
        return
    from rich.console import Console

    with Console(stderr=True).status(f"up to {options.max_tokens:,} tokens"):  # on a terminal
        texts = generation.generate(model, prompts, **settings)
    used = DRAWN if options.beam is None else SEARCHED
    result = {"texts": texts, "prompts": prompts, **{name: settings[name] for name in used}}
    several = texts if options.n_best is None else itertools.chain(*texts)
    report(options, result, "\n\n".join(several))


def _show(piece: str) -> None:
    print(printable(piece), end="", flush=True)


class Export(OfRun, Exporting):
    """Options of `export`."""

    path: str = argument(metavar="PATH")
    """Folder to write, new or empty, or file ending in .onnx or .tflite."""


def export(options: Export) -> None:
    """Export the model of a RUN for use without dualnet.

    Examples:
        dualnet export runs/dual models/dual/1
        dualnet export runs/dual dual.onnx
        dualnet export runs/dual models/dual/2 --learn connection
        dualnet export runs/dual models/dual-hf --format transformers
    """
    settings = Exporting.fields_of(options.arguments())
    run = Run.open(options.run_folder)
    if os.path.isdir(options.path) and os.listdir(options.path):  # before the model is loaded
        received = f"Received: {options.path!r}, which holds files. Choose another."
        raise ArgumentError("path", f"must be new or empty. {received}")
    serving = quietly("dualnet.serving")
    model = run.model()
    format = options.format or serving.format_of(options.path)
    path = serving.export(model, options.path, **settings)
    endpoints = serving.endpoints(model, format=format, learn=options.learn)
    result = {"path": str(path), "format": format, "endpoints": endpoints}
    lines = [f"A single step of the model in {path}"]
    if format == "transformers":
        lines = [f"A model for Hugging Face transformers in {path}"]
    if format == "saved_model":
        lines = [f"SavedModel with the endpoints {', '.join(endpoints)} in {path}"]
        if reason := serving.why_no_text(model):
            lines.append(f"No text endpoints: {reason}")
    if options.tokens:
        shared = serving.token_map(options.tokens, model.vocabulary)
        result |= {"unknown_tokens": shared.unknown, "unused_units": shared.unused}
        lines.append(shared.summary())
    report(options, result, *lines)


class Demo(Options):
    """Options of `demo`."""

    output: str = field("demo", metavar="FOLDER")
    """Folder to write."""


def demo(options: Demo) -> None:
    """Train, adapt, compare and serve two small models.

    Examples:
        dualnet demo --output demo
    """
    demo = quietly("dualnet.demo", seeds=True)
    with contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout):
        results = demo.run(options.output)
    report(options, results)


# --- tokenisers

SAMPLE = 80  # characters of the text that shows the units


class TrainTokenizer(Fractions):
    """Options of `tokenizer train`."""

    name: str = argument(metavar="CORPUS")
    """ptb, wikitext-2, wikitext-103, python-reference, a folder with train.txt, valid.txt and
    test.txt, or a text file."""

    kind: str = "bpe"
    """bpe (of bytes: no text is unknown), unigram, word-piece or characters."""

    size: int | None = count(None)
    """Number of units; not for characters."""

    output: str = field(metavar="FILE")
    """New file to write, ending in .json."""

    special: list[str] = field([], metavar="STRING")
    """Strings that are one unit each wherever they occur, e.g. '<unk>'."""

    lowercase: bool = False
    """Convert all text to lower case first."""


class ShowTokenizer(Options):
    """Options of `tokenizer show`."""

    tokenizer: str = argument(metavar="TOKENIZER")
    """RUN folder of a trained model, or the name of one that is shipped, or a tokenizer.json, or a
    .model of SentencePiece."""

    texts: list[str] = field([], flags=["--text"], action="append", metavar="TEXT")
    """Text to encode; repeatable."""


def learn_units(options: TrainTokenizer) -> None:
    """Learn the units of a tokeniser from the train split.

    Examples:
        dualnet tokenizer train book.txt --size 2000 --output tokenizer.json
    """
    from dualnet.corpora.corpus import locate
    from dualnet.text import train_tokenizer
    from dualnet.text.plain_text import END

    path = Path(options.output)
    if path.suffix.lower() != ".json":
        raise ArgumentError("--output", f"must be a file ending in .json. Received: {str(path)!r}.")
    if path.exists():
        received = f"Received: {str(path)!r}, which exists. Choose another."
        raise FileExistsError(f"`--output` must be a new file. {received}")
    check_output_file("--output", path)
    text = locate(options.name, lowercase=options.lowercase, fractions=options.fractions)
    settings = options.given(["size", "special", "lowercase"])
    tokenizer = train_tokenizer(text.read("train"), options.kind, **settings)
    tokenizer.save(path)
    first = next(filter(str.strip, next(text.read("train")).split(END)), "")[:SAMPLE]
    units = [unit["unit"] for unit in _units(tokenizer, first)]
    report(
        options,
        {"path": path, **_about(tokenizer), "example": {"text": first, "units": units}},
        f"{_sentence(tokenizer)}, learnt from train of {text.name}: {path}",
        f"Fewer than {options.size or 0:,}, since train has no more."
        * (len(tokenizer) < (options.size or 0)),
        " ".join(f"'{_shown(unit)}'" for unit in units),
    )


def show_units(options: ShowTokenizer) -> None:
    """Show a tokeniser, and the units of texts.

    Examples:
        dualnet tokenizer show runs/dual --text "Hello there."
    """
    from dualnet.text import load_tokenizer
    from dualnet.text.loading import tokenizer_suffix

    path = Path(options.tokenizer)
    if tokenizer_suffix(path) or (path.is_file() and path.suffix != ".keras"):
        tokenizer = load_tokenizer(path)
    else:
        run = Run.open(path)
        if not run.is_folder:
            message = "must be a RUN folder or a file of a tokeniser. Received: a .keras file."
            raise ArgumentError("TOKENIZER", message)
        run.check_sums()
        tokenizer = run.vocabulary
    texts: list[dict[str, Any]] = [
        {"text": text, "tokens": _units(tokenizer, text)} for text in options.texts
    ]
    parts: list[str | Table] = [_sentence(tokenizer)]
    for text in texts:
        rows = [
            [str(row["id"]), str(row["start"]), str(row["end"]), f"'{_shown(row['unit'])}'"]
            for row in text["tokens"]
        ]
        parts.append(Table(["id", "start", "end", "unit"], rows))
    report(options, {**_about(tokenizer), "texts": texts}, *parts)


def _about(tokenizer: Any) -> dict[str, Any]:
    names = ("kind", "documents", "lowercase", "loses", "sha256")
    return {"size": len(tokenizer), **{name: getattr(tokenizer, name) for name in names}}


def _sentence(tokenizer: Any) -> str:
    what = f"{len(tokenizer):,} units of {tokenizer.kind}"
    return what + f" ({tokenizer.loses})" * bool(tokenizer.loses)


def _shown(unit: str) -> str:
    return unit if unit.isprintable() else repr(unit)[1:-1]


def _units(tokenizer: Any, text: str) -> list[dict[str, Any]]:
    """Return id, first and last character, and unit of each token of `text`."""
    ids, offsets = tokenizer.encode_with_offsets(text)
    return [
        {"id": i, "start": start, "end": end, "unit": tokenizer.words[i]}
        for i, (start, end) in zip(ids.tolist(), offsets.tolist())
    ]
