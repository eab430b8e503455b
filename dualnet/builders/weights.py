"""Weights by name, from one model into another, and from other programs."""

import dataclasses
import hashlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence

import keras
import numpy as np
from numpy.typing import ArrayLike

from dualnet._checks import ArgumentError, check_choice
from dualnet.builders.model import BUILDERS, LanguageModel
from dualnet.cards import with_vocabulary_size

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Transfer:
    """The result of `transfer`; `str` says it in plain lines.

    Attributes:
        taken: Names of the weights that were copied.
        other_shape: Name, shape in the source and shape in the target of each weight whose
            shapes differ.
        missing: Names of weights that the source does not have. These, and those of another
            shape, are unchanged in the target.
        unused: Names of weights that the target does not have.
        by_word: Names of those `taken` whose words were matched by their spelling.
        shared_words: Number of words that both vocabularies have, where they were matched.
    """

    taken: tuple[str, ...]
    other_shape: tuple[tuple[str, Shape, Shape], ...]
    missing: tuple[str, ...]
    unused: tuple[str, ...]
    by_word: tuple[str, ...] = ()
    shared_words: int = 0

    def __str__(self) -> str:
        count = len(self.taken) + len(self.other_shape) + len(self.missing)
        if not self.other_shape and not self.missing and not self.unused and not self.by_word:
            return f"All {count} weights were copied."
        shapes = [f"{name} {there} for {here}" for name, there, here in self.other_shape]
        lines = [
            f"{len(self.taken)} of {count} weights were copied.",
            _line(f"by word, {self.shared_words:,} kept and others at their mean", self.by_word),
            _line("of another shape, unchanged", shapes),
            _line("missing, unchanged", self.missing),
            _line("unused", self.unused),
        ]
        return "\n".join(filter(None, lines))


def _line(text: str, names: Sequence[str]) -> str:
    return f"{len(names)} {text}: {', '.join(names)}." if names else ""


def weight_names(model: LanguageModel) -> dict[str, keras.Variable]:
    """Return every weight of `model` once, by its place in the graph.

    A name consists of the layer's name and Keras's name of the weight, such as
    "recurrence_1/cell_1/kernel". The member of an ensemble is a prefix:
    "member_1/embedding/embeddings".

    Example:

    >>> import dualnet
    >>> model = dualnet.zoo.build("lstm", vocabulary_size=9, units=4)
    >>> for name, weight in dualnet.weight_names(model).items():
    ...     print(name, weight.shape)
    embedding/embeddings (9, 4)
    recurrence_1/cell_1/kernel (4, 16)
    recurrence_1/cell_1/recurrent_kernel (4, 16)
    recurrence_1/cell_1/bias (16,)
    """
    return names_in(model.core)


def names_in(core: keras.Model) -> dict[str, keras.Variable]:
    """Return the `weight_names` of the model with the graph `core`."""
    weights: dict[int, tuple[str, keras.Variable]] = {}  # each by its first name

    def walk(graph: keras.Model, prefix: str) -> None:
        models = [layer for layer in graph.layers if isinstance(layer, keras.Model)]
        # Its own layers first: a weight that it shares with a member is its own.
        for layer in graph.layers:
            for path, weight in _paths(layer) if layer not in models else ():
                weights.setdefault(id(weight), (prefix + path, weight))
        for member in models:
            walk(member, f"{prefix}{member.name}/")

    walk(core, "")
    return dict(weights.values())


def _paths(layer: keras.Layer) -> Iterator[tuple[str, keras.Variable]]:
    """Yield each weight of `layer` with its path.

    Keras gives a sublayer without a name the number of those that the process has made. Here it
    has the number within the layer, "connection/dense/kernel", also when it is built again.
    """
    unnamed = {}  # with the name without the number
    for sublayer in layer._flatten_layers(include_self=False):
        kind = re.sub(r"_\d+$", "", sublayer.name)
        if kind.replace("_", "") == type(sublayer).__name__.lower():
            unnamed[sublayer.name] = kind
    seen: dict[tuple[str, ...], list[str]] = {}
    for weight in layer.weights:
        parts = weight.path.split("/")
        for i, part in enumerate(parts):
            if i and part in unnamed:
                group = seen.setdefault((*parts[:i], unnamed[part]), [])
                group += [part] * (part not in group)
                number = group.index(part)
                parts[i] = unnamed[part] + f"_{number}" * (number > 0)
        yield "/".join(parts), weight


