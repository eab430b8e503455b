"""A RUN folder: the files that it holds, and their checksums."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

from dualnet._files import read_json, sha256_of, write_whole, written_beside
from dualnet.cards import Card
from dualnet.corpora import Corpus, PairCorpus
from dualnet.runs import shipped
from dualnet.text import Tokenizer
from dualnet.text.loading import TOKENIZER_FILES

CARD = "card.toml"
WEIGHTS = "model.weights.h5"  # of the best epoch
PLAIN_WEIGHTS = "plain.weights.h5"  # with two-tailed averages: the best without averaging
RESULTS = "results.json"
SUMS = "sums.json"
SOURCE = "source-"  # begins the name of the file of a tokeniser that only the source has
VOCABULARIES = (*TOKENIZER_FILES, *(SOURCE + name for name in TOKENIZER_FILES))
SUMMED = (CARD, *VOCABULARIES, WEIGHTS, RESULTS)
# All that a run leaves if stopped before its first checkpoint.
EARLY_FILES = (CARD, *VOCABULARIES, SUMS, shipped.LICENCES)
# What the table `corpus` of a card holds.
TRAINED_ON = {"name": str, "source": str, "lowercase": bool, "sha256": str}
READ_AS: dict[str, Any] = {  # with what stands for a key that is not in the table
    "tokenizer": "words",
    "documents": "line",
    **dict.fromkeys(("fractions", "vocabulary_size", "min_count")),
}
LEARNT = {"tokenizer", "vocabulary_size", "min_count"}  # of these: what a tokeniser settles


# --- the card


CARD_KEYS = ("name", "builder", "paper", "note", "seed", "weights")  # before the tables


def card_table(card: Card) -> dict[str, Any]:
    """Return the TOML table of a RUN's card."""
    from dualnet.builders.parts import modules_of  # here, so that opening a RUN needs no Keras

    table = {key: getattr(card, key) for key in CARD_KEYS}
    table |= {"corpus": card.trained_on, "config": card.config, "recipe": card.recipe}
    table["parts"] = modules_of(card.config)
    dropped = [key for key in ("note", "weights", "parts") if not table[key]]
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
        table = {key: getattr(corpus, key) for key in ("name", "lowercase", "sha256", "tokenizer")}
        of_pairs = ("source", "target", "max_tokens", "files")
        pairs = {key: getattr(corpus, key) for key in of_pairs}
        return {**table, "source": corpus.folder, "pairs": pairs}
    table = {key: getattr(corpus, key) for key in TRAINED_ON}
    read_as = {key: getattr(corpus, key) for key in READ_AS if key != "documents"}
    read_as |= {
        "documents": corpus.vocabulary.documents,
        "fractions": corpus.fractions and list(corpus.fractions),
    }
    return table | {key: value for key, value in read_as.items() if value != READ_AS[key]}


def vocabularies_of(owner: Any) -> dict[str, Tokenizer]:
    """Return the tokenisers of a corpus or a model, by the names of their files."""
    source = getattr(owner, "source_vocabulary", None)
    by_prefix = {SOURCE: None if source == owner.vocabulary else source, "": owner.vocabulary}
    return {prefix + t.file_name: t for prefix, t in by_prefix.items() if t is not None}


def write_vocabularies(folder: Path, owner: Any) -> None:
    """Write the tokenisers of a RUN folder, those of its corpus or model."""
    for name, tokenizer in vocabularies_of(owner).items():
        with checksummed(folder, name) as temporary:
            tokenizer.save(temporary)


def tokenizer_file(folder: Path, prefix: str = "") -> Path | None:
    """Return the file of a tokeniser whose name has this `prefix`, None if there is none."""
    paths = (folder / (prefix + name) for name in TOKENIZER_FILES)
    return next(filter(Path.is_file, paths), None)


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
        sums = read_json(folder / SUMS)
        return {name: [*map(str, sums[name])] for name in SUMMED if name in sums}
    except (ValueError, TypeError) as error:
        message = f"{SUMS} of a RUN folder must be unchanged. Received: {str(folder / SUMS)!r}, "
        way_out = "damaged or edited. Delete it to accept the other files."
        raise ValueError(message + way_out) from error
