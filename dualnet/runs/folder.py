"""The files of a RUN folder: its card, its vocabulary, and the checksums that reveal damage."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

from dualnet._files import sha256_of, write_whole, written_beside
from dualnet.cards import Card
from dualnet.corpora import Corpus, PairCorpus
from dualnet.runs.shipped import LICENCES
from dualnet.text import Tokenizer

CARD = "card.toml"
WORDS = "vocabulary.txt"  # of a model of words
TOKENIZER = "tokenizer.json"  # of any other
WEIGHTS = "model.weights.h5"  # of the best epoch
PLAIN_WEIGHTS = "plain.weights.h5"  # with two-tailed averages: the best without averaging
RESULTS = "results.json"
SUMS = "sums.json"
SOURCE = "source-"  # begins the name of the file of a tokeniser that only the source has
VOCABULARIES = (WORDS, TOKENIZER, SOURCE + WORDS, SOURCE + TOKENIZER)
SUMMED = (CARD, *VOCABULARIES, WEIGHTS)  # what the model needs; `RESULTS` have a checksum, too
# All that a run leaves if stopped before its first checkpoint.
EARLY_FILES = (CARD, *VOCABULARIES, SUMS, LICENCES)
# What the table `corpus` of a card holds; and what a RUN needs of its card.
TRAINED_ON = {"name": str, "source": str, "lowercase": bool, "sha256": str}
REQUIRED = ("name", "builder", "seed", "corpus", "config", "recipe")
READ_AS: dict[str, Any] = {"tokenizer": "words", "documents": "line", "fractions": None}  # defaults


# --- the card


CARD_KEYS = ("name", "builder", "paper", "note", "seed", "weights")  # before the tables


def card_table(card: Card) -> dict[str, Any]:
    """Return the TOML table of a RUN's card."""
    table = {key: getattr(card, key) for key in CARD_KEYS}
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
        sums = read_sums(folder)
        sums[name] = [sha256_of(temporary)]
        if (folder / name).is_file():  # remains if the process is killed before the move
            sums[name].append(sha256_of(folder / name))
        write_whole(folder / SUMS, json.dumps(sums, indent=2) + "\n")


def read_sums(folder: Path) -> dict[str, list[str]]:
    """Return the checksums of each file of a RUN folder."""
    if not (folder / SUMS).is_file():
        return {}
    try:
        sums = json.loads((folder / SUMS).read_text("utf-8"))
        return {name: [*map(str, sums[name])] for name in (*SUMMED, RESULTS) if name in sums}
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{SUMS} of a RUN folder must be unchanged. Received: {str(folder / SUMS)!r}, damaged "
            "or edited. Delete it to accept the other files."
        ) from error
