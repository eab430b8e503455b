"""The files of a RUN folder: its card, its vocabulary, and the checksums that reveal damage."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tomli_w

from dualnet._checks import ArgumentError, did_you_mean
from dualnet._files import sha256_of, write_whole, written_beside
from dualnet._toml import OTHERS, check_keys, read_toml
from dualnet.cards import CARD_SCHEMA, Card, card_names
from dualnet.corpora import Corpus, PairCorpus
from dualnet.runs.shipped import LICENCES, find_run, list_shipped, names_of_shipped
from dualnet.text import Tokenizer, load_tokenizer

CARD = "card.toml"
WORDS = "vocabulary.txt"  # of a model of words
TOKENIZER = "tokenizer.json"  # of any other
WEIGHTS = "model.weights.h5"  # of the best epoch
PLAIN_WEIGHTS = "plain.weights.h5"  # with two-tailed averages: the best without averaging
RESULTS = "results.json"
SUMS = "sums.json"
SOURCE = "source-"  # begins the name of the file of a tokeniser that only the source has
VOCABULARIES = (WORDS, TOKENIZER, SOURCE + WORDS, SOURCE + TOKENIZER)
SUMMED = (CARD, *VOCABULARIES, WEIGHTS)
# All that a run leaves if stopped before its first checkpoint.
EARLY_FILES = (CARD, *VOCABULARIES, SUMS, LICENCES)
# What the table `corpus` of a card holds; and what a RUN needs of its card.
TRAINED_ON = {"name": str, "source": str, "lowercase": bool, "sha256": str}
REQUIRED = ("name", "builder", "seed", "corpus", "config", "recipe")
READ_AS: dict[str, Any] = {"tokenizer": "words", "documents": "line", "fractions": None}  # defaults


# --- the card


def read_card(folder: str | os.PathLike[str]) -> Card:
    """Return the card of a RUN folder: the model, its settings, and what it was trained on.

    `folder` may also be the name of a shipped model.

    `config` and `recipe` hold every setting of the run, overrides included. `seed`, `weights`
    and `trained_on` are set, and `corpus` is the name of the corpus.

    Raises:
        FileNotFoundError: if `folder` holds no card.
        ValueError: if the card lacks a key or has a value of the wrong type.

    Example:

    >>> import pathlib, tempfile
    >>> from dualnet import runs
    >>> text = '''
    ... name = "lstm"
    ... builder = "language_model"
    ... seed = 3
    ... corpus = {name = "ptb", source = "/data/ptb", lowercase = false, sha256 = "5e1f"}
    ... config = {vocabulary_size = 10000, units = 200}
    ... recipe = {optimizer = "nadam", epochs = 40}
    ... '''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "card.toml").write_text(text)
    ...     card = runs.read_card(folder)
    >>> card.name, card.corpus, card.seed, card.recipe["epochs"]
    ('lstm', 'ptb', 3, 40)
    """
    folder = find_run(folder)
    table = _read_card_table(folder)
    file = folder / CARD
    trained_on = table["corpus"]
    from dualnet.builders import BUILDERS  # here: a folder that is no RUN is refused without Keras

    if table["builder"] not in BUILDERS:
        raise ValueError(
            f"{file}: `builder` must be one of {sorted(BUILDERS)}. Restore the card, or train "
            "again."
        )
    return Card(
        **{key: table[key] for key in _CARD_KEYS if key in table},
        config=table["config"],
        recipe=table["recipe"],
        corpus=trained_on["name"],
        lowercase=trained_on["lowercase"],
        trained_on=trained_on,
        file=str(file),
    )


def builder_of(folder: str | os.PathLike[str]) -> str:
    """Return the name of the builder on the card of a RUN folder. Needs no Keras."""
    return str(_read_card_table(find_run(folder))["builder"])


def check_run(path: str | os.PathLike[str], *, name: str = "path") -> None:
    """Check that `path` is a RUN folder with a card, a shipped model, or a `.keras` file.

    Needs no Keras. Errors call the argument `name`.

    Raises:
        FileNotFoundError: if `path` does not exist or is a folder without a card.
        ValueError: if it is another kind of file, or the card is not one of a RUN.
    """
    path = find_run(path)
    if path.is_dir():
        _read_card_table(path)
    elif not path.is_file():
        raise FileNotFoundError(
            f"`{name}` must be a RUN folder or a .keras file. Received: {str(path)!r}, which does "
            f"not exist.{_meant(str(path))} {names_of_shipped()}"
        )
    elif path.suffix != ".keras":
        raise ArgumentError(
            name,
            f"must be a RUN folder or a .keras file. Received: {str(path)!r}. To load weights "
            "alone, build the model and call model.load_weights.",
        )


def _meant(name: str) -> str:
    """Return what to say of a `name` at which there is nothing: what it may have meant, or ""."""
    if name in card_names():
        return f" {name!r} is a model of the zoo: build it with zoo.build, or train it."
    return did_you_mean(name.strip(), list_shipped())


def _read_card_table(folder: Path) -> dict[str, Any]:
    """Return the TOML table of a RUN's card, with its keys and their kinds checked."""
    file = folder / CARD
    if not file.is_file():
        raise FileNotFoundError(
            f"A RUN folder must hold {CARD}. Received: {str(folder)!r}, without it. Create a RUN "
            "folder with `dualnet train NAME --corpus CORPUS --output RUN`."
        )
    table = read_toml(file)
    try:
        check_keys(table, {OTHERS: object, **CARD_SCHEMA}, required=REQUIRED)
        check_keys(table["corpus"], {OTHERS: object, **TRAINED_ON}, required=TRAINED_ON)
    except ArgumentError as error:
        raise ValueError(f"{file}: {error} Restore the card, or train again.") from None
    return table


