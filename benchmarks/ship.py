"""Makes a model that is shipped with dualnet from a trained RUN.

Usage: python benchmarks/ship.py RUN NAME [--corpus FOLDER] [--text TEXT] [--genres FOLDER]
       [--rule RULE] [--set KEY=VALUE ...]

Writes zoo/pretrained/NAME, a RUN folder: the card, the tokeniser, the weights in float16, the words
to complete, LICENSES_SOURCES, and results.json with the static and dynamic figures of these weights
on valid and test: perplexity per token, and bits per byte of what is no `<unk>`. TEXT says where
the text comes from: "wikitext-2", prepared by benchmarks/prose.py, or "english". By default the
text is read where RUN has read it. `--genres` has valid.genres and test.genres, a line for each
document: the figures are then told by genre, too. `--rule` and `--set` are those of dynamic
evaluation. NAME is for example `dual_lstm.wikitext-2`.
"""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dualnet import corpora, runs
from dualnet._files import folder_beside
from dualnet.adaptation import dynamic_evaluation
from dualnet.builders import LanguageModel
from dualnet.cli.command import settings_of
from dualnet.evaluation import comparable, evaluate
from dualnet.runs.folder import (
    RESULTS,
    WEIGHTS,
    checksummed,
    write_card,
    write_file,
    write_vocabularies,
    write_words,
)
from dualnet.runs.model_cards import README, model_card
from dualnet.runs.shipped import folder_of_shipped
from dualnet.training import versions

LICENSES = "LICENSES_SOURCES"
SAMPLE = 4_000  # characters of test, about, whose figures a test computes again
MOST_BYTES = 16_000_000
NOTICE = """{name}: a language model trained by dualnet

Text
{text}

Changes
{changes} The units of tokenizer.json were learnt
  from the text, and the weights were trained on it. results.json quotes the start of the test
  text, and words.txt lists common words of the training text.

Licence of this folder
  The weights, the tokeniser, the quoted text and the words are given under CC BY-SA 3.0.
"""
CC = "https://creativecommons.org/licenses/"
TEXTS = {
    "wikitext-2": (
        f"""\
  WikiText-2, by Stephen Merity, Caiming Xiong, James Bradbury and Richard Socher (2016),
  https://arxiv.org/abs/1609.07843, from articles of Wikipedia by their authors,
  https://en.wikipedia.org. Licences: Creative Commons Attribution-ShareAlike 3.0 Unported
  (CC BY-SA 3.0), {CC}by-sa/3.0/, and the GNU Free Documentation
  License, https://www.gnu.org/licenses/fdl-1.3.html.""",
        """\
  The marks of tokenisation were removed: " @-@ " and the like were joined, punctuation was put
  back where writers put it, and blank lines were left out.""",
    ),
    "english": (
        f"""\
  7,956 articles of the English Wikipedia by their authors, https://en.wikipedia.org, as of about
  2012. Licence: Creative Commons Attribution-ShareAlike 3.0 Unported (CC BY-SA 3.0),
  {CC}by-sa/3.0/.
  18,882 articles of the English Wikinews by their authors, https://en.wikinews.org. Licence:
  Creative Commons Attribution 2.5 Generic (CC BY 2.5), {CC}by/2.5/.
  98 English novels of 1840 to 1920 of the European Literary Text Collection (ELTeC-eng),
  https://github.com/COST-ELTeC/ELTeC-eng. The text is in the public domain; its markup, Creative
  Commons Attribution 4.0 International (CC BY 4.0), {CC}by/4.0/.

Views
  The novels are of their time, and so are older sources of the articles. The model may repeat their
  views on gender, religion and race.""",
        """\
  Markup was removed: a paragraph is a line, and a blank line ends a document.""",
    ),
}


def ship(
    run: Path,
    folder: Path,
    corpus: corpora.Corpus,
    *,
    text: str = "wikitext-2",
    genres: Path | None = None,
    rule: str = "nadam",
    **settings: Any,
) -> dict[str, Any]:
    """Write the RUN folder `folder` of the model in `run`, all or nothing; return its results.

    Args:
        run: RUN folder.
        folder: New folder, whose name is that of the shipped model.
        corpus: The text of the figures, read with the tokeniser of the RUN.
        text: Which of TEXTS it is.
        genres: Folder of files with the genre of each document of valid and test, or None.
        rule, **settings: Of dynamic evaluation.
    """
    if folder.exists():
        raise FileExistsError(f"NAME must be new. Received: {str(folder)!r}, which exists.")
    card = runs.read_card(run)
    model = runs.load(run)
    # Nothing of the machine that it was trained on.
    trained_on = {**card.trained_on, "source": card.corpus}
    if "tokenizer" in trained_on:
        trained_on["tokenizer"] = Path(trained_on["tokenizer"]).name
    card = dataclasses.replace(card, trained_on=trained_on, weights="", file="")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder_beside(folder) as unfinished:
        write_card(unfinished, card)
        write_vocabularies(unfinished, model)
        write_words(unfinished, run)
        with checksummed(unfinished, WEIGHTS) as path:
            write_float16(run / WEIGHTS, path)
        parts = dict(zip(("text", "changes"), TEXTS[text]))
        (unfinished / LICENSES).write_text(NOTICE.format(name=folder.name, **parts), "utf-8")
        model = runs.load(unfinished)  # the figures are those of the rounded weights
        results = results_of(model, corpus, genres, rule=rule, **settings)
        results = {"name": folder.name, **results}
        write_file(unfinished, RESULTS, json.dumps(results, indent=2, ensure_ascii=False) + "\n")
        card = model_card(model, runs.Run.open_folder(unfinished), name=folder.name)
        (unfinished / README).write_text(card, "utf-8")
        size = (unfinished / WEIGHTS).stat().st_size
        if size > MOST_BYTES:
            raise ValueError(f"The weights must have at most {MOST_BYTES:,} bytes. Got: {size:,}.")
    return results


