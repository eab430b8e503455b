"""The commands `evaluate` and `adapt`: the perplexity of a text, static or dynamic."""

import contextlib
import dataclasses
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dualnet import zoo
from dualnet._checks import ArgumentError
from dualnet._fields import choice, count, field
from dualnet._files import check_new, check_output_file
from dualnet.cli.command import Options, argument, settings_of
from dualnet.cli.console import Result, comparison, quietly
from dualnet.cli.options import (
    OfRun,
    OfSplit,
    Pairs,
    Setting,
    check_split,
    corpus_of,
    is_whole,
    name_of,
    open_language_model,
)
from dualnet.corpora import SPLITS, Corpus, PairCorpus
from dualnet.requests import (
    RULES,
    AdaptationRule,
    DynamicEvaluating,
    Evaluating,
    LearnerRule,
    check_temperature,
)
from dualnet.runs import Run
from dualnet.runs.folder import EARLY_FILES
from dualnet.runs.shipped import check_own

if TYPE_CHECKING:
    from dualnet.builders import LanguageModel, TranslationModel

# Validation tokens on which --temperature best chooses a temperature, as Melis et al. do.
TUNING_TOKENS = 50_000
TOKENS_OF_WORD = 16  # hardly any text has words of more tokens in the mean
PROTOCOLS = ("sacrebleu", "multi30k", "rouge")
METRIC_NAMES = {"bleu": "BLEU", "chrf": "chrF"}


# What is printed of a result if it has the key, and that is neither empty nor False.
LINES = {
    "by_sentence": "read by sentence, each after <eos> from the zero state",
    "window": "read in windows of {window} tokens, each from the zero state",
    "tuning_tokens": "temperature {temperature:.4g}, the best on the first {tuning_tokens:,} "
    "tokens of the validation split",
    "samples": "probabilities averaged over {samples} passes with dropout, rates scaled by "
    "{dropout_scale:g}, seed {seed}",
    "keep": "the adapted model is in {keep}",
}


def check_or_best(name: str, value: object) -> None:
    """Raise `ValueError` unless `value` is a temperature or "best"."""
    if value != "best":
        check_temperature(name, value)


class ChoosesRule(Setting):
    """How weights learn while they read."""

    group = "learning while reading"

    rule: str | None = choice(None, [*RULES, "published"])
    """Update rule: nadam, sgd, rms or 'published' for rule and settings of the paper, if the card
    of the model has them (default: nadam; shipped models have a rule of their own)."""


class Adapt(OfSplit, OfRun, ChoosesRule, DynamicEvaluating):
    """Options of `adapt`."""

    group = "learning while reading"

    with_cache: list[str] | None = field(
        None, flags=["--cache"], nargs="*", metavar="KEY=VALUE", group=""
    )
    """Add a neural cache, e.g. size=500 (words) weight=0.1 scale=1.0 start=when_full (default: as
    published for the model, else size=500 weight=0.2 scale=0.3 start=at_once); or one of n-grams,
    kind=ngram size=4000."""

    keep: str | None = field(None, metavar="RUN")
    """Write the adapted model into this new RUN folder."""

    plot: str | None = field(None, check_output_file, metavar="PNG")
    """Plot the perplexity by position."""

    quiet: bool = False
    """Do not say what learning rate is found."""

    temperature: float | str = field(1.0, check_or_best, metavar="T")  # type: ignore[assignment]
    """Divide the logits by it; 'best': by the value that is best on the validation split."""

    by_sentence: bool | None = None  # type: ignore[assignment]
    """Read each sentence from the zero state (default: as RUN was trained; where weights learn, as
    one stream)."""

    excludes = {"keep": ["with_cache"]}


