"""Tokenisers from files and from configurations."""

import base64
import os
from collections.abc import Mapping
from typing import Any

from dualnet._checks import ArgumentError, StrPath, check_choice
from dualnet._files import read_regular
from dualnet.text.library_tokenizer import ByteTokenizer, LibraryTokenizer, byte_units
from dualnet.text.sentencepiece_tokenizer import SentencePieceTokenizer
from dualnet.text.tokenizer import Tokenizer
from dualnet.text.vocabulary import Vocabulary

FORMATS = {
    ".json": "tokenizer.json of Hugging Face's `tokenizers`",
    ".model": "tokenizer.model of SentencePiece",
}
KINDS: dict[str, type[Tokenizer]] = {
    "words": Vocabulary, "bytes": ByteTokenizer, "library": LibraryTokenizer,
    "sentencepiece": SentencePieceTokenizer,
}  # fmt: skip
TOKENIZER_FILES = tuple(dict.fromkeys(kind.file_name for kind in KINDS.values()))


def load_tokenizer(path: StrPath, *, documents: str = "line", lowercase: bool = False) -> Tokenizer:
    """Return the tokeniser in a file: what `Tokenizer.save` wrote, or one of another program.

    Args:
        path: a file ending in .json, in the format of Hugging Face's `tokenizers`; one ending in
            .model, of SentencePiece; or a list of words, one per line.
        documents: "line", "blank-line" or "file": what ends a document, and is read as `<eos>`.
        lowercase: bool. Whether text is lower-cased first.

    Raises:
        ValueError: if the file is none of these.
        ImportError: if it is one of SentencePiece, without the package sentencepiece.

    Example:

    >>> import tempfile
    >>> from dualnet.text import ByteTokenizer, load_tokenizer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ByteTokenizer().save(f"{folder}/tokenizer.json")
    ...     tokenizer = load_tokenizer(f"{folder}/tokenizer.json")
    >>> tokenizer == ByteTokenizer()
    True
    """
    suffix = tokenizer_suffix(path)
    if suffix is None:
        return Vocabulary.load(path, lowercase=lowercase, documents=documents)
    try:
        data = read_regular(path)
        if suffix == ".model":
            return SentencePieceTokenizer(base64.b64encode(data).decode(), documents, lowercase)
        tokenizer = LibraryTokenizer(data.decode("utf-8-sig"), documents, lowercase)
    except (OSError, ValueError) as error:
        required = "a file that can be read"
        if isinstance(error, ValueError):
            required = f"the file {FORMATS[suffix]}"
        raise ArgumentError(
            "tokenizer", f"must be {required}. Received: {os.fspath(path)!r}: {error}"
        ) from None
    model = tokenizer._data["model"]
    if model["vocab"] == byte_units() and not model.get("merges") and not lowercase:
        return ByteTokenizer(documents)
    return tokenizer


def tokenizer_suffix(path: StrPath) -> str | None:
    """Return the suffix of a path that names a file of `FORMATS`, ".json" or ".model", else None.

    Example:

    >>> from dualnet.text.loading import tokenizer_suffix
    >>> tokenizer_suffix("a/spm.model"), tokenizer_suffix("words.txt")
    ('.model', None)
    """
    return next((end for end in FORMATS if os.fspath(path).lower().endswith(end)), None)


def from_config(config: Mapping[str, Any]) -> Tokenizer:
    """Return the tokeniser whose `get_config` is `config`.

    Example:

    >>> from dualnet.text import from_config
    >>> from_config({"kind": "bytes", "documents": "line"}).encode("a").tolist()
    [97]
    """
    kind = KINDS[check_choice("kind", config.get("kind"), KINDS)]
    return kind(**{key: config[key] for key in config.keys() - {"kind"}})
