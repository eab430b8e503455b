"""The command `evaluate`: static or dynamic, with a cache, Monte Carlo dropout, by sentence."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from dualnet import zoo
from dualnet._checks import ArgumentError, check_choice, check_count, did_you_mean
from dualnet._files import check_new
from dualnet._settings import RULES, check_dynamic, check_evaluation
from dualnet.cli.commands import finite
from dualnet.cli.console import comparison, quietly, settings_of
from dualnet.cli.early import check_corpus, check_settings
from dualnet.cli.translating import PROTOCOLS, evaluate_translator
from dualnet.corpora import SPLITS
from dualnet.runs import Run
from dualnet.runs.folder import EARLY_FILES
from dualnet.runs.shipped import check_own

# Validation tokens on which --temperature best chooses a temperature, as Melis et al. do.
TUNING_TOKENS = 50_000
OF_TRANSLATORS = ("pairs", "source", "target", "files", "beam", "protocol")  # options
OF_LANGUAGE_MODELS = (
    "corpus", "dynamic", "rule", "keep", "set", "temperature", "sequence_length", "batch_size",
    "window", "by_sentence", "top_k", "samples", "dropout_scale", "seed", "cache", "plot",
)  # fmt: skip


def evaluate(options: argparse.Namespace) -> None:
    settings = settings_of(options.set)
    run = Run.open(options.run_folder)
    if run.is_folder:
        _check_kind(options, run.translates)
    _check_combination(options, run, settings)
    check_choice("split", options.split, SPLITS)
    if options.protocol is not None:
        check_choice("protocol", options.protocol, PROTOCOLS)
    if options.beam is not None:
        check_count("beam", options.beam, least=1)
    check_corpus(options.corpus)
    check_settings(settings)
    names = ["temperature", "sequence_length", "by_sentence"]
    if not options.dynamic:
        names += ["batch_size", "window", "samples", "dropout_scale", "seed", "top_k"]
    settings |= {name: value for name in names if (value := getattr(options, name)) is not None}
    check_known("--set", settings, settable(check_dynamic if options.dynamic else check_evaluation))
    if "samples" in settings:  # the name on the command line
        settings["mc_dropout_samples"] = settings.pop("samples")
    _check_values(options, run, settings)
    quietly("dualnet.evaluation")
    from dualnet import adaptation, builders, corpora, evaluation

    model = run.model()
    translates = isinstance(model, builders.TranslationModel)
    _check_kind(options, translates)
    if translates:
        evaluate_translator(options, run, model)
        return
    if options.corpus is None and not run.is_folder:
        raise ArgumentError("--corpus", "must be given for a .keras file, which records no corpus.")
    vocabulary = model.vocabulary
    if vocabulary is None:
        raise ArgumentError(
            "RUN",
            "must have a vocabulary. Received: a .keras file without one. Set model.vocabulary "
            "before model.save.",
        )
    corpus: Any
    if options.corpus is None:
        corpus = run.corpus()
    else:
        corpus = corpora.load(options.corpus, lowercase=vocabulary.lowercase, vocabulary=vocabulary)
    tokens = corpus.split(options.split)
    notes: dict[str, Any] = {}  # added to the result
    if options.cache is not None:
        notes["cache"] = _cache_settings(options.cache, run, corpus.name)
        model = builders.with_cache(model, **notes["cache"])
    trained_by_sentence = run.table.get("recipe", {}).get("batching") == "sentences"
    if not options.dynamic:
        settings.setdefault("by_sentence", trained_by_sentence and "window" not in settings)
    if options.temperature == "best":
        valid = corpus.valid[:TUNING_TOKENS]
        notes["tuning_tokens"] = len(valid)
        settings["temperature"] = evaluation.best_temperature(
            model,
            valid,
            **{key: settings[key] for key in ("by_sentence", "window") if key in settings},
        )
    if options.dynamic:
        fixed: dict[str, Any] = {"keep": options.keep is not None}
        if options.rule == "published":
            published = published_rule(run, corpus.name)
            if settings.get("by_sentence"):
                published.pop("sequence_length", None)
            settings = {**published, **settings}
        else:
            settings = run.learning(options.rule, settings)
        if settings["rule"] == "rms":  # its statistics are those of the training text
            fixed["statistics"] = run.training_text() if run.is_folder else corpus.train
        # Read before --keep changes the weights.
        shared = settings.keys() & {"temperature", "by_sentence"}
        static = evaluation.evaluate(model, tokens, **{key: settings[key] for key in shared})
        dynamic = adaptation.dynamic_evaluation(model, tokens, **fixed, **settings)
        if options.plot:
            dynamic.plot(options.plot, static_losses=static.token_losses)
        if options.keep is not None:
            _keep(options, run, model, dynamic)
            notes["keep"] = options.keep
        result = {"perplexity": dynamic.perplexity, "tokens": dynamic.tokens, "batch_size": 1,
                  "rule": dynamic.rule, **dynamic.settings, "by_sentence": dynamic.by_sentence,
                  **dynamic.figures(), "static_perplexity": static.perplexity}  # fmt: skip
    else:
        static = evaluation.evaluate(model, tokens, **settings)
        names = ["perplexity", "tokens", "batch_size", "sequence_length", "temperature",
                 "by_sentence", "window"]  # fmt: skip
        names += ["dropout_scale", "seed"] if static.mc_dropout_samples else []
        result = {name: getattr(static, name) for name in names}
        result["samples"] = static.mc_dropout_samples
        result |= static.figures()
        if static.top_k_accuracy:
            result["top_k_accuracy"] = static.top_k_accuracy
    result |= {**notes, "split": options.split, "corpus": corpus.name, "model": model.name}
    if options.json:
        print(json.dumps({key: finite(value) for key, value in result.items()}))
        return
    _print_result(result, trained_by_sentence)
    if options.dynamic:
        used_settings = ", ".join(
            f"{key}={value:g}" for key, value in dynamic.settings.items() if value is not None
        )
        print(f"dynamic evaluation, rule {dynamic.rule}: {used_settings}")
    if "keep" in notes:
        print(f"the adapted model is in {options.keep}")


def _print_result(result: Mapping[str, Any], trained_by_sentence: bool) -> None:
    static = result.get("static_perplexity")
    beside = "" if static is None else f", where static evaluation has {static:.2f}"
    print(f"perplexity {result['perplexity']:.2f} on {result['tokens']:,} tokens of "
          f"{result['corpus']} {result['split']}{beside}")  # fmt: skip
    print(comparison(result))
    for k, accuracy in result.get("top_k_accuracy", {}).items():
        print(f"top-{k} accuracy {accuracy:.2%}")
    if result["batch_size"] != 1:
        print(f"read as {result['batch_size']} streams, each from the zero state; the reference "
              "is --batch-size 1")  # fmt: skip
    if result.get("by_sentence"):
        print("read by sentence, each after <eos> from the zero state")
    elif result.get("window"):
        print(f"read in windows of {result['window']} tokens, each from the zero state")
    elif trained_by_sentence:
        print("read as one stream, although the model was trained by sentence")
    if "cache" in result:
        cache = ", ".join(f"{key}={value}" for key, value in result["cache"].items())
        print(f"with a neural cache, {cache}")
    if "tuning_tokens" in result:
        print(f"temperature {result['temperature']:.4g}, the best on the first "
              f"{result['tuning_tokens']:,} tokens of the validation split")  # fmt: skip
    if result.get("samples"):
        print(f"probabilities averaged over {result['samples']} passes with dropout, rates scaled "
              f"by {result['dropout_scale']:g}, seed {result['seed']}")  # fmt: skip


def _cache_settings(pairs: list[str], run: Run, corpus: str) -> dict[str, Any]:
    """Return the cache settings in `pairs`, completed by those published for card and corpus."""
    from dualnet.builders import with_cache

    _, *parameters = inspect.signature(with_cache).parameters.values()  # without the model
    defaults = {parameter.name: parameter.default for parameter in parameters}
    settings = settings_of(pairs)
    check_known("--cache", settings, defaults)
    published = _published_evaluation(run, corpus)
    defaults |= {
        key.removeprefix("cache_"): value
        for key, value in published.items()
        if key.startswith("cache_")
    }
    return {**defaults, **settings}


def published_rule(run: Run, corpus: str) -> dict[str, Any]:
    """Return rule and settings of the dynamic evaluation published for card and corpus."""
    published = _published_evaluation(run, corpus)
    if "rule" not in published:
        raise ArgumentError(
            "--rule",
            "published needs a model of the zoo whose card names the rule of its paper for the "
            f"corpus. Received: {run.table.get('name', 'a .keras file')!r} on {corpus!r}, without. "
            "Choose nadam, sgd or rms.",
        )
    return {key: value for key, value in published.items() if not key.startswith("cache_")}


def _published_evaluation(run: Run, corpus: str) -> Mapping[str, Any]:
    """Return the settings of evaluation that the zoo's card of a RUN has for `corpus`, or {}."""
    name = run.table.get("name")
    if name not in zoo.list_models() or corpus not in zoo.card(name).corpora:
        return {}
    return zoo.card(name, corpus).evaluation


