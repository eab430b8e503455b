"""Checks of a job against what its kind, its model and the rules of evaluation take."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dualnet import training, zoo
from dualnet._checks import ArgumentError, check_choice, check_count, did_you_mean
from dualnet.adaptation import RULES, rule_settings
from dualnet.builders.arguments import check_arguments
from dualnet.builders.functional import language_model
from dualnet.builders.wrappers import GATES, WRAPPERS, check_wrappers
from dualnet.evaluation import check_temperature
from dualnet.training.from_runs import GATED
from dualnet.training.initial_weights import is_gated
from dualnet.tuning import jobs
from dualnet.tuning.parameters import JobError, Parameter, in_order, is_among

if TYPE_CHECKING:
    from dualnet.tuning.jobs import Job

CACHE = tuple(key for key in WRAPPERS if key.startswith("cache"))
GATE = tuple(key for key in WRAPPERS if key.startswith("gate"))
RECIPE = tuple(field.name for field in dataclasses.fields(training.Recipe))
EVALUATIONS = ("static", "dynamic")
STATIC = ("batch_size",)
DYNAMIC = ("rule", "learning_rate", "decay", "epsilon", "beta_1", "clipnorm")
# What the search itself gives to every trial.
OF_THE_SEARCH = tuple(
    name
    for name, each in inspect.signature(training.train).parameters.items()
    if each.kind is not each.VAR_KEYWORD
)


def check_job(job: Job) -> None:
    """Raise `JobError` for what cannot be in `job`."""
    _check_top(job)
    _check_names(job)
    for each in job.written:
        _check_conditions(job, each)
    in_order(job.written)
    _check_budget(job)
    _check_values(job, _check_of(job))


def known_settings(job: Job) -> list[str]:
    """Return the names of what a trial of `job` can be told.

    Raises:
        JobError: if its model is unknown.
    """
    if job.kind == "evaluation":
        return ["evaluation", "temperature", "sequence_length", *DYNAMIC, *STATIC, *CACHE]
    if job.kind == "gate":
        return [*GATE, *RECIPE]
    arguments = [name for name in zoo.known_arguments(_card(job)) if name != "name"]
    return list(dict.fromkeys([*arguments, *RECIPE]))


def _card(job: Job) -> zoo.Card:
    try:
        card = zoo.card(job.model)
    except (ValueError, FileNotFoundError) as error:
        text = f"`model` must be a model of the zoo, or a card. {error}"
        raise JobError(text, "", "model") from None
    if is_gated(card.config) or "members" in card.config:
        raise JobError(
            "`model` must be one that is trained as a whole, from random weights. Received: "
            f"{job.model!r}, which has a gate or members. A gate is searched with kind = 'gate'.",
            "",
            "model",
        )
    return card


def _check_top(job: Job) -> None:
    """Check what stands at the top of the file."""

    def check(key: str, check: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        try:
            check(key, getattr(job, key), *args, **kwargs)
        except ValueError as error:
            raise JobError(str(error), "", key) from None

    check("kind", check_choice, jobs.JOB_KINDS)
    check("tuner", check_choice, jobs.TUNERS)
    check("early_stopping", check_choice, jobs.EARLY_STOPPING)
    check("solve_for", check_choice, jobs.SOLVE_FOR)
    check("seed", check_count, least=0)
    if job.max_trials is not None:
        check("max_trials", check_count, least=1)
    for key in ("max_hours", "max_hours_per_trial"):
        value = getattr(job, key)
        if value is not None and not 0 < value < math.inf:
            raise JobError(f"`{key}` must be a number above 0. Received: {value!r}.", "", key)
    known = jobs.TUNERS[job.tuner]
    for key, value in job.tuner_options.items():
        if key not in known:
            takes = f"takes {', '.join(known)}" if known else "takes none"
            raise JobError(
                f"`{key}` must be an option of the tuner {job.tuner!r}, which {takes}."
                f"{did_you_mean(key, known)}",
                "tuner_options", key,
            )  # fmt: skip
        _check_option(key, value)
    _check_kind(job)
    places = {*jobs.KEYS, *(f"fixed.{name}" for name in job.fixed)}
    places |= {f"space.{each.name}" for each in job.written}
    places |= {f"tuner_options.{name}" for name in job.tuner_options}
    for key in job.ours:
        if key not in places:
            raise JobError(
                f"`ours` must name keys of the job. Received: {key!r}.{did_you_mean(key, places)}",
                "", "ours",
            )  # fmt: skip


def _check_option(key: str, value: Any) -> None:
    """Check the value of an argument of KerasTuner's oracles."""
    try:
        if key in ("num_initial_points", "hyperband_iterations"):
            check_count(key, value, least=1)
        elif key == "factor":
            check_count(key, value, least=2)
        elif not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
            raise ArgumentError(key, f"must be a number above 0. Received: {key}={value!r}.")
    except ValueError as error:
        raise JobError(str(error), "tuner_options", key) from None