def transfer(source: LanguageModel, target: LanguageModel, *, match: str = "ids") -> Transfer:
    """Copy each weight of `source` to the weight of `target` with its name and shape.

    All other weights of `target` are unchanged. A target without a vocabulary takes that of
    `source` if the sizes agree. Vocabularies with different words are an error, unless words are
    matched, and so is a source with no such weight; nothing is copied then.

    Args:
        source, target: `LanguageModel`, built alike or with other layers.
        match: "ids", or "words" for models with different vocabularies. Of each weight that has a
            row or column for each word, such as the embedding and the biases and matrices of the
            output, a word of the target that the source has, too, gets that of the source, and
            any other the mean of those.

    Example:

    >>> from dualnet import zoo
    >>> from dualnet.builders import transfer
    >>> source = zoo.build("lstm", vocabulary_size=9, units=4)
    >>> target = zoo.build("dual_lstm", vocabulary_size=9, units=4)
    >>> print(transfer(source, target))
    4 of 7 weights were copied.
    3 missing, unchanged: connection/kernel, connection/hidden_kernel, connection/bias.
    """
    check_choice("match", match, ("ids", "words"))
    words = source.vocabulary
    there, here = weight_names(source), weight_names(target)
    by_word: dict[str, np.ndarray] = {}
    shared = 0
    if match == "words":
        by_word, shared = _matched(source, target)
    elif words and target.vocabulary and words.sha256 != target.vocabulary.sha256:
        raise ArgumentError(
            "source",
            f"must have the vocabulary of `target`, since ids mean words. Received: {words!r}, "
            f"where the target has {target.vocabulary!r}. Load the corpus of the target with "
            "vocabulary=source.vocabulary, or match words.",
        )
    both = [(name, _shape(there[name]), _shape(here[name])) for name in here if name in there]
    result = Transfer(
        taken=tuple(name for name, old, new in both if name in by_word or old == new),
        other_shape=tuple(item for item in both if item[0] not in by_word and item[1] != item[2]),
        missing=tuple(name for name in here if name not in there),
        unused=tuple(name for name in there if name not in here),
        by_word=tuple(by_word),
        shared_words=shared,
    )
    if not result.taken:
        required = "must have a weight with the name and shape of one in `target`."
        way_out = " Build the target with layers and sizes of the source."
        received = " ".join(str(result).split())
        raise ArgumentError("source", f"{required} Received: {received}", way_out)
    for name in result.taken:
        if name in by_word:
            here[name].assign(by_word[name])
        else:
            copy_weight(there[name], here[name])
    if target.vocabulary is None and source.vocabulary_size == target.vocabulary_size:
        target.vocabulary = words
    return result


def _matched(source: LanguageModel, target: LanguageModel) -> tuple[dict[str, np.ndarray], int]:
    """Return values for the weights of `target` that have an axis of words, of those of `source`.

    Also returns the number of target words that the source has. There are no values for equal
    vocabularies.
    """
    names = [name for name in target.tokenisers if name in source.tokenisers]
    pairs = [(getattr(source, name), getattr(target, name)) for name in names]
    places = []  # of each word of the target in the source, -1 for none
    for theirs, own in pairs:
        if theirs is None or own is None:
            raise ArgumentError(
                "match", "can be 'words' for models with vocabularies. Received: one without."
            )
        ids = {word: i for i, word in enumerate(theirs.words)}
        places.append(np.array([ids.get(word, -1) for word in own.words]))
    if all(theirs.sha256 == own.sha256 for theirs, own in pairs):
        return {}, 0
    if any((place < 0).all() for place in places):
        raise ArgumentError(
            "source",
            "must share a word with `target`. Received: vocabularies without a common one.",
        )
    there, here = weight_names(source), weight_names(target)
    values = {}
    for name, (axis, side) in _word_axes(target).items():
        if name in there and side < len(places):
            value, place = keras.ops.convert_to_numpy(there[name]), places[side]
            shared = np.take(value, place[place >= 0], axis)
            mean = shared.mean(axis, keepdims=True, dtype="float64")
            value = np.take(np.concatenate([value, mean], axis), place, axis)  # the last for -1
            if value.shape == _shape(here[name]):
                values[name] = value
    return values, int((places[0] >= 0).sum())


