"""Checks a job against what its kind, its model and its rule of evaluation accept."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from dualnet import training, zoo
from dualnet._checks import ArgumentError, check_choice, check_count, did_you_mean, is_number
from dualnet.adaptation import RULES, rule_settings
from dualnet.builders.arguments import check_arguments
from dualnet.builders.functional import language_model
from dualnet.builders.wrappers import GATES, WRAPPERS, check_wrappers
from dualnet.evaluation import check_temperature
from dualnet.training.combining import GATED
from dualnet.training.start import is_gated
from dualnet.tuning.job import EARLY_STOPPING, JOB_KINDS, KEYS, SOLVE_FOR, TUNERS, Job
from dualnet.tuning.space import JobError, Parameter, holds, in_order

CACHE = tuple(key for key in WRAPPERS if key.startswith("cache"))
GATE = tuple(key for key in WRAPPERS if key.startswith("gate"))
RECIPE = tuple(field.name for field in dataclasses.fields(training.Recipe))
EVALUATIONS = ("static", "dynamic")
STATIC = ("batch_size",)
DYNAMIC = ("rule", "learning_rate", "decay", "epsilon", "beta_1", "clipnorm")
# The arguments of `train` that the search itself passes to every trial.
OF_THE_SEARCH = tuple(
    name
    for name, parameter in inspect.signature(training.train).parameters.items()
    if parameter.kind is not parameter.VAR_KEYWORD
)
Check = Callable[[Mapping[str, Any]], None]


def override(job: Job, overrides: Mapping[str, Any]) -> Job:
    """Return `job.with_settings(overrides)`, with names and values checked.

    Raises:
        ValueError: for an unknown setting, a value out of range, or one without effect.
    """
    known = [*known_settings(job), "parameters"]
    for name, value in overrides.items():
        if name not in known:
            raise ValueError(
                f"`--set` must name a setting of the job {job.name!r}. Received: {name}={value!r}."
                f"{did_you_mean(name, known)} `dualnet jobs {job.name}` shows what it searches."
            )
    job = job.with_settings(overrides)
    check_job(job)
    return job


def check_job(job: Job) -> None:
    """Raise `JobError` for an invalid job."""
    _check_top(job)
    _check_kind(job)
    _check_names(job)
    for parameter in job.written:
        _check_conditions(job, parameter)
    in_order(job.written)
    _check_values(job)


def known_settings(job: Job) -> list[str]:
    """Return the names of all settings that a trial of `job` can have.

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
        raise JobError(("model",), f"must be a model of the zoo, or a card. {error}") from None
    if is_gated(card.config) or "members" in card.config:
        raise JobError(
            ("model",),
            "must be trained as a whole, from random weights. Received: "
            f"{job.model!r}, which has a gate or members. To search a gate, use kind = 'gate'.",
        )
    return card


def _check_top(job: Job) -> None:
    """Check the keys at the top of the file."""
    for key, choices in {
        "kind": JOB_KINDS, "tuner": TUNERS, "early_stopping": EARLY_STOPPING, "solve_for": SOLVE_FOR
    }.items():  # fmt: skip
        with JobError.at(key):
            check_choice(key, getattr(job, key), choices)
    for key, least in {"seed": 0, "max_trials": 1}.items():
        value = getattr(job, key)
        if value is not None:
            with JobError.at(key):
                check_count(key, value, least=least)
    for key in ("max_hours", "max_hours_per_trial"):
        value = getattr(job, key)
        if value is not None and not 0 < value < math.inf:
            raise JobError((key,), f"must be a number above 0. Received: {value!r}.")
    known = TUNERS[job.tuner]
    for key, value in job.tuner_options.items():
        if key not in known:
            options = f"takes {', '.join(known)}" if known else "takes none"
            raise JobError(
                ("tuner_options", key),
                f"must be an option of the tuner {job.tuner!r}, which {options}."
                f"{did_you_mean(key, known)}",
            )
        with JobError.at("tuner_options", key):
            _check_option(key, value)
    places = {*KEYS, *(f"fixed.{name}" for name in job.fixed)}
    places |= {f"space.{parameter.name}" for parameter in job.written}
    places |= {f"tuner_options.{name}" for name in job.tuner_options}
    for key in job.ours:
        if key not in places:
            raise JobError(
                ("ours",),
                f"must name keys of the job. Received: {key!r}.{did_you_mean(key, places)}",
            )


def _check_option(key: str, value: Any) -> None:
    """Check the value of an argument of KerasTuner's oracles."""
    least = {"num_initial_points": 1, "hyperband_iterations": 1, "factor": 2}.get(key)
    if least is not None:
        check_count(key, value, least=least)
    elif not is_number(value) or not value > 0:
        raise ArgumentError(key, f"must be a number above 0. Received: {key}={value!r}.")


def _check_kind(job: Job) -> None:
    """Check that keys fit the kind of the job."""
    if job.kind == "training" and not job.model:
        raise JobError(("kind",), "= 'training' requires `model`, a model of the zoo or a card.")
    if job.kind != "training":
        for key in ("model", "parameters"):
            if getattr(job, key):
                raise JobError(
                    (key,),
                    f"must be left out for the kind {job.kind!r}, which uses the model of the RUN. "
                    f"Received: {key} = {getattr(job, key)!r}.",
                )
    if job.kind == "evaluation" and job.early_stopping != "none":
        raise JobError(
            ("early_stopping",),
            "must be 'none' for the kind 'evaluation', which has no epochs. Received: "
            f"early_stopping = {job.early_stopping!r}.",
        )
    if job.kind == "evaluation" and job.tuner == "hyperband":
        raise JobError(
            ("tuner",),
            "must not be 'hyperband' for the kind 'evaluation', which has no epochs to allocate.",
        )
    if job.tuner == "hyperband" and any(p.name == "epochs" for p in job.written):
        raise JobError(
            ("space", "epochs"),
            "must not be searched by 'hyperband', which sets it. Put the largest number into "
            "[fixed].",
        )


