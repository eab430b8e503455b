"""Pairs of texts, such as sentences and their translations, or articles and their headlines."""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dualnet._checks import ArgumentError, StrPath, check_choice
from dualnet.corpora import number_words, pair_files
from dualnet.corpora.corpus import choose_tokenizer
from dualnet.corpora.encoding import Settings, learnt
from dualnet.corpora.pair_files import Lines
from dualnet.corpora.pair_split import PairSplit
from dualnet.corpora.sources import SPLITS
from dualnet.text import EOS, Tokenizer, Vocabulary
from dualnet.text.plain_text import END

if TYPE_CHECKING:
    from dualnet.corpora.pair_batches import PairBatches

NUMBERS = "numbers"
OneTokenizer = StrPath | Tokenizer
Tokenizers = OneTokenizer | tuple[OneTokenizer, ...] | list[OneTokenizer]


@dataclass(frozen=True, eq=False)
class PairCorpus:
    """A corpus of pairs: three splits of source lines and target lines.

    Attributes:
        name: str. "numbers", or the name of the folder.
        source, target: str. The languages, e.g. "en" and "de".
        train, valid, test: `PairSplit`. Only train lacks pairs that are too long or empty.
        source_vocabulary, target_vocabulary: The `Tokenizer` of each side; the same object if
            both sides share one.
        sha256: str. Hash of the lines of all splits: equal hashes mean equal text.
        lowercase: bool. Whether the tokenisers lower-case text.
        folder: str. The folder it was read from, or "embedded".
        tokenizer: str, or a pair of them: what `load_pairs` was asked for, e.g. "bpe:4000".
        max_tokens: int, or None. The limit for the lines of train.
        files: dict of split to the paths of source and target if these were given, else None.

    Example:

    >>> from dualnet import corpora
    >>> corpus = corpora.load_pairs("numbers")
    >>> corpus
    PairCorpus('numbers', digits-words, train=4000, valid=500, test=500, vocabulary=42)
    >>> corpus.test.source_lines[0], corpus.test.target_lines[0]
    ('7 8 1 9', 'seven thousand eight hundred nineteen')
    """

    name: str
    source: str
    target: str
    train: PairSplit
    valid: PairSplit
    test: PairSplit
    source_vocabulary: Tokenizer
    target_vocabulary: Tokenizer
    sha256: str
    lowercase: bool
    folder: str
    tokenizer: str | tuple[str, ...]
    max_tokens: int | None
    files: dict[str, tuple[str, str]] | None = None

    @property
    def vocabulary(self) -> Tokenizer:
        """The tokeniser of the target."""
        return self.target_vocabulary

    @property
    def joint(self) -> bool:
        """Whether both sides share one tokeniser."""
        return self.source_vocabulary is self.target_vocabulary

    def __repr__(self) -> str:
        sizes = ", ".join(f"{split}={len(self.split(split))}" for split in SPLITS)
        vocabulary_sizes = f"{len(self.source_vocabulary)}"
        vocabulary_sizes += "" if self.joint else f"/{len(self.target_vocabulary)}"
        languages = f"{self.source}-{self.target}"
        return f"PairCorpus({self.name!r}, {languages}, {sizes}, vocabulary={vocabulary_sizes})"

    def split(self, name: str) -> PairSplit:
        """Return the pairs of split `name`: "train", "valid" or "test"."""
        return getattr(self, check_choice("split", name, SPLITS))

    def batches(self, split: str, **settings: Any) -> "PairBatches":
        """Return batches of pairs of similar length, see `PairBatches`.

        Args:
            split: str. "train", "valid" or "test".
            **settings: `tokens_per_batch`, `batch_size`, `pad_to_multiple_of`, `shuffle` and
                `seed`, passed to `PairBatches`.
        """
        from dualnet.corpora.pair_batches import PairBatches  # here: it needs Keras

        if not len(self.split(split)):
            raise ArgumentError("split", "must be one that holds pairs.", split=split)
        return PairBatches(
            self.split(split),
            vocabulary=self.vocabulary,
            source_vocabulary=self.source_vocabulary,
            **settings,
        )


