"""Cells, connections and outputs of your own: classes, and the names that Keras knows them by."""

import importlib
import json
import os
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import keras

from dualnet._checks import ArgumentError, did_you_mean
from dualnet.builders.cells import CELLS, COMMON, arguments_of
from dualnet.cards import Arguments, all_arguments

# A class, its name, or a choice of the builder; None for none.
Part: TypeAlias = type[keras.layers.Layer] | str | None

CONNECTIONS = ("plain", "dual", "dual_without_input")
# The arguments of a builder that may be a class of your own, and what else they may be, by name:
# the class of a cell, or None.
CHOICES: dict[str, Mapping[Any, Part]] = {
    "cell": CELLS, "connection": dict.fromkeys(CONNECTIONS), "output": {None: None}
}  # fmt: skip
DEFAULTS = {"cell": "lstm", "connection": "plain", "output": None}
# What the builder passes to such a class, if it takes it. The first argument is the size.
PASSED = {"cell": tuple(COMMON), "connection": ("dual_l2",), "output": ("tied_to", "use_bias")}
FOR_SOME_CELLS = ("mogrifier_dropout", "mogrifier_l2", "internal_dropout")
OF_KERAS = "keras.layers."  # begins the name of a class that Keras has itself
ENVIRONMENT = "DUALNET_IMPORT"


def with_names(arguments: Arguments) -> dict[str, Any]:
    """Return builder `arguments` with the names of the classes among them, as files have them."""
    names = {
        argument: _name_of(argument, part)
        for argument, part in arguments.items()
        if argument in CHOICES and isinstance(part, type)
    }
    return {**arguments, **names}


def _name_of(argument: str, layer_class: type) -> str:
    for name, cell in CELLS.items():
        if layer_class is cell:
            return name
    if getattr(keras.layers, layer_class.__name__, None) is layer_class:
        return OF_KERAS + layer_class.__name__
    name = str(keras.saving.get_registered_name(layer_class))
    check_registered(argument, name, f"the class {layer_class.__name__}")
    return name


def check_registered(argument: str, name: str, subject: str) -> None:
    """Raise `ArgumentError` unless a class is registered by `name`."""
    if keras.saving.get_registered_object(name) is None:
        raise ArgumentError(
            argument,
            "must be registered with Keras, since files name it: write "
            f"@keras.saving.register_keras_serializable('PACKAGE') above it. Received: {subject}, "
            "which is not.",
        )


def class_of(argument: str, part: Part) -> Any:
    """Return the class that `part` names, or None for a choice of the builder without a class.

    Raises:
        ArgumentError: if `part` is neither.
    """
    choices, layer_class = CHOICES[argument], part
    if isinstance(part, (str, type(None))):
        if part in choices:
            return choices[part]
        layer_class = _class_named(part or "")
    if isinstance(layer_class, type) and issubclass(layer_class, keras.layers.Layer):
        if argument == "cell" and issubclass(layer_class, keras.layers.RNN):
            raise ArgumentError(
                "cell",
                "must be a cell, which computes one step, and not a layer that runs one.",
                f" Give the class of the cell, as {OF_KERAS}LSTMCell.",
                cell=part,
            )
        return layer_class
    names = [name for name in choices if isinstance(name, str)]
    if hasattr(keras.layers, str(part)):
        names.append(f"{OF_KERAS}{part}")
    way_out = " Give the class itself, or import the module that registers it: in the shell, with "
    way_out = did_you_mean(part, names) or f"{way_out}{ENVIRONMENT}=MODULE."
    if str(part).lower() in names:
        way_out = f" Did you mean {str(part).lower()!r}?"
    alternative = "a class of your own, or the name that it is registered by with Keras"
    required = f"must be one of {names}, {alternative}." if names else f"must be {alternative}."
    raise ArgumentError(argument, required, way_out, **{argument: part})


def _class_named(name: str) -> Any:
    """Return the class of Keras, or the registered one, of a name, or None."""
    if name.startswith(OF_KERAS):
        return getattr(keras.layers, name.removeprefix(OF_KERAS), None)
    for module in filter(None, os.environ.get(ENVIRONMENT, "").split(",")):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise ImportError(
                f"{ENVIRONMENT} must name modules that Python finds. Received: {module!r}. "
                f"{error}. Set PYTHONPATH to its folder."
            ) from None
    return keras.saving.get_registered_object(name)


# --- what files say of them


def modules_of(arguments: Arguments) -> dict[str, str]:
    """Return the module of each part of your own in builder `arguments`, by registered name."""
    modules: dict[str, str] = {}
    for of_member in all_arguments(arguments):
        modules |= classes_in(of_member.get("core", "{}"))
        for argument in CHOICES.keys() & of_member.keys():
            if (layer_class := class_of(argument, of_member[argument])) is not None:
                modules[of_member[argument]] = layer_class.__module__
    libraries = ("keras.", "dualnet.")
    return {name: module for name, module in modules.items() if not module.startswith(libraries)}


