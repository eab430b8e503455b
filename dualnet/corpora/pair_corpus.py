"""Pairs of texts, such as sentences and their translations, or articles and their headlines."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dualnet._checks import ArgumentError, StrPath, check_choice, check_count
from dualnet.corpora import number_words, pair_files
from dualnet.corpora.corpus import choose_tokenizer
from dualnet.corpora.encoding import Settings, learnt
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
        units = f"{len(self.source_vocabulary)}"
        units += "" if self.joint else f"/{len(self.target_vocabulary)}"
        languages = f"{self.source}-{self.target}"
        return f"PairCorpus({self.name!r}, {languages}, {sizes}, vocabulary={units})"

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
        words: Any = {"vocabulary": self.vocabulary, "source_vocabulary": self.source_vocabulary}
        return PairBatches(self.split(split), **words, **settings)


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
    splits = [*dict.fromkeys(check_choice("splits", split, SPLITS) for split in splits)]
    if not splits:
        raise ArgumentError("splits", f"must name at least one of {list(SPLITS)}.", splits=splits)
    if max_tokens is not None:
        max_tokens = check_count("max_tokens", max_tokens, least=1)
    numbers = folder == NUMBERS and files is None
    languages = ("en", "de") if files is None else ("source", "target")
    languages = number_words.LANGUAGES if numbers else languages
    source, target = source or languages[0], target or languages[1]
    if source == target:
        raise ArgumentError("target", f"must differ from `source`. Received: both are {target!r}.")
    if numbers:
        for side, language in (("source", source), ("target", target)):
            check_choice(side, language, languages)
        name, place, paths = NUMBERS, "embedded", None
        numbered = number_words.number_lines()
        lines = {split: (numbered[split][source], numbered[split][target]) for split in splits}
    else:
        root = Path(folder).expanduser()
        name, place = root.resolve().name, str(root.resolve())
        sides_of = (source, target)
        if files is None and root.is_file():
            name, paths = root.stem, dict.fromkeys(SPLITS, (root, root))
            lines = pair_files.divided(root, sides_of, splits)
        else:
            paths = pair_files.find(root, source, target, files, splits)
            lines = {split: pair_files.read(*paths[split], sides_of) for split in splits}
    lines = {split: lines.get(split, ([], [])) for split in SPLITS}
    asked, vocabularies = _tokenizers(
        tokenizer or (Vocabulary.kind if numbers else "bpe:4000"), joint, lowercase, lines["train"]
    )
    encoded = {}
    for split in SPLITS:
        places = paths[split] if paths and split in paths else (name, name)
        sides = [*map(_encode, lines[split], vocabularies, places)]
        encoded[split] = _split(lines[split], sides, max_tokens, whole=split != "train")
    if "train" in splits and not len(train := encoded["train"]):
        message = "Train must have a pair whose sides are not empty and not too long. Received: "
        message += f"{train.empty} with an empty side and {train.too_long} with more than "
        raise ValueError(f"{message}max_tokens={max_tokens} tokens.")
    return PairCorpus(
        name=name,
        source=source,
        target=target,
        **encoded,
        source_vocabulary=vocabularies[0],
        target_vocabulary=vocabularies[1],
        sha256=_hash(lines),
        lowercase=vocabularies[1].lowercase,
        folder=place,
        tokenizer=asked,
        max_tokens=max_tokens,
        files=None if files is None else {s: (str(files[s][0]), str(files[s][1])) for s in files},
    )


Lines = tuple[list[str], list[str]]  # of source and target
Encoded = tuple[np.ndarray, np.ndarray]  # ids and offsets of a side


def _tokenizers(
    tokenizer: Tokenizers, joint: bool, lowercase: bool, train: Lines
) -> tuple[str | tuple[str, ...], tuple[Tokenizer, Tokenizer]]:
    """Return the name of the tokenisers, and those of source and target."""
    asked = tokenizer
    if not isinstance(asked, (list, tuple)):
        asked = [asked] if joint else [asked, asked]
    elif len(asked) != 2:
        required = "must be one, or two, for source and target."
        raise ArgumentError("tokenizer", f"{required} Received: {len(asked)} tokenisers.")
    chosen = [choose_tokenizer(one, None, None, lowercase) for one in asked]
    names = tuple(name for name, _ in chosen)
    tokenizers = []
    for (name, one), lines in zip(chosen, train if len(asked) == 2 else [train[0] + train[1]]):
        if one is None and not lines:
            required = "must be one that exists, where the split 'train' is not read."
            raise ArgumentError("tokenizer", required, tokenizer=name)
        settings = Settings(lowercase=lowercase, tokenizer=name, min_count=1)
        tokenizers.append(one or learnt((line + END for line in lines), settings))
    for one in tokenizers:
        one.require_eos("tokenizer", f"must contain {EOS}, which ends a text.")
        if lowercase and not one.lowercase:
            required = "must be False with an existing tokeniser that keeps capitals."
            raise ArgumentError("lowercase", required, lowercase=True, tokenizer=one)
    source, target = tokenizers[0], tokenizers[-1]
    if source.lowercase != target.lowercase:  # a RUN keeps one flag for both
        required = "must both lower-case text, or neither."
        raise ArgumentError("tokenizer", required, tokenizer=(source, target))
    if target == source:
        target = source
    return names[0] if len({*names}) == 1 else names, (source, target)


def _encode(lines: list[str], tokenizer: Tokenizer, place: str | Path) -> Encoded:
    """Return the ids of `lines` without `<eos>`, and their offsets."""
    ids = [tokenizer.encode(line) for line in lines]
    for line, line_ids in zip(lines, ids):
        if tokenizer.eos_id in line_ids:
            received = f"Received: {line!r} in {str(place)!r}. Remove it."
            raise ValueError(f"A line must not contain {EOS}, which ends it. {received}")
    return np.concatenate([np.zeros(0, np.int32), *ids]), np.cumsum([0, *map(len, ids)])


def _split(lines: Lines, sides: list[Encoded], max_tokens: int | None, *, whole: bool) -> PairSplit:
    """Return the pairs of a split; unless `whole`, without those too long or empty."""
    lengths = np.stack([np.diff(offsets) for _, offsets in sides])  # (2, pairs)
    empty = (not whole) & (lengths.min(axis=0) == 0)
    too_long = (not whole) & ~empty & (lengths.max(axis=0) > (max_tokens or np.inf))
    kept = ~(empty | too_long)
    fields: dict[str, Any] = {"too_long": int(too_long.sum()), "empty": int(empty.sum())}
    for side, texts, (ids, _), length in zip(("source", "target"), lines, sides, lengths):
        fields[f"{side}_lines"] = tuple(texts[i] for i in np.flatnonzero(kept))
        fields[f"{side}_ids"] = ids[np.repeat(kept, length)]
        fields[f"{side}_offsets"] = np.cumsum(np.append(0, length[kept]))
    return PairSplit(**fields)


def _hash(lines: Mapping[str, Lines]) -> str:
    digest = hashlib.sha256()
    for split in SPLITS:
        for side in lines[split]:
            digest.update(f"{split} {len(side)}\n".encode())
            digest.update("".join(line + "\n" for line in side).encode())
    return digest.hexdigest()