def load_pairs(
    folder: StrPath,
    *,
    source: str | None = None,
    target: str | None = None,
    tokenizer: Tokenizers | None = None,
    joint: bool = True,
    lowercase: bool = False,
    max_tokens: int | None = 250,
    files: Mapping[str, Sequence[StrPath]] | None = None,
    splits: Sequence[str] = SPLITS,
) -> PairCorpus:
    """Return a corpus of pairs from a folder or a table, e.g. for translation.

    The files are `train.en`, `valid.en` (or `val.en`), `test.en` (or `test_2016.en`,
    `test_2016_flickr.en`) and those of the other language, in UTF-8: line k of one is paired
    with line k of the other. What follows the first point names a side, so
    `source="article.txt"` reads `train.article.txt`; its end is enough, "en" of
    `train.lc.norm.tok.en`. Files may be compressed, `train.en.gz`. A split may also be one file
    `train.tsv`, whose columns are source and target, or have the names of the languages as first
    line. A single such file is divided: the first 90 % of its lines are train, the next 5 %
    valid, the last 5 % test. For files of other names, give `files`:

        {"train": ("articles.txt", "headlines.txt"), "valid": (...), "test": (...)}

    "numbers" needs no files: it pairs the digits of numbers below 10,000 with English words,
    "1 0 3 4" with "one thousand thirty four". Its sides are "digits" and "words".

    Tokenisers are learnt from train alone. A pair of train with a side that has no token, or
    more than `max_tokens`, is left out and counted; valid and test are kept whole.

    Args:
        folder: path of a folder or a table, or "numbers". Write "./numbers" for a folder of that
            name.
        source: str. The language to read; "en" by default, "digits" for "numbers".
        target: str. The language to write; "de" by default, "words" for "numbers".
        tokenizer: "bpe:4000" by default, or any other that `load` takes: "words", the default
            for "numbers", "characters", "bytes", "unigram:4000", "word-piece:4000", the path
            of a `tokenizer.json` or of a `.model` of SentencePiece, or a `Tokenizer`. Two of them,
            `(source, target)`, give each side its own. "words" always has `<unk>`.
        joint: bool. Whether one tokeniser is learnt from both sides, else one from each.
        lowercase: bool. Whether the tokenisers lower-case text. The lines stay as they are.
        max_tokens: int, at least 1, or None for no limit. Of each side, without `<eos>`.
        files: dict of "train", "valid" and "test" to a pair of paths, source and target, in
            `folder` unless absolute. `source` and `target` are then names only.
        splits: What to read of "train", "valid" and "test"; the others are empty. One alone is all
            of a table that would be divided.

    Raises:
        FileNotFoundError: if the folder or a file is missing.
        ValueError: if a file is empty or not UTF-8, if the files of a split differ in their
            number of lines, if a language is missing, or if no pair of train is left.

    Example:

    >>> from dualnet import corpora
    >>> corpus = corpora.load_pairs("numbers", source="words", target="digits")
    >>> corpus.source_vocabulary.decode(corpus.test.source(0))
    'seven thousand eight hundred nineteen'
    """
    splits = [check_choice("splits", split, SPLITS) for split in splits]
    is_numbers = folder == NUMBERS and files is None
    sides = number_words.LANGUAGES if is_numbers else ("en", "de")
    sides = sides if files is None else ("source", "target")
    source, target = source or sides[0], target or sides[1]
    if source == target:
        raise ArgumentError("target", f"must differ from `source`. Received: both are {target!r}.")
    if is_numbers:
        check_choice("source", source, sides)
        check_choice("target", target, sides)
        place, name = "embedded", NUMBERS
        lines = number_words.number_lines(source, target)
    else:
        root = Path(folder).expanduser()
        place = str(root.resolve())
        name = root.stem if root.is_file() else root.resolve().name
        lines = pair_files.read_splits(root, (source, target), files, splits)
    lines = {split: lines[split] if split in splits else ([], []) for split in SPLITS}
    tokenizer = tokenizer or (Vocabulary.kind if is_numbers else "bpe:4000")
    asked, tokenizers = _tokenizers(tokenizer, joint, lowercase, lines["train"])
    pairs = {
        split: _split(lines[split], tokenizers, max_tokens, drops=split == "train")
        for split in SPLITS
    }
    train = pairs["train"]
    if "train" in splits and not len(train):
        raise ValueError(
            f"Train must have a pair that is kept. Received: {train.empty} with an empty side, "
            f"{train.too_long} of more than {max_tokens} tokens."
        )
    return PairCorpus(
        name=name,
        source=source,
        target=target,
        **pairs,
        source_vocabulary=tokenizers[0],
        target_vocabulary=tokenizers[1],
        sha256=_hash(lines),
        lowercase=tokenizers[1].lowercase,
        folder=place,
        tokenizer=asked,
        max_tokens=max_tokens,
        files=files if files is None else {s: (str(a), str(b)) for s, (a, b) in files.items()},
    )


