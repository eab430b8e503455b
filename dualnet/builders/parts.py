"""Cells, connections and outputs of your own: classes, and the names that Keras knows them by."""

import importlib
import json
import os
from collections.abc import Collection, Mapping
from typing import Any

import keras

from dualnet._checks import ArgumentError, did_you_mean
from dualnet.builders.cells import CELLS, COMMON, arguments_of
from dualnet.cards import all_arguments

CONNECTIONS = ("plain", "dual", "dual_without_input")
# The arguments of a builder that may be a class of your own, and what else they may be, by name:
# the class of a cell, or None.
CHOICES: dict[str, Mapping[Any, Any]] = {
    "cell": CELLS, "connection": dict.fromkeys(CONNECTIONS), "output": {None: None}
}  # fmt: skip
# What the builder passes to such a class, if it takes it. The first argument is the size.
PASSED = {"cell": tuple(COMMON), "connection": ("dual_l2",), "output": ("tied_to", "use_bias")}
FOR_SOME_CELLS = ("mogrifier_dropout", "mogrifier_l2", "internal_dropout")
OF_KERAS = "keras.layers."  # begins the name of a class that Keras has itself
ENVIRONMENT = "DUALNET_IMPORT"


def with_names(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return builder `arguments` with the names of the classes among them, as files have them."""
    own = {k: v for k, v in arguments.items() if k in CHOICES and isinstance(v, type)}
    return {**arguments, **{key: _name_of(key, kind) for key, kind in own.items()}}


def _name_of(argument: str, kind: type) -> str:
    for name, cell in CELLS.items():
        if kind is cell:
            return name
    if getattr(keras.layers, kind.__name__, None) is kind:
        return OF_KERAS + kind.__name__
    name = str(keras.saving.get_registered_name(kind))
    check_registered(argument, name, f"the class {kind.__name__}", kind)
    return name


def check_registered(argument: str, name: str, what: str, kind: type | None = None) -> None:
    """Raise `ArgumentError` unless a class, `kind` if that is given, is registered by `name`."""
    registered = keras.saving.get_registered_object(name)
    if registered is None or kind not in (None, registered):
        required = "must be registered with Keras, since files name it."
        decorator = "@keras.saving.register_keras_serializable('PACKAGE')"
        way_out = f"Write {decorator} above it, with a PACKAGE of your own."
        raise ArgumentError(argument, f"{required} Received: {what}, which is not. {way_out}")


def class_of(argument: str, part: Any) -> Any:
    """Return the class that `part` names, or None for a choice of the builder without a class.

    Raises:
        ArgumentError: if `part` is neither.
    """
    choices, kind = CHOICES[argument], part
    if isinstance(part, (str, type(None))) and part in choices:
        return choices[part]
    if isinstance(part, str):
        kind = getattr(keras.layers, part.removeprefix(OF_KERAS), None)
        kind = kind if part.startswith(OF_KERAS) else _registered(part)
    if isinstance(kind, type) and issubclass(kind, keras.layers.Layer):
        if argument == "cell" and issubclass(kind, keras.layers.RNN):
            required = "must be a cell, which computes one step, and not a layer that runs one."
            way_out = f" Give the class of the cell, as {OF_KERAS}LSTMCell is that of LSTM."
            raise ArgumentError("cell", required, way_out, cell=part)
        return kind
    names = sorted(filter(None, choices))
    of_choices = f"one of {names}, " if names else ""
    way_out = " Give the class itself."
    if isinstance(part, str):
        of_keras = [OF_KERAS + part] if hasattr(keras.layers, part) else []
        module = f"the module that registers {part!r} first"
        way_out = f" Give the class itself, or import {module}: in the shell, with {ENVIRONMENT}="
        likely = did_you_mean(part, of_keras or names)
        if part.lower() in names:
            likely = f" Did you mean {part.lower()!r}?"
        way_out = likely or f"{way_out}MODULE."
    what = "a class of your own, or the name that it is registered by with Keras"
    raise ArgumentError(argument, f"must be {of_choices}{what}.", way_out, **{argument: part})


def _registered(name: str) -> Any:
    for module in filter(None, os.environ.get(ENVIRONMENT, "").split(",")):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            message = f"{ENVIRONMENT} must name modules that Python finds. Received: {module!r}"
            raise ImportError(f"{message}. {error}. Set PYTHONPATH to its folder.") from None
    return keras.saving.get_registered_object(name)


# --- what files say of them


def modules_of(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the module of each part of your own in builder `arguments`, by registered name."""
    modules: dict[str, str] = {}
    for own in all_arguments(arguments):
        modules |= classes_in(own.get("core", "{}"))
        for argument in CHOICES.keys() & own.keys():
            if (kind := class_of(argument, own[argument])) is not None:
                modules[own[argument]] = kind.__module__
    of_others = ("keras.", "dualnet.")
    return {name: module for name, module in modules.items() if not module.startswith(of_others)}


def classes_in(configuration: str) -> dict[str, str]:
    """Return the module of each class in the JSON of a Keras model that Keras does not export."""
    named = [entry for entry in entries_of(configuration) if entry.get("registered_name")]
    modules = {entry["registered_name"]: entry["module"] for entry in named}
    return {name: module for name, module in modules.items() if not module.startswith("keras.")}


def entries_of(configuration: str) -> list[dict[str, Any]]:
    """Return all dictionaries in JSON, those within others included."""
    entries: list[dict[str, Any]] = []

    def note(entry: dict[str, Any]) -> dict[str, Any]:
        entries.append(entry)
        return entry

    json.loads(configuration, object_hook=note)
    return entries


def check_imported(modules: Mapping[str, str]) -> None:
    """Raise `ImportError` unless the parts that a file names, with their modules, are there."""
    for name, module in modules.items():
        if _registered(name) is None:
            way_out = f"Import it first: import {module}. In the shell: {ENVIRONMENT}={module}."
            if module == "__main__":
                way_out = "It was a script or a notebook: run the definition of the class first."
            what = f"which the module {module!r} registers with Keras and which is not imported"
            raise ImportError(f"The model has a part {name!r}, {what}. {way_out}")


# --- the arguments of a part


def options_of(argument: str, part: Any) -> list[str]:
    """Return the names of the arguments that only this part takes.

    Example:

    >>> from dualnet.builders.parts import options_of
    >>> options_of("cell", "mogrifier_lstm")[:2], options_of("connection", "dual")
    (['rounds', 'rank'], [])
    """
    kind = class_of(argument, part)
    names = [] if kind is None else arguments_of(kind)[1:]
    return [name for name in names if name not in PASSED[argument]]


def part_options(arguments: Mapping[str, Any]) -> set[str]:
    """Return the names of the arguments that only the parts which `arguments` name take."""
    return {name for names in _options(arguments).values() for name in names}


def _options(arguments: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the options of each part; an unknown one has none, since the builder refuses it."""
    options: dict[str, list[str]] = {}
    for argument, default in (("cell", "lstm"), ("connection", "plain"), ("output", None)):
        try:
            options[argument] = options_of(argument, arguments.get(argument, default))
        except ArgumentError:
            options[argument] = []
    return options


def options_by_part(arguments: Mapping[str, Any], known: Collection[str]) -> dict[str, list[str]]:
    """Return the options of each part, after a check of the names of their arguments.

    Raises:
        ArgumentError: if a class of your own has an argument with a name that the builder `known`
            as its own, or one that is given and that another part has, too.
    """
    options = _options(arguments)
    for argument, names in options.items():
        taken = {*known} - {*FOR_SOME_CELLS} if argument == "cell" else {*known}
        part = arguments.get(argument)
        is_own = not isinstance(part, str) or part not in CELLS
        if is_own and (clash := sorted(taken & {*names})):
            required = f"must not take `{clash[0]}`, which is an argument of the builder."
            way_out = " Give the argument of the class another name."
            raise ArgumentError(argument, required, way_out, **{argument: part})
        for name in names:
            owners = [other for other, others in options.items() if name in others]
            if name in arguments and name not in known and len(owners) > 1:
                takers = " and ".join(f"`{owner}`" for owner in owners)
                received = f"Received: {name}={arguments[name]!r}, which {takers} take."
                way_out = " Give one of them another name."
                raise ArgumentError(name, f"must be an argument of one part. {received}", way_out)
    return options


def make_part(
    argument: str,
    part: str,
    size: int,
    settings: Mapping[str, Any],
    in_use: Mapping[str, str],
    *,
    name: str | None = None,
) -> Any:
    """Return the layer `part` for `argument`, with those of `settings` that its class takes.

    Args:
        size: Its first argument.
        settings: Further arguments of the class.
        in_use: Arguments of the builder that it must not lose, each with that of the class.
        name: Of the layer; that of the `argument` by default.
    """
    kind = class_of(argument, part)
    taken = arguments_of(kind)
    for builder_name, of_class in in_use.items():
        if of_class not in taken:
            tied, default = "Set tied=False.", "Leave it out, or set it back to its default."
            received = f"Received: {argument}={part!r}, whose class does not take it."
            required = f"needs `{of_class}` among the arguments of the {argument}. {received}"
            way_out = tied if builder_name == "tied" else default
            raise ArgumentError(builder_name, f"{required} {way_out}")
    settings = {key: value for key, value in settings.items() if key in taken}
    try:
        layer = kind(size, **settings, name=name or argument)
    except TypeError as error:
        what = "takes its size first, and passes arguments such as `name` on to its base as"
        received = f"**kwargs. Received: {argument}={part!r} ({error})."
        raise ArgumentError(argument, f"must be a class that {what} {received}") from error
    layer.supports_masking = True  # Keras would warn of a mask that ends here
    return layer


def check_options(cell: str, options: Mapping[str, Any]) -> None:
    """Raise `ValueError` for an option that `cell` does not take."""
    of_cell = options_of("cell", cell)
    for name in [name for name in options if name not in of_cell]:
        takers = [repr(other) for other in CELLS if name in options_of("cell", other)]
        if takers:
            required = f"must be left out for the cell {cell!r}, which does not take it."
            way_out = f" Cells that do: {', '.join(takers)}."
            raise ArgumentError(name, required, way_out, **{name: options[name]})
        required = f"must be an argument of the builder or of the cell {cell!r}."
        hint = f"{did_you_mean(name, of_cell)} The cell takes {', '.join(of_cell) or 'none'}."
        raise ArgumentError(name, required, hint)
