"""Options that several commands share, and the checks of the files that they name."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dualnet import corpora, zoo
from dualnet._checks import ArgumentError
from dualnet._columns import texts_of
from dualnet._fields import choice, count, field
from dualnet.cli.command import Options, argument
from dualnet.corpora import NAMES, SPLITS, Corpus, PairCorpus
from dualnet.corpora.corpus import choose_tokenizer, load_whole, locate
from dualnet.corpora.records import Records
from dualnet.requests import Dividing, ReadingCorpus
from dualnet.runs import Run
from dualnet.text.files import TABLE, read_table
from dualnet.text.plain_text import check_text

if TYPE_CHECKING:
    from dualnet.builders import LanguageModel


def models(prefix: str, **_: object) -> list[str]:
    """Return the names of models that the shell may complete `prefix` to."""
    pattern = f"{prefix}*"
    return [*zoo.list_models(pattern), *zoo.list_models(pattern, pretrained=True)]


class OfModel(Options):
    """The model of a command."""

    name: str = argument(metavar="MODEL", completer=models)
    """Name of a model of the zoo, or of a shipped one, or the path of your own card (.toml) or RUN
    folder."""


class OfRun(Options):
    """The RUN of a command."""

    run_folder: str = argument(metavar="RUN")
    """RUN folder of a trained model, or the name of one that is shipped, or a .keras file."""


class OfRuns(Options):
    """The RUNs of a command."""

    run_folders: list[str] = argument(nargs="+", metavar="RUN")
    """RUN folders of trained models, or names of shipped ones."""


class Texts(Options):
    """The texts that a command reads."""

    file: str | None = argument(None, nargs="?", metavar="FILE")
    """File with one text per line; '-' or omitted: standard input; with --column a table, of
    which .csv, .tsv and .parquet say the kind."""

    column: str | None = field(None, metavar="NAME")
    """Column of a table that has the texts."""

    texts: list[str] | None = field(None, flags=["--text"], action="append", metavar="TEXT")
    """Text to read; repeatable."""

    excludes = {"texts": ["file", "column"]}

    def records(self, *, may_be_empty: bool = False) -> Records:
        """Return the texts that are given, or the lines of FILE or standard input with newlines."""
        option = self.flag("texts")
        if self.texts is not None:
            return Records.of_texts([check_text(option, text) for text in self.texts], option)
        file = self.file or "-"
        if file == "-" and sys.stdin.isatty():
            print("Type one text per line; Ctrl-D ends the input.", file=sys.stderr)
        if self.column is not None or TABLE.search(file):
            texts = texts_of("FILE", read_table(file), self.column, called="--column").texts
            return Records.of_texts(texts, "--column")
        hint = f" For a text itself, use {option}."
        return Records.of_files([file], hint=hint, may_be_empty=may_be_empty)

    def lines(self, *, may_be_empty: bool = False) -> list[str]:
        """Return the texts of `records`, lines without their newlines."""
        texts = [line.text for line in self.records(may_be_empty=may_be_empty).read()]
        return texts if self.texts else [text.removesuffix("\n") for text in texts]


class OfTexts(Texts, OfRun):
    """A RUN and the texts that it reads."""


def check_no_table(_: str, value: str) -> None:
    """Raise `ArgumentError` for a table, whose head and other columns would be read as text."""
    if TABLE.search(value):
        way_out = " Write the column that has the texts to a file that ends in .txt."
        raise ArgumentError("corpus", "must be text, not a table.", way_out, corpus=value)


class OfCorpus(Options):
    """The text of a command."""

    corpus: str | None = field(None, check_no_table)
    """ptb, wikitext-2, wikitext-103, python-reference, a folder with train.txt, valid.txt and
    test.txt, or a text file (default for a RUN: the corpus that it was trained on)."""


class OfSplit(OfCorpus, Dividing):
    """The part of a text that a command reads."""

    split: str | None = choice(None, SPLITS)
    """train, valid or test (default: test; a file that is not the RUN's own is read whole, unless
    --fractions divides it)."""

    needs = {"corpus": ["fractions"]}


class Reading(Options, ReadingCorpus):
    """How a text is read."""

    def reading(self) -> dict[str, Any]:
        """Return the arguments of `corpora.load` that say how to read a corpus, if given."""
        return self.given(ReadingCorpus.names())


class Pairs(Options):
    """Pairs of texts."""

    group = "models that translate"

    pairs: str | None = field(None, metavar="FOLDER")
    """Folder of pairs, with train.en, train.de and so on; a table, source and target separated by a
    tab; or 'numbers' (digits and words, to try it out)."""

    source: str | None = field(None, metavar="LANGUAGE")
    """Language of the source texts (default: en, with --files: source)."""

    target: str | None = field(None, metavar="LANGUAGE")
    """Language of the target texts (default: de, with --files: target)."""

    files: list[str] | None = field(None, nargs=6, metavar="FILE")
    """Files of --pairs with other names, e.g. articles and headlines: source and target of train,
    of valid and of test."""

    needs = {"pairs": ["source", "target", "files"]}

    def read_pairs(self, splits: Sequence[str] = SPLITS, **settings: Any) -> PairCorpus:
        """Return the corpus that `--pairs` and its options name, with other `settings`."""
        files = dict(zip(SPLITS, zip(self.files[::2], self.files[1::2]))) if self.files else None
        sides = {"source": self.source, "target": self.target, "files": files}
        return corpora.load_pairs(self.pairs or "", splits=splits, **sides | settings)


class ReadingPairs(Pairs, Reading):
    """How pairs of texts are read."""

    group = "models that translate"

    source_tokenizer: str | None = field(None, metavar="TOKENIZER")
    """Tokeniser of the source of --pairs; --tokenizer is then that of the target (default: one for
    both, learnt from both: that of --tokenizer, else bpe:N, where N is that of the card for this
    corpus, else 4000)."""

    max_tokens: int | None = count(None)
    """Leave pairs with more tokens on a side out of train (default: 250)."""

    needs = {"pairs": ["source_tokenizer", "max_tokens"], "tokenizer": ["source_tokenizer"]}
    excludes = {"pairs": ["corpus", "documents", "fractions", "vocabulary_size", "min_count"]}

    lowercase: bool = False
    """Convert the text to lower case first; a card of your own may say lowercase = true."""

    def asked_tokenizers(self) -> Any:
        """Return the tokeniser of both sides, or those of source and target, for `load_pairs`."""
        if self.source_tokenizer is None:
            return self.tokenizer
        return self.source_tokenizer, self.tokenizer

    def read_pairs(self, splits: Sequence[str] = SPLITS, **settings: Any) -> PairCorpus:
        read_as = {"tokenizer": self.asked_tokenizers(), **self.given(["max_tokens", "lowercase"])}
        return super().read_pairs(splits, **read_as | settings)


class Setting(Options):
    """Settings by name: of any field, also of those without an option, and of others."""

    set: dict[str, Any] | None = field(None, nargs="+", action="extend", metavar="KEY=VALUE")
    """Other settings, e.g. learning_rate=0.001."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of `--set` that are no fields."""
        return self.set or {}


