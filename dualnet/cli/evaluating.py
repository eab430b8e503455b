"""The command `evaluate`: static or dynamic, with a cache, Monte Carlo dropout, by sentence."""

import contextlib
import dataclasses
import inspect
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dualnet import zoo
from dualnet._checks import ArgumentError, check_count, check_factor
from dualnet._fields import choice, count, field
from dualnet._files import check_new
from dualnet.cli.console import check_known, comparison, quietly, report, settings_of
from dualnet.cli.options import (
    Fractions,
    OfCorpus,
    OfRun,
    Pairs,
    Setting,
    check_corpus,
    check_file,
    corpus_of,
    name_of,
    number_or,
)
from dualnet.cli.translating import PROTOCOLS, evaluate_translator
from dualnet.corpora import SPLITS
from dualnet.corpora.corpus import NAMES, load_whole
from dualnet.metrics import METRICS
from dualnet.requests import RULES, DynamicEvaluating, Evaluating, Learning, check_temperature
from dualnet.runs import Run
from dualnet.runs.folder import EARLY_FILES
from dualnet.runs.shipped import check_own

# Validation tokens on which --temperature best chooses a temperature, as Melis et al. do.
TUNING_TOKENS = 50_000


def check_or_best(name: str, value: Any) -> None:
    """Raise `ValueError` unless `value` is a temperature or "best"."""
    if value != "best":
        check_temperature(name, value)


class Evaluate(Pairs, OfCorpus, Fractions, OfRun, Setting, Evaluating, DynamicEvaluating):
    """Options of `evaluate`."""

    split: str | None = choice(None, SPLITS)
    """train, valid or test (default: test; a text file or a table of pairs that is not the RUN's
    own is read whole, unless --fractions divides it)."""

    quiet: bool = False
    """Do not say what learning rate --dynamic finds."""

    plot: str | None = field(None, check_file, metavar="PNG")
    """Plot the perplexity of --dynamic by position."""

    dynamic: bool = field(False, group="learning while reading")
    """Dynamic evaluation: learn from each segment after scoring it."""

    rule: str | None = choice(None, [*RULES, "published"], group="learning while reading")
    """Update rule of --dynamic: nadam, sgd, rms or 'published' for rule and settings of the paper,
    if the card of the model has them (default: nadam; shipped models have a rule of their own)."""

    keep: str | None = field(None, metavar="RUN", group="learning while reading")
    """Write the model that --dynamic has adapted into this new RUN folder."""

    temperature: float | str = field(  # type: ignore[assignment]
        1.0,
        check_or_best,
        type=number_or("best", float, "a number above 0"),
        metavar="T",
        group="how to read",
    )
    """Divide the logits by it; 'best': by the value that is best on the validation split."""

    by_sentence: bool | None = field(None, group="how to read")  # type: ignore[assignment]
    """Read each sentence from the zero state, and with --dynamic learn from it in one step
    (default: as RUN was trained; with --dynamic, as one stream)."""

    cache: list[str] | None = field(
        None, nargs="*", metavar="KEY=VALUE", group="dropout samples and cache"
    )
    """Add a neural cache, e.g. size=500 (words) weight=0.1 scale=1.0 start=when_full (default: as
    published for the model, else size=500 weight=0.2 scale=0.3 start=at_once)."""

    beam: int | None = count(None, least=1, group="models that translate")
    """Hypotheses of the beam search (default: 5)."""

    protocol: str | None = choice(None, PROTOCOLS, group="models that translate")
    """sacrebleu (BLEU and chrF of the plain text), multi30k (BLEU of lower-cased Moses tokens) or
    rouge (headlines) (default: sacrebleu)."""

    set: list[str] = field([], metavar="KEY=VALUE", group="learning while reading")
    """Override settings of the evaluation, e.g. learning_rate=0.001."""

    sequence_length: int | None = count(None, least=1, group="how to read")
    """Tokens per segment, after which --dynamic updates the weights and --samples draws new masks.
    """

    mc_dropout_samples: int = count(0, flags=["--samples"], group="dropout samples and cache")
    """Monte Carlo dropout: average the probabilities of N passes with dropout."""

    dropout_scale: float = field(1.0, check_factor, group="dropout samples and cache")
    """Multiply the dropout rates of --samples by it."""

    seed: int = count(0, group="dropout samples and cache")
    """Random seed of the masks of --samples."""

    pairs: str | None = field(None, metavar="FOLDER", group="models that translate")
    """Pairs to evaluate on: a folder with test.en, test.de and so on, a table, or 'numbers'
    (default: those that RUN was trained on)."""

    needs = {
        "corpus": ["fractions"],
        "dynamic": ["plot", "keep", "adapt", *Learning.names()],
        "mc_dropout_samples": ["seed"],
    }
    excludes = {"dynamic": [*{*Evaluating.names()} - {*DynamicEvaluating.names()}],
                "keep": ["cache"]}  # fmt: skip

    @classmethod
    def by_set(cls) -> dict[str, str]:
        names = {*Evaluating.names(), *DynamicEvaluating.names()} - {"rule"}
        flags = {name: re.sub("--(set )?", "", cls.flag(name)) for name in cls.names()}
        return {flags[name].replace("-", "_"): name for name in flags if name in names}

    def evaluation(self) -> dict[str, Any]:
        """Return the settings of the evaluation that were given, other than the rule."""
        request = DynamicEvaluating if self.dynamic else Evaluating
        settings = request.fields_of(self.changed())
        settings.pop("rule", None)
        if self.temperature == "best":
            del settings["temperature"]
        return settings


