"""Text from a model, word by word, with carried state."""

from __future__ import annotations

import numpy as np

from dualnet._checks import check_count
from dualnet.builders import LanguageModel
from dualnet.evaluation import check_temperature


def generate(
    model: LanguageModel,
    prompt: str,
    *,
    max_tokens: int = 50,
    temperature: float = 1.0,
    seed: int | None = None,
) -> str:
    """Return `prompt` and up to `max_tokens` words drawn one after another.

    The state is carried: each step reads one word. `<unk>` is never drawn.

    Args:
        model: `LanguageModel` with a vocabulary.
        prompt: words between spaces; newlines are `<eos>`. An empty prompt starts a line.
        max_tokens: int, at least 1.
        temperature: float above 0; logits are divided by it. Small values come
            near to taking the likeliest word.
        seed: int, for the same draw again.

    Raises:
        ValueError: if the model has no vocabulary, a word of the prompt is unknown
            and there is no `<unk>`, or a value is out of range.
    """
    vocabulary = model.vocabulary
    if vocabulary is None:
        raise ValueError(
            "`model` must have a vocabulary. Received: a model without one. Set model.vocabulary, "
            "or train it on a corpus."
        )
    check_count("max_tokens", max_tokens, least=1)
    check_temperature(temperature)
    random = np.random.default_rng(seed)
    start = [vocabulary.eos_id] if vocabulary.eos_id is not None else [0]
    prompt_ids = [int(i) for i in vocabulary.encode(prompt)]
    ids = list(prompt_ids)
    tokens = np.array([start + prompt_ids], np.int32)
    states = [np.zeros((1, size), np.float32) for size in model.state_size]
    for _ in range(max_tokens):
        logits, *states = model.core.predict_on_batch([tokens, *states])
        scores = logits[0, -1].astype(np.float64) / temperature
        if vocabulary.unk_id is not None and len(vocabulary) > 1:
            scores[vocabulary.unk_id] = -np.inf
        probabilities = np.exp(scores - scores.max())
        chosen = int(random.choice(len(scores), p=probabilities / probabilities.sum()))
        ids.append(chosen)
        tokens = np.array([[chosen]], np.int32)
    return vocabulary.decode(ids)