def _check_kind(job: Job) -> None:
    """Check what only jobs of some kind have."""
    if job.kind == "training" and not job.model:
        raise JobError("`model` must be given for a search of the kind 'training'.", "", "kind")
    if job.kind != "training" and job.model:
        raise JobError(
            f"`model` must be left out for the kind {job.kind!r}, whose model is that of the RUN. "
            f"Received: model = {job.model!r}.",
            "", "model",
        )  # fmt: skip
    if job.kind != "training" and job.parameters is not None:
        raise JobError(
            f"`parameters` must be left out for the kind {job.kind!r}, whose model is that of the "
            "RUN.", "", "parameters",
        )  # fmt: skip
    if job.kind == "evaluation" and job.early_stopping != "none":
        raise JobError(
            "`early_stopping` must be 'none' for the kind 'evaluation', which has no epochs. "
            f"Received: early_stopping = {job.early_stopping!r}.",
            "", "early_stopping",
        )  # fmt: skip
    if job.tuner == "hyperband":
        if job.kind == "evaluation":
            raise JobError(
                "`tuner` must be another than 'hyperband' for the kind 'evaluation', which has no "
                "epochs to give to the better trials.", "", "tuner",
            )  # fmt: skip
        if any(each.name == "epochs" for each in job.written):
            raise JobError(
                "`epochs` must not be searched by 'hyperband', which decides them itself. Put the "
                "largest number into [fixed].", "space", "epochs",
            )  # fmt: skip


def _check_names(job: Job) -> None:
    """Check that all settings are known, and stand in one place."""
    known = known_settings(job)
    searched = [each.name for each in job.written]
    for table, names in (("fixed", list(job.fixed)), ("space", searched)):
        for name in names:
            if name in OF_THE_SEARCH:
                way_out = " It stands at the top of the file." if name in jobs.KEYS else ""
                raise JobError(
                    f"`{name}` must be left out of [{table}]: the search gives it to its trials."
                    f"{way_out}", table, name,
                )  # fmt: skip
            if name not in known:
                of = {
                    "training": "an argument of the builder or of the recipe",
                    "gate": "an argument of the gate or of the recipe",
                    "evaluation": "a setting of evaluation",
                }[job.kind]
                raise JobError(
                    f"`{name}` must be {of}.{did_you_mean(name, known)} Known are "
                    f"{', '.join(sorted(known))}.", table, name,
                )  # fmt: skip
    for name in searched:
        if name in job.fixed:
            raise JobError(
                f"`{name}` must stand in [fixed] or in [space], not in both.", "space", name
            )


def _check_conditions(job: Job, parameter: Parameter) -> None:
    """Check that the conditions of `parameter` are about others, and values that these have."""
    parents = {each.name: each for each in job.written}
    for name, values in parameter.when.items():
        where = ("space", parameter.name, "when")
        if name in job.fixed or (name in parents and len(parents[name].ends) == 1):
            continue  # there is nothing to draw, and the condition is decided
        if name not in parents:
            others = [*parents, *job.fixed]
            raise JobError(
                f"`when` of `{parameter.name}` must be about parameters in [space] or [fixed]. "
                f"Received: {name!r}.{did_you_mean(name, others)}", *where,
            )  # fmt: skip
        for value in values:
            if not parents[name].can_have(value):
                raise JobError(
                    f"`when` of `{parameter.name}` must have values that `{name}` can have"
                    f"{_possible(parents[name])}. Received: {value!r}.", *where,
                )  # fmt: skip


def _possible(parameter: Parameter) -> str:
    if parameter.values:
        return f", {list(parameter.values)}"
    if parameter.whole:
        return f", integers from {parameter.min_value} to {parameter.max_value}"
    return "; a range of floats has none that are drawn for certain"


