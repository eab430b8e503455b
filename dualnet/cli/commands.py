"""What each command does but `evaluate`: calls the library and prints what comes back."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import math
import re
import secrets
import shutil
import sys
from typing import Any

from dualnet import zoo
from dualnet._checks import ArgumentError
from dualnet.cli.console import print_table, quietly, settings_of
from dualnet.cli.model_table import model_table


def list_models(options: argparse.Namespace) -> None:
    names = zoo.list_models(options.pattern)
    if options.markdown:
        if options.json:
            raise ValueError("`--markdown` cannot go with --json. Give one of the two.")
        print(model_table(names))
        return
    if options.json:
        print(json.dumps(names))
        return
    cards = [zoo.card(name) for name in names]
    rows = [
        [card.name, f"{card.parameters:,}", _pair(card, "static", "finetuned", "samples"),
         _pair(card, "dynamic"), ", ".join(card.corpora)]
        for card in cards
    ]  # fmt: skip
    head = ["model", "parameters", "published", "dynamic", "corpora"]
    print_table(head, rows)
    if rows:
        print(
            "\nParameters and perplexities (validation/test) are those of the first corpus; where "
            "the paper\nhas none before it, after fine-tuning or averaged over dropout samples."
        )
    else:
        print(f"No model matches {options.pattern!r}.")


def _pair(card: zoo.Card, *keys: str) -> str:
    """Return the first published result among `keys`, "-" where the source has none."""
    found = next((card.published[key] for key in keys if key in card.published), [math.nan] * 2)
    return "-" if all(map(math.isnan, found)) else "/".join(map(_perplexity, found))


def _perplexity(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def card(options: argparse.Namespace) -> None:
    found = zoo.card(options.name, options.corpus)
    if options.json:
        table = dataclasses.asdict(found)
        for key, pair in table["published"].items():  # JSON has no NaN
            table["published"][key] = [None if math.isnan(value) else value for value in pair]
        print(json.dumps(table, default=str))
        return
    if found.file:
        print(f"{found.name}, a card of your own: {found.file}")
    else:
        print(f"{found.name} on {found.corpus} (cards for: {', '.join(found.corpora)})")
    for line in (found.paper, found.table, found.note):
        if line:
            print(line)
    print()
    if found.parameters is not None:
        printed = f" (printed: {found.printed})" if found.printed else ""
        print(f"parameters  {found.parameters:,} weights{printed}")
    if found.seed is not None:
        print(f"seed        {found.seed}")
    if found.lowercase:
        print("text        lower-cased")
    for key, pair in found.published.items():
        valid, test = map(_perplexity, pair)
        print(f"published   {key}: perplexity {valid} validation, {test} test")
    for result in found.measured:
        found_here = ", ".join(f"{key} {value}" for key, value in result.items())
        print(f"measured    {found_here}")
    for part in ("config", "recipe", "evaluation"):
        if not getattr(found, part):
            continue
        print(f"\n[{part}]")
        for key, value in getattr(found, part).items():
            ours = "  (our choice: the source is silent)" if f"{part}.{key}" in found.ours else ""
            print(f"{key} = {json.dumps(value, default=str)}{ours}")


def data(options: argparse.Namespace) -> None:
    from dualnet import corpora

    corpus = corpora.load(options.name, path=options.path, lowercase=options.lowercase)
    found = {
        "name": corpus.name,
        "source": corpus.source,
        "lowercase": corpus.lowercase,
        "tokens": {split: len(corpus.split(split)) for split in corpora.SPLITS},
        "vocabulary_size": len(corpus.vocabulary),
        "vocabulary_sha256": corpus.vocabulary.sha256,
        "sha256": corpus.sha256,
    }
    if options.json:
        print(json.dumps(found))
        return
    print(f"{corpus.name} from {corpus.source}{', lower-cased' if corpus.lowercase else ''}")
    for split in corpora.SPLITS:
        ids = corpus.split(split)
        print(f"{split:6}{len(ids):>12,} tokens   {corpus.vocabulary.decode(ids[:10])!r} ...")
    print(f"{'types':6}{len(corpus.vocabulary):>12,} words, <eos> included")


def train(options: argparse.Namespace) -> None:
    # What needs no TensorFlow is checked before the seconds that it takes to load.
    zoo.card(options.name)
    settings = settings_of(options.set)
    training = quietly("dualnet.training", seeds=True)
    run = training.train(
        options.name, options.corpus, weights=options.weights, **_for_training(options, settings)
    )
    _print_run(options, run)


def gate(options: argparse.Namespace) -> None:
    settings = settings_of(options.set)
    training = quietly("dualnet.training", seeds=True)
    corpus = options.corpus
    if corpus is None:
        corpus = quietly("dualnet.runs").corpus_of_run(options.run_folder)
    run = training.train_gate(options.run_folder, corpus, **_for_training(options, settings))
    _print_run(options, run)


def ensemble(options: argparse.Namespace) -> None:
    training = quietly("dualnet.training")
    folder = training.combine_runs(options.run_folders, options.output)
    if options.json:
        print(json.dumps({"path": str(folder), "members": options.run_folders}))
    else:
        print(f"An ensemble of {len(options.run_folders)} models in {folder}")


def _for_training(options: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `training.train` that `train` and `gate` have in common."""
    from dualnet import training

    for key in inspect.signature(training.train).parameters:
        if key in settings:
            raise ValueError(
                f"`--set` takes an argument of the builder or the recipe. Received: {key}="
                f"{settings[key]}. `dualnet {options.command} --help` shows the options."
            )
    if options.epochs is not None:
        settings = {**settings, "epochs": options.epochs}
    return {
        "output": options.output,
        "seed": options.seed,
        "resume": options.resume,
        "checkpoint_steps": options.checkpoint_steps,
        "progress": not options.quiet,
        "devices": options.devices,
        **settings,
    }


