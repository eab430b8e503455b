"""Measures how many keys completion saves on the sentences of a genre.

Usage: python benchmarks/keystrokes.py MODEL FOLDER GENRE [--count N] [--learn]

FOLDER has valid.txt, whose documents a blank line ends, and valid.genres, a line for each. Of the
genre, it takes the first sentences of 40 to 200 characters: of a novel as many as it has, of other
documents ten of each. With --learn, a learner completes, and reads each sentence afterwards.
"""

import re
import time
from pathlib import Path

import dualnet


def documents(folder: Path, genre: str) -> list[str]:
    """Return the documents of a genre."""
    every = re.split(r"\n\s*\n", (folder / "valid.txt").read_text("utf-8").strip("\n"))
    genres = (folder / "valid.genres").read_text("utf-8").split()
    return [document for document, own in zip(every, genres, strict=True) if own == genre]


def sentences(folder: Path, genre: str, count: int) -> list[str]:
    """Return the first `count` sentences of the documents of a genre."""
    found: list[str] = []
    for document in documents(folder, genre):
        lines = document.split("\n")
        parts = [part for line in lines for part in re.split(r"(?<=[.!?]) +", line)]
        suitable = [part for part in parts if 40 <= len(part) <= 200]
        found += suitable[: None if genre == "novel" else 10]
    return found[:count]


def main() -> None:
    from options import options_of  # a script of its folder, which tests import from above

    options = options_of(__doc__, "model", "folder", "genre", count=200, learn=False)
    model = dualnet.load(options.model)
    texts = sentences(options.folder, str(options.genre), options.count)
    start = time.perf_counter()
    found = dualnet.keystrokes(dualnet.Learner(model) if options.learn else model, texts)
    seconds = time.perf_counter() - start
    print(f"{len(texts)} sentences of {options.genre}: {found.saved:.1%} saved, {seconds:.0f} s")
    print(found)


if __name__ == "__main__":
    main()