class Resuming(OfCorpus, Setting):
    """Work that writes a folder, and that can be stopped and resumed."""

    group = "training"
    takes_others = True

    output: str = field(metavar="RUN")
    """Folder to write, new or empty."""

    seed: int | None = None
    """Random seed of weights and dropout masks (default: that of the card, else 0)."""

    resume: bool = False
    """Go on in --output from the last checkpoint."""

    checkpoint_steps: int = count(500)
    """Training steps between checkpoints within an epoch."""

    quiet: bool = False
    """Do not show the progress."""

    def arguments_of(self, *of_command: str) -> dict[str, Any]:
        """Return the options that were given, as arguments of the function of the command.

        Without those `of_command`, which it reads itself. The function refuses any other that it
        does not know.
        """
        arguments = {**self.changed(), **self.settings, "progress": not self.quiet}
        for name in ("json", "set", "quiet", "corpus", *of_command):
            arguments.pop(name, None)
        return arguments


def open_language_model(path: str, *, name: str = "path", use: str = "dualnet translate") -> Run:
    """Open the RUN of a language model, or a .keras file; for a translator, say what to `use`."""
    return Run.open(path, name=name).check_language_model("RUN", f" Use `{use}`.")


def name_of(run: Run, model: "LanguageModel") -> str:
    """Return the name of a shipped model, or that of the card of any other."""
    return run.source if run.is_shipped else model.name


def corpus_of(options: OfSplit, run: Run, model: "LanguageModel") -> Corpus | PairCorpus:
    """Return the corpus of the options, as `model` reads it; by default that of its training."""
    from dualnet.evaluation.arguments import vocabulary_of

    name = options.corpus
    if name is None and not run.is_folder:
        raise ArgumentError("--corpus", "must be given for a .keras file, which records no corpus.")
    if name is None:
        return run.corpus()
    if is_whole(options, run):
        return load_whole(name, vocabulary_of(model))
    settings = run.own_reading(name) | options.given(["fractions"])
    return corpora.load(name, vocabulary=vocabulary_of(model), **settings)


def is_whole(options: OfSplit, run: Run) -> bool:
    """Whether the text is a file that nothing divides, other than the one RUN was trained on."""
    path, values = options.corpus or "", vars(options)  # of which some commands have fewer
    is_divided = options.fractions or options.split or values.get("temperature") == "best"
    is_divided = is_divided or (values.get("rule") == "rms" and not run.is_folder)
    if is_divided or path in NAMES or run.own_reading(path):
        return False
    return os.path.isfile(os.path.expanduser(path))


def check_split(options: OfSplit, run: Run) -> None:
    """Check that the corpus of the options exists and is divided."""
    if not is_whole(options, run):
        read_as = {"fractions": options.fractions, "documents": run.read_as["documents"]}
        check_corpus(options.corpus, read_as)


def check_corpus(
    corpus: str | None, read_as: Mapping[str, Any] | None = None, *, resume: bool = False
) -> None:
    """Check that the files of a corpus exist, and how it is to be read.

    A named corpus may be downloaded: that comes later. With `resume`, the tokeniser is at hand.
    """
    read_as = read_as or {}
    if not resume:
        choose_tokenizer(read_as.get("tokenizer"), read_as.get("documents"))
    fractions = read_as.get("fractions")
    if corpus is not None and (corpus not in NAMES or fractions is not None):
        locate(corpus, fractions=fractions, documents=read_as.get("documents") or "line")
