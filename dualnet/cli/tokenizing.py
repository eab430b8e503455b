"""The commands `tokenizer train` and `tokenizer show`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dualnet._checks import ArgumentError
from dualnet.cli.console import print_table, printable
from dualnet.corpora.corpus import locate
from dualnet.runs.folder import check_run, read_card, read_vocabulary
from dualnet.text import Tokenizer, load_tokenizer, train_tokenizer

EXAMPLE_UNITS = 12


def train(options: argparse.Namespace) -> None:
    output = Path(options.output)
    if output.suffix.lower() != ".json":
        raise ArgumentError(
            "--output", f"must be a file that ends in .json. Received: {options.output!r}."
        )
    if output.exists():
        raise FileExistsError(
            f"--output must be a new file. Received: {options.output!r}, which exists."
        )
    text = locate(
        options.corpus, lowercase=options.lowercase, documents=options.documents or "line",
        fractions=options.fractions,
    )  # fmt: skip
    tokenizer = train_tokenizer(
        text.read("train", True),
        options.kind,
        size=options.size,
        documents=options.documents or "line",
        lowercase=options.lowercase,
        special=options.special,
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(output)
    if options.json:
        print(json.dumps({"path": os.fspath(output.resolve()), **_described(tokenizer)}))
        return
    print(f"A {tokenizer.kind} tokeniser of {len(tokenizer):,} units in {options.output}")
    if options.size is not None and len(tokenizer) < options.size:
        print(f"The text has no more units: fewer than the {options.size:,} asked for.")
    first = next(text.read("train", True))[:200]
    shown = [repr(tokenizer.words[i]) for i in tokenizer.encode_marked(first)[:EXAMPLE_UNITS]]
    print(printable(f"Its text begins {' '.join(shown)} ..."))


def show(options: argparse.Namespace) -> None:
    tokenizer = _tokenizer_of(options.tokenizer)
    text = options.text
    if text is None:
        text = sys.stdin.buffer.read().decode(errors="surrogateescape")
    ids, offsets = tokenizer.encode_with_offsets(text)
    units = [tokenizer.words[i] for i in ids]
    if options.json:
        columns = {"ids": ids.tolist(), "units": units, "offsets": offsets.tolist()}
        print(json.dumps({**_described(tokenizer), **columns}))
        return
    rows = [
        [str(i), f"{start}-{end}", repr(unit)]
        for i, (start, end), unit in zip(ids, offsets.tolist(), units)
    ]
    print_table(["id", "characters", "unit"], rows)
    print(f"\n{len(ids):,} tokens for {len(text):,} characters; {tokenizer.kind}, "
          f"{len(tokenizer):,} units")  # fmt: skip


def _described(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "kind": tokenizer.kind,
        "size": len(tokenizer),
        "documents": tokenizer.documents,
        "lowercase": tokenizer.lowercase,
        "sha256": tokenizer.sha256,
    }


def _tokenizer_of(path: str) -> Tokenizer:
    """Return the tokeniser of a file, or of a RUN folder."""
    if not Path(path).is_dir():
        return load_tokenizer(path)
    check_run(path)
    return read_vocabulary(Path(path), read_card(path))


COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], None], str]] = {
    "train": (train, "Learn the units of a tokeniser from the training split of a text."),
    "show": (show, "Show how a tokeniser divides a text."),
}