def _word_axes(model: LanguageModel) -> dict[str, tuple[int, int]]:
    """Return the axis that counts words, of each weight that has one.

    Each comes with 0 for the words of the text, or of the target of a translator, and with 1 for
    those of its source. It is found as what grows with the vocabulary.
    """
    if model.builder == "core":
        raise ArgumentError(
            "match",
            "must be 'ids' for a model from LanguageModel.from_core, with its own layers.",
            match="words",
        )
    more = model.vocabulary_size + 1
    arguments = with_vocabulary_size(model.arguments, more)
    if (size := arguments.get("source_vocabulary_size")) is not None:
        arguments["source_vocabulary_size"] = more if arguments["share_embeddings"] else size + 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they were given when `model` was built
        larger = weight_names(BUILDERS[model.builder](**arguments))
    axes = {}
    for name, weight in weight_names(model).items():
        growth = np.subtract(_shape(larger[name]), _shape(weight))
        if growth.any():
            axes[name] = int(growth.argmax()), int(growth.max()) - 1
    return axes


def assign(model: LanguageModel, arrays: Mapping[str, ArrayLike], *, partial: bool = False) -> None:
    """Assign arrays, from another program for example, to the weights of `model` by name.

    All names and shapes are checked first: with an error, no weight changes.

    Args:
        model: `LanguageModel`.
        arrays: dict from the names of `weight_names(model)` to arrays of the weights' shapes:
            NumPy arrays, or whatever NumPy reads, such as a tensor on the CPU. They are cast to
            the weights' dtype. A matrix that several layers share has one name.
        partial: bool. Whether `arrays` may leave out weights, which then stay unchanged.

    Raises:
        ValueError: if `arrays` has unknown names, lacks names without `partial`, or holds arrays
            of other shapes or not of numbers. The message lists all of them.

    Example:

    >>> import numpy as np
    >>> import dualnet
    >>> model = dualnet.zoo.build("lstm", vocabulary_size=9, units=4)
    >>> bias = np.ones(16)
    >>> dualnet.assign(model, {"recurrence_1/cell_1/bias": bias}, partial=True)
    """
    weights = weight_names(model)
    values = {name: as_numpy(array) for name, array in arrays.items()}
    shapes = {n: (values[n].shape, _shape(weights[n])) for n in values if n in weights}
    missing = [] if partial else [name for name in weights if name not in values]
    faults = [
        _line("unknown", [str(name) for name in values if name not in weights]),
        _line("missing", missing),
        _line("of another shape", [f"{n} {a} for {b}" for n, (a, b) in shapes.items() if a != b]),
        _line("not finite", [n for n, value in values.items() if not np.isfinite(value).all()]),
    ]
    if any(faults):
        required = "must hold an array of the right shape for each of dualnet.weight_names(model)."
        received = f"Received: {' '.join(filter(None, faults))} Nothing was assigned."
        way_out = " Use partial=True to leave out weights." if missing else ""
        raise ArgumentError("arrays", f"{required} {received}", way_out)
    for name, value in values.items():
        weights[name].assign(value.astype(keras.backend.standardize_dtype(weights[name].dtype)))


def as_numpy(array: ArrayLike) -> np.ndarray:
    """Return `array` in NumPy, which has no bfloat16: that of the backends is of kind "V"."""
    values = np.asarray(keras.ops.convert_to_numpy(array))
    return values.astype("float32") if values.dtype.kind == "V" else values


def check_model(name: str, model: object) -> None:
    """Raise `ValueError` for what is no model, such as its path or a learner."""
    if not hasattr(model, "graph"):
        way_out = " dualnet.load loads one."
        if hasattr(model, "read"):
            way_out = " A learner itself has the methods read, score, surprisal, generate and "
            way_out += "translate, and its taught() is a context with a model."
        raise ArgumentError(name, "must be a model.", way_out, **{name: model})


def check_language_model(name: str, model: LanguageModel) -> None:
    """Raise `ValueError` for what is no model, and for one that translates."""
    check_model(name, model)
    if model.graph.constants:
        received = f"Received: {model.name!r}, which translates."
        way_out = "Use dualnet.translate, which takes several, too, dualnet.score with `source`, "
        way_out += "or `dualnet evaluate RUN`."
        raise ArgumentError(name, f"must be a language model. {received} {way_out}")


def checksum_of(model: LanguageModel) -> str:
    """Return the SHA-256 of the weights of a model, and of its vocabulary."""
    digest = hashlib.sha256()
    for name, weight in names_in(model.core).items():
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(keras.ops.convert_to_numpy(weight)).tobytes())
    digest.update(model.vocabulary.sha256.encode() if model.vocabulary else b"")
    return digest.hexdigest()


def copy_weight(source: keras.Variable, target: keras.Variable) -> None:
    """Assign the value of `source` to `target`."""
    # A copy: on JAX the first of two models that trains would take a shared array away.
    target.assign(np.array(keras.ops.convert_to_numpy(source)))


def _shape(weight: keras.Variable) -> Shape:
    return tuple(int(size) for size in weight.shape)
