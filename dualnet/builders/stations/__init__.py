"""The stations of a model: each owns its arguments, their documentation and checks.

embedding -> recurrent layers -> connection -> output, and over a whole model a gate or a cache;
in a translator an encoder and an attention. A rule that concerns two stations stands in `Stations`,
those of a translator in `builders.encoder_decoder`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self, get_type_hints

from dualnet._checks import ArgumentError
from dualnet.builders.cells import CELLS
from dualnet.builders.stations.cache import Cache
from dualnet.builders.stations.connection import Connection
from dualnet.builders.stations.dropouts import Dropouts
from dualnet.builders.stations.embedding import Embedding
from dualnet.builders.stations.gate import Gate
from dualnet.builders.stations.memory import check_depth, check_memory
from dualnet.builders.stations.output import Output
from dualnet.builders.stations.recurrent import Recurrent
from dualnet.builders.stations.regularization import Initialization, Regularization
from dualnet.builders.stations.sizes import LayerSizes, Sizes
from dualnet.builders.stations.station import Station


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
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """Return the stations that flat builder `arguments` describe.

        What no station knows is an argument of the cell. `rounds` of 0, and then any `rank`, may
        be given for every cell, as they are in files of 0.2.0.

        Raises:
            ArgumentError: if a value is out of range, or values contradict each other.
        """
        sizes = arguments.get("recurrent_units")
        if (
            arguments.get("cell") == "depth_gated_lstm"
            and arguments.get("recurrent_layers", 1) == 1
            and isinstance(sizes, Sequence)
            and len(sizes) > 1
        ):  # one cell is the whole stack
            arguments = {**arguments, "recurrent_units": sizes[-1], "lower_units": sizes[:-1]}
        fields = {name: s.fields_of(arguments) for name, s in cls.classes().items()}
        known = {key for values in fields.values() for key in values}
        known |= set() if arguments.get("rounds", 0) else {"rounds", "rank"}
        fields["recurrent"]["options"] = {k: v for k, v in arguments.items() if k not in known}
        stations: dict[str, Any] = {
            name: station(**fields[name]) for name, station in cls.classes().items()
        }
        return cls(**stations)

    def arguments(self) -> dict[str, Any]:
        """Return the flat builder arguments of all stations."""
        return {
            key: value
            for name in self.classes()
            for key, value in getattr(self, name).arguments().items()
        }

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
            raise ArgumentError(
                name,
                f"must equal `embedding_units`, {sizes.embedding}, since the output is tied to the "
                f"embedding. Received: {name}={size}.",
            )

    def check_memory(self, **words: int) -> None:
        """Raise `ArgumentError` if this machine cannot hold the model.

        A lower bound: each layer is assumed to have the smallest input. `words` are the sizes of
        the vocabularies, by argument.
        """
        sizes, recurrent = self.sizes, self.recurrent
        embedding = sizes.embedding_units or sizes.units or 1
        units, layers = sizes.recurrent_units or sizes.units or embedding, sizes.recurrent_layers
        narrow = int(self.is_narrow_above())
        # Numbers of layers and their sizes.
        stack: list[tuple[int, int]]
        if isinstance(units, Sequence):
            stack = [(1, size) for size in units]
        else:
            stack = [(layers - narrow, units), (narrow, embedding)]
        least = min(embedding, *(size for count, size in stack if count))
        levels = recurrent.count("depth", 1) - 1
        if "lower_units" in recurrent.options:  # of any sizes
            levels, least = 0, 1
        rounds, rank = recurrent.count("rounds", 0), recurrent.count("rank", 0)
        experts = self.output.experts
        experts = sum(experts) if isinstance(experts, Sequence) else experts
        latent = (sizes.latent_units or embedding) if experts else 0
        dual = (sizes.dual_units or embedding) if self.connection.is_dual else 0
        gates = CELLS[recurrent.cell].gates

        def named(name: str) -> str:
            return "units" if getattr(sizes, name) is None else name

        # Numbers of weights, and of floats in the state of one row, by what they grow with.
        target_words = words["vocabulary_size"]
        floats = [
            *((name if count > embedding else named("embedding_units"), count * embedding)
              for name, count in words.items()),
            (named("recurrent_units"), sum(n * gates * u * (u + least) for n, u in stack)),
            ("rounds", rounds * sum(n * u * (rank or least) for n, u in stack)),
            ("rank", rounds * rank * least),
            ("depth", levels * sum(n * u * u for n, u in stack)),
            (named("dual_units"), dual * (embedding + least)),
            ("experts", experts * latent * least),
            (named("latent_units"), target_words * latent * (not self.output.tied)),
            *self.other_floats(target_words, least),
        ]  # fmt: skip
        parts = [
            ("recurrent_layers", layers),
            ("rounds", layers * rounds),
            ("depth", layers * levels),
        ]
        check_memory(floats, parts, {**words, **self.arguments()})

    def is_narrow_above(self) -> bool:
        """Return whether the last recurrent layer is as wide as the embedding, whatever `units`."""
        return False

    def other_floats(self, words: int, hidden_units: int) -> list[tuple[str, int]]:
        """Return the floats of further stations, by argument."""
        return []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stations(CommonStations):
    """All stations of one language model, and the rules that concern two of them."""

    gate: Gate
    cache: Cache

    def __post_init__(self) -> None:
        self.check_memory(vocabulary_size=1)  # before the sizes of all layers are listed
        check_depth(self.sizes.recurrent_layers)
        self.cache.check_padding(self.embedding.padded)
        self.output.check_mixture("latent_units", self.sizes.latent_units)
        if self.sizes.dual_units is not None and not self.connection.is_dual:
            raise ArgumentError(
                "dual_units",
                f"needs connection='dual'. Received: dual_units={self.sizes.dual_units!r}, "
                "connection='plain'.",
            )
        self.layer_sizes()
        self.recurrent.make_cell(1, 2, self.dropouts)  # checks the options of the cell

    def is_narrow_above(self) -> bool:
        return self.output.tied and not self.output.experts and not self.connection.is_dual

    def other_floats(self, words: int, hidden_units: int) -> list[tuple[str, int]]:
        return [*self.gate.floats(words), *self.cache.floats(hidden_units)]

    def layer_sizes(self) -> LayerSizes:
        """Return the size of each layer."""
        embedding = self.sizes.embedding_units or self.sizes.units
        sizes = self.sizes.resolve(last=embedding if self.is_narrow_above() else None)
        self.check_tied(sizes, "recurrent_units", sizes.embedding)
        return sizes


STATIONS = Stations.classes()
# Arguments of the stations over a whole model, and the values that leave these out.
WRAPPERS: dict[str, Any] = {**Gate().arguments(), **Cache().arguments()}


def without_regularization(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return builder `arguments` with all dropouts and penalties at 0, those of members too."""
    without: dict[str, Any] = {}
    for name, value in arguments.items():
        if name == "members":
            without[name] = [
                {**member, "arguments": without_regularization(member["arguments"])}
                for member in value
            ]
        elif name.endswith(("_dropout", "_l2", "_regularization")):
            without[name] = 0.0
        else:
            without[name] = value
    return without
