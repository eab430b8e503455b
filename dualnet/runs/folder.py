"""A RUN folder: the files that it holds, and `Run`, which opens it once."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from dualnet import corpora
from dualnet._checks import ArgumentError, StrPath, did_you_mean
from dualnet._files import read_json, sha256_of, write_whole, written_beside
from dualnet._toml import OTHERS, check_keys, read_toml
from dualnet.cards import CARD_SCHEMA, Card, card_names
from dualnet.corpora import Corpus, PairCorpus
from dualnet.runs import shipped
from dualnet.text import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from dualnet.builders import LanguageModel

CARD = "card.toml"
WORDS = "vocabulary.txt"  # of a model of words
TOKENIZER = "tokenizer.json"  # of any other
WEIGHTS = "model.weights.h5"  # of the best epoch
PLAIN_WEIGHTS = "plain.weights.h5"  # with two-tailed averages: the best without averaging
RESULTS = "results.json"
LEARNING = "learning.json"  # the learning rates that were found for dynamic evaluation
SUMS = "sums.json"
SOURCE = "source-"  # begins the name of the file of a tokeniser that only the source has
VOCABULARIES = (WORDS, TOKENIZER, SOURCE + WORDS, SOURCE + TOKENIZER)
SUMMED = (CARD, *VOCABULARIES, WEIGHTS, RESULTS)
# All that a run leaves if stopped before its first checkpoint.
EARLY_FILES = (CARD, *VOCABULARIES, SUMS, shipped.LICENCES)
# What the table `corpus` of a card holds; and what a RUN needs of its card.
TRAINED_ON = {"name": str, "source": str, "lowercase": bool, "sha256": str}
REQUIRED = ("name", "builder", "seed", "corpus", "config", "recipe")
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
    read_as = {key: getattr(corpus, key) for key in READ_AS if key != "documents"}
    read_as |= {
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
        sums = read_json(folder / SUMS)
        return {name: [*map(str, sums[name])] for name in SUMMED if name in sums}
    except (ValueError, TypeError) as error:
        message = f"{SUMS} of a RUN folder must be unchanged. Received: {str(folder / SUMS)!r}, "
        way_out = "damaged or edited. Delete it to accept the other files."
        raise ValueError(message + way_out) from error


# --- opened


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
            message = f"`{name}` must be a RUN folder or a .keras file. Received: {str(path)!r},"
            hint = f"{_hint(str(path))} {shipped.names_of_shipped()}"
            raise FileNotFoundError(f"{message} which does not exist.{hint}")
        if path.suffix != ".keras":
            message = f"must be a RUN folder or a .keras file. Received: {str(path)!r}."
            way_out = "To load weights alone, build the model and call model.load_weights."
            raise ArgumentError(name, f"{message} {way_out}")
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

        file = self.path / CARD
        if self.table["builder"] not in BUILDERS:
            message = f"`builder` must be one of {sorted(BUILDERS)}."
            raise ValueError(f"{file}: {message} Restore the card, or train again.")
        check_imported(self.table.get("parts", {}))
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
        return any((self.path / name).is_file() for name in (WORDS, TOKENIZER))

    @functools.cached_property
    def vocabulary(self) -> Tokenizer:
        """The tokeniser, that of the target in a translator's RUN."""
        if tokenizer := self._tokenizer(""):
            return tokenizer
        name = TOKENIZER if self.trained_on.get("tokenizer", "words") != "words" else WORDS
        received = f"{str(self.path)!r}, without it. Restore it, or train again"
        raise FileNotFoundError(f"A RUN folder must hold {name}. Received: {received}.")

    @functools.cached_property
    def source_vocabulary(self) -> Tokenizer:
        """The tokeniser of the source of a translator, by default that of the target."""
        return self._tokenizer(SOURCE) or self.vocabulary

    def _tokenizer(self, prefix: str) -> Tokenizer | None:
        """Read the tokeniser whose file has a name with this `prefix`, if there is one."""
        for file in (self.path / (prefix + name) for name in (WORDS, TOKENIZER)):
            if file.is_file():
                self.check_sums(VOCABULARIES)
                documents = self.trained_on.get("documents", "line")
                lowercase = self.trained_on["lowercase"]
                return load_tokenizer(file, documents=documents, lowercase=lowercase)
        return None

    @property
    def read_as(self) -> dict[str, Any]:
        """The arguments of `corpora.load` that say how the corpus was read."""
        return {key: self.trained_on.get(key, default) for key, default in READ_AS.items()}

    # --- model and corpus

    def model(self) -> LanguageModel:
        """Load the model with its best weights."""
        from dualnet.runs import loading

        if not self.is_folder:
            return loading.load_keras_file(self.path)
        return loading.remember(self._folder_model(), self)

    def _folder_model(self) -> LanguageModel:
        from dualnet.runs import loading

        card = self.card
        if not (self.path / WEIGHTS).is_file():
            message = f"A RUN folder must hold {WEIGHTS}, which the first epoch writes. Received: "
            way_out = "Resume the run with --resume, or train again."
            raise FileNotFoundError(f"{message}{str(self.path)!r}, without it. {way_out}")
        self.check_sums()
        try:
            return loading.build_with_weights(
                card, self.vocabulary, self.source_vocabulary, self.path / WEIGHTS
            )
        except FileNotFoundError:
            raise
        except Exception as error:  # only possible in an edited folder without sums.json
            message = "The files of a RUN folder must belong together. Received: "
            received = f"{str(self.path)!r}, which was edited ({loading.first_line(error)})"
            raise ValueError(f"{message}{received}. Restore it, or train again.") from error

    def corpus(self) -> Corpus | PairCorpus:
        """Load the corpus that the model was trained on, with its vocabulary."""
        place, name = self.trained_on["source"], self.trained_on["name"]
        has_pairs, fault = "pairs" in self.trained_on, ""
        if place == name not in corpora.NAMES:
            origin = "a shipped model or made of one, which comes without its text"
            fault = f"{self.path.name!r}, {origin}"
        elif place != "embedded" and name not in corpora.NAMES and not os.path.exists(place):
            fault = f"{place!r}, which the model was trained on, and which may have moved"
        way_out = "To go on, name the text: --corpus FOLDER, or corpora.load in Python."
        if has_pairs:
            way_out = "To go on, name them: --pairs FOLDER, or corpora.load_pairs in Python."
        if fault:
            raise FileNotFoundError(f"The corpus of a RUN must exist. Received: {fault}. {way_out}")
        self.check_sums((CARD, *VOCABULARIES))
        corpus: Corpus | PairCorpus
        if has_pairs:
            corpus = corpora.load_pairs(
                name if place == "embedded" else place,
                tokenizer=(self.source_vocabulary, self.vocabulary),
                **self.trained_on["pairs"],
            )
        else:
            is_named = name in corpora.NAMES and not os.path.isfile(place)
            name = name if is_named else place
            corpus = corpora.load(
                name,
                path=place if is_named and os.path.isdir(place) else None,
                lowercase=self.trained_on["lowercase"],
                vocabulary=self.vocabulary,
                fractions=self.trained_on.get("fractions"),
            )
        if corpus.sha256 != self.trained_on["sha256"]:
            message = "The corpus of a RUN must be unchanged. Received: "
            received = f"{corpus.name!r} from {place!r}, whose text differs from that of the run"
            raise ValueError(f"{message}{received}. {way_out}")
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
                message = f"{name} of a RUN folder must be unchanged. Received: {str(file)!r},"
                fault = f"damaged or edited: its SHA-256 is not in {SUMS}"
                way_out = f"Restore it, or delete {SUMS} to accept the file."
                raise ValueError(f"{message} {fault}. {way_out}")
        self._checked.update(unchecked)

    @functools.cached_property
    def results(self) -> dict[str, Any]:
        """The contents of `results.json`; {} without one."""
        file = self.path / RESULTS
        if not file.is_file():
            return {}
        self.check_sums((RESULTS,))
        try:
            results = read_json(file)
        except ValueError:
            results = None
        if not isinstance(results, dict):
            message = f"{RESULTS} of a RUN folder must hold an object. Received: {str(file)!r}, "
            way_out = "damaged or edited. Delete it, and evaluate the run again with --resume."
            raise ValueError(message + way_out)
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

        >>> from dualnet.runs import Run
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

    def found_rate(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the record that `keep_rate` kept under `key` for the present weights, or None."""
        for record in self._found_rates():
            same_weights = key.get("adapt") == record.get("adapt")  # which neither has for all
            if same_weights and key.items() <= record.items():
                return record
        return None

    def keep_rate(self, record: Mapping[str, Any]) -> None:
        """Keep a learning rate in the folder, if that may be written to."""
        records = [*self._found_rates(), {**record, "weights": self._weights}]
        with contextlib.suppress(OSError):
            write_whole(self.path / LEARNING, json.dumps(records, indent=2) + "\n")

    def _found_rates(self) -> list[dict[str, Any]]:
        file = self.path / LEARNING
        try:
            records = read_json(file) if file.is_file() else []
            return [record for record in records if record["weights"] == self._weights]
        except (ValueError, TypeError, KeyError):  # damaged: they are found again
            return []

    @functools.cached_property
    def _weights(self) -> str:
        """The checksum of the weights."""
        recorded = read_sums(self.path).get(WEIGHTS)
        return recorded[0] if recorded else sha256_of(self.path / WEIGHTS)

    def training_text(self) -> Any:
        """Return the ids of the text that the model was trained on, for the rule "rms"."""
        if not self.is_folder or self.is_shipped:
            message = "rms needs the text that the model was trained on, which only a RUN folder"
            received = f"of your own names. Received: {self.path.name!r}"
            raise ArgumentError("--rule", f"{message} {received}. Choose sgd or nadam.")
        return self.corpus().train


def _hint(name: str) -> str:
    """Return a hint for a path that does not exist, or ""."""
    if name in card_names():
        return f" {name!r} is a model of the zoo: build it with zoo.build, or train it."
    return did_you_mean(name.strip(), shipped.list_shipped())


def _read_card_table(folder: Path) -> dict[str, Any]:
    """Return the tables of a RUN's card, with its keys and their kinds checked."""
    file = folder / CARD
    if not file.is_file():
        message = f"A RUN folder must hold {CARD}. Received: {str(folder)!r}, without it."
        way_out = "Create one with `dualnet train NAME --corpus CORPUS --output RUN`."
        raise FileNotFoundError(f"{message} {way_out}")
    table = read_toml(file)
    try:
        check_keys(table, {OTHERS: object, **CARD_SCHEMA}, required=REQUIRED)
        check_keys(table["corpus"], {OTHERS: object, **TRAINED_ON}, required=TRAINED_ON)
    except ArgumentError as error:
        raise ValueError(f"{file}: {error} Restore the card, or train again.") from None
    return table