_CARD_KEYS = ("name", "builder", "paper", "note", "seed", "weights")  # before the tables


def card_table(card: Card) -> dict[str, Any]:
    """Return the TOML table of a RUN's card."""
    table = {key: getattr(card, key) for key in _CARD_KEYS}
    table |= {"corpus": card.trained_on, "config": card.config, "recipe": card.recipe}
    dropped = [key for key in ("note", "weights") if not table[key]]
    return _without_none({key: table[key] for key in table if key not in dropped})


def write_card(folder: Path, card: Card) -> None:
    """Write the card of a RUN folder."""
    write_file(folder, CARD, tomli_w.dumps(card_table(card)))


def _without_none(value: Any) -> Any:  # TOML has no None
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_none(item) for item in value]
    return value


# --- the corpus and its tokeniser


def corpus_table(corpus: Corpus | PairCorpus) -> dict[str, Any]:
    """Return the table `corpus` of a RUN's card, without what `corpora.load` does by default."""
    if isinstance(corpus, PairCorpus):
        return {
            "name": corpus.name,
            "source": corpus.folder,
            "lowercase": corpus.lowercase,
            "sha256": corpus.sha256,
            "tokenizer": corpus.tokenizer,
            "pairs": {
                "source": corpus.source,
                "target": corpus.target,
                "max_tokens": corpus.max_tokens,
                "files": corpus.files,
            },
        }
    table = {key: getattr(corpus, key) for key in TRAINED_ON}
    read_as = {
        "tokenizer": corpus.tokenizer,
        "documents": corpus.vocabulary.documents,
        "fractions": corpus.fractions and list(corpus.fractions),
    }
    return table | {key: value for key, value in read_as.items() if value != READ_AS[key]}


def has_vocabulary(folder: Path) -> bool:
    """Return whether a RUN folder holds its tokeniser."""
    return any((folder / name).is_file() for name in (WORDS, TOKENIZER))


def read_vocabulary(folder: Path, card: Card) -> Tokenizer:
    """Return the tokeniser of a RUN folder, that of the target in a translator's."""
    if not has_vocabulary(folder):
        name = TOKENIZER if card.trained_on.get("tokenizer", "words") != "words" else WORDS
        raise FileNotFoundError(
            f"A RUN folder must hold {name}. Received: {str(folder)!r}, without it. Restore it, "
            "or train again."
        )
    return _read_tokenizer(folder, card, "")


def read_source_vocabulary(folder: Path, card: Card) -> Tokenizer | None:
    """Return the tokeniser of the source alone of a translator's RUN folder, None without one."""
    if not any((folder / (SOURCE + name)).is_file() for name in (WORDS, TOKENIZER)):
        return None
    return _read_tokenizer(folder, card, SOURCE)


def _read_tokenizer(folder: Path, card: Card, prefix: str) -> Tokenizer:
    words = folder / (prefix + WORDS)
    file = words if words.is_file() else folder / (prefix + TOKENIZER)
    documents = card.trained_on.get("documents", "line")
    return load_tokenizer(file, documents=documents, lowercase=card.lowercase)


def write_vocabularies(folder: Path, corpus: Corpus | PairCorpus) -> None:
    """Write the tokenisers of a RUN folder: that of `corpus`, or those of source and target."""
    if isinstance(corpus, PairCorpus) and not corpus.joint:
        write_vocabulary(folder, corpus.source_vocabulary, prefix=SOURCE)
    write_vocabulary(folder, corpus.vocabulary)


def write_vocabulary(folder: Path, vocabulary: Tokenizer, *, prefix: str = "") -> None:
    """Write a tokeniser of a RUN folder."""
    with checksummed(folder, prefix + vocabulary.file_name) as temporary:
        vocabulary.save(temporary)


# --- checksums


def write_file(folder: Path, name: str, data: str | bytes) -> None:
    """Write file `name` of a RUN folder and record its checksum."""
    with checksummed(folder, name) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def checksummed(folder: Path, name: str) -> Iterator[Path]:
    """Yield a path to write to; then record the checksum and move the file to `folder / name`."""
    with written_beside(folder / name) as temporary:
        yield temporary
        sums = _read_sums(folder)
        sums[name] = [sha256_of(temporary)]
        if (folder / name).is_file():  # remains if the process is killed before the move
            sums[name].append(sha256_of(folder / name))
        write_whole(folder / SUMS, json.dumps(sums, indent=2) + "\n")


def check_sums(folder: Path, names: Iterable[str] = SUMMED) -> None:
    """Raise `ValueError` if a file does not match its checksum; files without one pass."""
    sums = _read_sums(folder)
    for name in names:
        known = sums.get(name)
        if known and (folder / name).is_file() and sha256_of(folder / name) not in known:
            raise ValueError(
                f"{name} of a RUN folder must be unchanged. Received: {str(folder / name)!r}, "
                f"damaged or edited: its SHA-256 is not in {SUMS}. Restore it, or delete {SUMS} "
                "to accept the file."
            )


def _read_sums(folder: Path) -> dict[str, list[str]]:
    if not (folder / SUMS).is_file():
        return {}
    try:
        sums = json.loads((folder / SUMS).read_text("utf-8"))
        return {name: [*map(str, sums[name])] for name in SUMMED if name in sums}
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{SUMS} of a RUN folder must be unchanged. Received: {str(folder / SUMS)!r}, damaged "
            "or edited. Delete it to accept the other files."
        ) from error
