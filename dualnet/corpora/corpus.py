"""Corpora: text as three streams of ids."""

import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dualnet._checks import ArgumentError, StrPath, check_choice, did_you_mean
from dualnet.corpora import cached_ids, sources
from dualnet.corpora.encoding import Settings, Text, check_tokenizer, has_unknown
from dualnet.corpora.sources import SPLITS
from dualnet.text import DOCUMENTS, UNK, Tokenizer, Vocabulary, load_tokenizer
from dualnet.text.files import BLOCK_BYTES, DOCUMENT_BYTES
from dualnet.text.loading import tokenizer_suffix
from dualnet.text.plain_text import words_of

if TYPE_CHECKING:
    from dualnet.corpora.sentence_batches import SentenceBatches
    from dualnet.corpora.token_batches import TokenBatches

EMBEDDED = "python-reference"
LEAST_TOKENS, MOST_TOKENS = 257, 32_000  # of the byte-level BPE for a text of one's own
NAMES = (EMBEDDED, "ptb", "wikitext-2", "wikitext-103")


@dataclass(frozen=True, eq=False)
class Corpus:
    """A corpus: three splits, each a stream of ids in reading order.

    Attributes:
        name: str. One of `NAMES`, or the name of the folder.
        train, valid, test: int32 `(num_tokens,)`; `<eos>` ends every line. Those of a
            large text are read-only memory maps.
        vocabulary: The tokeniser of the ids: a `Vocabulary` of words, or another `Tokenizer`.
        sha256: str. Hash of the text of all splits, of words before rare ones became `<unk>`:
            equal hashes mean equal text.
        lowercase: bool. Whether the text was lower-cased.
        source: str. The folder or file it was read from, or "embedded".
        tokenizer: str. What `load` was asked for, e.g. "words" or "bpe:8000".
        fractions: tuple of three numbers, the shares of a single file; None for a folder.
        vocabulary_size, min_count: What `load` was asked for, or None.
        note: str. Which tokeniser was chosen and why; "" if `load` was asked for one.

    Example:

    >>> from dualnet import corpora
    >>> corpus = corpora.load("python-reference")
    >>> corpus.train.dtype, corpus.vocabulary.decode(corpus.vocabulary.encode("the list"))
    (dtype('int32'), 'the list')
    """

    name: str
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    vocabulary: Tokenizer
    sha256: str
    lowercase: bool
    source: str
    tokenizer: str = Vocabulary.kind
    fractions: tuple[float, ...] | None = None
    vocabulary_size: int | None = None
    min_count: int | None = None
    note: str = ""

    def __repr__(self) -> str:
        sizes = ", ".join(f"{split}={len(self.split(split))}" for split in SPLITS)
        return f"Corpus({self.name!r}, {sizes}, vocabulary={len(self.vocabulary)})"

    def split(self, name: str) -> np.ndarray:
        """Return the ids of split `name`: "train", "valid" or "test"."""
        return getattr(self, check_choice("split", name, SPLITS))

    def batches(
        self, split: str, *, batch_size: int, sequence_length: int, **settings: Any
    ) -> "TokenBatches":
        """Return the batches of a split in reading order, see `TokenBatches`.

        They must not be shuffled: `LanguageModel.fit` does not, a plain Keras model needs
        `shuffle=False`.

        Args:
            split: str. "train", "valid" or "test".
            batch_size: int, at least 1. Number of parallel streams.
            sequence_length: int, at least 1. Tokens of each stream per batch.
            **settings: Passed to `TokenBatches`.
        """
        from dualnet.corpora.token_batches import TokenBatches  # here: it needs Keras

        return TokenBatches(
            self.split(split),
            vocabulary=self.vocabulary,
            batch_size=batch_size,
            sequence_length=sequence_length,
            **settings,
        )

    def sentence_batches(
        self, split: str, *, batch_size: int, **settings: Any
    ) -> "SentenceBatches":
        """Return the batches of the sentences of a split, see `SentenceBatches`.

        Each line is a sentence, read on its own after `<eos>`.

        Args:
            split: str. "train", "valid" or "test".
            batch_size: int, at least 1. Sentences per batch.
            **settings: Passed to `SentenceBatches`.
        """
        from dualnet.corpora.sentence_batches import SentenceBatches  # here: it needs Keras

        return SentenceBatches(
            self.split(split), vocabulary=self.vocabulary, batch_size=batch_size, **settings
        )


