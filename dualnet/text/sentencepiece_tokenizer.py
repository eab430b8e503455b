"""Tokenisers of the library `sentencepiece`: files that end in .model."""

import base64
import functools
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dualnet._checks import StrPath, extra
from dualnet._files import write_whole
from dualnet.text.library_tokenizer import END_NAMES, READABLE, library_errors
from dualnet.text.plain_text import END, ENDS, EOS, UNK
from dualnet.text.tokenizer import Span, Tokenizer


@dataclass(frozen=True, repr=False)
class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model, BPE or unigram, with `<eos>` between documents.

    The library itself encodes and decodes each document, so the ids are its own on every text. No
    other program segments exactly alike: unigram breaks ties by rounding, and the normaliser
    divides text in its own way.

    `<eos>` is the end piece that the file names, usually `</s>`; else a control piece with one of
    `END_NAMES`; else it is added as the last token. `<unk>` is the unknown piece. Other control
    pieces, such as `<s>` and `<pad>`, keep their ids; no text is read as one, not even one that
    spells it, and they decode to nothing.

    Args:
        base64: str. The bytes of the file, in base64.
        documents: "line", "blank-line" or "file": what ends a document, and is read as `<eos>`.
        lowercase: bool. Whether text is lower-cased first.

    Raises:
        ValueError: if `base64` is not that of a SentencePiece model.
        ImportError: without the package sentencepiece.

    Example:

    >>> from dualnet.text import SentencePieceTokenizer
    >>> SentencePieceTokenizer.loses
    'SentencePiece changes white space and other characters before it reads them'
    """

    base64: str
    documents: str = "line"
    lowercase: bool = False
    kind: ClassVar[str] = "sentencepiece"
    file_name: ClassVar[str] = "tokenizer.model"
    loses: ClassVar[str] = (
        "SentencePiece changes white space and other characters before it reads them"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._library  # the file is checked

    @functools.cached_property
    def _model(self) -> bytes:
        return base64.b64decode(self.base64, validate=True)

    @functools.cached_property
    def _library(self) -> Any:
        with extra("sentencepiece", "SentencePiece files need the package sentencepiece"):
            import sentencepiece
        with library_errors("The file must be a SentencePiece model"):
            return sentencepiece.SentencePieceProcessor.from_proto(self._model)

    @functools.cached_property
    def _pieces(self) -> list[str]:
        return self._library.id_to_piece([*range(self._library.get_piece_size())])

    @functools.cached_property
    def words(self) -> tuple[str, ...]:  # type: ignore[override]
        """The pieces as they are shown."""
        shown = [*self._pieces, EOS][: max(len(self._pieces), self.eos_id + 1)]
        shown[self.eos_id], shown[self.unk_id] = EOS, UNK
        return tuple(shown)

    @functools.cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self._model).hexdigest()

    @functools.cached_property
    def eos_id(self) -> int:
        if (number := self._library.eos_id()) >= 0:
            return int(number)
        ids = (self._library.piece_to_id(name) for name in END_NAMES)
        return next((int(i) for i in ids if self._library.is_control(i)), len(self._pieces))

    @functools.cached_property
    def unk_id(self) -> int:
        return int(self._library.unk_id())

    @property
    def unknown_ids(self) -> list[int]:
        return [self.unk_id]

    @functools.cached_property
    def _spelt(self) -> list[bytes]:
        is_byte = self._library.is_byte
        spelt = (
            bytes([int(piece[3:5], 16)]) if is_byte(i) else piece.encode()  # as in "<0xE4>"
            for i, piece in enumerate(self._pieces)
        )
        return [*spelt, EOS.encode()]

    def encode_marked(self, text: str) -> np.ndarray:
        with library_errors(READABLE):
            documents = self._library.encode(text.split(END))
        ids = [i for document in documents for i in (*document, self.eos_id)]
        return np.array(ids[:-1], "int32")

    def _spans(self, text: str) -> Iterable[Span]:
        with library_errors(READABLE):
            encoding = self._library.encode(text, return_type="offset_mapping")
        return zip(encoding["ids"], encoding["offsets"])

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; bytes that are no UTF-8 become the replacement character."""
        return ENDS[self.documents].join(self._library.decode(self._documents(ids)))

    def save(self, path: StrPath) -> None:
        """Write the SentencePiece file unchanged, whole or not at all."""
        write_whole(path, self._model)