def classes_in(configuration: str) -> dict[str, str]:
    """Return the module of each class in the JSON of a Keras model that Keras does not export."""
    modules = {}

    def note(entry: dict[str, Any]) -> dict[str, Any]:
        if entry.get("registered_name"):
            module = entry["module"] or "__main__"  # Keras leaves out that of a script
            if not module.startswith("keras."):
                modules[entry["registered_name"]] = module
        return entry

    json.loads(configuration, object_hook=note)
    return modules


def check_imported(modules: Mapping[str, str]) -> None:
    """Raise `ImportError` unless the parts that a file names, with their modules, are there."""
    for name, module in modules.items():
        if _class_named(name) is None:
            way_out = f"Import it first: import {module}. In the shell: {ENVIRONMENT}={module}."
            if module == "__main__":
                way_out = "It was a script or a notebook: run the definition of the class first."
            raise ImportError(
                f"The model has a part {name!r}, which the module {module!r} registers with Keras "
                f"and which is not imported. {way_out}"
            )


# --- the arguments of a part


def options_of(argument: str, part: Part) -> list[str]:
    """Return the names of the arguments that only this part takes.

    Example:

    >>> from dualnet.builders.parts import options_of
    >>> options_of("cell", "mogrifier_lstm")[:2], options_of("connection", "dual")
    (['rounds', 'rank'], [])
    """
    layer_class = class_of(argument, part)
    names = [] if layer_class is None else arguments_of(layer_class)[1:]
    return [name for name in names if name not in PASSED[argument]]


def part_options(arguments: Arguments) -> set[str]:
    """Return the names of the arguments that only the parts which `arguments` name take."""
    names = set()
    for argument, default in DEFAULTS.items():
        try:
            names |= {*options_of(argument, arguments.get(argument, default))}
        except ArgumentError:  # an unknown part, which the builder refuses
            continue
    return names


def split_options(
    arguments: Arguments, builder_names: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Return the options of each part that builder `arguments` name, by its argument.

    Raises:
        ArgumentError: for what is neither an argument of the builder nor of a part, and for a
            class of your own with an argument that the builder keeps.
    """
    options = {key: value for key, value in arguments.items() if key not in builder_names}
    if not arguments.get("rounds"):  # for every cell, as in files of 0.2.0
        options = {key: options[key] for key in options if key not in ("rounds", "rank")}
    split = {}
    for argument, default in DEFAULTS.items():
        part = arguments.get(argument, default)
        taken = options_of(argument, part)
        clash = {*taken} & {*builder_names} - {*FOR_SOME_CELLS}
        if clash and part not in CELLS:
            raise ArgumentError(
                argument,
                f"must not take `{min(clash)}`, which is an argument of the builder.",
                " Give the argument of the class another name.",
                **{argument: part},
            )
        split[argument] = {key: options.pop(key) for key in taken if key in options}
    for name, value in options.items():
        cell = arguments.get("cell", DEFAULTS["cell"])
        of_cell = options_of("cell", cell)
        required = f"must be an argument of the builder or of the cell {cell!r}."
        takers = [other for other in CELLS if name in options_of("cell", other)]
        hint = did_you_mean(name, of_cell) + f" The cell takes {', '.join(of_cell) or 'none'}."
        hint = f" Cells that take it: {', '.join(takers)}." if takers else hint
        raise ArgumentError(name, required, hint, **{name: value})
    return split


def make_part(
    argument: str,
    part: Part,
    size: int,
    settings: Arguments,
    in_use: Mapping[str, str],
    *,
    name: str | None = None,
) -> keras.layers.Layer:
    """Return the layer `part` for `argument`, with those of `settings` that its class takes.

    Args:
        size: Its first argument.
        settings: Further arguments of the class.
        in_use: Arguments of the builder that it must not lose, each with that of the class.
        name: Of the layer; that of the `argument` by default.
    """
    layer_class = class_of(argument, part)
    taken = arguments_of(layer_class)
    for builder_name, of_class in in_use.items():
        if of_class not in taken:
            required = f"needs `{of_class}` among the arguments of the {argument}."
            received = f"Received: {argument}={part!r}, whose class does not take it."
            way_out = "Set tied=False." if builder_name == "tied" else "Leave it out."
            raise ArgumentError(builder_name, f"{required} {received} {way_out}")
    settings = {key: value for key, value in settings.items() if key in taken}
    layer = layer_class(size, **settings, name=name or argument)
    layer.supports_masking = True  # Keras would warn of a mask that ends here
    return layer
