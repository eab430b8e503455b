"""The commands that have no module of their own: call the library and print the result."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import secrets
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dualnet import zoo
from dualnet._checks import ArgumentError
from dualnet._files import check_new
from dualnet._settings import check_export, check_generation
from dualnet.cards import Card
from dualnet.cli.console import (
    check_overrides,
    comparison,
    print_table,
    printable,
    quietly,
    settings_of,
)
from dualnet.cli.early import check_training, open_language_model, reading
from dualnet.cli.pair_corpora import check_no_pairs, corpus_or_pairs, show_pairs
from dualnet.runs import Run
from dualnet.runs.folder import EARLY_FILES


def data(options: argparse.Namespace) -> None:
    from dualnet import corpora

    if options.pairs is not None:
        show_pairs(options)
        return
    check_no_pairs(options)
    if options.name is None:
        raise ArgumentError("CORPUS", "must be given, or --pairs FOLDER. Received: neither.")

    settings = {"path": options.path, "lowercase": options.lowercase, **reading(options)}
    corpus = corpora.load(options.name, **settings)
    tokenizer = corpus.vocabulary
    reads_words = tokenizer.kind == "words"
    sizes = {} if reads_words else _bytes_per_token(corpus, options)
    if options.json:
        summary = {name: getattr(corpus, name) for name in ("name", "source", "lowercase")}
        summary |= {"tokenizer": corpus.tokenizer, "documents": tokenizer.documents}
        summary |= {"fractions": corpus.fractions} if corpus.fractions else {}
        summary["tokens"] = {split: len(corpus.split(split)) for split in corpora.SPLITS}
        summary["sentences"] = {split: _sentences(corpus, split) for split in corpora.SPLITS}
        summary |= {"bytes_per_token": sizes} if sizes else {}
        summary["vocabulary_size"] = len(tokenizer)
        summary["vocabulary_sha256"] = tokenizer.sha256
        summary["sha256"] = corpus.sha256
        print(json.dumps(summary))
        return
    print(f"{corpus.name} from {corpus.source}{', lower-cased' if corpus.lowercase else ''}")
    ended = "sentences" if tokenizer.documents == "line" else "documents"
    for split in corpora.SPLITS:
        ids = corpus.split(split)
        size = f"{sizes[split]:>6.2f} bytes per token" if sizes else ""
        print(f"{split:6}{len(ids):>12,} tokens {_sentences(corpus, split):>10,} {ended}{size}   "
              f"{tokenizer.decode(ids[: 10 if reads_words else 40])!r} ...")  # fmt: skip
    if reads_words:
        print(f"{'words':6}{len(tokenizer):>12,} in the vocabulary, including <eos>")
    else:
        print(f"{'units':6}{len(tokenizer):>12,} of {corpus.tokenizer}, including <eos>"
              + f"; {tokenizer.loses}" * bool(tokenizer.loses))  # fmt: skip


def _sentences(corpus: Any, split: str) -> int:
    """Return the number of documents of a split, each of which ends in `<eos>`."""
    return int(np.count_nonzero(corpus.split(split) == corpus.vocabulary.eos_id))


def _bytes_per_token(corpus: Any, options: argparse.Namespace) -> dict[str, float]:
    """Return the bytes of the text of each split, in UTF-8, over the number of its tokens."""
    from dualnet.corpora.corpus import SPLITS, locate
    from dualnet.text.plain_text import END, ENDS

    documents = corpus.vocabulary.documents
    text = locate(options.name, options.path, options.lowercase, True, documents, options.fractions)
    end = ENDS[documents]
    return {
        split: sum(len(block.replace(END, end).encode()) for block in text.read(split, False))
        / len(corpus.split(split))
        for split in SPLITS
    }


def train(options: argparse.Namespace) -> None:
    model = _model_to_train(options)
    settings = settings_of(options.set)
    if options.seeds is not None and options.seed is not None:
        message = f"cannot be combined with --seed. Received: --seed {options.seed}."
        raise ArgumentError("--seeds", message)
    if options.weights is not None and not options.resume:
        Run.open(options.weights, name="weights")
    check_training(options, settings)
    corpus = corpus_or_pairs(options)
    training = quietly("dualnet.training", seeds=True)
    arguments = _training_arguments(options, settings) | {"weights": options.weights}
    if options.seeds is None:
        _print_run(options, training.train(model, corpus, **arguments))
        return
    del arguments["seed"]
    result = training.train_seeds(model, corpus, seeds=options.seeds, **arguments)
    if options.json:
        print(json.dumps(result))
        return
    columns = {"valid_perplexity": "validation", "test_perplexity": "test",
               "test_bits_per_byte": "test, bits per byte"}  # fmt: skip
    shown = {key: title for key, title in columns.items() if key in result["mean"]}
    digits = {key: 3 if "bits" in key else 2 for key in shown}
    rows = [
        [str(run["seed"]), str(run["best_epoch"]),
         *(f"{run[key]:.{digits[key]}f}" for key in shown)]
        for run in result["runs"]
    ]  # fmt: skip
    summary = (f"{result['mean'][key]:.{digits[key]}f} ± {result['deviation'][key]:.{digits[key]}f}"
               for key in shown)  # fmt: skip
    print_table(["seed", "best epoch", *shown.values()], [*rows, ["mean", "", *summary]])


def _model_to_train(options: argparse.Namespace) -> str | Card:
    """Return MODEL, or its card for the corpus of `--card-for`."""
    name, corpus = options.name, options.card_for
    corpora = zoo.card(name).corpora
    if corpus is None:
        return name
    if corpus not in corpora:
        needed = f"must be one of {', '.join(corpora)}, which the card of {name!r} lists"
        if not corpora:
            needed = f"must be left out: the card of {name!r} lists no corpora"
        raise ArgumentError("--card-for", f"{needed}. Received: {corpus!r}.")
    return zoo.card(name, corpus)


def gate(options: argparse.Namespace) -> None:
    settings = settings_of(options.set)
    opened = open_language_model(options.run_folder)
    check_training(options, settings)
    training = quietly("dualnet.training", seeds=True)
    corpus = options.corpus
    if corpus is None:
        corpus = opened.corpus()
    run = training.train_gate(options.run_folder, corpus, **_training_arguments(options, settings))
    _print_run(options, run)


def ensemble(options: argparse.Namespace) -> None:
    for run in options.run_folders:
        open_language_model(run, way_out="dualnet translate --ensemble")
    check_new(Path(options.output), holds="run", may_hold=EARLY_FILES)
    training = quietly("dualnet.training")
    folder = training.combine_runs(options.run_folders, options.output)
    if options.json:
        print(json.dumps({"path": str(folder), "members": options.run_folders}))
    else:
        print(f"An ensemble of {len(options.run_folders)} models in {folder}")


def _training_arguments(options: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `training.train` that `train` and `gate` share."""
    from dualnet import training

    check_overrides(settings, "the builder or the recipe", training.train, options.command)
    if options.epochs is not None:
        settings = {**settings, "epochs": options.epochs}
    names = ("output", "seed", "resume", "checkpoint_steps", "devices")
    arguments = {name: getattr(options, name) for name in names} | reading(options)
    return {**arguments, "progress": not options.quiet, **settings}


