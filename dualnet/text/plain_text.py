"""UTF-8 text in blocks, and its words."""

import os
from collections.abc import Iterator
from typing import BinaryIO

EOS, UNK = "<eos>", "<unk>"
BLOCK_BYTES = 1 << 16  # small enough that the words of a block stay in the processor's cache


def words_of(text: str) -> list[str]:
    """Return the words of `text`, which white space separates, with `<eos>` for every newline."""
    return text.replace("\n", f" {EOS} ").split()


def text_of(data: bytes, source: str, *, offset: int = 0) -> str:
    """Return `data`, the bytes of the file `source` from `offset` on, as text."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"A text file must be UTF-8. Received: {source!r} with byte "
            f"0x{data[error.start]:02x} at offset {offset + error.start}. "
            "Convert it, e.g. with iconv."
        ) from None
    return text if offset else text.removeprefix("\ufeff")  # the byte order mark


def blocks(path: str | os.PathLike[str], *, lowercase: bool = False) -> Iterator[str]:
    """Yield the text of the file at `path` in blocks, see `decoded`."""
    with open(path, "rb") as file:
        yield from decoded(file, os.fspath(path), lowercase=lowercase)


def decoded(file: BinaryIO, name: str, *, lowercase: bool = False) -> Iterator[str]:
    """Yield the text of a binary file in blocks that end in a space or a newline.

    A word is never split between blocks. Only a newline ends a line; one is added to the
    last line if it is missing.
    An error, of an empty file or one that is not UTF-8, calls the file `name`.
    """
    offset = 0
    parts: list[bytes] = []  # the word or line that the last block cut off
    text = ""
    while data := file.read(BLOCK_BYTES):
        # In UTF-8, neither byte is ever part of another character.
        end = max(data.rfind(b"\n"), data.rfind(b" ")) + 1
        if end:
            text = text_of(b"".join([*parts, data[:end]]), name, offset=offset)
            yield text.lower() if lowercase else text
            offset += sum(map(len, parts)) + end
            parts = []
        parts.append(data[end:])
    if any(parts) or (text and not text.endswith("\n")):
        text = text_of(b"".join([*parts, b"\n"]), name, offset=offset)
        yield text.lower() if lowercase else text
    elif not parts:
        raise ValueError(f"A text file must not be empty. Received: {name!r}.")
