"""The command `tokenizer`: train a tokeniser, and show how one reads a text."""

from pathlib import Path
from typing import Any

from dualnet._checks import ArgumentError
from dualnet._fields import count, field
from dualnet._files import check_output_file
from dualnet.cli.command import Options, argument
from dualnet.cli.console import Table, report
from dualnet.cli.options import Fractions
from dualnet.runs import Run

SAMPLE = 80  # characters of the text that shows the units


class TrainTokenizer(Fractions):
    """Options of `tokenizer train`.

    Args:
        name: ptb, wikitext-2, wikitext-103, python-reference, a folder with train.txt, valid.txt
            and test.txt, or a text file.
        kind: bpe (of bytes: no text is unknown), unigram, word-piece or characters.
        size: Number of units; not for characters.
        output: New file to write, ending in .json.
        special: Strings that are one unit each wherever they occur, e.g. '<unk>'.
        lowercase: Convert all text to lower case first.
    """

    name: str = argument(metavar="CORPUS")
    kind: str = "bpe"
    size: int | None = count(None)
    output: str = field(metavar="FILE")
    special: list[str] = field([], metavar="STRING")
    lowercase: bool = False


class ShowTokenizer(Options):
    """Options of `tokenizer show`.

    Args:
        tokenizer: RUN folder of a trained model, or the name of one that is shipped, or a
            tokenizer.json, or a .model of SentencePiece.
        texts: Text to encode; repeatable.
    """

    tokenizer: str = argument(metavar="TOKENIZER")
    texts: list[str] = field([], flags=["--text"], action="append", metavar="TEXT")


def train(options: TrainTokenizer) -> None:
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
    tokenizer = train_tokenizer(text.read("train", True), options.kind, **settings)
    tokenizer.save(path)
    first = next(filter(str.strip, next(text.read("train", True)).split(END)), "")[:SAMPLE]
    units = [unit["unit"] for unit in _units(tokenizer, first)]
    report(
        options,
        {"path": path, **_about(tokenizer), "example": {"text": first, "units": units}},
        f"{_sentence(tokenizer)}, learnt from train of {text.name}: {path}",
        f"Fewer than {options.size or 0:,}, since train has no more."
        * (len(tokenizer) < (options.size or 0)),
        " ".join(f"'{_shown(unit)}'" for unit in units),
    )


def show(options: ShowTokenizer) -> None:
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
