"""Scores of texts in Ray Data, on as many machines as there are."""

from typing import Any

import numpy as np

from dualnet._checks import ArgumentError, StrPath, check_choice
from dualnet._columns import ManyTexts, columns_of, texts_of, to_arrow
from dualnet.adaptation.surprisals import surprisals
from dualnet.corpora.sentence_pairs import read_pairs
from dualnet.requests import Scoring, Surprising
from dualnet.runs import load
from dualnet.scorers import PairScorer, SurprisalScorer, TextScorer

__all__ = ["Scorer"]

FORMATS = ("scores", "surprisal", "pairs")


class Scorer:
    """Scores the batches of `ray.data.Dataset.map_batches`, each actor with a model of its own.

    The rows are those of `dualnet score --output` and `dualnet minimal-pairs --output`, without
    the `sentence_id`, which no actor knows, beside the other columns of the batch. A batch that
    Ray gives to another actor, after one has died, is scored again as a whole.

    Args:
        run: path of a RUN folder or a `.keras` file, or the name of a shipped model.
        format: "scores", a row for each text; "surprisal", for each token or word; or "pairs", for
            each minimal pair, whose columns are `sentence_good` and `sentence_bad`.
        column: str. The column that holds the texts. It is left out of the rows of surprisal.
        end: str. Ends each text: `ray.data.read_text` takes the newline off a line, which the
            command scores. "" for texts as they are.
        **settings: For scores the `temperature`, for surprisal also `entropy`, `words` and
            `split_punctuation`, as for `dualnet.surprisal`.

    Raises:
        ImportError: if pyarrow is missing, which comes with Ray Data.
        ValueError: if `run` holds no language model.

    Example:

    >>> import tempfile
    >>> import dualnet
    >>> from dualnet.ray import Scorer
    >>> from dualnet.text import ByteTokenizer
    >>> model = dualnet.zoo.build("lstm", vocabulary_size=257, units=4)
    >>> model.vocabulary = ByteTokenizer()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/model.keras")
    ...     scorer = Scorer(f"{folder}/model.keras")
    >>> scorer({"id": [7, 8], "text": ["a b", "c"]}).select(["id", "tokens"]).to_pylist()
    [{'id': 7, 'tokens': 4}, {'id': 8, 'tokens': 2}]
    """

    def __init__(
        self,
        run: StrPath,
        *,
        format: str = "scores",
        column: str = "text",
        end: str = "\n",
        **settings: Any,
    ) -> None:
        self.format = check_choice("format", format, FORMATS)
        self.column, self.end = column, end
        request = (Surprising if format == "surprisal" else Scoring).of(settings)
        if settings.get("adapt"):
            raise ArgumentError(
                "adapt",
                "must be False: the weights would depend on which texts an actor has read.",
                adapt=True,
            )
        model = load(run)
        self.scorer: Any
        if format == "pairs":
            self.scorer = PairScorer(model)
        elif isinstance(request, Surprising):
            self._context = surprisals(model, request)  # kept open
            self.scorer = SurprisalScorer(model, request, self._context.__enter__())
        else:
            self.scorer = TextScorer(model, request)

    def __call__(self, batch: ManyTexts) -> Any:
        """Return the `pyarrow.Table` of the rows of a batch: a dict, of pandas or of Arrow."""
        if self.format == "pairs":
            items: Any = read_pairs(batch)
        else:
            items = [text + self.end for text in texts_of("batch", batch, self.column).texts]
        rows = self.scorer.rows(items)
        places = np.array([row["sentence_id"] - 1 for row in rows], int)
        kinds = {name: kind for name, kind in self.scorer.columns.items() if name != "sentence_id"}
        left_out = {*kinds, self.column if self.format == "surprisal" else ""}
        table = to_arrow(rows, kinds)
        for name in reversed([name for name in columns_of(batch) or [] if name not in left_out]):
            values = batch[name]
            if hasattr(values, "to_pylist"):  # of Arrow, whose type stays
                column = values.take(places)
            elif isinstance(values, np.ndarray):  # Arrow takes one dimension, no lists of dates
                column = [values[places] if values.ndim == 1 else values[places].tolist()]
            else:
                cells = [*values]
                column = [[cells[place] for place in places]]
            table = table.add_column(0, name, column)
        return table
