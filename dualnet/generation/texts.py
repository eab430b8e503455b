"""Continues prompts by text that is drawn, or by the likeliest."""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from dualnet._checks import ArgumentError
from dualnet._columns import Results, TextResults, texts_of
from dualnet._fields import documented
from dualnet.builders import LanguageModel
from dualnet.evaluation.arguments import vocabulary_of
from dualnet.generation.sampling import continuations, likeliest_continuations
from dualnet.requests import Drawing
from dualnet.text import EOS, UNK, Tokenizer
from dualnet.text.plain_text import check_text


@overload
def generate(model: LanguageModel, prompt: str, *, n_best: None = None, **settings: Any) -> str: ...


@overload
def generate(
    model: LanguageModel, prompt: Sequence[str] | Any, *, n_best: None = None, **settings: Any
) -> Results[str]: ...


@overload
def generate(model: LanguageModel, prompt: str, *, n_best: int, **settings: Any) -> list[str]: ...


@overload
def generate(
    model: LanguageModel, prompt: Sequence[str] | Any, *, n_best: int, **settings: Any
) -> Results[list[str]]: ...


@documented(Drawing)
def generate(
    model: LanguageModel, prompt: Any, *, column: str | None = None, **settings: Any
) -> str | list[str] | Results[str] | Results[list[str]]:
    """Return each prompt, continued by up to `max_tokens` tokens drawn one by one.

    With `beam`, return each prompt with its likeliest continuation instead, as `beam_search` finds
    it: nothing is drawn, and the text ends before its first `<eos>`.

    Tokens are the units of the model's tokeniser: words, or parts of words, or bytes.
    A text begins after `<eos>`, in the zero state. The state is carried, so each token is read
    once. Prompts are read in parallel. Each has its own random generator, made from `seed` and
    the prompt's position, so its continuation does not depend on the other prompts. `<unk>` is
    never drawn unless `allow_unknown`.

    Logits are divided by `temperature`. Then `min_p` keeps the tokens that are likely enough beside
    the likeliest one, `top_k` keeps the likeliest, and of these `top_p` keeps the fewest, likeliest
    first, whose probabilities reach it. One is drawn from the rest with its renormalised
    probability. All of this is float64.

    Args:
        model: `LanguageModel` with a vocabulary.
        prompt: str; a sequence, NumPy array or pandas column of at least one str; or a table
            with `column`. The tokeniser reads them: a newline, or what else ends its documents,
            is `<eos>`. An empty prompt starts a document.
        column: str. Name of the column that holds the prompts, if `prompt` is a table: a
            DataFrame or a dict of columns.
        {arguments}

    Returns:
        str for a str: the tokens of the prompt and those drawn, decoded as one text. Words have
        spaces between them, what is unknown is `<unk>`, and `<eos>` is a newline (an empty line
        if blank lines end documents). The tokeniser of bytes, and byte-level BPE, give the prompt
        back unchanged; a character of which the last bytes are missing becomes the replacement
        character. For a sequence, a list in the same order, whose method `to_frame()` makes a
        `pandas.DataFrame` under the labels of the prompts. With `n_best`, there is a list of at
        most `n_best` texts, the likeliest first, in place of each text.

    Raises:
        ValueError: if a word of the prompt is unknown and there is no `<unk>`; if a prompt holds
            half of a surrogate pair; if `<eos>` is needed but not in the vocabulary; or if the
            logits are not finite.

    Example:
        >>> import dualnet
        >>> from dualnet import zoo
        >>> from dualnet.text import Vocabulary
        >>> model = zoo.build("lstm", vocabulary_size=3, units=4)
        >>> model.vocabulary = Vocabulary(("<eos>", "the", "cat"))
        >>> text = dualnet.generate(model, "the", max_tokens=5, seed=0)
        >>> text.startswith("the"), len(model.vocabulary.encode(text))
        (True, 6)
        >>> len(dualnet.generate(model, "the", max_tokens=5, beam=3, n_best=2))
        2
    """
    prompts, labels, is_one = texts_of("prompt", prompt, column)
    if not prompts:
        raise ArgumentError("prompt", "must hold at least one string. Received: an empty sequence.")
    request = Drawing.of(settings)
    vocabulary = vocabulary_of(model)
    if vocabulary.words == (UNK,) and not request.allow_unknown:
        message = f"must know a word to draw. Received: a vocabulary of {UNK} only."
        raise ArgumentError("model", message)
    streams = _streams(vocabulary, prompts, request.stop_at_eos)
    start = 0 if vocabulary.eos_id is None else 1
    if request.beam is None:
        generated = [[ids] for ids in continuations(model, streams, request)]
    else:
        request.check_width(len(vocabulary))
        hypotheses = likeliest_continuations(model, streams, request)
        generated = [[list(item.ids) for item in several] for several in hypotheses]
    texts = [
        [vocabulary.decode([*stream[start:], *ids]) for ids in several]
        for stream, several in zip(streams, generated)
    ]
    if request.n_best is None:
        return texts[0][0] if is_one else TextResults([first for first, *_ in texts], labels)
    return texts[0] if is_one else TextResults(texts, labels)


def _streams(vocabulary: Tokenizer, prompts: list[str], stop_at_eos: bool) -> list[np.ndarray]:
    """Return the int32 ids to read for each prompt before one is drawn, `<eos>` first."""
    eos_id = vocabulary.eos_id
    if eos_id is None and stop_at_eos:
        required = f"must be False for a vocabulary without {EOS}."
        way_out = " Set max_tokens instead."
        raise ArgumentError("stop_at_eos", required, way_out, stop_at_eos=stop_at_eos)
    encoded = [vocabulary.encode(check_text("prompt", prompt)) for prompt in prompts]
    if eos_id is not None:
        return [np.insert(ids, 0, eos_id) for ids in encoded]
    for prompt, ids in zip(prompts, encoded):
        if not len(ids):
            required = f"must hold a word if the vocabulary has no {EOS} to start from."
            raise ArgumentError("prompt", f"{required} Received: {prompt!r}. Give the first word.")
    return encoded
