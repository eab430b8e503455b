"""Corpora of pairs on the command line: read by `--pairs` and its options, and shown by `data`."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np

from dualnet._checks import ArgumentError
from dualnet.cards import Card
from dualnet.corpora import SPLITS
from dualnet.runs import Run
from dualnet.runs.folder import CARD
from dualnet.runs.shipped import find_run

NEED_PAIRS = ("source", "target", "files", "source_tokenizer", "max_tokens")  # options


def corpus_or_pairs(options: Any, card: Card | None = None) -> tuple[Any, dict[str, Any]]:
    """Return the corpus of `train`, and how it is to be read: no more to say for `--pairs`.

    Pairs that `card` is for have as many units as it says, by default.
    """
    if options.pairs is None:
        check_no_pairs(options)
        if options.lowercase:
            message = "needs --pairs. Received: none. For --corpus, a card of your own may say "
            raise ArgumentError("--lowercase", f"{message}`lowercase = true`.")
        if options.corpus is None and options.resume:
            return Run.open_folder(options.output).corpus(), options.reading()
        if options.corpus is None:
            raise ArgumentError(
                "--corpus", "must be given, or --pairs for a model that translates. Received: none."
            )
        return options.corpus, options.reading()
    _refuse_with_pairs(options, "corpus")
    asked = asked_tokenizers(options)
    if options.resume and (run := _run_with_tokenizer(options.output)):
        pairs = run.trained_on.get("pairs", {})
        own = (run.source_vocabulary, run.vocabulary)
        most = pairs.get("max_tokens")
        return read_pairs(options, tokenizer=own, max_tokens=most), {}
    if asked is None and options.weights and (run := _run_with_tokenizer(options.weights)):
        asked = (run.source_vocabulary, run.vocabulary)
    if asked is None and card is not None and (size := card.config.get("vocabulary_size")):
        asked = f"bpe:{size}"
    return read_pairs(options, tokenizer=asked), {}


def check_no_pairs(options: Any) -> None:
    """Raise `ArgumentError` for options that need `--pairs`."""
    for name in NEED_PAIRS:
        if getattr(options, name, None) is not None:
            raise ArgumentError(f"--{name.replace('_', '-')}", "needs --pairs. Received: none.")


def asked_tokenizers(options: Any) -> Any:
    """Return what `load_pairs` takes for `--tokenizer` and `--source-tokenizer`."""
    if options.source_tokenizer is None:
        return options.tokenizer
    if options.tokenizer is None:
        raise ArgumentError(
            "--source-tokenizer",
            "needs --tokenizer, which is then that of the target. Received: --source-tokenizer "
            f"{options.source_tokenizer} alone.",
        )
    return options.source_tokenizer, options.tokenizer


def read_pairs(options: Any, **settings: Any) -> Any:
    """Return the corpus that `--pairs` and its options name, with `settings` as defaults."""
    from dualnet import corpora

    files = options.files and {
        split: (options.files[2 * i], options.files[2 * i + 1]) for i, split in enumerate(SPLITS)
    }
    settings = {"source": options.source, "target": options.target, "files": files, **settings}
    for name in ("max_tokens", "lowercase"):  # `evaluate` has neither
        if (value := getattr(options, name, None)) is not None:
            settings[name] = value
    return corpora.load_pairs(options.pairs, **settings)


def pairs_to_evaluate(options: Any, run: Run, model: Any) -> Any:
    """Return the pairs of `evaluate`: those of `--pairs`, else those that RUN was trained on."""
    if options.pairs is None:
        check_no_pairs(options)
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
    _refuse_with_pairs(options, "name", "path")
    tokenizer = asked_tokenizers(options)
    corpus = read_pairs(options, tokenizer=tokenizer)
    splits = {split: _about(corpus.split(split)) for split in SPLITS}
    sides = {corpus.source: corpus.source_vocabulary, corpus.target: corpus.target_vocabulary}
    if options.json:
        summary = {"name": corpus.name, "folder": corpus.folder, "source": corpus.source}
        summary |= {"target": corpus.target, "lowercase": corpus.lowercase, "splits": splits}
        summary |= {"tokenizer": corpus.tokenizer, "joint": corpus.joint, "units": {
            side: {"size": len(units), "sha256": units.sha256} for side, units in sides.items()
        }}  # fmt: skip
        print(json.dumps({**summary, "max_tokens": corpus.max_tokens, "sha256": corpus.sha256}))
        return
    lower = ", lower-cased" * corpus.lowercase
    print(f"{corpus.name} from {corpus.folder}, {corpus.source} to {corpus.target}{lower}")
    for split, about in splits.items():
        lengths = "; ".join(
            f"{side} {about[key]['tokens']:,} tokens, median {about[key]['median']:g}, longest "
            f"{about[key]['longest']:,}"
            for key, side in (("source", corpus.source), ("target", corpus.target))
        )
        print(f"{split:6}{about['pairs']:>10,} pairs   {lengths}")
    left_out = splits["train"]
    print(f"left out of train: {left_out['empty']:,} pairs with an empty side, "
          f"{left_out['too_long']:,} of more than {corpus.max_tokens} tokens")  # fmt: skip
    if corpus.joint:
        sides = {"both sides": corpus.vocabulary}
    for side, units in sides.items():
        print(f"{len(units):,} units of {units.kind} for {side}, including <eos>"
              + f"; {units.loses}" * bool(units.loses))  # fmt: skip


def _about(pairs: Any) -> dict[str, Any]:
    about: dict[str, Any] = {"pairs": len(pairs), "empty": pairs.empty, "too_long": pairs.too_long}
    for side in ("source", "target"):
        lengths = np.diff(getattr(pairs, f"{side}_offsets"))
        about[side] = {
            "tokens": int(lengths.sum()),
            "median": float(np.median(lengths)),
            "longest": int(lengths.max()),
        }
    return about


def _refuse_with_pairs(options: Any, *names: str) -> None:
    for name in (*names, "documents", "fractions"):
        if (value := getattr(options, name)) is not None:
            option = "CORPUS" if name == "name" else f"--{name}"
            raise ArgumentError(option, f"cannot be combined with --pairs. Received: {value!r}.")


def _run_with_tokenizer(path: str) -> Run | None:
    """Return the RUN folder `path` if it holds a card and a tokeniser, else None."""
    folder = find_run(path)
    if not (folder / CARD).is_file():
        return None
    run = Run.open_folder(folder)
    return run if run.has_vocabulary else None
