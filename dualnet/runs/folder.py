"""A RUN folder: the files that it holds, and their checksums."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from dualnet._checks import StrPath
from dualnet._files import read_json, sha256_of, write_json, written_beside
from dualnet.cards import Card
from dualnet.corpora import Corpus, PairCorpus
from dualnet.runs import shipped
from dualnet.text import Tokenizer
from dualnet.text.loading import TOKENIZER_FILES
from dualnet.text.pieces import common_words, words_in

if TYPE_CHECKING:
    from dualnet.builders import LanguageModel

CARD = "card.toml"
WEIGHTS = "model.weights.h5"  # of the best epoch
PLAIN_WEIGHTS = "plain.weights.h5"  # with two-tailed averages: the best without averaging
RESULTS = "results.json"
SUMS = "sums.json"
SOURCE = "source-"  # begins the name of the file of a tokeniser that only the source has
VOCABULARIES = (*TOKENIZER_FILES, *(SOURCE + name for name in TOKENIZER_FILES))
WORDS = "words.txt"  # of several tokens, one a line: which of them `complete` may put together
MOST_TOKENS, CHUNK = 10_000_000, 1 << 16  # that are read for them, and decoded at once
SUMMED = (CARD, *VOCABULARIES, WORDS, WEIGHTS, RESULTS)
# All that a run leaves if stopped before its first checkpoint.
EARLY_FILES = (CARD, *VOCABULARIES, WORDS, SUMS, shipped.LICENCES)
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
    optional = ("note", "weights", "parts")
    return _without_none({key: x for key, x in table.items() if x or key not in optional})


def write_card(folder: Path, card: Card) -> None:
    """Write the card of a RUN folder."""
    write_file(folder, CARD, tomli_w.dumps(card_table(card)))


def _without_none(value: Any) -> Any:  # TOML has no None
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return value


# --- the corpus and its tokeniser


def corpus_table(corpus: Corpus | PairCorpus) -> dict[str, Any]:
    """Return the table `corpus` of a RUN's card, without what `corpora.load` does by default."""

    def values(*names: str) -> dict[str, Any]:
        return {name: getattr(corpus, name) for name in names}

    if isinstance(corpus, PairCorpus):
        table = values("name", "lowercase", "sha256", "tokenizer")
        pairs = values("source", "target", "max_tokens", "files")
        return {**table, "source": corpus.folder, "pairs": pairs}
    read_as = {
        **values("tokenizer", "vocabulary_size", "min_count"),
        "documents": corpus.vocabulary.documents,
        "fractions": corpus.fractions and list(corpus.fractions),
    }
    return values(*TRAINED_ON) | {key: x for key, x in read_as.items() if x != READ_AS[key]}


def vocabularies_of(owner: Corpus | PairCorpus | LanguageModel) -> dict[str, Tokenizer]:
    """Return the tokenisers of a corpus or a model, by the names of their files."""
    source, target = getattr(owner, "source_vocabulary", None), owner.vocabulary
    files = {} if source in (None, target) else {SOURCE + source.file_name: source}
    return files if target is None else {**files, target.file_name: target}


def write_vocabularies(folder: Path, owner: Corpus | PairCorpus | LanguageModel) -> None:
    """Write the tokenisers of a RUN folder, those of its corpus or model."""
    for name, tokenizer in vocabularies_of(owner).items():
        with checksummed(folder, name) as temporary:
            tokenizer.save(temporary)


def write_words(
    folder: Path, *runs: StrPath | None, corpus: Corpus | PairCorpus | None = None
) -> None:
    """Write the words that `runs` know, and the common ones of a `corpus`, or of its beginning."""
    files = [shipped.find_run(run) / WORDS for run in runs if run]
    words = {word for file in files if file.is_file() for word in file.read_text("utf-8").split()}
    if isinstance(corpus, Corpus) and corpus.vocabulary.kind != "words":
        counts: Counter[str] = Counter()
        tokenizer = corpus.vocabulary
        for start in range(0, min(len(corpus.train), MOST_TOKENS), CHUNK):
            counts.update(words_in(tokenizer.decode(corpus.train[start : start + CHUNK])))
        words.update(common_words(counts, tokenizer.pieces.words))
    if words:
        write_file(folder, WORDS, "".join(f"{word}\n" for word in sorted(words)))


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
        write_json(folder / SUMS, sums)


def read_sums(folder: Path) -> dict[str, list[str]]:
    """Return the checksums of each file of a RUN folder."""
    file = folder / SUMS
    try:
        return read_json(file) if file.is_file() else {}
    except ValueError as error:
        raise ValueError(
            f"{SUMS} of a RUN folder must be unchanged. Received: {str(file)!r}, damaged or "
            "edited. Delete it to accept the other files."
        ) from error
