"""The perplexity of a model on a text: of one pass, or averaged over passes with dropout.

Also the temperature at which it is lowest.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike

from dualnet._checks import ArgumentError
from dualnet._columns import to_frame
from dualnet._fields import documented
from dualnet.builders import LanguageModel, Reader, check_language_model, questions, reader_of
from dualnet.corpora.sentence_batches import sentence_ends
from dualnet.evaluation import scoring
from dualnet.evaluation.arguments import check_sentences, check_tokens, perplexity_of
from dualnet.evaluation.comparison import Comparable, figures_of
from dualnet.evaluation.mc_dropout import DropoutReader
from dualnet.requests import Evaluating, EvaluatingArguments

if TYPE_CHECKING:
    import pandas

DROPOUT_STEPS = 70  # as long as the windows in which Melis et al. train, and draw masks
FACTORS = range(106, 78, -2)  # in hundredths; the logits are multiplied by them
PATIENCE = 2
SENTENCES = 4096  # that are read together, in bounded memory
Answers = list[dict[str, np.ndarray]]  # of each pass, by name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """The results of `evaluate` beside the perplexity.

    Attributes:
        top_k_accuracy: dict. For each k of `top_k`, the share of the tokens that were among the
            k likeliest tokens.

    Example:

    >>> from dualnet.evaluation import Measured
    >>> Measured(top_k_accuracy={1: 0.25}).top_k_accuracy
    {1: 0.25}
    """

    top_k_accuracy: dict[int, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Evaluation(Measured, Comparable):
    """The result of `evaluate`, with the figures of `Comparable` and `Measured`.

    Attributes:
        perplexity: exp of the mean loss.
        tokens: Number of tokens predicted: all but the first; by sentence, all.
        batch_size: Number of streams. 1 is the reference; with more, each stream starts from
            the zero state, which costs a little perplexity.
        sequence_length: Tokens per step, which does not change the value, except through locked
            masks of MC dropout. None by sentence and with a window.
        temperature: What the logits were divided by.
        token_losses: float32 `(tokens,)`, -log p of each token in nats, in reading order.
        by_sentence: Whether each sentence was read from the zero state.
        mc_dropout_samples: Passes with dropout whose probabilities were averaged; 0 for one
            pass without.
        dropout_scale: What their dropout rates were multiplied by.
        seed: Seed of their masks.
        window: Number of tokens after which the state was zeroed; None if it was carried.
    """

    perplexity: float
    tokens: int
    batch_size: int
    sequence_length: int | None
    temperature: float
    token_losses: np.ndarray = dataclasses.field(repr=False)
    by_sentence: bool = False
    mc_dropout_samples: int = 0
    dropout_scale: float = 1.0
    seed: int = 0
    window: int | None = None

    def to_frame(self) -> "pandas.DataFrame":
        """Return a `pandas.DataFrame` with a row for each predicted token, in reading order.

        Its columns are `position`, the index of the token in the text, and `loss`, -log p in nats.
        Needs the extra `pandas`.
        """
        losses = enumerate(self.token_losses.tolist(), int(not self.by_sentence))
        return to_frame({"position": position, "loss": loss} for position, loss in losses)


def perplexity(
    model: LanguageModel, tokens: ArrayLike, **settings: Unpack[EvaluatingArguments]
) -> float:
    """Return the perplexity of `model` on `tokens`: `evaluate(...).perplexity`.

    Args:
        model, tokens, **settings: As for `evaluate`.

    Example:

    >>> import numpy as np
    >>> import dualnet
    >>> model = dualnet.zoo.build("lstm", vocabulary_size=9, units=4)
    >>> tokens = np.array([1, 2, 3, 4, 5])
    >>> dualnet.perplexity(model, tokens) == dualnet.evaluate(model, tokens).perplexity
    True
    """
    return evaluate(model, tokens, **settings).perplexity


@documented(Evaluating)
def evaluate(
    model: LanguageModel, tokens: ArrayLike, **settings: Unpack[EvaluatingArguments]
) -> Evaluation:
    """Return the loss of `model` on `tokens`: every token but the first is predicted once.

    The text is cut into `batch_size` streams of equal length (the last may be shorter), read
    side by side with carried state. The first token of a stream is predicted from the zero
    state and the token before it. Losses are summed in float64.

    By sentence, for a model that was trained so, each sentence is read after `<eos>` from the
    zero state, and every token is predicted once, the first one included. A sentence ends with
    `<eos>`, the last one where the text ends.

    With a window, the text is one stream whose state is zeroed every `window` tokens: the first
    token of a window is predicted from the zero state and the token before it. Evaluation with a
    window shows what a model owes to the state that it carries further than that.

    With MC dropout, the probability of a token is the arithmetic mean over several passes with
    dropout, each of which carries its own state over the text (Melis et al.). A locked mask is
    drawn anew for each step of `sequence_length` tokens, and by sentence or with a window for
    each sentence or window, or each 2048 tokens of a longer one. The model is left untouched.

    Args:
        model: `LanguageModel`.
        tokens: int array `(num_tokens,)`, in reading order. An int32 array, which may be
            memory-mapped, is read piece by piece and never copied whole.
        {arguments}

    Example:

    >>> import numpy as np
    >>> import dualnet
    >>> model = dualnet.zoo.build("lstm", vocabulary_size=9, units=4)
    >>> result = dualnet.evaluate(model, np.array([1, 2, 3, 4, 5]))
    >>> result.tokens, result.token_losses.shape
    (4, (4,))

    Reference: Melis et al., 2020, https://arxiv.org/abs/1909.01792, section 4.
    """
    check_language_model("model", model)
    request = Evaluating.of(settings)
    tokens = check_tokens(tokens, model.vocabulary_size, least=1 if request.by_sentence else 2)
    top_k, words = request.top_k, model.vocabulary_size
    if max(top_k, default=0) > words:
        raise ArgumentError(
            "top_k", f"must be at most {words}, the size of the vocabulary.", top_k=max(top_k)
        )
    if request.by_sentence:
        plan = _sentences(model, tokens, whole=request.mc_dropout_samples > 0)
    elif request.window is not None:
        plan = _windows(tokens, request.window)
    else:
        plan = _streams(tokens, request)
    names = ["losses", *["ranks"] * bool(top_k)]
    answers = {name: np.empty(plan.tokens, np.float32) for name in names}
    losses = answers["losses"]
    if request.mc_dropout_samples > 0:
        _average(model, plan, losses, request)
    else:
        reader = reader_of(model, questions.ranks if top_k else questions.losses)
        _read_plan(reader, plan, [answers], request.temperature)
    used = {**request.arguments(), "sequence_length": plan.sequence_length}
    del used["top_k"]
    return Evaluation(
        **used,
        top_k_accuracy={int(k): float(np.mean(answers["ranks"] < k)) for k in top_k},
        perplexity=perplexity_of(losses),
        tokens=plan.tokens,
        token_losses=losses,
        **figures_of(model, tokens[len(tokens) - plan.tokens :], losses.sum(dtype=np.float64)),
    )


def best_temperature(
    model: LanguageModel,
    tokens: ArrayLike,
    *,
    temperatures: Sequence[float] | None = None,
    **settings: Any,
) -> float:
    """Return the temperature at which the perplexity of `model` on `tokens` is lowest.

    Logits are divided by the temperature. The default candidates are those of the released
    code of Melis et al., which multiplies instead: the reciprocals of 1.06, 1.04, ..., 0.80,
    in this order, until two in a row are no better than the best before. Dropouts are off.
    Use tokens of a validation text; Melis et al. use about 50,000.

    Args:
        model, tokens: As for `evaluate`.
        temperatures: floats above 0, all of which are tried; the first of equally good ones
            wins.
        **settings: `batch_size`, `sequence_length`, `by_sentence` and `window` of `evaluate`.

    Example:

    >>> import numpy as np
    >>> import dualnet
    >>> model = dualnet.zoo.build("lstm", vocabulary_size=9, units=4)
    >>> tokens = np.array([1, 2, 3, 4, 5])
    >>> dualnet.best_temperature(model, tokens, temperatures=[1.25])
    1.25

    Reference: Melis et al., 2020, https://arxiv.org/abs/1909.01792, section 4.
    """
    perplexities = []
    candidates = [100 / k for k in FACTORS] if temperatures is None else temperatures
    for temperature in candidates:
        perplexities.append(perplexity(model, tokens, temperature=temperature, **settings))
        best = perplexities.index(min(perplexities))
        if temperatures is None and len(perplexities) - best > PATIENCE:
            break
    return float(candidates[perplexities.index(min(perplexities))])


class _Plan(NamedTuple):
    """How a text is read."""

    tokens: int  # number of tokens predicted
    sequence_length: int | None  # tokens per step of every part
    # Yields rows, steps, and the spans of tokens to be read together, each from the zero state.
    parts: Callable[[], Iterator[tuple[int, int, list[tuple[int, int]]]]]
    cut: Callable[[int, int], np.ndarray]  # the ids of a span, and the one before


def _streams(tokens: np.ndarray, request: Evaluating) -> _Plan:
    """Return the plan of a text as `batch_size` streams."""
    pairs, batch_size = len(tokens) - 1, request.batch_size
    if batch_size > pairs:
        raise ArgumentError(
            "batch_size",
            f"must be at most the {pairs} predicted tokens. Received: batch_size={batch_size}.",
        )
    default = DROPOUT_STEPS if request.mc_dropout_samples else max(16, scoring.WORK // batch_size)
    length = math.ceil(pairs / batch_size)
    steps = min(request.sequence_length or default, length)
    ends = [min(row * length, pairs) for row in range(batch_size + 1)]
    part = (batch_size, steps, list(itertools.pairwise(ends)))
    return _Plan(pairs, steps, lambda: iter([part]), lambda start, end: tokens[start : end + 1])


def _windows(tokens: np.ndarray, window: int) -> _Plan:
    """Return the plan of a text in windows of `window` tokens, many of which are read at once."""
    pairs = len(tokens) - 1
    starts = range(0, pairs, window)
    steps = min(window, pairs, scoring.WORK)
    rows = min(max(1, scoring.WORK // steps), len(starts))

    def parts():
        for first in range(0, len(starts), rows):
            batch = starts[first : first + rows]
            yield rows, steps, [(start, min(start + window, pairs)) for start in batch]

    return _Plan(pairs, None, parts, lambda start, end: tokens[start : end + 1])


def _sentences(model: LanguageModel, tokens: np.ndarray, *, whole: bool) -> _Plan:
    """Return the plan of a text by sentence, each read in one piece if `whole`."""
    vocabulary, eos_id = check_sentences(model)
    ends = sentence_ends(tokens, vocabulary)
    starts = np.append(0, ends[:-1])
    first = np.append(eos_id, tokens[: ends[0]]).astype(np.int32)
    lengths = ends - starts
    order, count = np.arange(len(ends)), SENTENCES
    if whole:  # with those of similar length
        order = np.argsort(lengths, kind="stable")
        count = scoring.WORK // scoring.power_of_two(min(lengths.max(), scoring.WORK))

    def parts():
        for begin in range(0, len(order), count):
            batch = order[begin : begin + count]
            steps = scoring.power_of_two(min(lengths[batch[-1]], scoring.WORK))
            shape = (count, steps) if whole else scoring.shape(lengths[batch])
            yield *shape, [(starts[i], ends[i]) for i in batch]

    # Every other sentence follows the <eos> of the one before it.
    return _Plan(
        len(tokens), None, parts, lambda start, end: tokens[start - 1 : end] if start else first
    )


def _read_plan(
    reader: Reader, plan: _Plan, answers: Answers, temperature: float, *, passes: int = 1
) -> None:
    """Fill `answers`, the arrays of each pass by name; `passes` are read at once at most."""
    for rows, steps, spans in plan.parts():
        streams = [plan.cut(*span) for span in spans] * len(answers)
        parts = {
            name: [of_pass[name][start:end] for of_pass in answers for start, end in spans]
            for name in answers[0]
        }
        scoring.score_streams(reader, streams, parts, rows * passes, steps, temperature)


def _average(model: LanguageModel, plan: _Plan, losses: np.ndarray, request: Evaluating) -> None:
    """Average the probabilities over passes with dropout; write the losses into `losses`."""
    reader, samples = DropoutReader(model, request.dropout_scale), request.mc_dropout_samples
    passes = 1
    if reader.masks_differ_by_row and plan.sequence_length is not None:
        rows, steps, _ = next(plan.parts())
        passes = max(1, min(samples, scoring.WORK // (rows * steps)))
    total = np.full(plan.tokens, -np.inf)
    for first in range(0, samples, passes):
        batch = np.empty((min(passes, samples - first), plan.tokens), np.float32)
        reader.set_seeds(request.seed, first)
        rows_of_passes = [{"losses": row} for row in batch]
        _read_plan(reader, plan, rows_of_passes, request.temperature, passes=passes)
        for row in batch:
            np.logaddexp(total, -row, out=total)
    losses[:] = math.log(samples) - total