def evaluate(options: Evaluate) -> None:
    """Compute the perplexity of a RUN, static or dynamic.

    Examples:
        dualnet evaluate runs/dual
        dualnet evaluate runs/dual --dynamic --set learning_rate=0.001 --plot learning.png
        dualnet evaluate runs/dual --cache size=2000 --temperature best
        dualnet evaluate runs/en-de --protocol multi30k
    """
    run = Run.open(options.run_folder)
    if run.is_folder:
        _check_kind(options, run.translates)
    if options.keep is not None:
        _check_keep(options.keep, run)
    is_whole = options.split is None and _is_whole(options, run)
    if not is_whole:
        fractions, documents = options.fractions, run.read_as["documents"]
        check_corpus(options.corpus, {"fractions": fractions, "documents": documents})
    settings = options.evaluation()
    if options.dynamic and options.rule != "published":
        DynamicEvaluating(**run.learning(options.rule, settings))
    quietly("dualnet.evaluation")
    from dualnet import adaptation, builders, evaluation
    from dualnet.evaluation.arguments import vocabulary_of

    model = run.model()
    translates = isinstance(model, builders.TranslationModel)
    _check_kind(options, translates)
    if translates:
        evaluate_translator(options, run, model)
        return
    vocabulary, split = vocabulary_of(model), options.split or "test"
    if is_whole:
        corpus = load_whole(options.corpus or "", vocabulary)
    else:
        corpus = corpus_of(run, model, options.corpus, options.fractions)
    tokens = corpus.split(split)
    split = "whole" if is_whole else split
    notes: dict[str, Any] = {}  # added to the result
    if options.cache is not None:
        notes["cache"] = _cache_settings(options.cache, run, corpus.name)
        # Of a text, a cache remembers no more words than it has.
        longest = max(len(tokens), *(len(corpus.split(each)) for each in SPLITS))
        size = min(check_count("size", notes["cache"]["size"], least=1), longest)
        model = builders.with_cache(model, **{**notes["cache"], "size": size})
    trained_by_sentence = run.table.get("recipe", {}).get("batching") == "sentences"
    if not options.dynamic:
        settings.setdefault("by_sentence", trained_by_sentence and "window" not in settings)
    if options.temperature == "best":
        valid = corpus.valid[:TUNING_TOKENS]
        notes["tuning_tokens"] = len(valid)
        shared = {key: settings[key] for key in ("by_sentence", "window") if key in settings}
        settings["temperature"] = evaluation.best_temperature(model, valid, **shared)
    lines = []
    if options.dynamic:
        settings = learning_of(run, options.rule, settings, corpus.name)
        statistics = None
        if settings["rule"] == "rms":  # its statistics are those of the training text
            statistics = run.training_text() if run.is_folder else corpus.train
        # Read before --keep changes the weights.
        own = {key: settings[key] for key in ("temperature", "by_sentence") if key in settings}
        static = evaluation.evaluate(model, tokens, **own)
        with contextlib.redirect_stderr(None) if options.quiet else contextlib.nullcontext():
            dynamic = adaptation.dynamic_evaluation(
                model, tokens, keep=options.keep is not None, statistics=statistics, **settings
            )
        if options.plot:
            dynamic.plot(options.plot, static_losses=static.token_losses)
        used = f"rule {dynamic.rule}: " + ", ".join(
            f"{key}={'+'.join(value) if isinstance(value, list) else f'{value:g}'}"
            for key, value in dynamic.settings.items()
            if value is not None
        )
        lines.append(f"dynamic evaluation, {used}")
        lines += filter(None, [little_gain(1 - dynamic.perplexity / static.perplexity)])
        if options.keep is not None:
            _keep(options, split, run, model, "by sentence, " * dynamic.by_sentence + used)
            notes["keep"] = options.keep
            lines.append(f"the adapted model is in {options.keep}")
        result = {"perplexity": dynamic.perplexity, "tokens": dynamic.tokens, "batch_size": 1,
                  "rule": dynamic.rule, **dynamic.settings, "by_sentence": dynamic.by_sentence,
                  **dynamic.figures(), "static_perplexity": static.perplexity}  # fmt: skip
    else:
        static = evaluation.evaluate(model, tokens, **settings)
        names = ["perplexity", "tokens", "batch_size", "sequence_length", "temperature",
                 "by_sentence", "window"]  # fmt: skip
        names += ["dropout_scale", "seed"] if static.mc_dropout_samples else []
        names += [metric.figure for metric in METRICS if getattr(static, metric.figure)]
        result = {name: getattr(static, name) for name in names}
        result |= {"samples": static.mc_dropout_samples, **static.figures()}
    result |= {**notes, "split": split, "corpus": corpus.name, "model": name_of(run, model)}
    report(options, result, *_lines(result, trained_by_sentence), *lines)


