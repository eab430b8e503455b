"""The corpus of a search, written into its folder, where the trials read it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dualnet import corpora
from dualnet._checks import ArgumentError
from dualnet._files import folder_beside
from dualnet.corpora import SPLITS, Corpus
from dualnet.runs import Run
from dualnet.runs.folder import READ_AS, TOKENIZER, WORDS, corpus_table
from dualnet.text import load_tokenizer
from dualnet.training import card_for
from dualnet.training.initial_weights import load_with

CORPUS = "corpus.json"


def write_corpus(folder: Path, corpus: Corpus) -> None:
    """Write `corpus` as `folder`, where the processes of trials read it."""
    with folder_beside(folder) as temporary:
        for split in SPLITS:
            np.save(temporary / f"{split}.npy", corpus.split(split), allow_pickle=False)
        corpus.vocabulary.save(temporary / corpus.vocabulary.file_name)
        fields = corpus_table(corpus)
        (temporary / CORPUS).write_text(json.dumps(fields, indent=2) + "\n", "utf-8")


def read_corpus(folder: Path) -> Corpus:
    """Return the corpus that `write_corpus` wrote, its ids as memory maps."""
    fields = json.loads((folder / CORPUS).read_text("utf-8"))
    settings = {"documents": fields.pop("documents", "line"), "lowercase": fields["lowercase"]}
    file = next(path for name in (WORDS, TOKENIZER) if (path := folder / name).is_file())
    vocabulary = load_tokenizer(file, **settings)
    ids: dict[str, Any] = {
        # Plain arrays: slices of np.memmap are slow.
        split: np.asarray(np.load(folder / f"{split}.npy", mmap_mode="r"))
        for split in SPLITS
    }
    return Corpus(**fields, **ids, vocabulary=vocabulary)


def load_corpus(
    corpus: str, *, model: str, run: str, read_as: Mapping[str, Any] | None = None
) -> Corpus:
    """Return the corpus for a model or RUN; "" is the one that the RUN was trained on.

    `read_as` are other arguments of `corpora.load`; a RUN has its own.
    """
    if not run:
        lowercase = card_for(model, corpus).lowercase
        return load_with(None, corpus, lowercase=lowercase, read_as=read_as or {})
    opened = Run.open_folder(run)
    if not corpus:
        trained_on = opened.corpus()
        if not isinstance(trained_on, Corpus):
            raise ArgumentError(
                "run", f"must be of a language model. Received: {run!r}, which translates."
            )
        return trained_on
    lowercase = opened.trained_on["lowercase"]
    return corpora.load(corpus, lowercase=lowercase, vocabulary=opened.vocabulary)


def resumed_corpus(folder: Path, corpus: str, read_as: Mapping[str, Any]) -> Corpus:
    """Return the corpus that `write_corpus` wrote, with the hash that `corpus` has now."""
    written = read_corpus(folder)
    before = {**READ_AS, **corpus_table(written)}
    for key, value in read_as.items():
        if value != before[key]:
            raise ArgumentError(
                key,
                f"must stay {before[key]!r}, as when the search started. Received: "
                f"{key}={value!r} with --resume. Leave it out, or start a new search.",
            )
    settings = {"fractions": written.fractions}
    now = load_with(written.vocabulary, corpus, lowercase=written.lowercase, read_as=settings)
    return dataclasses.replace(written, sha256=now.sha256)
