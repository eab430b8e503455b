"""Opens the tokenisers that files and configurations hold."""

import os
from collections.abc import Mapping
from typing import Any

from dualnet._checks import StrPath, check_choice, checked
from dualnet.text.byte_tokenizer import ByteTokenizer
from dualnet.text.library_tokenizer import LibraryTokenizer, is_bytes_tokenizer, read_library_file
from dualnet.text.tokenizer import Tokenizer
from dualnet.text.vocabulary import Vocabulary


@checked
def load_tokenizer(path: StrPath, *, documents: str = "line", lowercase: bool = False) -> Tokenizer:
    """Return the tokeniser in a file: what `Tokenizer.save` wrote, or any `tokenizer.json`.

    Args:
        path: a file ending in .json, in the format of Hugging Face's `tokenizers`, or a list
            of words, one per line.
        documents: "line", "blank-line" or "file": what ends a document, and is read as `<eos>`.
        lowercase: bool. Whether text is lower-cased first.

    Raises:
        ValueError: if the file is none of these.

    Example:

    >>> import tempfile
    >>> from dualnet.text import ByteTokenizer, load_tokenizer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ByteTokenizer().save(f"{folder}/tokenizer.json")
    ...     tokenizer = load_tokenizer(f"{folder}/tokenizer.json")
    >>> tokenizer == ByteTokenizer()
    True
    """
    if not os.fspath(path).lower().endswith(".json"):
        return Vocabulary.load(path, lowercase=lowercase, documents=documents)
    text = read_library_file(path)
    if is_bytes_tokenizer(text) and not lowercase:
        return ByteTokenizer(documents)
    return LibraryTokenizer(text, documents, lowercase)


@checked
def from_config(config: Mapping[str, Any]) -> Tokenizer:
    """Return the tokeniser whose `get_config` is `config`.

    Example:

    >>> from dualnet.text import from_config
    >>> from_config({"kind": "bytes", "documents": "line"}).encode("a").tolist()
    [97]
    """
    kinds = {"words": Vocabulary, "bytes": ByteTokenizer, "library": LibraryTokenizer}
    kind = kinds[check_choice("kind", config.get("kind"), kinds)]
    tokenizer: Tokenizer = kind(**{key: config[key] for key in config.keys() - {"kind"}})
    return tokenizer