class Evaluate(Adapt, Evaluating, Pairs):
    """Options of `evaluate`: those of `adapt`, for --dynamic, and those of fixed weights."""

    dynamic: bool = field(False, group="learning while reading")
    """Dynamic evaluation: learn from each segment after scoring it, as `dualnet adapt`."""

    beam: int | None = count(None, group="models that translate")
    """Hypotheses of the beam search (default: 5)."""

    keystrokes: int | None = count(None, metavar="WORDS", group="completion")
    """Measure how many keys `dualnet complete` saves on so many words of the text; with --dynamic
    for a learner, which reads each line when it has been typed."""

    k: int = count(3, group="completion")
    """Words that are offered."""

    protocol: str | None = choice(None, PROTOCOLS, group="models that translate")
    """sacrebleu (BLEU and chrF of the plain text), multi30k (BLEU of lower-cased Moses tokens) or
    rouge (headlines) (default: sacrebleu)."""

    needs = {
        "dynamic": ["plot", "keep", "adapt", *AdaptationRule.names()],
        "mc_dropout_samples": ["seed"],
        "keystrokes": ["k"],
    }
    excludes = {
        "keystrokes": {
            *{"plot", "keep", "with_cache", "beam", "protocol"},
            *Evaluating.names(),
            *Pairs.names(),
        }
        - {*LearnerRule.names(), "adapt", *Options.names()},
        "dynamic": {*Evaluating.names(), *Pairs.names(), "beam", "protocol"}
        - {*DynamicEvaluating.names(), *Options.names()},
    }


def evaluate(options: Evaluate) -> Result:
    """Compute the perplexity of a RUN, static or dynamic.

    Examples:
        dualnet evaluate runs/dual
        dualnet evaluate runs/dual --dynamic --set learning_rate=0.001 --plot learning.png
        dualnet evaluate runs/dual --cache size=2000 --temperature best
        dualnet evaluate runs/en-de --protocol multi30k
        dualnet evaluate runs/dual --keystrokes 1000
    """
    if options.keystrokes is not None:
        return _keystrokes(options, options.keystrokes)
    if options.dynamic:
        return adapt(options)
    run = Run.open(options.run_folder)
    if run.is_folder:
        _check_kind(options, run.translates)
    check_split(options, run)
    quietly("dualnet.evaluation")
    from dualnet import builders, evaluation

    model = run.model()
    if isinstance(model, builders.TranslationModel):
        _check_kind(options, translates=True)
        return _of_translator(options, run, model)
    _check_kind(options, translates=False)
    text = Text(options, run, model)
    settings = Evaluating.fields_of(options.changed())
    as_stream = settings.keys() & set(Evaluating.excludes["by_sentence"])
    settings.setdefault("by_sentence", text.by_sentence and not as_stream)
    text.find_temperature(settings)
    static = evaluation.evaluate(text.model, text.tokens, **settings)
    names = ["perplexity", "tokens", "batch_size", "sequence_length", "temperature", "by_sentence"]
    names += ["window", *["dropout_scale", "seed"] * bool(static.mc_dropout_samples)]
    names += ["top_k_accuracy"] * bool(static.top_k_accuracy)
    figures = {name: getattr(static, name) for name in names}
    return text.result({**figures, "samples": static.mc_dropout_samples, **static.figures()})


def _keystrokes(options: Evaluate, count: int) -> Result:
    """Return the share of keys that completion saves on the first `count` words of a text."""
    run = open_language_model(options.run_folder)
    check_split(options, run)
    quietly("dualnet.generation")
    from dualnet import generation, learners
    from dualnet.text.pieces import patterns

    text = Text(options, run, run.model())
    whole = text.model.vocabulary.decode(text.tokens[: TOKENS_OF_WORD * count])
    words = itertools.islice(re.finditer(patterns()[1], whole), count)
    lines = whole[: max((word.end() for word in words), default=0)].splitlines()
    reader: Any = text.model
    if options.dynamic:
        settings = LearnerRule.fields_of(options.changed())
        reader = learners.Learner(reader, options.adapt, **settings)
    savings = generation.keystrokes(reader, [*filter(str.strip, lines)], k=options.k)
    figures = {
        "saved": savings.saved, **dataclasses.asdict(savings), "k": options.k,
        "dynamic": options.dynamic, **text.notes,
    }  # fmt: skip
    shown = [
        f"after {letters} letters the first word is right in {first:.1%}, one of {options.k} in "
        f"{among:.1%}"
        for letters, (first, among) in enumerate(savings.recall)
    ]
    return Result(
        figures,
        f"{savings.saved:.1%} of {savings.characters:,} keys saved on {savings.words:,} words of "
        f"{text.corpus.name} {text.split}",
        *shown,
    )


class Compare(OfSplit, OfRun):
    """Options of `compare`."""

    by_sentence: bool | None = None
    """Read each sentence from the zero state, or with --no-by-sentence the text as one stream
    (default: as both were trained)."""

    other: str = argument(metavar="OTHER")
    """The second model, of the same words"""


