"""`Run`: a RUN folder, a shipped model or a `.keras` file, which is opened once."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dualnet import corpora
from dualnet._checks import ArgumentError, StrPath, did_you_mean
from dualnet._data import list_tables
from dualnet._files import read_json, sha256_of
from dualnet._toml import OTHERS, check_keys, read_toml
from dualnet.cards import CARD_SCHEMA, Card
from dualnet.corpora import Corpus, PairCorpus
from dualnet.runs import folder as files
from dualnet.runs import shipped
from dualnet.text import Tokenizer, load_tokenizer
from dualnet.text.loading import TOKENIZER_FILES
from dualnet.text.pieces import with_capitals

if TYPE_CHECKING:
    from dualnet.builders import LanguageModel

REQUIRED = ("name", "builder", "seed", "corpus", "config", "recipe")  # what it needs of its card


class Run:
    """A RUN folder, a shipped model, or a `.keras` file.

    Opening it reads the card and needs no Keras. Everything else is read when it is asked for,
    once, and a file is compared with its checksum before it is first used.

    Attributes:
        path: Path of the folder or file.
        table: The tables of the card; {} for a `.keras` file, which has none.

    Example:

    >>> from dualnet.runs import Run
    >>> run = Run.open("dual_lstm.wikitext-2")
    >>> run.table["name"], run.is_shipped, run.translates, len(run.vocabulary)
    ('dual_lstm', True, False, 8000)
    """

    def __init__(self, path: Path, table: Mapping[str, Any]) -> None:
        self.path = path
        self.table = table
        self._checked: set[str] = set()

    def __fspath__(self) -> str:
        return str(self.path)

    @classmethod
    def open(cls, path: StrPath, *, name: str = "path") -> Run:
        """Open a RUN folder, the shipped model of a name, or a `.keras` file.

        Errors call the argument `name`.

        Raises:
            FileNotFoundError: if `path` does not exist or is a folder without a card.
            ValueError: if it is another kind of file, or the card is not one of a RUN.
        """
        path = shipped.find_run(path)
        if path.is_dir():
            return cls.open_folder(path)
        if not path.is_file():
            raise FileNotFoundError(
                f"`{name}` must be a RUN folder or a .keras file. Received: {str(path)!r}, which "
                f"does not exist.{_hint(str(path))} {shipped.names_of_shipped()}"
            )
        if path.suffix != ".keras":
            raise ArgumentError(
                name,
                f"must be a RUN folder or a .keras file. Received: {str(path)!r}. To load weights "
                "alone, build the model and call model.load_weights.",
            )
        return cls(path, {})

    @classmethod
    def open_folder(cls, path: StrPath) -> Run:
        """Open a RUN folder or the shipped model of a name."""
        path = shipped.find_run(path)
        return cls(path, _read_card_table(path))

    @property
    def is_folder(self) -> bool:
        return bool(self.table)

    @functools.cached_property
    def is_shipped(self) -> bool:
        return shipped.is_shipped(self.path)

    @property
    def translates(self) -> bool:
        """Whether the model is a translator; False for a `.keras` file, before it is loaded."""
        return self.table.get("builder") == "encoder_decoder"

    def check_language_model(self, name: str = "run", way_out: str = "") -> Run:
        """Return this RUN, which the argument `name` is, unless it is one of a translator."""
        if self.translates:
            raise ArgumentError(
                name,
                f"must be of a language model. Received: {str(self.path)!r}, which translates.",
                way_out,
            )
        return self

    @property
    def trained_on(self) -> Mapping[str, Any]:
        """What the card says of the corpus; {} for a `.keras` file."""
        return self.table.get("corpus", {})

    @property
    def source(self) -> str:
        """How other cards name this RUN: the name of a shipped model, else its path."""
        return shipped.source_of(self.path)

    @functools.cached_property
    def card(self) -> Card:
        """The card of a RUN folder. Needs Keras, which builders come with."""
        from dualnet.builders import BUILDERS
        from dualnet.builders.parts import check_imported

        file = self.path / files.CARD
        if self.table["builder"] not in BUILDERS:
            raise ValueError(
                f"{file}: `builder` must be one of {sorted(BUILDERS)}. Restore the card, or train "
                "again."
            )
        check_imported(self.table.get("parts", {}))
        return Card(
            **{k: self.table[k] for k in (*files.CARD_KEYS, "config", "recipe") if k in self.table},
            corpus=self.trained_on["name"],
            lowercase=self.trained_on["lowercase"],
            trained_on=self.trained_on,
            file=str(file),
        )

    # --- tokenisers

    @functools.cached_property
    def vocabulary(self) -> Tokenizer:
        """The tokeniser, that of the target in a translator's RUN."""
        if tokenizer := self._tokenizer(""):
            return tokenizer
        raise _missing(
            self.path,
            f"its tokeniser, one of {', '.join(TOKENIZER_FILES)}",
            "Restore it, or train again.",
        )

    @functools.cached_property
    def source_vocabulary(self) -> Tokenizer:
        """The tokeniser of the source of a translator, by default that of the target."""
        return self._tokenizer(files.SOURCE) or self.vocabulary

    def _tokenizer(self, prefix: str) -> Tokenizer | None:
        """Read the tokeniser whose file has a name with this `prefix`, if there is one."""
        if (file := files.tokenizer_file(self.path, prefix)) is None:
            return None
        self.check_sums(files.VOCABULARIES)
        lowercase = self.trained_on["lowercase"]
        return load_tokenizer(file, documents=self.read_as["documents"], lowercase=lowercase)

    @functools.cached_property
    def words(self) -> frozenset[str] | None:
        """The words of several tokens that the training text has, or None."""
        file = self.path / files.WORDS
        if not file.is_file():
            return None
        self.check_sums((files.WORDS,))
        return with_capitals(file.read_text("utf-8").split("\n"))

    @property
    def read_as(self) -> dict[str, Any]:
        """The arguments of `corpora.load` that say how the corpus was read."""
        return {key: self.trained_on.get(key, default) for key, default in files.READ_AS.items()}

    def own_reading(self, corpus: StrPath) -> dict[str, Any]:
        """Return the `fractions` of the run, if its text is the file `corpus`; else {}."""
        path = os.path.expanduser(corpus)
        own = os.path.realpath(self.trained_on.get("source", ""))
        is_own = os.path.isfile(path) and os.path.realpath(path) == own
        return {"fractions": self.read_as["fractions"]} if is_own else {}

    # --- model and corpus

    def model(self) -> LanguageModel:
        """Load the model with its best weights."""
        from dualnet.runs import loading

        if not self.is_folder:
            return loading.load_keras_file(self.path)
        card = self.card
        if not (self.path / files.WEIGHTS).is_file():
            raise _missing(
                self.path,
                f"{files.WEIGHTS}, which the first epoch writes",
                "Resume the run with --resume, or train again.",
            )
        self.check_sums()
        try:
            return loading.build_with_weights(card, self)
        except (FileNotFoundError, ImportError):
            raise
        except Exception as error:  # only possible in an edited folder without sums.json
            raise ValueError(
                f"The files of a RUN folder must belong together. Received: {str(self.path)!r}, "
                f"which was edited ({loading.first_line(error)}). Restore it, or train again."
            ) from error

    def corpus(self, *, download: bool = True) -> Corpus | PairCorpus:
        """Load the corpus that the model was trained on, with its vocabulary.

        A named corpus is found here if it was elsewhere, and fetched with `download`.
        """
        source, name = self.trained_on["source"], self.trained_on["name"]
        way_out = "To go on, name the text: --corpus FOLDER, or corpora.load in Python."
        if "pairs" in self.trained_on:
            way_out = "To go on, name them: --pairs FOLDER, or corpora.load_pairs in Python."
        is_named = name in corpora.NAMES
        if source == name and not is_named:
            raise FileNotFoundError(
                f"{self.path.name!r}, a shipped model or made of one, comes without its text. "
                f"{way_out}"
            )
        if source != "embedded" and not is_named and not os.path.exists(source):
            raise FileNotFoundError(
                f"The corpus of {self.path.name!r}, {source!r}, may have moved. {way_out}"
            )
        self.check_sums((files.CARD, *files.VOCABULARIES))
        corpus: Corpus | PairCorpus
        if "pairs" in self.trained_on:
            corpus = corpora.load_pairs(
                name if source == "embedded" else source,
                tokenizer=(self.source_vocabulary, self.vocabulary),
                **{"max_tokens": None, **self.trained_on["pairs"]},  # a card has no None
            )
        else:
            by_name = name in corpora.NAMES[1:] and not os.path.isfile(source)
            by_name |= source == "embedded"
            read = corpora.load(
                name if by_name else source,
                vocabulary=self.vocabulary,
                path=source if by_name and os.path.isdir(source) else None,
                lowercase=self.trained_on["lowercase"],
                fractions=self.read_as["fractions"],
                download=download,
            )
            corpus = dataclasses.replace(read, **{key: self.read_as[key] for key in files.LEARNT})
        if corpus.sha256 != self.trained_on["sha256"]:
            raise ValueError(
                f"The text of {corpus.name!r} in {source!r} is not that of the run. {way_out}"
            )
        return corpus

    def check_sums(self, names: Iterable[str] = files.SUMMED) -> None:
        """Raise `ValueError` if a file does not match its checksum; files without one pass.

        A file that has matched is not read again.
        """
        unchecked = {*names} - self._checked
        sums = files.read_sums(self.path) if unchecked else {}
        for name in sorted(unchecked & {*sums}):
            file = self.path / name
            if file.is_file() and sha256_of(file) not in sums[name]:
                raise ValueError(
                    f"{name} of a RUN folder must be unchanged. Received: {str(file)!r}, damaged "
                    f"or edited: its SHA-256 is not in {files.SUMS}. Restore it, or delete "
                    f"{files.SUMS} to accept the file."
                )
        self._checked |= unchecked

    @functools.cached_property
    def results(self) -> dict[str, Any]:
        """The contents of `results.json`; {} without one."""
        file = self.path / files.RESULTS
        if not file.is_file():
            return {}
        self.check_sums((files.RESULTS,))
        return read_json(file)

    @functools.cached_property
    def weights_sha256(self) -> str:
        """The checksum of the weights, or of the whole `.keras` file."""
        if not self.is_folder:
            return sha256_of(self.path)
        recorded = files.read_sums(self.path).get(files.WEIGHTS)
        return recorded[0] if recorded else sha256_of(self.path / files.WEIGHTS)

    def training_text(self) -> np.ndarray:
        """Return the ids of the text that the model was trained on, for the rule "rms"."""
        about = self.trained_on  # {} for a file
        if about.get("source") == about.get("name") not in corpora.NAMES:  # shipped, or made of it
            message = "'rms' needs the text that the model was trained on, which is unknown for"
            raise ArgumentError("rule", f"{message} {self.path.name!r}. Choose sgd or nadam.")
        corpus = self.corpus()
        assert isinstance(corpus, Corpus)  # `rms` is for language models
        return corpus.train


def _hint(name: str) -> str:
    """Return a hint for a path that does not exist, or ""."""
    if name in list_tables("zoo"):
        return f" {name!r} is a model of the zoo: build it with zoo.build, or train it."
    return did_you_mean(name.strip(), shipped.list_shipped())


def _missing(folder: Path, name: str, way_out: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"A RUN folder must hold {name}. Received: {str(folder)!r}, without it. {way_out}"
    )


def _read_card_table(folder: Path) -> dict[str, Any]:
    """Return the tables of a RUN's card, with its keys and their kinds checked."""
    file = folder / files.CARD
    if not file.is_file():
        raise _missing(
            folder, files.CARD, "Create one with `dualnet train NAME --corpus CORPUS --output RUN`."
        )
    table = read_toml(file)
    try:
        check_keys(table, {OTHERS: object, **CARD_SCHEMA}, required=REQUIRED)
        check_keys(table["corpus"], {OTHERS: object, **files.TRAINED_ON}, required=files.TRAINED_ON)
    except ArgumentError as error:
        raise ValueError(f"{file}: {error} Restore the card, or train again.") from None
    return table