def _tokenizers(
    asked: Tokenizers, joint: bool, lowercase: bool, train: Lines
) -> tuple[str | tuple[str, ...], tuple[Tokenizer, Tokenizer]]:
    """Return the name of the tokenisers, and those of source and target."""
    sides = [*asked] if isinstance(asked, list | tuple) else [asked] * (2 - joint)
    texts = train if len(sides) == 2 else [train[0] + train[1]]
    names, tokenizers = [], []
    for side, lines in zip(sides, texts, strict=True):
        name, tokenizer = choose_tokenizer(side, lowercase=lowercase)
        if tokenizer is None:
            if not lines:
                raise ArgumentError(
                    "tokenizer",
                    "must be one that exists, where the split 'train' is not read.",
                    tokenizer=name,
                )
            settings = Settings(tokenizer=name, min_count=1)
            tokenizer = learnt((line + END for line in lines), settings, lowercase=lowercase)
        tokenizer.require_eos("tokenizer", f"must contain {EOS}, which ends a text.")
        names.append(name)
        tokenizers.append(tokenizer)
    source, target = tokenizers[0], tokenizers[-1]
    if not lowercase <= source.lowercase == target.lowercase:  # a RUN keeps one flag for both
        raise ArgumentError(
            "tokenizer",
            "must lower-case both sides, as `lowercase` says, or neither.",
            tokenizer=(source, target),
            lowercase=lowercase,
        )
    if target == source:
        target = source
    return names[0] if len({*names}) == 1 else tuple(names), (source, target)


def _split(
    lines: Lines, tokenizers: tuple[Tokenizer, Tokenizer], max_tokens: int | None, *, drops: bool
) -> PairSplit:
    """Return the pairs of a split, which `drops` those too long or empty."""
    ids = [_encode(side, tokenizer) for side, tokenizer in zip(lines, tokenizers)]
    lengths = np.array([[*map(len, side)] for side in ids], int)  # (2, pairs)
    empty = drops & (lengths.min(axis=0) == 0)
    too_long = drops & ~empty & (lengths.max(axis=0) > (max_tokens or np.inf))
    kept = ~(empty | too_long)
    chosen = [[*itertools.compress(side, kept)] for side in ids]
    texts = (itertools.compress(side, kept) for side in lines)
    return PairSplit.of(chosen, texts, int(too_long.sum()), int(empty.sum()))


def _encode(lines: list[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    """Return the ids of each line, without `<eos>`."""
    ids = [tokenizer.encode(line) for line in lines]
    for line, line_ids in zip(lines, ids):
        if tokenizer.eos_id in line_ids:
            raise ValueError(f"A line must not contain {EOS}, which ends it. Received: {line!r}.")
    return ids


def _hash(lines: Mapping[str, Lines]) -> str:
    digest = hashlib.sha256()
    for split in SPLITS:
        for side in lines[split]:
            digest.update(f"{split} {len(side)}\n".encode())
            digest.update("".join(line + "\n" for line in side).encode())
    return digest.hexdigest()