def _print_run(options: argparse.Namespace, run: Any) -> None:
    results = run.results
    if options.json:
        print(json.dumps(results))
        return
    print(f"{results['name']}: {results['parameters']:,} parameters, "
          f"best epoch {results['best_epoch']}")  # fmt: skip
    protocol = "by sentence" if results["by_sentence"] else "batch size 1"
    print(f"perplexity {results['valid_perplexity']:.2f} validation, "
          f"{results['test_perplexity']:.2f} test ({protocol})")  # fmt: skip
    lines = {split: comparison(results, f"{split}_") for split in ("valid", "test")}
    if results["valid_not_comparable"] == results["test_not_comparable"] is not None:
        print(lines["test"])
    else:
        print(f"validation: {lines['valid']}\ntest: {lines['test']}")
    print(f"trained at {results['tokens_per_second']:,.0f} tokens per second; "
          f"all files are in {run.folder}")  # fmt: skip


def generate(options: argparse.Namespace) -> None:
    if options.greedy and options.temperature is not None:
        message = "means --temperature 0 and cannot be combined with --temperature."
        raise ArgumentError("--greedy", message)
    if options.greedy and options.beam is not None:
        raise ArgumentError("--greedy", "cannot be combined with --beam; --beam 1 is greedy.")
    names = ("max_tokens", "temperature", "top_k", "top_p", "stop_at_eos", "allow_unknown", "seed")
    search = ("beam", "n_best", "length_normalization")
    settings = {name: getattr(options, name) for name in names + search}
    if options.temperature is None:
        settings["temperature"] = 0.0 if options.greedy else 1.0
    if options.seed is None and options.beam is None:
        settings["seed"] = secrets.randbits(32)
    check_generation(**settings)
    prompts = texts_of("--prompt", options)
    if options.texts is None:
        prompts = [line.removesuffix("\n") for line in prompts]
    run = open_language_model(options.run_folder)
    generation = quietly("dualnet.generation")
    texts = generation.generate(run.model(), prompts, **settings)
    if options.json:
        drawing = ("temperature", "top_k", "top_p", "stop_at_eos", "seed")
        unused = search if options.beam is None else drawing
        used = {name: value for name, value in settings.items() if name not in unused}
        print(json.dumps({"texts": texts, "prompts": prompts, **used}))
    else:
        several = texts if options.n_best is None else itertools.chain(*texts)
        print(printable("\n\n".join(several)))