def _print_run(options: argparse.Namespace, run: Any) -> None:
    if options.json:
        print(json.dumps(run.results))
        return
    found = run.results
    print(f"{found['name']}: {found['parameters']:,} parameters, best epoch {found['best_epoch']}")
    valid, test = found["valid_perplexity"], found["test_perplexity"]
    how = "each sentence by itself" if found["by_sentence"] else "batch size 1"
    print(f"validation perplexity {valid:.2f}, test {test:.2f} ({how})")
    print(f"{found['tokens_per_second']:,.0f} tokens per second in training. All in {run.folder}")


def generate(options: argparse.Namespace) -> None:
    if options.greedy and options.temperature is not None:
        raise ValueError("`--greedy` is `--temperature 0`. Give one of the two.")
    prompts = _texts("--prompt", options)
    if options.given is None:
        prompts = [line.removesuffix("\n") for line in prompts]
    temperature = 1.0 if options.temperature is None else options.temperature
    settings = {
        "max_tokens": options.max_tokens,
        "temperature": 0.0 if options.greedy else temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "stop_at_eos": options.stop_at_eos,
        "seed": secrets.randbits(32) if options.seed is None else options.seed,
    }
    runs = quietly("dualnet.runs")
    from dualnet.generation import generate

    texts = generate(runs.load(options.run_folder), prompts, **settings)
    if options.json:
        print(json.dumps({"texts": texts, "prompts": prompts, **settings}))
    else:
        print("\n\n".join(texts))


def score(options: argparse.Namespace) -> None:
    texts = _texts("--text", options)
    runs = quietly("dualnet.runs")
    from dualnet.evaluation import perplexity_of, score

    model = runs.load(options.run_folder)
    scores = score(model, texts, temperature=options.temperature)
    log_probabilities = [value for found in scores for value in found.log_probabilities.tolist()]
    perplexity = perplexity_of([-value for value in log_probabilities])
    if options.json:
        found = {
            "perplexity": _finite(perplexity),
            "tokens": len(log_probabilities),
            "texts": [
                {
                    "perplexity": _finite(each.perplexity),
                    "tokens": each.tokens,
                    "words": each.words,
                    "log_probabilities": [_finite(x) for x in each.log_probabilities.tolist()],
                }
                for each in scores
            ],
        }
        print(json.dumps(found | {"temperature": options.temperature}, allow_nan=False))
        return
    rows = [[_number(each.perplexity), f"{each.tokens:,}", " ".join(each.words)] for each in scores]
    print_table(["perplexity", "tokens", "text"], rows, columns=shutil.get_terminal_size().columns)
    print(f"\nperplexity {_number(perplexity)} on {len(log_probabilities):,} tokens of "
          f"{len(scores):,} text{'s' * (len(scores) != 1)}")  # fmt: skip


def export(options: argparse.Namespace) -> None:
    runs = quietly("dualnet.runs")
    from dualnet import serving

    model = runs.load(options.run_folder)
    path = serving.export(model, options.path, format=options.format)
    endpoints = serving.endpoints(model, format=options.format)
    if options.json:
        print(json.dumps({"path": str(path), "format": options.format, "endpoints": endpoints}))
    elif options.format == "saved_model":
        print(f"SavedModel with the endpoints {', '.join(endpoints)} in {path}")
        if "score_text" not in endpoints:
            print("No text endpoints: they need a vocabulary with <eos>.")
    else:
        print(f"One step of the model in {path}")


def demo(options: argparse.Namespace) -> None:
    demo = quietly("dualnet.demo", seeds=True)
    results = demo.run(options.output)
    if options.json:
        print(json.dumps(results))


def _finite(value: float) -> float | None:
    # JSON has no word for nan and infinity.
    return value if math.isfinite(value) else None


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 1e7 else f"{value:.3g}"


def _texts(option: str, options: argparse.Namespace) -> list[str]:
    """Return the texts given by `option`, or the lines of FILE or standard input, newlines kept.

    Raises:
        ValueError: if both are given, if there is no text, or if it is not UTF-8.
    """
    from dualnet.text.plain_text import text_of

    if options.given is not None:
        if options.file is not None:
            raise ArgumentError(option, f"and FILE cannot both be given. Received: {options.file}.")
        for text in options.given:
            if re.search("[\ud800-\udfff]", text):
                raise ArgumentError(option, f"must be UTF-8. Received: {text!a}.")
        return options.given
    if options.file in (None, "-"):
        source = "standard input"
        if sys.stdin.isatty():
            print("One text a line; Ctrl-D ends the input.", file=sys.stderr)
        data = sys.stdin.buffer.read()
    else:
        source = options.file
        try:
            with open(source, "rb") as file:
                data = file.read()
        except OSError as error:
            raise ValueError(
                f"FILE must be a text file. Received: {source!r}: {error.strerror}."
            ) from None
    text = text_of(data, source)
    if not text:
        raise ValueError(f"FILE must hold a text. Received: {source!r}, which is empty.")
    return re.findall("[^\n]*\n|[^\n]+", text)  # only a newline ends a line