def load(
    name_or_folder: StrPath,
    *,
    path: StrPath | None = None,
    lowercase: bool = False,
    vocabulary_size: int | None = None,
    min_count: int | None = None,
    vocabulary: Tokenizer | None = None,
    tokenizer: StrPath | Tokenizer | None = None,
    documents: str | None = None,
    fractions: Sequence[float] | None = None,
    download: bool = True,
) -> Corpus:
    """Return a corpus by name, or from a folder of text files, or from a single file.

    The file of a split is `train.txt`, `valid.txt` or `test.txt`, or has the usual name
    `ptb.train.txt` or `wiki.train.tokens`; or a split is a folder `train`, `valid` or `test`
    of .txt files, read in the order of their names; a warning names what else is in it. A single
    file is divided by line into `fractions`: its first lines are train, its last ones test. With
    `documents="blank-line"`, no document is cut.

    By default, a text of your own is read as byte-level BPE, which loses nothing, with as many
    tokens as suit the size of train: 4,000 for 1 MB, from 257 to 32,000. A named corpus, and a
    text whose rare words are `<unk>` already, at least one word in 1,000, are read as words. So is
    any text if `vocabulary_size` or `min_count` is given. Every line ends in `<eos>`, even a blank
    one.

    White space separates words: punctuation must be apart from them. The vocabulary lists the
    words of train by descending count, and has `<unk>` for all others. Train has `<unk>`, too, so
    that a model learns to expect new words: words that occur once are read as `<unk>` unless at
    least one word in 1,000 is `<unk>` already. If no word is that rare, the rarest one is, with a
    warning. A `min_count` of 1 keeps all words; training then never sees `<unk>`.

    A named corpus is looked for in `path`, then in its folder in the environment variable
    DUALNET_DATA, then in the cache (`~/.cache/dualnet/NAME`, or under XDG_CACHE_HOME);
    "ptb" and "wikitext-2" are then downloaded into the cache. "python-reference" needs no
    files: it is CPython's language reference, in the style of the Penn Treebank.

    The ids of a text of more than 16 MiB are cached in `ids`, with checksums of the text
    and of themselves, and read from there when needed: neither text nor ids need fit into
    memory. If the cache cannot be written, the ids are kept in memory.

    Args:
        name_or_folder: One of `NAMES`, a folder, or a file. Write "./ptb" for a folder with
            the name of a corpus.
        path: Folder of the named corpus.
        lowercase: bool. Whether to lower-case the text; a `vocabulary` or tokeniser that
            lower-cases does so anyway.
        vocabulary_size: int, at least 2. Maximum number of words, `<eos>` and `<unk>`
            included; the rarest words of train become `<unk>`.
        min_count: int, at least 1. Words that are rarer in train become `<unk>`. Defaults to 2,
            and to 1 if rare words of train are `<unk>` already.
        vocabulary: A `Tokenizer` to use, e.g. that of a trained model.
        tokenizer: "words"; "characters"; "bytes"; "bpe:8000", "unigram:8000" or
            "word-piece:8000", which learns that many tokens from train; the path of a
            `tokenizer.json` of Hugging Face's `tokenizers` or of a `.model` of SentencePiece; or
            a `Tokenizer`.
        documents: what ends a document, and is read as `<eos>`: "line", the default, every
            newline; "blank-line", one or more blank lines; "file", the end of a file.
        fractions: three numbers, the shares of a single file that become train, valid and
            test; (90, 5, 5) by default.
        download: bool. Whether to use the network.

    Raises:
        FileNotFoundError: if a folder or a split is missing, or the corpus could not be
            downloaded.

    Example:

    >>> from dualnet import corpora
    >>> len(corpora.load("python-reference", vocabulary_size=100).vocabulary)
    100
    """
    if tokenizer is not None and vocabulary is not None:
        raise ArgumentError(
            "tokenizer", "must be None with `vocabulary`, which is one.", tokenizer=tokenizer
        )
    asked = vocabulary or tokenizer
    named, vocabulary = choose_tokenizer(asked, documents, lowercase)
    sizes = {"vocabulary_size": vocabulary_size, "min_count": min_count}
    wanted = {name: size for name, size in sizes.items() if size is not None}
    if wanted and (vocabulary is not None or named != Vocabulary.kind):
        raise ArgumentError(
            next(iter(wanted)),
            "is for words that are learnt from the text.",
            **wanted,
            tokenizer=vocabulary or named,
        )
    if vocabulary is not None:
        lowercase, documents = lowercase or vocabulary.lowercase, vocabulary.documents
    text = locate(name_or_folder, path, lowercase, download, documents or "line", fractions)
    if is_own := not asked and not wanted and name_or_folder not in NAMES:
        named = suited_tokenizer(text)
    return _read(text, Settings(vocabulary=vocabulary, tokenizer=named, **wanted), is_own=is_own)