def export(options: argparse.Namespace) -> None:
    settings = {"max_tokens": options.max_tokens, "tokens": options.tokens}
    check_export(format=options.format, **settings)
    run = Run.open(options.run_folder)
    serving = quietly("dualnet.serving")
    model = run.model()
    format = options.format or serving.format_of(options.path)
    path = serving.export(model, options.path, format=format, **settings)
    endpoints = serving.endpoints(model, format=format)
    shared = serving.token_map(options.tokens, model.vocabulary) if options.tokens else None
    if options.json:
        result = {"path": str(path), "format": format, "endpoints": endpoints}
        if shared:
            result |= {"unknown_tokens": shared.unknown, "unused_units": shared.unused}
        print(json.dumps(result))
    elif format == "saved_model":
        print(f"SavedModel with the endpoints {', '.join(endpoints)} in {path}")
        if reason := serving.why_no_text(model):
            print(f"No text endpoints: {reason}")
    else:
        print(f"A single step of the model in {path}")
        if shared:
            print(printable(shared.summary()))


def demo(options: argparse.Namespace) -> None:
    demo = quietly("dualnet.demo", seeds=True)
    results = demo.run(options.output)
    if options.json:
        print(json.dumps(results))


def finite(value: Any) -> Any:
    """Return `value`, or None for nan and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def number(value: float) -> str:
    return f"{value:.2f}" if value < 1e7 else f"{value:.3g}"


def texts_of(option: str, options: argparse.Namespace, *, may_be_empty: bool = False) -> list[str]:
    """Return the texts given by `option`, or the lines of FILE or standard input with newlines."""
    from dualnet.text.plain_text import text_of

    if options.texts is not None:
        if options.file is not None:
            message = f"and FILE cannot be combined. Received: FILE={options.file}."
            raise ArgumentError(option, message)
        for text in options.texts:
            if re.search("[\ud800-\udfff]", text):
                raise ArgumentError(option, f"must be UTF-8. Received: {text!a}.")
        return options.texts
    if options.file in (None, "-"):
        source = "standard input"
        if sys.stdin.isatty():
            print("Type one text per line; Ctrl-D ends the input.", file=sys.stderr)
        data = sys.stdin.buffer.read()
    else:
        source = options.file
        try:
            data = Path(source).read_bytes()
        except OSError as error:
            message = (
                f"FILE must be a text file. Received: {source!r}: {error.strerror}. For a text "
                f"itself, use {option}."
            )
            raise ValueError(message) from None
    text = text_of(data, source)
    if not text and not may_be_empty:
        raise ValueError(f"FILE must hold text. Received: {source!r}, which is empty.")
    return re.findall("[^\n]*\n|[^\n]+", text)  # only a newline ends a line