def write_float16(source: Path, path: Path) -> None:
    """Write the weights in the HDF5 file `source` to `path`, in float16 and compressed."""
    with h5py.File(source) as old, h5py.File(path, "w") as new:

        def copy(name: str, item: h5py.Group | h5py.Dataset) -> None:
            if isinstance(item, h5py.Dataset):
                values = item[()]
                if values.dtype.kind == "f":
                    with np.errstate(over="ignore"):  # told below
                        values = values.astype("float16")
                    if not np.isfinite(values).all():
                        raise ValueError(f"{name} must fit float16. Got: values above 65,504.")
                packed = {"compression": "gzip", "shuffle": True} if values.ndim else {}
                new.create_dataset(name, data=values, **packed)
            else:
                new.require_group(name)
            new[name].attrs.update(item.attrs)

        old.visititems(copy)


def results_of(
    model: LanguageModel,
    corpus: corpora.Corpus,
    genres: Path | None = None,
    *,
    rule: str,
    **settings: Any,
) -> dict[str, Any]:
    """Return the contents of `results.json`, except the name."""
    tokenizer = model.vocabulary
    assert tokenizer is not None
    text = tokenizer.decode(corpus.test[: SAMPLE // 2].tolist())[:SAMPLE]
    text = text[: text.rfind("\n") + 1] or text
    texts = {"valid": corpus.valid, "test": corpus.test, "sample": tokenizer.encode(text)}
    found: dict[str, dict[str, Any]] = {"static": {}, "dynamic": {}}
    for name, ids in texts.items():
        measured = evaluate(model, ids), dynamic_evaluation(model, ids, rule=rule, **settings)
        for kind, own in zip(found.values(), measured):
            kind[name] = figures(model, ids, own.token_losses)
            if genres is not None and name != "sample":
                labels = (genres / f"{name}.genres").read_text("utf-8").split()
                kind[f"{name} by genre"] = by_genre(model, ids, own.token_losses, labels)
    return {
        "parameters": model.count_params(),
        "weights": "float16",
        "static": found["static"],
        "dynamic": {"rule": rule, "settings": settings, **found["dynamic"]},
        "sample": text,
        "corpus": {"name": corpus.name, "sha256": corpus.sha256},
        "vocabulary": {"size": len(tokenizer), "sha256": tokenizer.sha256},
        "versions": versions(),
    }


def by_genre(
    model: LanguageModel, ids: np.ndarray, losses: np.ndarray, labels: list[str]
) -> dict[str, dict[str, float]]:
    """Return the `figures` of each genre; `labels` are of the documents that `<eos>` ends."""
    documents = np.cumsum(ids == model.vocabulary.eos_id)
    if documents[-1] != len(labels):
        raise ValueError(f"There must be {documents[-1]:,} genres. Got: {len(labels):,}.")
    genres = np.array(labels)[documents[:-1]]
    return {str(genre): figures(model, ids, losses, genres == genre) for genre in np.unique(genres)}


def figures(
    model: LanguageModel, ids: np.ndarray, losses: np.ndarray, chosen: np.ndarray | None = None
) -> dict[str, float]:
    """Return the figures of the predicted tokens, all `ids` but the first, from their losses.

    Perplexity is per token, `<unk>` among them. Bits per byte are those of the tokens that are no
    `<unk>`, divided by the bytes of these. `chosen` says which of the tokens count; all by default.
    """
    tokenizer, predicted = model.vocabulary, np.asarray(ids[1:])
    assert tokenizer is not None
    if chosen is not None:
        predicted, losses = predicted[chosen], losses[chosen]
    known = np.ones(len(predicted), bool)
    if tokenizer.unk_id is not None:
        known = predicted != tokenizer.unk_id
    total = losses[known].sum(dtype="float64")
    return {
        "perplexity": math.exp(losses.mean(dtype="float64")),
        "bits_per_byte": comparable(tokenizer, predicted[known], total).bits_per_byte,
        "tokens": len(predicted),
        "unknown_tokens": int((~known).sum()),
    }


def main() -> None:
    from options import options_of  # a script of its folder, which tests import from above

    options = options_of(
        __doc__, "run", "name", corpus=str, text=tuple(TEXTS), genres=Path, rule="nadam", set=[]
    )
    if options.corpus is None:
        corpus = runs.corpus_of_run(options.run)
    else:
        corpus = corpora.load(options.corpus, vocabulary=runs.load(options.run).vocabulary)
    folder = folder_of_shipped() / options.name
    settings = settings_of(options.set)
    results = ship(
        options.run, folder, corpus,
        text=options.text, genres=options.genres, rule=options.rule, **settings,
    )  # fmt: skip
    print(json.dumps({key: results[key] for key in ("static", "dynamic")}, indent=2))
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size:,} bytes")


if __name__ == "__main__":
    main()
