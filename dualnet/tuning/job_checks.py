"""Checks a job against what its kind, its model and its rule of evaluation accept."""

import inspect
from collections.abc import Mapping
from typing import Any

from dualnet import training, zoo
from dualnet._checks import ArgumentError, check_choice, did_you_mean
from dualnet.builders.stations import GATES, Cache, Gate, Stations
from dualnet.requests import DynamicEvaluating, Evaluating, Learning
from dualnet.training.from_runs import GATED
from dualnet.training.initial_weights import is_gated
from dualnet.tuning.job import SCHEMA, Job, JobError, decided, holds

EVALUATIONS = ("static", "dynamic")
STATIC = ("batch_size", "window")
DYNAMIC = tuple(Learning.names())
# The arguments of `train` that the search itself passes to every trial.
OF_THE_SEARCH = inspect.signature(training.train).parameters


def check_job(job: Job) -> None:
    """Raise `JobError` for an invalid job."""
    _check_ours(job)
    _check_kind(job)
    _check_names(job)
    _check_conditions(job)
    _check_values(job)


def known_settings(job: Job) -> list[str]:
    """Return the names of all settings that a trial of `job` can have."""
    if job.kind == "evaluation":
        return ["evaluation", "temperature", "sequence_length", *DYNAMIC, *STATIC, *Cache.names()]
    if job.kind == "gate":
        return [*Gate.names(), *training.Recipe.names()]
    arguments = [name for name in zoo.known_arguments(_card(job)) if name != "name"]
    return list(dict.fromkeys([*arguments, *training.Recipe.names()]))


def _card(job: Job) -> zoo.Card:
    try:
        card = zoo.card(job.model)
    except (ValueError, FileNotFoundError) as error:
        raise JobError(("model",), f"must be a model of the zoo, or a card. {error}") from None
    if not zoo.is_file(job.model) and job.model not in zoo.list_models():
        message = "must be a model of the zoo, or a card: trials start from random weights. "
        received = f"Received: {job.model!r}, which is trained. Copy its card into a file."
        raise JobError(("model",), message + received)
    if card.builder == "encoder_decoder":
        message = "must be a language model: a search trains on a text. Received: "
        raise JobError(("model",), f"{message}{job.model!r}, which translates.")
    if is_gated(card.config) or "members" in card.config:
        message = "must be trained as a whole, from random weights. Received: "
        way_out = "which has a gate or members. To search a gate, use kind = 'gate'."
        raise JobError(("model",), f"{message}{job.model!r}, {way_out}")
    return card


def _check_ours(job: Job) -> None:
    places = {*SCHEMA, *(f"fixed.{name}" for name in job.fixed)}
    places |= {f"space.{parameter.name}" for parameter in job.written}
    places |= {f"tuner_options.{name}" for name in job.tuner_options}
    for key in job.ours:
        message = f"must name keys of the job. Received: {key!r}.{did_you_mean(key, places)}"
        JobError.unless(key in places, ("ours",), message)


def _check_kind(job: Job) -> None:
    """Check that keys fit the kind and the tuner of the job."""
    if job.kind == "training":
        message = "= 'training' requires `model`, a model of the zoo or a card."
        JobError.unless(bool(job.model), ("kind",), message)
    else:
        message = f"must be left out for the kind {job.kind!r}, which uses the model of the RUN."
        for key, value in (("model", job.model), ("parameters", job.parameters)):
            JobError.unless(not value, (key,), f"{message} Received: {key} = {value!r}.")
    if job.kind == "evaluation":
        why = "for the kind 'evaluation', which has no epochs."
        JobError.unless(job.early_stopping == "none", ("early_stopping",), f"must be 'none' {why}")
        JobError.unless(job.tuner != "hyperband", ("tuner",), f"must not be 'hyperband' {why}")
    for name in {"epochs", "finetune", "linear_decay"} & {each.name for each in job.written}:
        why = "must not be searched by 'hyperband', which sets it. `epochs` may be fixed."
        JobError.unless(job.tuner != "hyperband", ("space", name), why)


