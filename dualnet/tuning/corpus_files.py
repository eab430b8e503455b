"""The corpus of a search: passed to the trials by name or path, or else written for them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dualnet import corpora
from dualnet._files import write_whole
from dualnet.corpora import SPLITS, Corpus
from dualnet.runs import corpus_of_run, read_card
from dualnet.runs.folder import TOKENIZER, WORDS, corpus_table, read_vocabulary
from dualnet.text import load_tokenizer
from dualnet.training import card_for
from dualnet.zoo import Card

CORPUS = "corpus.json"


def write_corpus(folder: Path, corpus: Corpus) -> None:
    """Write `corpus` into `folder`, where the processes of trials read it."""
    folder.mkdir(exist_ok=True)
    for split in SPLITS:
        with open(folder / f"{split}.npy", "wb") as file:
            np.save(file, corpus.split(split), allow_pickle=False)
    corpus.vocabulary.save(folder / corpus.vocabulary.file_name)
    fields = corpus_table(corpus)
    write_whole(folder / CORPUS, json.dumps(fields, indent=2) + "\n")


def read_corpus(folder: Path) -> Corpus:
    """Return the corpus that `write_corpus` wrote, its ids as memory maps."""
    fields = json.loads((folder / CORPUS).read_text("utf-8"))
    settings = {"documents": fields.pop("documents", "line"), "lowercase": fields["lowercase"]}
    file = next(path for name in (WORDS, TOKENIZER) if (path := folder / name).is_file())
    vocabulary = load_tokenizer(file, **settings)
    ids = {split: np.load(folder / f"{split}.npy", mmap_mode="r") for split in SPLITS}
    return Corpus(**fields, **ids, vocabulary=vocabulary)


def is_written(corpus: str) -> bool:
    """Return whether `corpus` is a folder that `write_corpus` wrote."""
    return bool(corpus) and (Path(corpus) / CORPUS).is_file()


def find_card(model: str, corpus: str) -> Card:
    """Return the card of `model` for `Task.corpus`."""
    return card_for(model, read_corpus(Path(corpus)) if is_written(corpus) else corpus)


def load_corpus(corpus: str, *, model: str, run: str) -> Corpus:
    """Return the corpus that a task names, for its model or RUN."""
    if is_written(corpus):
        return read_corpus(Path(corpus))
    if not run:
        return corpora.load(corpus, lowercase=find_card(model, corpus).lowercase)
    if not corpus:
        return corpus_of_run(run)
    card = read_card(run)
    vocabulary = read_vocabulary(Path(run), card)
    return corpora.load(corpus, lowercase=card.lowercase, vocabulary=vocabulary)
