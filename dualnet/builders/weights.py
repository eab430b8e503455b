"""Weights by name, and from one model into another."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import keras
import numpy as np

from dualnet._checks import ArgumentError
from dualnet.builders.model import LanguageModel

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Transfer:
    """What `transfer` has copied and what it has not; `str` tells it in plain lines.

    Attributes:
        taken: Names of the weights of the target that have those of the source now.
        other_shape: Name, shape in the source and shape in the target of each weight
            that both have and that does not fit.
        missing: Names of weights that the source does not have. These and those of
            another shape stay in the target as they were.
        unused: Names of weights that the target does not have.
    """

    taken: tuple[str, ...]
    other_shape: tuple[tuple[str, Shape, Shape], ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        count = len(self.taken) + len(self.other_shape) + len(self.missing)
        if not self.other_shape and not self.missing and not self.unused:
            return f"All {count} weights are taken."
        shapes = [f"{name} {there} for {here}" for name, there, here in self.other_shape]
        lines = [
            f"{len(self.taken)} of {count} weights are taken.",
            _line("of another shape, left as they were", shapes),
            _line("not there, left as they were", self.missing),
            _line("there and not used", self.unused),
        ]
        return "\n".join(filter(None, lines))


def _line(text: str, names: Iterable[str]) -> str:
    names = list(names)
    return f"{len(names)} {text}: {', '.join(names)}." if names else ""


def weight_names(model: LanguageModel) -> dict[str, keras.Variable]:
    """Return every weight of `model` once, by its place in the graph.

    A name is that of the layer and what Keras calls the weight within it, such as
    "recurrence_1/cell_1/kernel". Before the names of a model within the graph, a member
    of an ensemble, stands its own: "member_1/embedding/embeddings".
    """
    found: dict[str, keras.Variable] = {}
    seen: set[int] = set()

    def walk(graph: keras.Model, prefix: str) -> None:
        models = [layer for layer in graph.layers if isinstance(layer, keras.Model)]
        # Its own layers first: what members share with it is no member's.
        for layer in graph.layers:
            if layer not in models:
                for weight in layer.weights:
                    if id(weight) not in seen:
                        seen.add(id(weight))
                        found[prefix + weight.path] = weight
        for member in models:
            walk(member, f"{prefix}{member.name}/")

    walk(model.core, "")
    return found


def transfer(source: LanguageModel, target: LanguageModel) -> Transfer:
    """Copy each weight of `source` to the one of `target` that has its name and shape.

    All other weights of `target` stay as they are. A target without a vocabulary takes
    that of `source`, if it has as many words.

    Args:
        source: `LanguageModel`; does not change.
        target: `LanguageModel`, built as the source is or with other layers.

    Returns:
        `Transfer`, which tells what matched and what did not.

    Raises:
        ValueError: if the two have vocabularies with other words, or no weight matches.
            Nothing is copied then.
    """
    check_model("source", source)
    check_model("target", target)
    words = source.vocabulary
    if words and target.vocabulary and words.words != target.vocabulary.words:
        raise ArgumentError(
            "source",
            "must have the vocabulary of `target`, else an id means another word. "
            f"Received: {words!r}, where the target has {target.vocabulary!r}. Load the corpus of "
            "the target with vocabulary=source.vocabulary.",
        )
    there, here = weight_names(source), weight_names(target)
    both = [name for name in here if name in there]
    fits = [name for name in both if _shape(there[name]) == _shape(here[name])]
    if not fits:
        raise ArgumentError(
            "source",
            "must have a weight whose name and shape are those of one in `target`. "
            f"Received: a source with {_some(there)}, and a target with {_some(here)}. Build the "
            "target with layers and sizes of the source.",
        )
    for name in fits:
        copy_weight(there[name], here[name])
    if target.vocabulary is None and source.vocabulary_size == target.vocabulary_size:
        target.vocabulary = words
    return Transfer(
        taken=tuple(fits),
        other_shape=tuple(
            (name, _shape(there[name]), _shape(here[name])) for name in both if name not in fits
        ),
        missing=tuple(name for name in here if name not in there),
        unused=tuple(name for name in there if name not in here),
    )


def check_model(name: str, model: object) -> None:
    """Raise `ValueError` unless `model` is a `LanguageModel`."""
    if not isinstance(model, LanguageModel):
        raise ArgumentError(
            name,
            f"must be a LanguageModel. Received: {model!r} of type "
            f"{type(model).__name__}. Load one with dualnet.load, or build it.",
        )


def copy_weight(source: keras.Variable, target: keras.Variable) -> None:
    """Give `target` the value of `source`."""
    # A copy: on JAX two models with one array would lose it to the first that trains.
    target.assign(np.array(keras.ops.convert_to_numpy(source)))


def _shape(weight: keras.Variable) -> Shape:
    return tuple(int(size) for size in weight.shape)


def _some(weights: dict[str, keras.Variable]) -> str:
    shown = [f"{name} {_shape(weight)}" for name, weight in list(weights.items())[:2]]
    return ", ".join(shown) + (" and others" if len(weights) > len(shown) else "")
