"""The tokeniser whose units are the bytes of UTF-8."""

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dualnet._checks import StrPath, check_choice
from dualnet.text.plain_text import DOCUMENTS, END, ENDS, EOS
from dualnet.text.tokenizer import Tokenizer

EOS_ID = 256
MARK = 0xFF  # no byte of UTF-8


@dataclass(frozen=True)
class ByteTokenizer(Tokenizer):
    """The 256 bytes of UTF-8, each its own id, and `<eos>`, which is 256.

    No text is unknown, and decoding gives it back unchanged.

    Args:
        documents: "line", "blank-line" or "file": what ends a document, and is read as `<eos>`.

    Example:

    >>> from dualnet.text import ByteTokenizer
    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.encode("a\\u00e4\\n").tolist()
    [97, 195, 164, 256]
    >>> tokenizer.decode([97, 195, 164])
    'aä'
    """

    documents: str = "line"
    lowercase: ClassVar[bool] = False
    kind: ClassVar[str] = "bytes"
    file_name: ClassVar[str] = "tokenizer.json"
    eos_id: ClassVar[int] = EOS_ID
    unk_id: ClassVar[None] = None
    loses: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_choice("documents", self.documents, DOCUMENTS)

    @functools.cached_property
    def words(self) -> tuple[str, ...]:  # type: ignore[override]
        """The bytes as they are shown: those of ASCII as characters, others as in "\\xe4"."""
        shown = [bytes([i]).decode(errors="backslashreplace") for i in range(256)]
        return (*shown, EOS)

    @functools.cached_property
    def sha256(self) -> str:
        return hashlib.sha256(b"dualnet bytes 1").hexdigest()

    @functools.cached_property
    def spelling(self) -> tuple[bytes, ...]:
        return (*(bytes([i]) for i in range(256)), ENDS[self.documents].encode())

    def encode_marked(self, text: str) -> np.ndarray:
        data = bytes([MARK]).join(part.encode() for part in text.split(END))
        ids = np.frombuffer(data, "uint8").astype("int32")
        ids[ids == MARK] = EOS_ID
        return ids

    def _spans(self, text: str) -> Iterator[tuple[int, int, int]]:
        for i, character in enumerate(text):
            for byte in character.encode():
                yield byte, i, i + 1

    def save(self, path: StrPath) -> None:
        """Write a `tokenizer.json` of Hugging Face's `tokenizers` with the same ids."""
        from dualnet.text.library_tokenizer import write_bytes_tokenizer

        write_bytes_tokenizer(path)

    def get_config(self) -> dict[str, Any]:
        return {"kind": self.kind, "documents": self.documents}