def _keep(options: argparse.Namespace, run: Run, model: Any, dynamic: Any) -> None:
    """Write the adapted `model` into the RUN folder of --keep."""
    from dualnet.runs.loading import write_run

    settings = ", ".join(
        f"{key}={value}" for key, value in dynamic.settings.items() if value is not None
    )
    by = "by sentence, " if dynamic.by_sentence else ""
    text = options.split if options.corpus is None else f"{options.split} of {options.corpus}"
    note = f"Adapted on {text} by dynamic evaluation, {by}rule {dynamic.rule}: {settings}."
    card = dataclasses.replace(run.card, note=note, weights=run.source)
    write_run(Path(options.keep), model, card, sources=[run.path])


def _check_combination(options: argparse.Namespace, run: Run, settings: Mapping[str, Any]) -> None:
    """Refuse options of static evaluation with --dynamic, and its own or --samples's without it."""
    sampling = {"--dropout-scale": options.dropout_scale, "--seed": options.seed}
    if options.dynamic:
        batch_size = None if options.batch_size == 1 else options.batch_size
        alone = {"--batch-size": batch_size, "--window": options.window, "--top-k": options.top_k,
                 "--samples": options.samples, **sampling}  # fmt: skip
        problem = "cannot be combined with --dynamic, which reads the text once without dropout."
        refused = {problem: alone}
        if options.keep is not None:
            refused["cannot be combined with --keep."] = {"--cache": options.cache}
            if not run.is_folder:
                message = (
                    f"needs a RUN folder, whose card it copies. Received: {options.run_folder!r}."
                )
                raise ArgumentError("--keep", message)
            check_own(options.keep, name="keep")
            check_new(Path(options.keep), name="keep", holds="run", may_hold=EARLY_FILES)
    else:
        alone = {"--rule": options.rule, "--plot": options.plot, "--keep": options.keep}
        refused = {"needs --dynamic.": alone}
        if options.samples is None and "samples" not in settings:
            refused["needs --samples."] = sampling
    for problem, values in refused.items():
        for option, value in values.items():
            if value is not None:
                raise ArgumentError(option, f"{problem} Received: {value}.")