def compare(options: Compare) -> Result:
    """Compute how much two models differ on a text, by more than chance or not.

    Examples:
        dualnet compare runs/lstm runs/dual
        dualnet compare lstm.english dual_lstm.english --corpus book.txt
    """
    run, other = (
        Run.open(path, name=name).check_language_model(name)
        for name, path in (("RUN", options.run_folder), ("OTHER", options.other))
    )
    check_split(options, run)
    quietly("dualnet.evaluation")
    from dualnet import evaluation

    text, second = Text(options, run, run.model()), other.model()
    by_sentence = text.by_sentence if options.by_sentence is None else options.by_sentence
    if options.by_sentence is None and by_sentence != trained_by_sentence(other, second):
        one = options.run_folder if by_sentence else options.other
        raise ArgumentError(
            "--by-sentence",
            "or --no-by-sentence must be given for models that were trained differently. Received: "
            f"{options.run_folder!r} and {options.other!r}, of which {one!r} by sentence.",
        )
    gain = evaluation.compare(text.model, second, text.tokens, by_sentence=by_sentence)
    figures = {"by_sentence": by_sentence, "other": name_of(other, second), **text.notes}
    return Result(
        dataclasses.asdict(gain) | figures,
        f"{options.run_folder} and {options.other} on {text.corpus.name} {text.split}: {gain}",
        LINES["by_sentence"] if by_sentence else "read as one stream",
    )


def adapt(options: Adapt) -> Result:
    """Compute the perplexity of a RUN that learns from the text while it is scored.

    Examples:
        dualnet adapt runs/dual
        dualnet adapt runs/dual --rule sgd --set learning_rate=0.1 --split valid --keep runs/adapted
    """
    run = Run.open(options.run_folder).check_language_model("RUN")
    if options.keep is not None:
        _check_keep(options.keep, run)
    check_split(options, run)
    quietly("dualnet.evaluation")
    from dualnet import adaptation, evaluation
    from dualnet.adaptation.step_size import LEAST_GAIN
    from dualnet.runs.writing import write_run

    text = Text(options, run, run.model())
    settings = with_published_rule(
        DynamicEvaluating.fields_of(options.changed()), run, text.corpus.name
    )
    text.find_temperature(settings)
    # Before --keep changes the weights.
    read_as = {key: settings[key] for key in ("temperature", "by_sentence") if key in settings}
    static = evaluation.evaluate(text.model, text.tokens, **read_as)
    if options.rule == "rms" and not run.is_folder:
        settings["statistics"] = text.corpus.train
    with contextlib.redirect_stderr(None) if options.quiet else contextlib.nullcontext():
        dynamic = adaptation.dynamic_evaluation(
            text.model, text.tokens, keep=bool(options.keep), **settings
        )
    if options.plot:
        dynamic.plot(options.plot, static_losses=static.token_losses)
    used = f"rule {dynamic.rule}: " + ", ".join(
        f"{key}={'+'.join(value) if isinstance(value, list) else f'{value:g}'}"
        for key, value in dynamic.settings.items()
        if value is not None
    )
    if options.keep is not None:
        description = "by sentence, " * dynamic.by_sentence + used
        place = text.split if options.corpus is None else f"{text.split} of {options.corpus}"
        note = f"Adapted on {place} by dynamic evaluation, {description}."
        card = dataclasses.replace(run.card, note=note, weights=run.source)
        write_run(Path(options.keep), text.model, card, sources=[run.path])
        text.notes["keep"] = options.keep
    figures = {
        "perplexity": dynamic.perplexity,
        "tokens": dynamic.tokens,
        "batch_size": 1,
        "rule": dynamic.rule,
        **dynamic.settings,
        "by_sentence": dynamic.by_sentence,
        **dynamic.figures(),
        "static_perplexity": static.perplexity,
    }
    if options.cache:
        figures["ngrams"] = figures.pop("cache")
    lines = [f"dynamic evaluation, {used}"]
    gain = max(1 - dynamic.perplexity / static.perplexity, 0)
    if gain < LEAST_GAIN:
        lines.append(
            f"learning lowers the perplexity by {gain:.1%} only: try another --rule or rate"
        )
    return text.result(figures, *lines)