def _lines(result: Mapping[str, Any], trained_by_sentence: bool) -> Iterator[str]:
    """Yield what is printed of a result, whether static or dynamic."""
    static = result.get("static_perplexity")
    beside = "" if static is None else f", where static evaluation has {static:.2f}"
    yield (f"perplexity {result['perplexity']:.2f} on {result['tokens']:,} tokens of "
           f"{result['corpus']} {result['split']}{beside}")  # fmt: skip
    yield comparison(result)
    for metric in METRICS:
        if metric.figure in result:
            yield from metric.lines(result[metric.figure])
    if result["batch_size"] != 1:
        yield (f"read as {result['batch_size']} streams, each from the zero state; the reference "
               "is --batch-size 1")  # fmt: skip
    if result.get("by_sentence"):
        yield "read by sentence, each after <eos> from the zero state"
    elif result.get("window"):
        yield f"read in windows of {result['window']} tokens, each from the zero state"
    elif trained_by_sentence:
        yield "read as one stream, although the model was trained by sentence"
    if "cache" in result:
        cache = ", ".join(f"{key}={value}" for key, value in result["cache"].items())
        yield f"with a neural cache, {cache}"
    if "tuning_tokens" in result:
        yield (f"temperature {result['temperature']:.4g}, the best on the first "
               f"{result['tuning_tokens']:,} tokens of the validation split")  # fmt: skip
    if result.get("samples"):
        yield (f"probabilities averaged over {result['samples']} passes with dropout, rates scaled "
               f"by {result['dropout_scale']:g}, seed {result['seed']}")  # fmt: skip