def load_whole(path: StrPath, vocabulary: Tokenizer) -> Corpus:
    """Return a corpus of one text file, read with `vocabulary`, all of which is its test split."""
    path = Path(path).expanduser()
    files = {"train": (), "valid": (), "test": (sources.Part(path),)}
    text = Text(path.stem, str(path.resolve()), files, vocabulary.documents, vocabulary.lowercase)
    return _read(text, Settings(vocabulary=vocabulary, tokenizer=vocabulary.kind))


def _read(text: Text, settings: Settings, *, is_own: bool = False) -> Corpus:
    encoded = cached_ids.encoded(text, settings)
    return Corpus(
        name=text.name,
        **encoded.splits,
        vocabulary=encoded.vocabulary,
        sha256=encoded.sha256,
        lowercase=text.lowercase,
        source=text.source,
        tokenizer=settings.tokenizer,
        fractions=text.fractions,
        vocabulary_size=settings.vocabulary_size,
        min_count=settings.min_count,
        note=_note(text, encoded.vocabulary) if is_own else "",
    )


def suited_tokenizer(text: Text) -> str:
    """Return the name of the tokeniser that suits a text of one's own.

    Words for a prepared text, in which rare words are `<unk>`. Else byte-level BPE, whose number
    of tokens grows with the square root of the training text: 4,000 for 1 MB.
    """
    blocks = itertools.islice(text.read("train"), DOCUMENT_BYTES // BLOCK_BYTES)
    begin = words_of("".join(blocks)[:DOCUMENT_BYTES])
    if has_unknown(begin.count(UNK), len(begin)):
        return Vocabulary.kind
    tokens = 4 * math.isqrt(text.size("train"))
    return f"bpe:{min(max(tokens, LEAST_TOKENS), MOST_TOKENS)}"


def _note(text: Text, tokenizer: Tokenizer) -> str:
    """Return a line that says which tokeniser suits a text, why, and how to get another."""
    if tokenizer.kind == Vocabulary.kind:
        return (
            f"Reading {text.source!r} as words, since its rare words are {UNK} already. For "
            "byte-level BPE: --tokenizer bpe:8000."
        )
    loses = "capitals alone" if tokenizer.lowercase else tokenizer.loses or "nothing"
    return (
        f"Reading {text.source!r} as byte-level BPE, which loses {loses}; {len(tokenizer):,} "
        f"tokens suit the {text.size('train'):,} bytes of train. For words: --tokenizer words."
    )


def choose_tokenizer(
    tokenizer: StrPath | Tokenizer | None, documents: str | None = None, lowercase: bool = False
) -> tuple[str, Tokenizer | None]:
    """Return the name of a corpus's tokeniser, and the tokeniser unless it is to be learnt."""
    if documents is not None:
        check_choice("documents", documents, DOCUMENTS)
    if isinstance(tokenizer, Tokenizer):
        if documents not in (None, tokenizer.documents):
            raise ArgumentError(
                "documents",
                f"must be {tokenizer.documents!r}, as the vocabulary says.",
                documents=documents,
            )
        return tokenizer.kind, tokenizer
    name = os.fspath(tokenizer or Vocabulary.kind)
    if tokenizer_suffix(name) or os.sep in name:
        return name, load_tokenizer(name, documents=documents or "line", lowercase=lowercase)
    check_tokenizer(name)
    return name, None


def locate(
    name_or_folder: StrPath,
    path: StrPath | None = None,
    lowercase: bool = False,
    download: bool = True,
    documents: str = "line",
    fractions: Sequence[float] | None = None,
) -> Text:
    """Return the text of a corpus, not yet read."""
    address = os.fspath(name_or_folder)
    file = Path(address).expanduser()
    named = address in NAMES
    if fractions is not None and (named or file.is_dir()):
        raise ArgumentError(
            "fractions",
            f"divide a single file, and {address!r} has its splits.",
            fractions=fractions,
        )
    if address == EMBEDDED:  # lower case except for N
        return Text(EMBEDDED, "embedded", {}, documents, lowercase)
    if not named and file.is_file():
        shares = (90, 5, 5) if fractions is None else tuple(fractions)
        files = sources.divided(file, shares, documents)
        return Text(file.stem, str(file.resolve()), files, documents, lowercase, shares)
    if named:
        file = sources.find(address, path, download)
    elif not file.is_dir() and len(file.parts) == 1:
        required = f"must be one of {', '.join(NAMES)}, an existing folder, or a file."
        hint = did_you_mean(address.lower(), NAMES)
        raise ArgumentError(f"Unknown corpus: it {required} Received: {address!r}.{hint}")
    files, folder = sources.split_files(file), file.resolve()
    return Text(address if named else folder.name, str(folder), files, documents, lowercase)
