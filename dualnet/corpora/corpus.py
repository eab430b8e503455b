"""Corpora: text as three streams of word ids."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dualnet._checks import ArgumentError, check_choice, check_count, did_you_mean
from dualnet.corpora import cached_ids, sources
from dualnet.corpora.encoding import Settings, Text, encode
from dualnet.corpora.sources import SPLITS
from dualnet.text import Vocabulary, plain_text

if TYPE_CHECKING:
    from dualnet.corpora.sentence_batches import SentenceBatches
    from dualnet.corpora.token_batches import TokenBatches

EMBEDDED = "python-reference"
NAMES = (EMBEDDED, "ptb", "wikitext-2", "wikitext-103")


@dataclass(frozen=True, eq=False)
class Corpus:
    """A corpus: three splits, each a stream of ids in reading order.

    Attributes:
        name: str. One of `NAMES`, or the name of the folder.
        train, valid, test: int32 `(num_tokens,)`; `<eos>` ends every line. Those of a
            large text are read-only memory maps.
        vocabulary: The `Vocabulary` of the ids.
        sha256: str. Hash of the words of all splits before rare ones became `<unk>`:
            equal hashes mean equal text.
        lowercase: bool. Whether the text was lower-cased.
        source: str. The folder it was read from, or "embedded".

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
    vocabulary: Vocabulary
    sha256: str
    lowercase: bool
    source: str

    def __repr__(self) -> str:
        sizes = ", ".join(f"{split}={len(self.split(split))}" for split in SPLITS)
        return f"Corpus({self.name!r}, {sizes}, vocabulary={len(self.vocabulary)})"

    def split(self, name: str) -> np.ndarray:
        """Return the ids of split `name`: "train", "valid" or "test"."""
        tokens: np.ndarray = getattr(self, check_choice("split", name, SPLITS))
        return tokens

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

        settings |= {"vocabulary": self.vocabulary, "batch_size": batch_size}
        return TokenBatches(self.split(split), sequence_length=sequence_length, **settings)

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

        settings |= {"vocabulary": self.vocabulary, "batch_size": batch_size}
        return SentenceBatches(self.split(split), **settings)


def load(
    name_or_folder: str | os.PathLike[str],
    *,
    path: str | os.PathLike[str] | None = None,
    lowercase: bool = False,
    vocabulary_size: int | None = None,
    min_count: int | None = None,
    vocabulary: Vocabulary | None = None,
    download: bool = True,
) -> Corpus:
    """Return a corpus by name, or from a folder of text files.

    The file of a split is `train.txt`, `valid.txt` or `test.txt`, or has the usual name
    `ptb.train.txt` or `wiki.train.tokens`. White space separates words, and every line ends
    in `<eos>`, even a blank one. The vocabulary lists the words of train by descending count;
    it includes `<unk>` if train does, if words are cut, or if another split has new words.

    A named corpus is looked for in `path`, then in its folder in the environment variable
    DUALNET_DATA, then in the cache (`~/.cache/dualnet/NAME`, or under XDG_CACHE_HOME);
    "ptb" and "wikitext-2" are then downloaded into the cache. "python-reference" needs no
    files: it is CPython's language reference, in the style of the Penn Treebank.

    The ids of a text of more than 16 MiB are cached in `ids`, with checksums of the text
    and of themselves, and read from there when needed: neither text nor ids need fit into
    memory. If the cache cannot be written, the ids are kept in memory.

    Args:
        name_or_folder: One of `NAMES`, or a folder. Write "./ptb" for a folder with the
            name of a corpus.
        path: Folder of the named corpus.
        lowercase: bool. Whether to lower-case the text.
        vocabulary_size: int, at least 2. Maximum number of words, `<eos>` and `<unk>`
            included; the rarest words of train become `<unk>`.
        min_count: int, at least 1. Words that are rarer in train become `<unk>`. Defaults to
            1, and to 2 for "python-reference": its held-out splits have new words, and
            `<unk>` can only be learned if train has it.
        vocabulary: A `Vocabulary` to use instead, e.g. that of a trained model.
        download: bool. Whether to use the network.

    Raises:
        FileNotFoundError: if a folder or a split is missing, or the corpus could not be
            downloaded.

    Example:

    >>> from dualnet import corpora
    >>> len(corpora.load("python-reference", vocabulary_size=100).vocabulary)
    100
    """
    if vocabulary is not None and (vocabulary_size is not None or min_count is not None):
        raise ArgumentError(
            "vocabulary",
            "fixes the words, so `vocabulary_size` and `min_count` must be None. "
            f"Received: vocabulary_size={vocabulary_size!r}, min_count={min_count!r}.",
        )
    if vocabulary_size is not None:
        vocabulary_size = check_count("vocabulary_size", vocabulary_size, least=2)
    if min_count is not None:
        min_count = check_count("min_count", min_count, least=1)
    text = locate(name_or_folder, path, lowercase, download)
    settings = Settings(
        lowercase=bool(lowercase),
        vocabulary_size=vocabulary_size,
        min_count=min_count or (2 if text.name == EMBEDDED else 1),
        vocabulary=vocabulary,
    )
    to_ids = cached_ids.cached if cached_ids.is_large(text) else encode
    encoded = to_ids(text, settings)
    return Corpus(
        name=text.name,
        **encoded.splits,
        vocabulary=encoded.vocabulary,
        sha256=encoded.sha256,
        lowercase=lowercase,
        source=text.source,
    )


def locate(
    name_or_folder: str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    lowercase: bool = False,
    download: bool = True,
) -> Text:
    """Return the text of a corpus, not yet read."""
    if name_or_folder == EMBEDDED and path is None:
        from dualnet.corpora import python_reference

        texts = python_reference.split_texts()  # lower case except for N
        texts = {split: text.lower() if lowercase else text for split, text in texts.items()}
        return Text(EMBEDDED, "embedded", lambda split: iter([texts[split]]), files={})
    named = name_or_folder in NAMES[1:]
    if path is not None and not named:
        raise ArgumentError(
            "path",
            f"requires one of {NAMES[1:]}. Received: path={os.fspath(path)!r} with "
            f"{os.fspath(name_or_folder)!r}. Pass the folder as first argument.",
        )
    if named:
        name = str(name_or_folder)
        folder = sources.find(name, path, download)
    else:
        folder = Path(name_or_folder).expanduser()
        is_name = isinstance(name_or_folder, str) and len(Path(name_or_folder).parts) == 1
        if is_name and not folder.is_dir() and name_or_folder not in (".", "~"):
            raise ValueError(
                f"Unknown corpus: it must be one of {NAMES} or an existing folder. Received: "
                f"{name_or_folder!r}." + did_you_mean(str(name_or_folder).lower(), NAMES)
            )
        name = folder.resolve().name
    files = sources.split_files(folder)
    return Text(
        name,
        str(folder.resolve()),
        lambda split: plain_text.blocks(files[split], lowercase=lowercase),
        files,
    )
