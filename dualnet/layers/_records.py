"""Named intermediate values of a step, for those who look inside a layer."""

import contextlib
import contextvars
from typing import Any

from dualnet._contexts import override

_records: contextvars.ContextVar[Any] = contextvars.ContextVar("records", default=None)


def record(layer, **values):
    """Show intermediate `values` of a cell or connection, by name, to `dualnet.analysis.inside`.

    For the `step` of a cell and the `call` of a connection; it computes nothing, and without a
    listener it does nothing.

    Args:
        layer: the cell, or the connection.
        **values: name to `(batch, size)`, or in a connection `(batch, time, size)`.

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import DualConnection, record
    >>> record(DualConnection(2), gate=np.ones((1, 2)))
    """
    if (records := _records.get()) is not None:
        records.extend((layer, name, value) for name, value in values.items())


@contextlib.contextmanager
def recorded():
    """Yield a list of `(layer, name, value)` that grows inside the `with` block.

    Segments must have one token: a value of a loop is of no use outside of it.
    """
    records: list = []
    with override(_records, records):
        yield records