class Text:
    """What a model reads, and what the result says of it.

    Attributes:
        model: The model, with the cache of the options.
        corpus: Its corpus, of which `tokens` are the `split`.
        by_sentence: Whether the model was trained so.
        notes: Added to the result.
    """

    def __init__(self, options: OfSplit, run: Run, model: "LanguageModel") -> None:
        from dualnet import builders

        split = options.split or "test"
        self.corpus = cast(Corpus, corpus_of(options, run, model))
        self.tokens = self.corpus.split(split)
        self.split = "whole" if is_whole(options, run) else split
        self.model, self.by_sentence = model, trained_by_sentence(run, model)
        self.notes: dict[str, object] = {
            "split": self.split,
            "corpus": self.corpus.name,
            "model": name_of(run, model),
        }
        pairs = vars(options).get("with_cache")  # which `compare` lacks
        if pairs is not None:
            cache = cache_settings(pairs, run, self.corpus.name)
            # Of a text, a cache remembers no more words than it has.
            longest = max(len(self.corpus.split(split)) for split in SPLITS)
            used = {**cache, "size": min(cache["size"], longest)}
            self.model, self.notes["cache"] = builders.with_cache(model, **used), cache

    def find_temperature(self, settings: dict[str, Any]) -> None:
        """Put the best temperature in place of "best" in the settings of an evaluation."""
        if settings.get("temperature") == "best":
            from dualnet.evaluation import best_temperature

            valid = self.corpus.valid[:TUNING_TOKENS]
            shared = {key: settings[key] for key in ("by_sentence", "window") if key in settings}
            settings["temperature"] = best_temperature(self.model, valid, **shared)
            self.notes["tuning_tokens"] = len(valid)

    def result(self, figures: dict[str, Any], *lines: str) -> Result:
        """Return the result with these figures, and with `lines` at the end of its text."""
        figures |= self.notes
        return Result(figures, *self._lines(figures), *lines)

    def _lines(self, result: Mapping[str, Any]) -> Iterator[str]:
        """Yield the text of a result, whether static or dynamic."""
        static = result.get("static_perplexity")
        beside = "" if static is None else f", where static evaluation has {static:.2f}"
        text = "perplexity {perplexity:.2f} on {tokens:,} tokens of {corpus} {split}"
        yield text.format_map(result) + beside
        yield comparison(result)
        for k, share in result.get("top_k_accuracy", {}).items():
            yield f"top-{k} accuracy {share:.2%}"
        if result["batch_size"] != 1:
            text = "read as {batch_size} streams, each from the zero state; the reference is 1"
            yield text.format_map(result)
        if self.by_sentence and not (result.get("by_sentence") or result.get("window")):
            yield "read as a stream, although the model was trained by sentence"
        if cache := {**result.get("cache", {})}:
            kind = "cache of n-grams" if cache.pop("kind", None) else "neural cache"
            yield f"with a {kind}, " + ", ".join(f"{key}={value}" for key, value in cache.items())
        yield from (text.format_map(result) for key, text in LINES.items() if result.get(key))


def trained_by_sentence(run: Run, model: "LanguageModel") -> bool:
    """Whether a model was trained by sentence; a .keras file has no recipe, but its padding."""
    return run.table["recipe"].get("batching") == "sentences" if run.is_folder else model.padded


def cache_settings(pairs: list[str], run: Run, corpus: str) -> dict[str, Any]:
    """Return the cache settings in `pairs`, completed by those published for card and corpus."""
    from dualnet.builders.wrapping_stations import Cache

    asked = {f"cache_{key}": value for key, value in settings_of(pairs, "--cache").items()}
    has_ngrams = asked.get("cache_kind") == "ngram"
    published = {} if has_ngrams else Cache.fields_of(_published_evaluation(run, corpus))
    try:
        cache = Cache.of({"cache_size": 500, **published, **asked})
    except ArgumentError as error:
        raise ValueError(str(error).replace("cache_", "")) from None
    names = ["size", "kind"] if has_ngrams else ["size", "weight", "scale", "start"]
    return {name: getattr(cache, f"cache_{name}") for name in names}


def with_published_rule(
    settings: dict[str, Any], run: Run, corpus: str, *, by_text: bool = False
) -> dict[str, Any]:
    """Return the settings of learning; with the rule "published" also those of the paper."""
    if settings.get("rule") != "published":
        return settings
    published = DynamicEvaluating.fields_of(_published_evaluation(run, corpus))
    if "rule" not in published:
        raise ArgumentError(
            "--rule",
            "published needs a model of the zoo whose card names the rule of its paper for the "
            f"corpus. Received: {run.table.get('name', 'a .keras file')!r} on {corpus!r}, without. "
            "Choose nadam, sgd or rms.",
        )
    if by_text or settings.get("by_sentence"):
        published.pop("sequence_length", None)
    return {**published, **settings, "rule": published["rule"]}


