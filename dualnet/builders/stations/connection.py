from __future__ import annotations

from typing import Any

from dualnet._fields import choice, field
from dualnet.builders.stations.dropouts import Dropouts
from dualnet.builders.stations.station import Station
from dualnet.layers import DualConnection

CONNECTIONS = ("plain", "dual", "dual_without_input")


class Connection(Station):
    """What joins the recurrent output to the output layer: nothing, or the current word.

    Args:
        connection: "plain"; "dual", a dual layer on the embedding and the recurrent output;
            or "dual_without_input", that layer without the embedding (the paper's mdLSTM+).
        dual_input_dropout: On the embedding where it enters the dual layer (our reading of the
            paper's "before the dual layer", which may include the recurrent output).
        dual_output_dropout: On the output of the dual layer.
        dual_l2: Penalty: times the sum of squares of both matrices of the dual layer.
    """

    connection: str = choice("plain", CONNECTIONS)
    dual_input_dropout: float = field(0.0, unless={"connection": "plain"})
    dual_output_dropout: float = field(0.0, unless={"connection": "plain"})
    dual_l2: float = field(0.0, unless={"connection": "plain"})

    @property
    def is_dual(self) -> bool:
        """Whether there is a dual layer."""
        return self.connection != "plain"

    def connect(self, embedded: Any, recurrent_output: Any, units: int, dropouts: Dropouts) -> Any:
        """Return the output of the dual layer, `(batch, time, units)`; only if there is one."""
        embedded = dropouts.drop("dual_input", self.dual_input_dropout, embedded)
        x = DualConnection(
            units, use_input=self.connection == "dual", dual_l2=self.dual_l2, name="connection"
        )([embedded, recurrent_output])
        return dropouts.drop("dual_output", self.dual_output_dropout, x)