def _check_budget(job: Job) -> None:
    """Check that nothing else says what a budget of weights decides."""
    if job.parameters is None:
        return
    decided = jobs.SOLVE_FOR if job.solve_for == "units" else (job.solve_for,)
    searched = [each.name for each in job.written]
    for table, names in (("fixed", list(job.fixed)), ("space", searched)):
        for name in names:
            if name in decided:
                raise JobError(
                    f"`{name}` must be left out beside `parameters`, for which {job.solve_for!r} "
                    "is solved. Take another `solve_for`, or leave the budget out.", table, name,
                )  # fmt: skip


def _check_of(job: Job) -> Callable[[Mapping[str, Any]], None]:
    """Return what raises `ValueError`, with the name first, for a setting that cannot be."""
    if job.kind == "evaluation":
        return _check_evaluation
    card = zoo.card(GATED) if job.kind == "gate" else _card(job)
    defaults = {
        name: each.default
        for name, each in inspect.signature(language_model).parameters.items()
        if each.default is not each.empty
    }

    def check(settings: Mapping[str, Any]) -> None:
        if job.kind == "gate" and "gate" in settings:
            check_choice("gate", settings["gate"], set(GATES) - {"none"})
        arguments, _ = training.split_overrides(card, settings)
        if card.builder == "language_model":
            check_arguments(**{"vocabulary_size": 1, **defaults, **arguments})

    return check


def _check_evaluation(settings: Mapping[str, Any]) -> None:
    way = check_choice("evaluation", settings.get("evaluation", "static"), EVALUATIONS)
    for name in settings:
        if name in (DYNAMIC if way == "static" else STATIC):
            other = EVALUATIONS[way == "static"]
            raise ArgumentError(
                name,
                f"must be left out of a {way} evaluation. Put evaluation = {other!r} into "
                f"[fixed], or search it with when = {{ evaluation = [{other!r}] }}.",
            )
    if "temperature" in settings:
        check_temperature(settings["temperature"])
    for name in ("sequence_length", "batch_size"):
        if name in settings:
            check_count(name, settings[name], least=1)
    check_wrappers({**WRAPPERS, **{key: settings[key] for key in CACHE if key in settings}})
    if way == "dynamic":
        rule = check_choice("rule", settings.get("rule", "nadam"), RULES)
        # A clipping norm of 0 is none.
        given = {name: settings[name] for name in DYNAMIC if name in settings and name != "rule"}
        rule_settings(rule, {k: v for k, v in given.items() if (k, v) != ("clipnorm", 0)})


def _check_values(job: Job, check: Callable[[Mapping[str, Any]], None]) -> None:
    """Check each value, and each end of a range, beside the first values of all others."""
    first = _first(job, {})
    _named(check, {**job.fixed, **first}, job.fixed, "fixed")
    for each in job.written:
        for value in each.ends:
            context = {**_first(job, _ancestors(job, each)), each.name: value}
            _named(check, {**job.fixed, **context}, {each.name: value}, "space")


def _named(
    check: Callable[[Mapping[str, Any]], None],
    settings: Mapping[str, Any],
    names: Mapping[str, Any],
    table: str,
) -> None:
    """Raise an error of `check` as a `JobError` if it begins with one of `names`.

    Others say something of a combination, which need not be drawn.
    """
    try:
        check(settings)
    except ValueError as error:
        named = re.match(r"`(\w+)`", str(error))
        if named and named[1] in names:
            raise JobError(str(error), table, named[1]) from None


def _ancestors(job: Job, parameter: Parameter) -> dict[str, Any]:
    """Return values of its parents, and theirs, with which `parameter` is drawn."""
    parents = {each.name: each for each in job.written}
    found: dict[str, Any] = {}
    for name, values in parameter.when.items():
        if name in parents:
            found |= _ancestors(job, parents[name])
        found[name] = values[0]
    return found


def _first(job: Job, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first value of each parameter that is then drawn, beside the `known` ones."""
    found = dict(known)
    for each in in_order(job.written):
        values = {**job.fixed, **found}
        if each.name not in found and all(
            name in values and is_among(values[name], allowed)
            for name, allowed in each.when.items()
        ):
            found[each.name] = each.ends[0]
    return found
