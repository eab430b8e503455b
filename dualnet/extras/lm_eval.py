"""Models as EleutherAI's lm-evaluation-harness, the package `lm_eval`, takes them."""

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dualnet._checks import ArgumentError, StrPath, extra
from dualnet.builders import LanguageModel, questions, reader_of
from dualnet.evaluation import scoring
from dualnet.evaluation.arguments import vocabulary_with_eos
from dualnet.generation import continuations
from dualnet.requests import Drawing
from dualnet.runs import load

with extra("lm-eval", "`dualnet.lm_eval` needs lm-evaluation-harness"):
    from lm_eval.api.model import LM
    from lm_eval.models.utils import normalize_gen_kwargs

__all__ = ["DualnetLM"]

GENERATION = ("do_sample", "max_gen_toks", "temperature", "top_k", "top_p", "until")


class DualnetLM(LM):
    """A language model for `lm_eval.simple_evaluate(model=DualnetLM(run), tasks=[...])`.

    Each request is read from the zero state after `<eos>`. A context has no maximum length,
    since the model is recurrent: nothing is cut off. Newlines are read as the tokeniser of the
    model reads them; with `documents="line"`, each is an `<eos>`.

    - `loglikelihood`: log p of the continuation in nats. Context and continuation are tokenised
      as one text. White space at the end of the context counts as part of the continuation, as
      does a token that reaches into it.
    - `loglikelihood_rolling`: log p of a whole text. The harness makes perplexities per word and
      per byte of it, which compare only for a tokeniser that loses nothing; others get a warning.
    - `generate_until`: greedy unless the task samples. A text ends before the first of the
      strings `until`, at the end of a document, or after `max_gen_toks` tokens, by default 256.
      With `documents="line"`, where `<eos>` is a newline like any other, it ends the text only if
      `until` is empty or has it. `<unk>` is never generated.

    Args:
        run: path of a RUN folder or a `.keras` file, or a `LanguageModel` with a vocabulary that
            has `<eos>`.
        seed: int, at least 0, of texts that are sampled.

    Raises:
        ImportError: if the package `lm_eval` is missing, when this module is imported.
        ValueError: if the model has no vocabulary with `<eos>`.

    Reference: https://github.com/EleutherAI/lm-evaluation-harness

    Example:

    >>> import math
    >>> import dualnet
    >>> from dualnet.lm_eval import DualnetLM
    >>> from dualnet.text import ByteTokenizer
    >>> from lm_eval.api.instance import Instance
    >>> model = dualnet.zoo.build("lstm", vocabulary_size=257, units=4)
    >>> model.vocabulary = ByteTokenizer()
    >>> request = Instance("loglikelihood", doc={}, arguments=("The cats", " sleep."), idx=0)
    >>> [(log_p, is_greedy)] = DualnetLM(model).loglikelihood([request])
    >>> expected = dualnet.score(model, "The cats sleep.").log_probabilities[len("The cats"):]
    >>> math.isclose(log_p, expected.sum(), rel_tol=1e-5)
    True
    """

    def __init__(self, run: StrPath | LanguageModel, *, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self.model = run if isinstance(run, LanguageModel) else load(run)
        self.tokenizer, self._eos_id = vocabulary_with_eos(self.model)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return log p of each continuation in nats, and whether greedy decoding gives it."""
        streams, starts = [], []
        for request in requests:
            context, continuation = request.args
            ids, offsets = self.tokenizer.encode_with_offsets(context + continuation)
            boundary = len(context.rstrip())
            # A token may have no extent, such as the one that some put before the first word.
            starts.append(int(np.sum(offsets[:, 1] <= boundary)) if boundary else 0)
            streams.append(np.insert(ids, 0, self._eos_id))
        reader = reader_of(self.model, questions.greedy)
        answers = scoring.read(reader, streams, ["losses", "greedy"])
        return [
            (-math.fsum(losses[start:]), bool(greedy[start:].all()))
            for losses, greedy, start in zip(*answers.values(), starts)
        ]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Return log p of each text in nats."""
        if self.tokenizer.loses:
            warnings.warn(
                f"Perplexities per word and per byte do not compare: {self.tokenizer.loses}.",
                stacklevel=2,
            )
        streams = [self._stream(text) for (text,) in (request.args for request in requests)]
        losses = scoring.read(reader_of(self.model, questions.losses), streams)["losses"]
        return [-math.fsum(row) for row in losses]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return the continuation of each context, without the string of `until` that ends it."""
        groups: dict[tuple[tuple[str, ...], Drawing], list[int]] = {}  # positions by settings
        for i, request in enumerate(requests):
            until, drawing = _generation(request.args[1], seed=self.seed)
            if not until or self.tokenizer.documents != "line":
                drawing = dataclasses.replace(drawing, stop_at_eos=True)
            groups.setdefault((until, drawing), []).append(i)
        texts = [""] * len(requests)
        for (until, drawing), positions in groups.items():
            streams = [self._stream(requests[i].args[0]) for i in positions]

            def has_ended(i, ids, _, streams=streams, until=until):
                text = self._continuation(streams[i], ids)
                return any(end in text for end in until)

            drawn = continuations(self.model, streams, drawing, has_ended if until else None)
            for i, stream, ids in zip(positions, streams, drawn):
                text = self._continuation(stream, ids)
                for end in until:
                    text = text.partition(end)[0]
                texts[i] = text
        return texts

    def _stream(self, text: str) -> np.ndarray:
        return np.insert(self.tokenizer.encode(text), 0, self._eos_id)

    def _continuation(self, stream: np.ndarray, drawn: list[int]) -> str:
        """Return the text of the ids `drawn` after `stream`, with the white space before it."""
        last = stream[-1:].tolist()
        return self.tokenizer.decode(last + drawn).removeprefix(self.tokenizer.decode(last))


def _generation(task: Mapping[str, Any], **settings: Any) -> tuple[tuple[str, ...], Drawing]:
    """Return `until`, and how texts are drawn, of a task's generation_kwargs."""
    known = normalize_gen_kwargs(dict(task))
    if known.get("num_beams") == 1:
        del known["num_beams"]
    if unknown := [key for key in known if key not in GENERATION]:
        received = {unknown[0]: known[unknown[0]]}
        raise ArgumentError("generation_kwargs", f"must be of {', '.join(GENERATION)}.", **received)
    drawing = Drawing(
        max_tokens=known["max_gen_toks"],
        temperature=known.get("temperature", 1.0) if known["do_sample"] else 0.0,
        top_k=known.get("top_k") or None,
        top_p=known.get("top_p"),
        **settings,
    )
    return tuple(end for end in known["until"] if end), drawing
