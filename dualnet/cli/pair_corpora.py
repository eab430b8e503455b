"""Corpora of pairs on the command line: read by `--pairs` and its options, and shown by `data`."""

import dataclasses
from typing import Any

import numpy as np

from dualnet._checks import ArgumentError
from dualnet.cards import Card
from dualnet.cli.console import report
from dualnet.corpora import SPLITS
from dualnet.runs import Run
from dualnet.runs.folder import CARD
from dualnet.runs.shipped import card_of_run, find_run


def corpus_or_pairs(options: Any, card: Card | None = None) -> Any:
    """Return the corpus of `train`, or what names it; of `--pairs`, or of the run to resume.

    Pairs that `card` is for have as many units as it says, by default.
    """
    if options.pairs is None:
        if options.corpus is None and not options.resume:
            message = "must be given, or --pairs for a model that translates. Received: none."
            raise ArgumentError("--corpus", message)
        return options.corpus or Run.open_folder(options.output).corpus()
    asked = options.asked_tokenizers()
    if options.resume and (run := _run_with_tokenizer(options.output)):
        own = (run.source_vocabulary, run.vocabulary)
        most = run.trained_on.get("pairs", {}).get("max_tokens")
        return read_pairs(options, tokenizer=own, max_tokens=most)
    start = options.weights or (options.name if card_of_run(options.name) else "")
    if asked is None and start and (run := _run_with_tokenizer(start)):
        asked = (run.source_vocabulary, run.vocabulary)
    if asked is None and card is not None and (size := card.config.get("vocabulary_size")):
        asked = f"bpe:{size}"
    return read_pairs(options, tokenizer=asked)


def read_pairs(options: Any, **settings: Any) -> Any:
    """Return the corpus that `--pairs` and its options name, with `settings` as defaults."""
    from dualnet import corpora

    files = options.files and dict(zip(SPLITS, zip(options.files[::2], options.files[1::2])))
    settings = {"source": options.source, "target": options.target, "files": files, **settings}
    for name in ("max_tokens", "lowercase"):  # `evaluate` has neither
        if (value := getattr(options, name, None)) is not None:
            settings[name] = value
    return corpora.load_pairs(options.pairs, **settings)


def pairs_to_evaluate(options: Any, run: Run, model: Any) -> Any:
    """Return the pairs of `evaluate`: those of `--pairs`, else those that RUN was trained on."""
    if options.pairs is None:
        if not run.is_folder:
            message = "must be given for a .keras file, which records no pairs."
            raise ArgumentError("--pairs", message)
        return run.corpus()
    settings: dict[str, Any] = {"tokenizer": (model.source_vocabulary, model.vocabulary)}
    if run.is_folder:
        own = run.trained_on["pairs"]
        settings["max_tokens"] = own.get("max_tokens")
        sides = {side: getattr(options, side) or own[side] for side in ("source", "target")}
        options = dataclasses.replace(options, **sides)
    return read_pairs(options, **settings)


def show_pairs(options: Any) -> None:
    """Print how many pairs each split has, how long they are, and how many were left out."""
    corpus = read_pairs(options, tokenizer=options.asked_tokenizers())
    splits = {split: _about(corpus.split(split)) for split in SPLITS}
    sides = {corpus.source: corpus.source_vocabulary, corpus.target: corpus.target_vocabulary}
    names = ("name", "folder", "source", "target", "lowercase", "tokenizer", "joint",
             "max_tokens", "sha256")  # fmt: skip
    result = {name: getattr(corpus, name) for name in names} | {"splits": splits, "units": {
        side: {"size": len(units), "sha256": units.sha256} for side, units in sides.items()
    }}  # fmt: skip
    lower = ", lower-cased" * corpus.lowercase
    lines = [f"{corpus.name} from {corpus.folder}, {corpus.source} to {corpus.target}{lower}"]
    for split, about in splits.items():
        lengths = "; ".join(
            f"{side} {about[key]['tokens']:,} tokens, median {about[key]['median']:g}, longest "
            f"{about[key]['longest']:,}"
            for key, side in (("source", corpus.source), ("target", corpus.target))
        )
        lines.append(f"{split:6}{about['pairs']:>10,} pairs   {lengths}")
    left_out = splits["train"]
    lines.append(f"left out of train: {left_out['empty']:,} pairs with an empty side, "
                 f"{left_out['too_long']:,} of more than {corpus.max_tokens} tokens")  # fmt: skip
    if corpus.joint:
        sides = {"both sides": corpus.vocabulary}
    for side, units in sides.items():
        lines.append(f"{len(units):,} units of {units.kind} for {side}, including <eos>"
                     + f"; {units.loses}" * bool(units.loses))  # fmt: skip
    report(options, result, *lines)


def _about(pairs: Any) -> dict[str, Any]:
    about: dict[str, Any] = {"pairs": len(pairs), "empty": pairs.empty, "too_long": pairs.too_long}
    for side in ("source", "target"):
        lengths = np.diff(getattr(pairs, f"{side}_offsets"))
        sizes = {"tokens": lengths.sum(), "median": np.median(lengths), "longest": lengths.max()}
        about[side] = {name: size.item() for name, size in sizes.items()}
    return about


def _run_with_tokenizer(path: str) -> Run | None:
    """Return the RUN folder `path` if it holds a card and a tokeniser, else None."""
    folder = find_run(path)
    if not (folder / CARD).is_file():
        return None
    run = Run.open_folder(folder)
    return run if run.has_vocabulary else None
