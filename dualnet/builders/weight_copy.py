"""`WeightCopy`: values of their own for the weights of a graph, whose layers it shares."""

from collections.abc import Mapping

import keras

from dualnet import _backend
from dualnet.builders.graph import Graph
from dualnet.builders.weights import names_in


class WeightCopy(keras.layers.Layer):
    """A copy of the weights of a graph, which may adapt while the graph's own never change.

    The layers are shared. In `scope()`, each weight of the graph has the value of its copy; the
    gradient of what is computed there is that of the copies.

    Args:
        graph: `Graph`.
        learned: The weights, by name, whose copies are trainable, whether or not they are.

    Attributes:
        copies: dict of the copies by the names of the weights.
    """

    def __init__(self, graph: Graph, learned: Mapping[str, keras.Variable]) -> None:
        super().__init__(dtype="float32", autocast=False)
        self.graph = graph  # a dataclass: Keras does not track the variables of its layers
        weights = {**learned, **names_in(graph.core)}
        # Copies on the device: on JAX, a step takes away the arrays that it is given.
        values = _backend.copies_of(weights.values())
        self.copies = {
            name: keras.Variable(
                value,
                dtype=weight.dtype,
                trainable=name in learned,
                autocast=False,
                name=name.replace("/", "-"),  # torch takes no "."
                layout=getattr(weight, "_layout", None),  # on JAX, of several devices
            )
            for (name, weight), value in zip(weights.items(), values)
        }
        self.built = True

    def take(self) -> None:
        """Take the present values of the graph's weights."""
        weights = names_in(self.graph.core)
        for name, value in zip(weights, _backend.copies_of(weights.values())):
            self.copies[name].assign(value)

    def scope(self) -> keras.StatelessScope:
        """Return the context in which the weights of the graph have the values of the copies."""
        scope = keras.StatelessScope()
        for name, weight in names_in(self.graph.core).items():
            scope.add_update((weight, self.copies[name].value))
        return scope
