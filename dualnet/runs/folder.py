"""The RUN folder: what is in it, who may write to it, and whether it is as it was written."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tomli_w

from dualnet._files import sha256_of, write_whole, written_beside
from dualnet._toml import KINDS, read_toml
from dualnet.builders import BUILDERS
from dualnet.cards import KEYS
from dualnet.text import Vocabulary

CARD = "card.toml"
WORDS = "vocabulary.txt"
WEIGHTS = "model.weights.h5"  # the best epoch's
RESULTS = "results.json"
SUMS = "sums.json"
BEGUN = (CARD, WORDS, SUMS)  # what a run stopped before its first checkpoint leaves behind


def read_card(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the card as used of a RUN folder: name, builder, corpus, seed, config, recipe.

    And `weights`, the path of the model whose weights the run began with, if there was one.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is no such card.
    """
    file = Path(folder) / CARD
    if not file.is_file():
        raise FileNotFoundError(
            f"A RUN folder must hold {CARD}. Received: {str(folder)!r}, without it. Make one "
            "with `dualnet train NAME --corpus CORPUS --output RUN`."
        )
    used = read_toml(file)
    needed = {key: KEYS[key] for key in ("name", "builder", "seed", "corpus", "config", "recipe")}
    if "weights" in used:
        needed["weights"] = KEYS["weights"]
    for key, kind in needed.items():
        if type(used.get(key)) is not kind:
            raise ValueError(
                f"{file}: `{key}` must be there, and be {KINDS[kind]}. Put the card back as it "
                "was, or train anew."
            )
    corpus = used["corpus"]
    texts = all(isinstance(corpus.get(key), str) for key in ("name", "source", "sha256"))
    if used["builder"] not in BUILDERS or not texts or type(corpus.get("lowercase")) is not bool:
        raise ValueError(
            f"{file}: `builder` must be one of {sorted(BUILDERS)}, and `corpus` must tell name, "
            "source, sha256 and lowercase. Put the card back as it was, or train anew."
        )
    return used


def write_card(folder: Path, used: dict[str, Any]) -> None:
    """Write the card as used, without what is None: TOML has no word for it."""
    put(folder, CARD, tomli_w.dumps(_without_none(used)))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    if isinstance(value, (list, tuple)):
        return [_without_none(each) for each in value]
    return value


# --- whether it is as it was written


def put(folder: Path, name: str, data: str | bytes) -> None:
    """Write file `name` of the RUN folder, and its sum beside it."""
    with summed(folder, name) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def put_words(folder: Path, vocabulary: Vocabulary) -> None:
    """Write the vocabulary."""
    with summed(folder, WORDS) as temporary:
        vocabulary.save(temporary)


@contextlib.contextmanager
def summed(folder: Path, name: str) -> Iterator[Path]:
    with written_beside(folder / name) as temporary:
        yield temporary
        sums = _read_sums(folder)
        sums[name] = [sha256_of(temporary)]
        if (folder / name).is_file():  # a kill may come before it is replaced
            sums[name].append(sha256_of(folder / name))
        write_whole(folder / SUMS, json.dumps(sums, indent=2) + "\n")


def check_sums(folder: Path, names: Iterable[str] = (CARD, WORDS, WEIGHTS)) -> None:
    """Raise `ValueError` if a file is not as it was written; without sums all is taken as it is."""
    sums = _read_sums(folder)
    for name in names:
        known = sums.get(name, [])
        if known and (folder / name).is_file() and sha256_of(folder / name) not in known:
            raise ValueError(
                f"{name} of a RUN folder must be as it was written. Received: "
                f"{str(folder / name)!r}, damaged or altered: its SHA-256 is not in {SUMS}. Put it "
                f"back, or remove {SUMS} to use it as it is."
            )


def _read_sums(folder: Path) -> dict[str, list[str]]:
    if not (folder / SUMS).is_file():
        return {}
    try:
        sums = json.loads((folder / SUMS).read_text("utf-8"))
        return {name: [str(each) for each in sums[name]] for name in (CARD, WORDS, WEIGHTS)
                if name in sums}  # fmt: skip
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{SUMS} of a RUN folder must be as it was written. Received: {str(folder / SUMS)!r}, "
            "damaged or altered. Remove it to use the other files as they are."
        ) from error
