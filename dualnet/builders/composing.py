"""The stations of one model side by side, and the rules that concern two of them.

Those of a translator are in `builders.encoder_decoder`.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, Self, get_type_hints

import keras
from keras import ops

from dualnet._checks import ArgumentError
from dualnet._types import Tensor
from dualnet.builders import parts
from dualnet.builders.stations import (
    Connection,
    Dropouts,
    Embedding,
    Initialization,
    LayerSizes,
    Output,
    Recurrent,
    Regularization,
    Sizes,
    Station,
    check_last_axis,
)
from dualnet.builders.wrapping_stations import Cache, Gate
from dualnet.cards import Arguments, with_members


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommonStations:
    """The stations of every kind of model."""

    sizes: Sizes
    embedding: Embedding
    recurrent: Recurrent
    connection: Connection
    output: Output
    dropouts: Dropouts
    regularization: Regularization
    initialization: Initialization

    @classmethod
    def classes(cls) -> dict[str, type[Station]]:
        """Return the class of each station by its name here."""
        return get_type_hints(cls)

    @classmethod
    def of(cls, arguments: Arguments) -> Self:
        """Return the stations that flat builder `arguments` describe.

        What no station knows is an argument of the cell, or of a connection or output of your own.

        Raises:
            ArgumentError: if a value is out of range, or values contradict each other.
        """
        arguments = parts.with_names(arguments)
        sizes = arguments.get("recurrent_units")
        is_stack = arguments.get("cell") == "depth_gated_lstm"  # in one cell
        if is_stack and isinstance(sizes, Sequence) and arguments.get("recurrent_layers", 1) == 1:
            *lower, arguments["recurrent_units"] = sizes
            if lower:
                arguments["lower_units"] = lower
                if arguments.setdefault("depth", len(sizes)) != len(sizes):
                    required = (
                        f"must be one size, or one for each layer: depth={arguments['depth']}."
                    )
                    raise ArgumentError("recurrent_units", required, recurrent_units=sizes)
        classes = cls.classes()
        names = {name for station in classes.values() for name in station.names()}
        options = parts.split_options(arguments, names)
        fields = {name: station.fields_of(arguments) for name, station in classes.items()}
        fields["recurrent"]["options"] = options["cell"]
        for name in ("connection", "output"):
            fields[name]["options"] = options[name]
        stations: Any = {name: station(**fields[name]) for name, station in classes.items()}
        return cls(**stations)

    def arguments(self) -> dict[str, Any]:
        """Return the flat builder arguments of all stations."""
        stations = [getattr(self, name).arguments().items() for name in self.classes()]
        return dict(itertools.chain(*stations))

    def top(
        self,
        embedding: keras.layers.Embedding,
        embedded: Tensor,
        levels: list[Tensor],
        sizes: LayerSizes,
        vocabulary_size: int,
    ) -> dict[str, Any]:
        """Put connection and output on the `levels` below; return their fields of the `Graph`."""
        if self.connection.is_dual:
            dual = self.connection.connect(embedded, levels[-1], sizes.dual, self.dropouts)
            levels = [*levels, dual]
        features = self.output.features(levels)
        head = self.output.layer(vocabulary_size, sizes.latent, embedding, self.dropouts)
        logits = head(features)
        check_last_axis("output", self.output.output, logits, vocabulary_size)
        logits = logits if logits.dtype == "float32" else ops.cast(logits, "float32")
        return {"word_logits": logits, "features": features, "head": head}

    def start(self, core: keras.Model) -> None:
        """Draw the initial weights of `core`, and add the penalties on all of them."""
        _check_first_states(core)
        self.initialization.initialize(core)
        self.regularization.regularize(core)

    def check_tied(self, sizes: LayerSizes, name: str, size: int) -> None:
        """Raise `ArgumentError` unless what enters a tied output is as wide as the embedding.

        These are the latent vectors of experts, else the dual layer, else a layer whose `size` is
        the argument `name`.
        """
        if self.output.experts:
            name, size = "latent_units", sizes.latent
        elif self.connection.is_dual:
            name, size = "dual_units", sizes.dual
        if self.output.tied and size != sizes.embedding:
            reason = f"since the output is tied to the embedding. Received: {name}={size}."
            raise ArgumentError(name, f"must equal `embedding_units`, {sizes.embedding}, {reason}")

    def layer_sizes(self) -> LayerSizes:
        """Return the size of each layer; raise `ArgumentError` where two do not fit together."""
        raise NotImplementedError


def _check_first_states(core: keras.Model) -> None:
    """Raise `ArgumentError` for a cell that starts from another state than zeros, or learns it."""
    for layer in core._flatten_layers(include_self=False):
        if hasattr(layer, "get_initial_state"):
            with keras.StatelessScope([(w, ops.ones(w.shape)) for w in layer.weights]):
                states = keras.tree.flatten(layer.get_initial_state(batch_size=1))
            if any(ops.convert_to_numpy(state).any() for state in states):
                raise ArgumentError(
                    "cell",
                    "must start from zeros, as every state of a model does. Received: another "
                    f"`get_initial_state` of {type(layer).__name__}.",
                    " Leave it out, and pass a state to `reset_state` or `advance` instead.",
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stations(CommonStations):
    """All stations of one language model, and the rules that concern two of them."""

    gate: Gate
    cache: Cache

    def __post_init__(self) -> None:
        self.cache.check_padding(self.embedding.padded)
        if self.sizes.latent_units and not self.output.experts:
            self.sizes.refuse("latent_units", "needs `experts`.")
        if self.sizes.dual_units and not self.connection.is_dual:
            self.sizes.refuse("dual_units", "needs connection='dual'.")

    def layer_sizes(self) -> LayerSizes:
        embedding = self.sizes.embedding_units or self.sizes.units
        enters_output = not self.output.experts and not self.connection.is_dual
        # A last recurrent layer is then as wide as the embedding, whatever `units`.
        is_tied = self.output.tied and enters_output
        sizes = self.sizes.resolve(last=embedding if is_tied else None)
        self.check_tied(sizes, "recurrent_units", sizes.embedding)
        return sizes


STATIONS = Stations.classes()


def without_regularization(arguments: Arguments) -> dict[str, Any]:
    """Return builder `arguments` with all dropouts and penalties at 0, those of members too."""
    off = ("_dropout", "_l2", "_regularization")
    without = {name: 0.0 if name.endswith(off) else value for name, value in arguments.items()}
    return with_members(without, without_regularization)