def _cache_settings(pairs: list[str], run: Run, corpus: str) -> dict[str, Any]:
    """Return the cache settings in `pairs`, completed by those published for card and corpus."""
    from dualnet.builders import with_cache

    _, *parameters = inspect.signature(with_cache).parameters.values()  # without the model
    defaults = {parameter.name: parameter.default for parameter in parameters}
    settings = settings_of(pairs)
    check_known("--cache", settings, defaults)
    own = _published_evaluation(run, corpus)
    defaults |= {
        key.removeprefix("cache_"): value for key, value in own.items() if key.startswith("cache_")
    }
    return {**defaults, **settings}


def little_gain(gain: float) -> str:
    """Return a line about learning that hardly lowers the perplexity, by a share, or ""."""
    from dualnet.adaptation.step_size import LEAST_GAIN

    if gain >= LEAST_GAIN:
        return ""
    return f"learning lowers the perplexity by {max(gain, 0):.1%} only: try another --rule or rate"


def learning_of(
    run: Run, rule: str | None, settings: Mapping[str, Any], corpus: str, *, by_text: bool = False
) -> dict[str, Any]:
    """Return rule and settings, as `Run.learning` does; those of "published" are of `corpus`."""
    if rule != "published":
        return run.learning(rule, settings, by_text=by_text)
    published = _published_evaluation(run, corpus)
    if "rule" not in published:
        raise ArgumentError(
            "--rule",
            "published needs a model of the zoo whose card names the rule of its paper for the "
            f"corpus. Received: {run.table.get('name', 'a .keras file')!r} on {corpus!r}, without. "
            "Choose nadam, sgd or rms.",
        )
    own = {key: value for key, value in published.items() if not key.startswith("cache_")}
    if by_text or settings.get("by_sentence"):
        own.pop("sequence_length", None)
    return {**own, **settings}


def _published_evaluation(run: Run, corpus: str) -> Mapping[str, Any]:
    """Return the settings of evaluation that the zoo's card of a RUN has for `corpus`, or {}."""
    name = run.table.get("name")
    if name not in zoo.list_models() or corpus not in zoo.card(name).corpora:
        return {}
    return zoo.card(name, corpus).evaluation


def _is_whole(options: Evaluate, run: Run) -> bool:
    """Whether the text is a file that nothing divides, other than the one RUN was trained on."""
    corpus = options.corpus
    needs_splits = options.temperature == "best" or (options.rule == "rms" and not run.is_folder)
    if corpus is None or corpus in NAMES or options.fractions or needs_splits:
        return False
    return os.path.isfile(os.path.expanduser(corpus)) and not run.own_reading(corpus)


def _keep(options: Evaluate, split: str, run: Run, model: Any, how: str) -> None:
    """Write the model, which was adapted as `how` says, into the RUN folder of --keep."""
    assert options.keep is not None
    from dualnet.runs.writing import write_run

    text = split if options.corpus is None else f"{split} of {options.corpus}"
    note = f"Adapted on {text} by dynamic evaluation, {how}."
    card = dataclasses.replace(run.card, note=note, weights=run.source)
    write_run(Path(options.keep), model, card, sources=[run.path])


def _check_keep(keep: str, run: Run) -> None:
    if not run.is_folder:
        message = f"needs a RUN folder, whose card it copies. Received: {str(run.path)!r}."
        raise ArgumentError("--keep", message)
    check_own(keep, name="keep")
    check_new(Path(keep), name="keep", holds="run", may_hold=EARLY_FILES)


def _check_kind(options: Evaluate, translates: bool) -> None:
    """Raise `ArgumentError` for an option that does not apply to the kind of model."""
    of_translators = [*Pairs.names(), "beam", "protocol"]
    of_both = [*OfRun.names(), "split"]
    for name in options.changed():
        if (name in of_translators) != translates and name not in of_both:
            what, which = "models that translate", "a language model"
            if translates:
                what, which = "language models", "a model that translates"
            way_out = " `dualnet translate --plot` draws its attention." * (name == "plot")
            message = f"is for {what}. Received: {options.run_folder!r}, of {which}.{way_out}"
            raise ArgumentError(options.flag(name), message)
