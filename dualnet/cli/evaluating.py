"""The command `evaluate`: perplexity, static or dynamic, with a cache or samples."""

from __future__ import annotations

import argparse
import inspect
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from dualnet import zoo
from dualnet._checks import ArgumentError, did_you_mean
from dualnet.cli.console import quietly, settings_of

TUNING_TOKENS = 50_000  # of the validation split, on which a temperature is chosen: Melis et al.


def evaluate(options: argparse.Namespace) -> None:
    settings = settings_of(options.set)
    _check_ways(options, settings)
    runs = quietly("dualnet.runs")
    from dualnet import adaptation, builders, corpora, evaluation

    model = runs.load(options.run_folder)
    used = None
    if os.path.isdir(options.run_folder):
        used = runs.read_card(options.run_folder)
    elif options.corpus is None:
        raise ValueError("`--corpus` must be given for a .keras file, which knows of none.")
    words = model.vocabulary
    if words is None:
        raise ArgumentError(
            "RUN",
            "must have a vocabulary. Received: a .keras file without one. Set "
            "model.vocabulary before model.save.",
        )
    if options.corpus is None:
        corpus = runs.corpus_of_run(options.run_folder)
    else:
        corpus = corpora.load(options.corpus, lowercase=words.lowercase, vocabulary=words)
    tokens = corpus.split(options.split)
    if options.cache is not None:
        cache = _cache_settings(options.cache, used, corpus.name)
        model = builders.with_cache(model, **cache)
    recipe = used.recipe if used else {}
    trained_by_sentence = recipe.get("batching") == "sentences"
    for key in ("temperature", "sequence_length"):
        if getattr(options, key) is not None:
            settings[key] = getattr(options, key)
    if not options.dynamic:
        for key in ("batch_size", "by_sentence", "samples", "dropout_scale", "seed"):
            if getattr(options, key) is not None:
                settings[key] = getattr(options, key)
        settings.setdefault("by_sentence", trained_by_sentence)
    _check_settings(
        adaptation.dynamic_evaluation if options.dynamic else evaluation.evaluate, settings
    )
    if options.temperature == "best":
        valid = corpus.valid[:TUNING_TOKENS]
        settings["temperature"] = evaluation.best_temperature(
            model, valid, by_sentence=settings.get("by_sentence", False)
        )
    if options.dynamic:
        fixed: dict[str, Any] = {"rule": options.rule}
        if options.rule == "rms":  # of the text that it was trained on, whatever is evaluated
            trained_on = runs.corpus_of_run(options.run_folder) if used else corpus
            fixed["statistics"] = trained_on.train
        result = adaptation.dynamic_evaluation(model, tokens, **fixed, **settings)
        found = {
            "perplexity": result.perplexity,
            "tokens": result.tokens,
            "batch_size": 1,
            "rule": result.rule,
            **result.settings,
        }
        if options.plot:
            result.plot(options.plot)
    else:
        static = evaluation.evaluate(model, tokens, **settings)
        found = {
            "perplexity": static.perplexity,
            "tokens": static.tokens,
            "batch_size": static.batch_size,
            "sequence_length": static.sequence_length,
            "temperature": static.temperature,
            "by_sentence": static.by_sentence,
            "samples": static.samples,
        }
        if static.samples:
            found |= {"dropout_scale": static.dropout_scale, "seed": static.seed}
    if options.temperature == "best":
        found["tuning_tokens"] = len(valid)
    if options.cache is not None:
        found["cache"] = cache
    found |= {"split": options.split, "corpus": corpus.name, "model": model.name}
    if options.json:
        print(json.dumps(found))
        return
    print(f"perplexity {found['perplexity']:.2f} on {found['tokens']:,} tokens of {corpus.name} "
          f"{options.split}")  # fmt: skip
    if found["batch_size"] != 1:
        print(f"read as {found['batch_size']} streams, each from the zero state; the reference "
              "is --batch-size 1")  # fmt: skip
    if found.get("by_sentence"):
        print("read by sentence, each after <eos> from the zero state")
    elif trained_by_sentence:
        print("read as one stream, although the model was trained by sentence")
    if options.cache is not None:
        print("with a neural cache, " + ", ".join(f"{key}={value}" for key, value in cache.items()))
    if options.temperature == "best":
        print(f"temperature {found['temperature']:.4g}, the best on the first {len(valid):,} "
              "tokens of the validation split")  # fmt: skip
    if found.get("samples"):
        print(f"probabilities averaged over {found['samples']} passes with dropout, its rates "
              f"times {found['dropout_scale']:g}, seed {found['seed']}")  # fmt: skip
    if options.dynamic:
        used_settings = ", ".join(f"{key}={value:g}" for key, value in result.settings.items())
        print(f"dynamic evaluation, rule {result.rule}: {used_settings}")


def _cache_settings(given: list[str], used: zoo.Card | None, corpus: str) -> dict[str, Any]:
    """Return the cache's settings: those given, else as published for the card and the corpus."""
    from dualnet.builders import with_cache

    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(with_cache).parameters.items()
        if name != "model"
    }
    settings = settings_of(given)
    for key in settings:
        if key not in defaults:
            raise ValueError(
                f"`--cache` takes {', '.join(defaults)}.{did_you_mean(key, defaults)} Received: "
                f"{key}={settings[key]}."
            )
    name = used.name if used else ""
    if name in zoo.list_models() and corpus in zoo.card(name).corpora:
        published = zoo.card(name, corpus).evaluation
        defaults |= {key.removeprefix("cache_"): value for key, value in published.items()}
    return {**defaults, **settings}


def _check_ways(options: argparse.Namespace, settings: Mapping[str, Any]) -> None:
    """Refuse options of `evaluate` that do not go together."""
    if options.dynamic:
        if options.batch_size not in (None, 1):
            raise ValueError(
                "`--batch-size` must be 1 for dynamic evaluation, which reads one stream. "
                f"Received: {options.batch_size}."
            )
        if options.by_sentence:
            raise ValueError("`--by-sentence` cannot go with --dynamic, which reads one stream.")
        for name in ("samples", "dropout_scale", "seed"):
            if getattr(options, name) is not None:
                raise ValueError(
                    f"`--{name.replace('_', '-')}` cannot go with --dynamic, which reads the text "
                    f"once, dropouts off. Received: {getattr(options, name)}."
                )
        return
    for option, given in {"--rule": options.rule != "nadam", "--plot": options.plot}.items():
        if given:
            raise ArgumentError(option, "needs --dynamic.")
    if options.samples is None and "samples" not in settings:
        for option in ("dropout_scale", "seed"):
            if getattr(options, option) is not None:
                raise ValueError(f"`--{option.replace('_', '-')}` needs --samples.")


def _check_settings(function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Refuse what `function` does not take: that is bad input and no fault of the program."""
    known = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        and name not in ("keep", "rule", "statistics")  # no settings of the command line
    ]
    for key in settings:
        if key not in known:
            raise ArgumentError(
                key,
                f"must be one of {', '.join(known)}.{did_you_mean(key, known)} "
                f"Received: --set {key}={settings[key]}.",
            )
