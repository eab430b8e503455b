"""Models that a training keeps after so many words, each in a RUN folder of its own."""

import dataclasses
import shutil
from pathlib import Path

from dualnet._checks import MULTIPLES, ArgumentError, whole_number
from dualnet._files import folder_beside
from dualnet.builders import LanguageModel
from dualnet.cards import Card
from dualnet.corpora import Corpus, PairCorpus
from dualnet.runs.writing import write_files

FOLDER = "kept"
NOTE = "Kept after"  # begins the note of the card of a RUN that is kept
CHUNK = 1 << 16  # tokens that are decoded at once


def ranges(keep_every: str) -> list[tuple[int, int | None]]:
    """Return the first number of words, which is also the distance, and the last of each range.

    Example:

    >>> from dualnet.training.kept import ranges
    >>> ranges("1M..10M,10M")
    [(1000000, 10000000), (10000000, None)]
    """
    bounds = []
    for part in str(keep_every).split(",") if keep_every else ():
        step, dots, end = part.partition("..")
        first, last = whole_number(step), whole_number(end) if dots else None
        if not first or (dots and (last or 0) < first):
            raise ArgumentError(
                "keep_every",
                "must be ranges of words such as '1M' or '1M..10M,10M..100M'.",
                " 1M..10M keeps the model after each million words up to 10 million.",
                keep_every=keep_every,
            )
        bounds.append((first, last))
    return bounds


def check_keep_every(name: str, value: str) -> None:
    """Raise `ArgumentError` for a schedule that `ranges` cannot read."""
    ranges(value)


def due(keep_every: str, before: int, after: int) -> list[int]:
    """Return the numbers of words after which to keep the model, above `before` up to `after`.

    Example:

    >>> from dualnet.training.kept import due
    >>> due("10..30,20", 5, 60)
    [10, 20, 30, 40, 60]
    """
    counts = set()
    for first, last in ranges(keep_every):
        end = after if last is None else min(after, last)
        counts |= {*range((before // first + 1) * first, end + 1, first)}
    return sorted(counts)


def num_words(corpus: Corpus | PairCorpus, keep_every: str, *, steps: int) -> int:
    """Return the number of words of the training text, of its target if it is of pairs.

    It is read in so many `steps`. Without `keep_every`, nothing is counted, and 0 is returned.
    """
    if not keep_every:
        return 0
    if isinstance(corpus, PairCorpus):
        words = sum(len(line.split()) for line in corpus.train.target_lines)
    else:
        train, decode = corpus.train, corpus.vocabulary.decode
        starts = range(0, len(train), CHUNK)
        # The token behind a chunk, which may end its last word, is read twice.
        words = sum(len(decode(train[i : i + CHUNK + 1]).split()) for i in starts)
        words -= sum(len(decode(train[i : i + 1]).split()) for i in starts[1:])
    if min(first for first, _ in ranges(keep_every)) * steps < words:
        raise ArgumentError(
            "keep_every",
            f"must not ask for less than the words of a step, here {-(-words // steps):,}.",
            keep_every=keep_every,
        )
    return words


def keep(folder: Path, count: int, model: LanguageModel, card: Card) -> None:
    """Write the RUN folder of `model` within the RUN `folder`, whole or not at all."""
    (folder / FOLDER).mkdir(exist_ok=True)
    run = folder.resolve().name
    with folder_beside(folder / FOLDER / _name(count)) as unfinished:
        note = f"{NOTE} {count:,} words were read, by the run {run!r}."
        title = f"{run}, {_name(count)} words"
        write_files(unfinished, model, dataclasses.replace(card, note=note), [folder], title=title)


def drop_after(folder: Path, words: int) -> None:
    """Remove what was kept in the RUN `folder` after more than so many words."""
    for path in (folder / FOLDER).glob("[0-9]*"):
        if whole_number(path.name) > words:
            shutil.rmtree(path)


def _name(count: int) -> str:
    letter = next(letter for letter, unit in MULTIPLES.items() if count % unit == 0)
    return f"{count // MULTIPLES[letter]}{letter}"