def _published_evaluation(run: Run, corpus: str) -> Mapping[str, Any]:
    """Return the settings of evaluation that the zoo's card of a RUN has for `corpus`, or {}."""
    name = run.table.get("name")
    if name not in zoo.list_models() or corpus not in zoo.card(name).corpora:
        return {}
    return zoo.card(name, corpus).evaluation


# --- models that translate


def _of_translator(options: Evaluate, run: Run, model: "TranslationModel") -> Result:
    """Return the perplexity of the targets of a split, and what the translations score."""
    from dualnet import evaluation
    from dualnet.evaluation.pair_perplexity import evaluate_pairs
    from dualnet.evaluation.translations import check_packages
    from dualnet.generation import translate

    protocol, beam = options.protocol or "sacrebleu", options.beam or 5
    corpus, is_whole = _pairs_to_evaluate(options, run, model)
    check_packages(protocol, corpus.target)
    split = options.split or "test"
    pairs = corpus.split(split)
    lines = translate(model, pairs.source_lines, beam=beam)
    if protocol == "rouge":
        scores = evaluation.rouge(lines, pairs.target_lines)
    else:
        settings = {"protocol": protocol, "language": corpus.target}
        scores = evaluation.translation_metrics(lines, pairs.target_lines, **settings)
    evaluated = evaluate_pairs(model, corpus, split)
    names = {
        "split": "whole" if is_whole else split,
        "corpus": corpus.name,
        "source": corpus.source,
        "target": corpus.target,
        "model": model.name,
    }
    figures = {
        "perplexity": evaluated.perplexity,
        "tokens": evaluated.tokens,
        **evaluated.figures(),
        **scores,
        "beam": beam,
        "pairs": len(pairs),
    }
    shown = [
        f"perplexity {evaluated.perplexity:.2f} on {evaluated.tokens:,} target tokens of "
        f"{corpus.name} {names['split']}, {corpus.source} to {corpus.target}"
    ]
    for name, value in scores.items():
        if name.startswith("rouge"):
            parts = ", ".join(f"{key} {figure:.2f}" for key, figure in value.items())
            shown.append(f"{name.upper().replace('_', '-')}: {parts}")
        elif signature := scores.get(f"{name}_signature"):
            shown.append(f"{METRIC_NAMES[name]} {value:.2f}, beam {beam} ({signature})")
    return Result(figures | names, *shown)


def _pairs_to_evaluate(
    options: Evaluate, run: Run, model: "TranslationModel"
) -> tuple[PairCorpus, bool]:
    """Return the pairs of `evaluate`, and whether they are a whole table instead of a split.

    Those of `--pairs`, of which one split is enough, else those that RUN was trained on.
    """
    if options.pairs is None:
        if not run.is_folder:
            raise ArgumentError(
                "--pairs", "must be given for a .keras file, which records no pairs."
            )
        return cast(PairCorpus, run.corpus()), False
    is_table = os.path.isfile(options.pairs)
    is_divided = is_table and (options.split or run.own_reading(options.pairs))
    settings = {"tokenizer": (model.source_vocabulary, model.vocabulary)}
    if run.is_folder:
        trained = run.trained_on["pairs"]
        settings["max_tokens"] = trained.get("max_tokens")
        settings |= {side: getattr(options, side) or trained[side] for side in ("source", "target")}
    splits = SPLITS if is_divided else [options.split or "test"]
    return options.read_pairs(splits, **settings), is_table and not is_divided


def _check_keep(keep: str, run: Run) -> None:
    if not run.is_folder:
        raise ArgumentError(
            "--keep", f"needs a RUN folder, whose card it copies. Received: {str(run.path)!r}."
        )
    check_own(keep, name="keep")
    check_new(Path(keep), name="keep", may_hold=EARLY_FILES)


def _check_kind(options: Evaluate, translates: bool) -> None:
    """Raise `ArgumentError` for an option that does not apply to the kind of model."""
    of_translators, of_both = [*Pairs.names(), "beam", "protocol"], [*OfRun.names(), "split"]
    kind = "language models" if translates else "models that translate"
    for name in options.changed():
        if (name in of_translators) != translates and name not in of_both:
            raise ArgumentError(
                name,
                f"is for {kind}. Received: {options.run_folder!r}, of another model.",
            )