def _check_names(job: Job) -> None:
    """Check that each setting is known and given once."""
    known = known_settings(job)
    kinds = {
        "training": "an argument of the builder or of the recipe",
        "gate": "an argument of the gate or of the recipe",
        "evaluation": "a setting of evaluation",
    }
    solved = () if job.parameters is None else job.solved_sizes
    searched = [parameter.name for parameter in job.written]
    for table, names in (("fixed", [*job.fixed]), ("space", searched)):
        for name in names:
            if name in OF_THE_SEARCH:
                hint = " Move it to the top of the file." if name in KEYS else ""
                message = f"must be left out of [{table}]: the search sets it for each trial.{hint}"
            elif name not in known:
                message = (
                    f"must be {kinds[job.kind]}.{did_you_mean(name, known)} Known are "
                    f"{', '.join(sorted(known))}."
                )
            elif table == "space" and name in job.fixed:
                message = "must be in [fixed] or in [space], not in both."
            elif name in solved:
                message = (
                    f"must be left out beside `parameters`, for which {job.solve_for!r} is solved. "
                    "Choose another `solve_for`, or leave out `parameters`."
                )
            else:
                continue
            raise JobError((table, name), message)


def _check_conditions(job: Job, parameter: Parameter) -> None:
    """Check that the conditions of `parameter` name other parameters and values they can have."""
    parents = {parent.name: parent for parent in job.written}
    place = ("space", parameter.name, "when")
    for name, values in parameter.when.items():
        if name in job.fixed or (name in parents and parents[name].is_constant):
            continue  # any value is allowed: the condition holds or not
        if name not in parents:
            raise JobError(
                place,
                f"must name parameters in [space] or [fixed]. Received: {name!r}."
                f"{did_you_mean(name, [*parents, *job.fixed])}",
            )
        parent = parents[name]
        for value in values:
            if not parent.allows(value):
                possible = "; a range of floats cannot be a condition"
                if parent.values:
                    possible = f", {list(parent.values)}"
                elif parent.is_integer_range:
                    possible = f", integers from {parent.min_value} to {parent.max_value}"
                raise JobError(
                    place,
                    f"must have values that `{name}` can have{possible}. Received: {value!r}.",
                )


def _check_values(job: Job) -> None:
    """Check each value, and both ends of each range, beside the first values of all others.

    Errors about other settings are left to the trials: they depend on a combination that may
    never be drawn.
    """
    check = _checker(job)

    def check_setting(table: str, names: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        try:
            check({**job.fixed, **settings})
        except ArgumentError as error:
            if error.argument in names:
                with JobError.at(table, error.argument):
                    raise
        except ValueError:
            pass

    check_setting("fixed", job.fixed, _first_values(job, {}))
    for parameter in job.written:
        for value in parameter.ends:
            settings = _first_values(job, _active_parents(job, parameter))
            check_setting("space", {parameter.name: value}, {**settings, parameter.name: value})


def _checker(job: Job) -> Check:
    """Return a function that raises `ArgumentError` for an invalid setting."""
    if job.kind == "evaluation":
        return _check_evaluation
    card = zoo.card(GATED) if job.kind == "gate" else _card(job)
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(language_model).parameters.items()
        if parameter.default is not parameter.empty
    }

    def check(settings: Mapping[str, Any]) -> None:
        if job.kind == "gate" and "gate" in settings:
            check_choice("gate", settings["gate"], set(GATES) - {"none"})
        arguments, _ = training.split_overrides(card, settings)
        if card.builder == "language_model":
            check_arguments(**{"vocabulary_size": 1, **defaults, **arguments})

    return check


def _check_evaluation(settings: Mapping[str, Any]) -> None:
    mode = check_choice("evaluation", settings.get("evaluation", "static"), EVALUATIONS)
    for name in settings:
        if name in (DYNAMIC if mode == "static" else STATIC):
            other = EVALUATIONS[mode == "static"]
            raise ArgumentError(
                name,
                f"must be left out of a {mode} evaluation. Put evaluation = {other!r} into "
                f"[fixed], or search it with when = {{ evaluation = [{other!r}] }}.",
            )
    if "temperature" in settings:
        check_temperature(settings["temperature"])
    for name in ("sequence_length", "batch_size"):
        if name in settings:
            check_count(name, settings[name], least=1)
    check_wrappers({**WRAPPERS, **{key: settings[key] for key in CACHE if key in settings}})
    if mode == "dynamic":
        rule = check_choice("rule", settings.get("rule", "nadam"), RULES)
        names = [name for name in DYNAMIC if name in settings and name != "rule"]
        given = {name: settings[name] for name in names}
        # A clipping norm of 0 means none.
        rule_settings(rule, {k: v for k, v in given.items() if (k, v) != ("clipnorm", 0)})


def _active_parents(job: Job, parameter: Parameter) -> dict[str, Any]:
    """Return values of the parents, and of theirs, with which `parameter` is active."""
    parents = {parent.name: parent for parent in job.written}
    settings: dict[str, Any] = {}
    for name, values in parameter.when.items():
        if name in parents:
            settings |= _active_parents(job, parents[name])
        settings[name] = values[0]
    return settings


def _first_values(job: Job, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first value of each parameter that is active beside the `known` settings."""
    settings = dict(known)
    for parameter in in_order(job.written):
        if parameter.name not in settings and holds(parameter.when, {**job.fixed, **settings}):
            settings[parameter.name] = parameter.ends[0]
    return settings