def _check_kind(options: argparse.Namespace, translates: bool) -> None:
    """Refuse options of `evaluate` that do not apply to the kind of model."""
    names: tuple[str, ...] = OF_TRANSLATORS
    what, which = "models that translate", "a language model"
    if translates:
        names, what, which = OF_LANGUAGE_MODELS, "language models", "a model that translates"
    for name in names:
        if getattr(options, name) != options.parser.get_default(name):
            way_out = " `dualnet translate --plot` draws its attention." * (name == "plot")
            raise ArgumentError(
                f"--{name.replace('_', '-')}",
                f"is for {what}. Received: {options.run_folder!r}, of {which}.{way_out}",
            )


def settable(function: Callable[..., Any]) -> list[str]:
    """Return the arguments of `function` that can be set on the command line."""
    parameters = inspect.signature(function).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.name != "rule"]
    return [name.removeprefix("mc_dropout_") for name in names]


def _check_values(options: argparse.Namespace, run: Run, settings: Mapping[str, Any]) -> None:
    """Check the rule and the values of `settings`, as far as they are known without the model."""
    known = dict(settings)
    if options.temperature == "best":
        del known["temperature"]
    if not options.dynamic:
        check_evaluation(**known)
    elif options.rule is None:
        check_dynamic(**run.learning(None, known))
    elif check_choice("rule", options.rule, [*RULES, "published"]) != "published":
        check_dynamic(rule=options.rule, **known)


def check_known(option: str, settings: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise `ValueError` for a setting that is not in `known`."""
    for key, value in settings.items():
        if key not in known:
            raise ArgumentError(
                key,
                f"must be one of {', '.join(known)}.{did_you_mean(key, known)} Received: {option} "
                f"{key}={value}.",
            )
