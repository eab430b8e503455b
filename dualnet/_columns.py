"""Texts as users hold them, in lists and in columns of tables; long tables of results."""

import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dualnet._checks import ArgumentError, as_texts, did_you_mean, extra, shown

if TYPE_CHECKING:
    import pandas
    import pyarrow

T = TypeVar("T")
# A sequence, array or pandas column of str, or a table that has one; pandas ships no types.
ManyTexts = Any
Column = str | int  # the name of a column; pandas numbers those of a file without a header


class Texts(NamedTuple):
    """The texts of an argument.

    Attributes:
        texts: list of str.
        labels: Index of the column of pandas that they come from; None for any other.
        is_one: Whether the argument was a single str.
    """

    texts: list[str]
    labels: Any
    is_one: bool


def texts_of(
    name: str, value: Any, column: Column | None = None, *, called: str = "column"
) -> Texts:
    """Return the texts that the argument `name` holds.

    Args:
        value: str; a sequence, NumPy array or column, of pandas, polars or Arrow, of str; or, with
            `column`, a table: a DataFrame, a table of Arrow or a dict of columns.
        column: Name of the column of a table that has the texts.
        called: Name of the argument that is `column`, for errors.

    Example:

    >>> from dualnet._columns import texts_of
    >>> texts_of("texts", {"item": [1, 2], "sentence": ["a b", "c"]}, "sentence").texts
    ['a b', 'c']
    """
    names = columns_of(value)
    if names is not None:
        if column is None:
            received = f"Received: a table of {names}. Name the column that holds the texts."
            raise ArgumentError(name, f"must be texts, or a table with `{called}`. {received}")
        value = column_of(value, names, column, name=called)
    elif column is not None:
        raise ArgumentError(
            "column",
            f"is for a table, such as a DataFrame. Received: column={column!r} without one.",
        )
    if isinstance(value, str):
        return Texts([value], None, is_one=True)
    try:
        rows = iter(_plain(value))
    except (TypeError, NotImplementedError):  # a number, an array without axes, a symbol
        raise ArgumentError(
            name, "must be a string or a sequence of strings.", **{name: value}
        ) from None
    texts = []
    for row, text in enumerate(rows, 1):
        if not isinstance(text, str):
            received = f"Received: {shown(text)} of type {type(text).__name__} as text {row}."
            raise ArgumentError(name, f"must be a string or a sequence of strings. {received}")
        texts.append(str(text))
    return Texts(texts, labels_of(value), is_one=False)


def columns_of(value: object) -> list[Column] | None:
    """Return the column names of a table; None for any other value."""
    if isinstance(value, Mapping):
        return [*value]
    names = getattr(value, "columns", None)
    if names is None or hasattr(value, "to_pydict"):  # Arrow's `columns` are the cells
        names = getattr(value, "column_names", None)
    return None if names is None or isinstance(value, type) else [*names]


def column_of(table: Any, names: list[Column], column: Column, *, name: str = "column") -> Any:
    """Return a column of a table, whose `names` are known; errors call the argument `name`."""
    if column not in names:
        raise ArgumentError(
            name,
            f"must be one of {names}.",
            did_you_mean(column, map(str, names)),
            **{name: column},
        )
    # Two of one name, or a dict of `DataFrame.to_dict`.
    if names.count(column) > 1 or columns_of(table[column]) is not None:
        raise ArgumentError(name, "must name one column of texts, not a table.", **{name: column})
    return _plain(table[column])


def _plain(column: Any) -> Any:
    """Convert an array of Arrow, whose cells are no str, to a list; return others unchanged."""
    return column.to_pylist() if hasattr(column, "to_pylist") else column


def labels_of(value: object) -> Any:
    """Return the index of a table or column of pandas, None for any other value."""
    index = getattr(value, "index", None)
    return None if callable(index) else index  # a list has a method of this name


class Results(list[T]):
    """A list of results, of which `to_frame` makes a long table.

    Attributes:
        labels: Index of the column of pandas that the texts came from, or None.
    """

    def __init__(self, results: Iterable[T] = (), labels: Any = None) -> None:
        super().__init__(results)
        self.labels = labels

    def rows(self) -> Iterable[Any]:
        """Yield the rows of the table: dicts, each with the `sentence_id` of its text."""
        return self

    def to_frame(self) -> "pandas.DataFrame":
        """Return a `pandas.DataFrame` with the rows; needs the extra `pandas`.

        The index is that of the column that the texts came from, each label once for each row of
        its text: `frame.join(results.to_frame())` adds the other columns of the texts.
        """
        return to_frame(self.rows(), self.labels)


class TextResults(Results[Any]):
    """Results with one or several texts for each input; `to_frame` has a row for each."""

    def rows(self) -> Iterator[Mapping[str, object]]:
        for sentence_id, texts in enumerate(self, 1):
            for rank, text in enumerate(as_texts(texts), 1):
                yield {"sentence_id": sentence_id, "rank": rank, "text": text}


def to_frame(rows: Iterable[Mapping[str, Any]], labels: Any = None) -> "pandas.DataFrame":
    """Return the `pandas.DataFrame` of `rows`, whose `sentence_id` counts the `labels` from 1."""
    with extra("pandas", "`to_frame` needs pandas"):
        import pandas
    records = [*rows]
    if labels is not None:
        labels = labels.take([record["sentence_id"] - 1 for record in records])
    return pandas.DataFrame(records, index=labels)


def to_arrow(
    rows: Iterable[Mapping[str, object]], columns: Mapping[str, object]
) -> "pyarrow.Table":
    """Return the `pyarrow.Table` of `rows`, whose `columns` are of these kinds."""
    with extra("parquet", "Tables of Arrow and Parquet need pyarrow"):
        import pyarrow as pa
    kinds: dict[object, object] = {
        int: pa.int64(),
        float: pa.float64(),
        str: pa.string(),
        bool: pa.bool_(),
    }
    types = {
        name: pa.list_(kinds[inner[0]]) if (inner := typing.get_args(kind)) else kinds[kind]
        for name, kind in columns.items()
    }
    return pa.Table.from_pylist([*rows], pa.schema(types))
