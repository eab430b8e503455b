"""Reads UTF-8 text in blocks, and splits it into words."""

import os
from collections.abc import Iterator
from typing import BinaryIO

EOS, UNK = "<eos>", "<unk>"
BLOCK_BYTES = 1 << 16  # small enough that the words of a block stay in the processor's cache


def words_of(text: str) -> list[str]:
    """Return the words between white space, with `<eos>` for every newline."""
    return text.replace("\n", f" {EOS} ").split()


def text_of(data: bytes, source: str, *, offset: int = 0) -> str:
    """Return `data`, the bytes of the file `source` from `offset` on, as text.

    Raises:
        ValueError: if `data` is not UTF-8; it names `source` and the offset in it.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"A text file must be UTF-8. Received: {source!r} with byte "
            f"0x{data[error.start]:02x} at offset {offset + error.start}. "
            "Convert it, e.g. with iconv."
        ) from None
    return text if offset else text.removeprefix("\ufeff")  # a byte order mark is no word


def blocks(path: str | os.PathLike[str], *, lowercase: bool = False) -> Iterator[str]:
    """Yield the text of the file at `path` in blocks, as `decoded` does.

    Raises:
        ValueError: if the file is empty or not UTF-8.
    """
    with open(path, "rb") as file:
        yield from decoded(file, os.fspath(path), lowercase=lowercase)


def decoded(file: BinaryIO, name: str, *, lowercase: bool = False) -> Iterator[str]:
    """Yield the text of a binary file in blocks that end in a space or a newline.

    No word crosses from block to block. Only a newline ends a line, and the last
    block ends in one whether or not the file does.

    Args:
        file: a file open for reading bytes, e.g. `sys.stdin.buffer`.
        name: what an error calls it.
        lowercase: bool. Puts the text in lower case.
    Raises:
        ValueError: if the file is empty or not UTF-8.
    """
    offset = 0
    parts: list[bytes] = []  # of the word, or the line, that the last block broke
    text = ""
    while data := file.read(BLOCK_BYTES):
        # Neither byte is ever a part of another character.
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