def _check_names(job: Job) -> None:
    """Check that each setting is known and given once."""
    known = known_settings(job)
    kinds = {
        "training": "an argument of the builder or of the recipe",
        "gate": "an argument of the gate or of the recipe",
        "evaluation": "a setting of evaluation",
    }
    solved = () if job.parameters is None else job.solved_sizes
    names = [("fixed", name) for name in job.fixed] + [("space", p.name) for p in job.written]
    for table, name in names:
        if name in OF_THE_SEARCH:
            problem = f"must be left out of [{table}]: the search sets it for each trial."
            problem += " Move it to the top of the file." * (name in SCHEMA)
        elif name not in known:
            hint = did_you_mean(name, known) or f" Known are {', '.join(sorted(known))}."
            problem = f"must be {kinds[job.kind]}.{hint}"
        elif table == "space" and name in job.fixed:
            problem = "must be in [fixed] or in [space], not in both."
        elif name in solved:
            problem = f"must be left out beside `parameters`, for which {job.solve_for!r} is solved"
            problem += ". Choose another `solve_for`, or leave out `parameters`."
        else:
            continue
        raise JobError((table, name), problem)


def _check_conditions(job: Job) -> None:
    """Check that conditions name other parameters and values they can have."""
    parents = {parameter.name: parameter for parameter in job.written}
    conditions = [(p.name, *condition) for p in job.written for condition in p.when.items()]
    for child, name, values in conditions:
        place, parent = ("space", child, "when"), parents.get(name)
        if name in job.fixed or (parent and parent.is_constant):
            continue  # any value is allowed: the condition holds or not
        if parent is None:
            hint = did_you_mean(name, [*parents, *job.fixed])
            message = f"must name parameters in [space] or [fixed]. Received: {name!r}.{hint}"
            raise JobError(place, message)
        possible = "; a range of floats cannot be a condition"
        if parent.values:
            possible = f", {list(parent.values)}"
        elif parent.is_integer_range:
            possible = f", integers from {parent.min_value} to {parent.max_value}"
        message = f"must have values that `{name}` can have{possible}. Received: "
        for value in values:
            JobError.unless(parent.allows(value), place, f"{message}{value!r}.")


def _check_values(job: Job) -> None:
    """Check each value, and both ends of each range, beside the first values of all others.

    Errors about other settings are left to the trials: they depend on a combination that may
    never be drawn.
    """
    space = decided(job.written, job.fixed)
    card = zoo.card(GATED) if job.kind == "gate" else _card(job) if job.model else None
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [("fixed", {}, {**job.fixed})]
    for parameter in space:
        parents = {name: values[0] for name, values in parameter.when.items()}
        cases += [("space", parents, {parameter.name: value}) for value in parameter.ends]
    for table, parents, checked in cases:
        settings = {**job.fixed, **parents, **checked}
        for other in space:
            if other.name not in settings and holds(other.when, settings):
                settings[other.name] = other.ends[0]
        try:
            _check_settings(job, card, settings)
        except ArgumentError as error:
            if error.argument in checked:
                with JobError.at(table):
                    raise
        except ValueError:
            pass


def _check_settings(job: Job, card: zoo.Card | None, settings: Mapping[str, Any]) -> None:
    """Raise `ArgumentError` for an invalid setting of a trial; an evaluation has no `card`."""
    if card is None:
        evaluation_of(settings)
        return
    if job.kind == "gate" and "gate" in settings:
        check_choice("gate", settings["gate"], set(GATES) - {"none"})
    arguments, _ = training.split_overrides(card, settings)
    if card.builder == "language_model":
        arguments.pop("vocabulary_size", None)
        Stations.of(arguments)


def evaluation_of(settings: Mapping[str, Any]) -> tuple[Cache, Evaluating | DynamicEvaluating]:
    """Return the cache, and how the text is read, of a trial of the kind "evaluation"."""
    mode = check_choice("evaluation", settings.get("evaluation", "static"), EVALUATIONS)
    for name in settings:
        if name in (DYNAMIC if mode == "static" else STATIC):
            other = EVALUATIONS[mode == "static"]
            message = f"must be left out of a {mode} evaluation. Put evaluation = {other!r} into "
            hint = f"[fixed], or search it with when = {{ evaluation = [{other!r}] }}."
            raise ArgumentError(name, message + hint)
    request = DynamicEvaluating if mode == "dynamic" else Evaluating
    of_request = request.fields_of({"rule": "nadam", **settings})  # a shipped model's own is "sgd"
    if of_request.get("clipnorm") == 0:  # no clipping
        del of_request["clipnorm"]
    return Cache(**Cache.fields_of(settings)), request(**of_request)
