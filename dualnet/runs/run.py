"""A trained model on disk, opened once: its card, its tokenisers, then its model and corpus."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualnet import corpora
from dualnet._checks import ArgumentError, did_you_mean
from dualnet._files import sha256_of
from dualnet._toml import OTHERS, check_keys, read_toml
from dualnet.cards import CARD_SCHEMA, Card, card_names
from dualnet.corpora import Corpus, PairCorpus
from dualnet.runs.folder import (
    CARD,
    CARD_KEYS,
    READ_AS,
    REQUIRED,
    RESULTS,
    SOURCE,
    SUMMED,
    SUMS,
    TOKENIZER,
    TRAINED_ON,
    VOCABULARIES,
    WEIGHTS,
    WORDS,
    read_sums,
)
from dualnet.runs.shipped import find_run, is_shipped, list_shipped, names_of_shipped, source_of
from dualnet.text import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from dualnet.builders import LanguageModel


class Run:
    """A RUN folder, a shipped model, or a `.keras` file.

    Opening it reads the card and needs no Keras. Everything else is read when it is asked for,
    once, and a file is compared with its checksum before it is first used.

    Attributes:
        path: Path of the folder or file.
        table: The tables of the card; {} for a `.keras` file, which has none.

    Example:

    >>> from dualnet.runs.run import Run
    >>> run = Run.open("dual_lstm.wikitext-2")
    >>> run.table["name"], run.is_shipped, run.translates, len(run.vocabulary)
    ('dual_lstm', True, False, 8000)
    """

    def __init__(self, path: Path, table: Mapping[str, Any]) -> None:
        self.path = path
        self.table = table
        self._checked: set[str] = set()

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, name: str = "path") -> Run:
        """Open a RUN folder, the shipped model of a name, or a `.keras` file.

        Errors call the argument `name`.

        Raises:
            FileNotFoundError: if `path` does not exist or is a folder without a card.
            ValueError: if it is another kind of file, or the card is not one of a RUN.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise ArgumentError(
                name,
                f"must be the path of a RUN folder or a .keras file. Received: {name}={path!r} of "
                f"type {type(path).__name__}.",
            )
        path = find_run(path)
        if path.is_dir():
            return cls.open_folder(path)
        if not path.is_file():
            raise FileNotFoundError(
                f"`{name}` must be a RUN folder or a .keras file. Received: {str(path)!r}, which "
                f"does not exist.{_hint(str(path))} {names_of_shipped()}"
            )
        if path.suffix != ".keras":
            raise ArgumentError(
                name,
                f"must be a RUN folder or a .keras file. Received: {str(path)!r}. To load weights "
                "alone, build the model and call model.load_weights.",
            )
        return cls(path, {})

    @classmethod
    def open_folder(cls, path: str | os.PathLike[str]) -> Run:
        """Open a RUN folder or the shipped model of a name."""
        path = find_run(path)
        return cls(path, _read_card_table(path))

    @property
    def is_folder(self) -> bool:
        return bool(self.table)

    @functools.cached_property
    def is_shipped(self) -> bool:
        return is_shipped(self.path)

    @property
    def translates(self) -> bool:
        """Whether the model is a translator; False for a `.keras` file, before it is loaded."""
        return self.table.get("builder") == "encoder_decoder"

    @property
    def trained_on(self) -> Mapping[str, Any]:
        """What the card says of the corpus; {} for a `.keras` file."""
        return self.table.get("corpus", {})

    @property
    def source(self) -> str:
        """How other cards name this RUN: the name of a shipped model, else its path."""
        return source_of(self.path)

    @functools.cached_property
    def card(self) -> Card:
        """The card of a RUN folder. Needs Keras, which builders come with."""
        from dualnet.builders import BUILDERS

        file = self.path / CARD
        if self.table["builder"] not in BUILDERS:
            raise ValueError(
                f"{file}: `builder` must be one of {sorted(BUILDERS)}. Restore the card, or train "
                "again."
            )
        return Card(
            **{key: self.table[key] for key in CARD_KEYS if key in self.table},
            config=self.table["config"],
            recipe=self.table["recipe"],
            corpus=self.trained_on["name"],
            lowercase=self.trained_on["lowercase"],
            trained_on=self.trained_on,
            file=str(file),
        )

    # --- tokenisers

    @property
    def has_vocabulary(self) -> bool:
        """Whether the folder holds its tokeniser."""
        return self._tokenizer_file("") is not None

    @functools.cached_property
    def vocabulary(self) -> Tokenizer:
        """The tokeniser, that of the target in a translator's RUN."""
        if not self.has_vocabulary:
            name = TOKENIZER if self.trained_on.get("tokenizer", "words") != "words" else WORDS
            raise FileNotFoundError(
                f"A RUN folder must hold {name}. Received: {str(self.path)!r}, without it. Restore "
                "it, or train again."
            )
        return self._read_tokenizer("")

    @functools.cached_property
    def source_vocabulary(self) -> Tokenizer:
        """The tokeniser of the source of a translator, by default that of the target."""
        own = self._tokenizer_file(SOURCE) is not None
        return self._read_tokenizer(SOURCE) if own else self.vocabulary

    @property
    def read_as(self) -> dict[str, Any]:
        """The arguments of `corpora.load` that say how the corpus was read."""
        return {key: self.trained_on.get(key, default) for key, default in READ_AS.items()}

    def _tokenizer_file(self, prefix: str) -> Path | None:
        files = [self.path / (prefix + name) for name in (WORDS, TOKENIZER)]
        return next(filter(Path.is_file, files), None)

    def _read_tokenizer(self, prefix: str) -> Tokenizer:
        file = self._tokenizer_file(prefix)
        assert file is not None
        self.check_sums(VOCABULARIES)
        documents = self.trained_on.get("documents", "line")
        return load_tokenizer(file, documents=documents, lowercase=self.trained_on["lowercase"])

    # --- model and corpus

    def model(self) -> LanguageModel:
        """Load the model with its best weights."""
        from dualnet.runs import loading

        if not self.is_folder:
            return loading.load_keras_file(self.path)
        card = self.card
        if not (self.path / WEIGHTS).is_file():
            raise FileNotFoundError(
                f"A RUN folder must hold {WEIGHTS}, which the first epoch writes. Received: "
                f"{str(self.path)!r}, without it. Resume the run with --resume, or train again."
            )
        self.check_sums()
        try:
            return loading.build_with_weights(
                card, self.vocabulary, self.source_vocabulary, self.path / WEIGHTS
            )
        except FileNotFoundError:
            raise
        except Exception as error:  # only possible in an edited folder without sums.json
            raise ValueError(
                f"The files of a RUN folder must belong together. Received: {str(self.path)!r}, "
                f"which was edited ({loading.first_line(error)}). Restore it, or train again."
            ) from error

    def corpus(self) -> Corpus | PairCorpus:
        """Load the corpus that the model was trained on, with its vocabulary."""
        place, name = self.trained_on["source"], self.trained_on["name"]
        if place == name not in corpora.NAMES:
            raise FileNotFoundError(
                f"The corpus of a RUN must exist. Received: {self.path.name!r}, a shipped model or "
                "made of one, which comes without its text. Name a text instead: --corpus FOLDER, "
                "or corpora.load in Python."
            )
        if place != "embedded" and name not in corpora.NAMES and not os.path.exists(place):
            option = "pairs" if "pairs" in self.trained_on else "corpus"
            raise FileNotFoundError(
                f"The corpus of a RUN must exist. Received: {place!r}, which the model was trained "
                f"on. If it has moved, name its new place: --{option} FOLDER, or, in Python, "
                f"corpora.load{'_pairs' * (option == 'pairs')}."
            )
        self.check_sums((CARD, *VOCABULARIES))
        corpus: Corpus | PairCorpus
        if "pairs" in self.trained_on:
            way_out = f"--pairs {place}, or corpora.load_pairs"
            corpus = corpora.load_pairs(
                name if place == "embedded" else place,
                tokenizer=(self.source_vocabulary, self.vocabulary),
                **self.trained_on["pairs"],
            )
        else:
            is_named = name in corpora.NAMES and not os.path.isfile(place)
            name = name if is_named else place
            way_out = f"--corpus {name}, or corpora.load"
            corpus = corpora.load(
                name,
                path=place if is_named and os.path.isdir(place) else None,
                lowercase=self.trained_on["lowercase"],
                vocabulary=self.vocabulary,
                fractions=self.trained_on.get("fractions"),
            )
        if corpus.sha256 != self.trained_on["sha256"]:
            raise ValueError(
                f"The corpus of a RUN must be unchanged. Received: {corpus.name!r} from {place!r}, "
                "whose text differs from that of the run. To use it anyway, name the corpus: "
                f"{way_out} in Python."
            )
        return corpus

    def check_sums(self, names: Iterable[str] = SUMMED) -> None:
        """Raise `ValueError` if a file does not match its checksum; files without one pass.

        A file that has matched is not read again.
        """
        if not (unchecked := [name for name in names if name not in self._checked]):
            return
        sums = read_sums(self.path)
        for name in unchecked:
            expected, file = sums.get(name), self.path / name
            if expected and file.is_file() and sha256_of(file) not in expected:
                raise ValueError(
                    f"{name} of a RUN folder must be unchanged. Received: {str(file)!r}, damaged "
                    f"or edited: its SHA-256 is not in {SUMS}. Restore it, or delete {SUMS} to "
                    "accept the file."
                )
        self._checked.update(unchecked)

    @functools.cached_property
    def results(self) -> dict[str, Any]:
        """The contents of `results.json`; {} without one."""
        file = self.path / RESULTS
        if not file.is_file():
            return {}
        self.check_sums((RESULTS,))
        try:
            results = json.loads(file.read_text("utf-8"))
        except ValueError:
            results = None
        if not isinstance(results, dict):
            raise ValueError(
                f"{RESULTS} of a RUN folder must hold an object. Received: {str(file)!r}, damaged "
                "or edited. Delete it, and evaluate the run again with --resume."
            )
        return results

    # --- learning

    def learning(
        self, rule: str | None, settings: Mapping[str, Any], *, by_text: bool = False
    ) -> dict[str, Any]:
        """Return the rule and the settings by which the model learns at test time.

        Without a `rule` they are those that a shipped model's own figures were made with, and
        "nadam" for any other; `settings` replace them. `by_text`, or `by_sentence` in `settings`,
        says where the model learns: there is then no `sequence_length`.

        Example:

        >>> from dualnet.runs.run import Run
        >>> run = Run.open("dual_lstm.wikitext-2")
        >>> run.learning("sgd", {"learning_rate": 0.001})
        {'rule': 'sgd', 'learning_rate': 0.001}
        """
        own: dict[str, Any] = {"rule": rule or "nadam"}
        if rule is None and self.is_shipped:
            try:
                dynamic = self.results["dynamic"]
                own = {"rule": dynamic["rule"], **dynamic["settings"]}
            except (KeyError, TypeError):
                raise ValueError(
                    f"{RESULTS} of a shipped model must say in `dynamic` how it learns. Received: "
                    f"{str(self.path / RESULTS)!r}, edited. Install dualnet anew, or choose a rule."
                ) from None
            if by_text or settings.get("by_sentence"):
                own.pop("sequence_length", None)
        return {**own, **settings}

    def training_text(self) -> Any:
        """Return the ids of the text that the model was trained on, for the rule "rms"."""
        if not self.is_folder or self.is_shipped:
            raise ArgumentError(
                "--rule",
                "rms needs the text that the model was trained on, which only a RUN folder of your "
                f"own names. Received: {self.path.name!r}. Choose sgd or nadam.",
            )
        return self.corpus().train


def _hint(name: str) -> str:
    """Return a hint for a path that does not exist, or ""."""
    if name in card_names():
        return f" {name!r} is a model of the zoo: build it with zoo.build, or train it."
    return did_you_mean(name.strip(), list_shipped())


def _read_card_table(folder: Path) -> dict[str, Any]:
    """Return the tables of a RUN's card, with its keys and their kinds checked."""
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
