"""The surprisal of each token or word of texts, with fixed weights or with weights that adapt."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Unpack

import numpy as np

from dualnet._columns import Column, Results, texts_of
from dualnet._fields import documented
from dualnet.adaptation.adapted_copy import Adaptation
from dualnet.adaptation.dynamic import adapting
from dualnet.adaptation.statistics import Statistics
from dualnet.builders import LanguageModel, Question, questions, reader_of
from dualnet.evaluation import scoring
from dualnet.evaluation.arguments import check_sentences, vocabulary_with_eos
from dualnet.evaluation.comparison import Totals, totals_of
from dualnet.evaluation.words import Words, words_of
from dualnet.requests import Surprising, SurprisingArguments
from dualnet.text import Tokenizer

Record = dict[str, int | float | str]
LOGITS = 2**24  # computed by a call at most, where entropies need all of a token's: 64 MB


@documented(Surprising)
def surprisal(
    model: LanguageModel,
    texts: Any,
    *,
    column: Column | None = None,
    statistics: Statistics | None = None,
    keep: bool = False,
    **settings: Unpack[SurprisingArguments],
) -> Results[Record]:
    """Return the surprisal of each token, or of each word, of each text, in bits.

    A text, such as a sentence, is read from the zero state after `<eos>`, so that its first
    token is scored, too. A document's end in it, by default each newline, is one `<eos>`, which
    is scored.

    The words are what white space separates, and each `<eos>`. A token belongs to the word of
    its first character that is no white space; one of white space alone to the word after it,
    at the end of the text to the last word. The surprisal of a word is the sum over its tokens;
    its entropy is that before its first token, so that it depends on the context alone. Should a
    token reach into the next word, and leave that without a token of its own, the two are one
    record. With `split_punctuation`, the punctuation marks at the beginning and at the end of a
    word are words of their own.

    With `bow_correction`, p(word) = p(its tokens) p(B | word) / p(B | what is before it), where B
    are the tokens that begin a word, with its space, and `<eos>`; at the start of a text and after
    `<eos>`, where a word must begin, p(B) is 1. The probabilities of all words then sum to 1.
    Without, they sum to p(B | what is before), and a word that others continue is too likely.

    Args:
        model: `LanguageModel` with a vocabulary that has `<eos>`.
        texts: str; a sequence, NumPy array or pandas column of str; or a table with `column`.
        column: str or int. The column that holds the texts, if `texts` is a table: a DataFrame
            or a dict of columns.
        {arguments}
        statistics, keep: As for `dynamic_evaluation`; only with `adapt`.

    Returns:
        A list of dicts with the keys `sentence_id` (of the text) and `token_id`, both from 1 on,
        `token`, `surprisal` and, if asked for, `entropy`. Its method `to_frame()` makes a
        `pandas.DataFrame` of it, under the labels of the texts.

    Example:

    >>> import dualnet
    >>> from dualnet.text import Vocabulary
    >>> model = dualnet.zoo.build("lstm", vocabulary_size=4, units=4)
    >>> model.vocabulary = Vocabulary(("the", "cat", "<unk>", "<eos>"))
    >>> records = dualnet.surprisal(model, ["the cat", "the dog\\n"])
    >>> [(record["sentence_id"], record["token_id"], record["token"]) for record in records]
    [(1, 1, 'the'), (1, 2, 'cat'), (2, 1, 'the'), (2, 2, '<unk>'), (2, 3, '<eos>')]

    Reference: the format is that of LM Zoo, Gauthier et al., 2020,
    https://aclanthology.org/2020.acl-demos.10; `bow_correction`: Pimentel and Meister, 2024,
    https://arxiv.org/abs/2406.14561, and Oh and Schuler, 2024, https://arxiv.org/abs/2406.10851
    """
    request = Surprising.of(settings)
    text_list, labels, _ = texts_of("texts", texts, column)
    with surprisals(model, request, statistics=statistics, keep=keep) as of_texts:
        return Results((row for rows, _ in of_texts(text_list) for row in rows), labels)


@contextlib.contextmanager
def surprisals(
    model: LanguageModel,
    request: Surprising,
    *,
    statistics: Statistics | None = None,
    keep: bool = False,
    score: Callable[[str], np.ndarray] | None = None,
) -> Iterator[Callable[..., Iterator[tuple[list[Record], Totals]]]]:
    """Yield a function of texts that yields the records of each, and its part in the totals.

    It may be called again and again, each time with the number of the first text. With `adapt`,
    a copy of the weights adapts to each text. A learner's `score` takes the place of the model: it
    returns -log p of the tokens of a text, float64 `(tokens, 1)`.
    """
    request.check_adapts(keep=keep or None, statistics=statistics)
    vocabulary, eos_id = vocabulary_with_eos(model)
    split: Callable[[Tokenizer, str], Words] = _tokens
    if request.words:
        split = functools.partial(words_of, split_punctuation=request.split_punctuation)
    question: Question = questions.losses
    names, work = ["losses"], scoring.WORK
    if request.entropy or request.bow_correction:
        names = ["losses", *["entropies"] * request.entropy, *["of_some"] * request.bow_correction]
        question = _of_boundaries(vocabulary) if request.bow_correction else questions.entropies
        work = min(work, 1 << (max(1, LOGITS // model.vocabulary_size).bit_length() - 1))
    temperature = request.temperature
    adapts: contextlib.AbstractContextManager[Adaptation | None] = contextlib.nullcontext()
    if request.adapt:
        check_sentences(model, "adapt")
        adapts = adapting(
            model, request, temperature=temperature, statistics=statistics, keep=keep, by_text=True
        )

    with adapts as adaptation:

        def read(streams: list[np.ndarray]) -> list[np.ndarray]:
            """Return -log p of the tokens but the first, and their entropies, in nats.

            These are float64 `(tokens, 1)` for each stream, or `(tokens, 2)`.
            """
            reader = reader_of(model if adaptation is None else adaptation.copy, question)
            answers = scoring.read(reader, streams, names, temperature=temperature, work=work)
            columns = zip(*answers.values())
            return [np.stack(of_stream, axis=-1, dtype=np.float64) for of_stream in columns]

        def read_in_turn(streams: list[np.ndarray]) -> Iterator[np.ndarray]:
            for stream, extended in zip(streams, ended(streams)):
                [values] = read([extended])
                if adaptation is not None and len(stream) > 1:
                    adaptation.learn(stream, alone=True)
                yield values

        def ended(streams: list[np.ndarray]) -> list[np.ndarray]:
            """Return `streams` with one more token: what is predicted after the last word."""
            if not request.bow_correction:
                return streams
            return [np.append(stream, np.int32(eos_id)) for stream in streams]

        def of_texts(texts: Sequence[str], first: int = 1) -> Iterator[tuple[list[Record], Totals]]:
            units = [split(vocabulary, text) for text in texts]
            streams = [np.append(np.int32(eos_id), unit.ids) for unit in units]
            if score is not None:
                values: Iterable[np.ndarray] = map(score, texts)
            else:
                values = read_in_turn(streams) if request.adapt else read(ended(streams))
            for sentence_id, (unit, of_tokens) in enumerate(zip(units, values), start=first):
                losses, *entropies = of_tokens.T / math.log(2)
                columns = [unit.sums(losses[: len(unit.ids)])]
                if request.bow_correction:
                    before = np.append(eos_id, unit.ids) == eos_id  # where a word must begin
                    boundaries = np.where(before, 0.0, entropies.pop())
                    columns[0] += np.diff(boundaries[[*unit.starts, len(unit.ids)]])
                columns += [entropy[unit.starts] for entropy in entropies]
                rows = [
                    {
                        "sentence_id": sentence_id,
                        "token_id": token_id,
                        "token": token,
                        **dict(zip(("surprisal", "entropy"), numbers)),
                    }
                    for token_id, (token, *numbers) in enumerate(
                        zip(unit.words, *(column.tolist() for column in columns)), 1
                    )
                ]
                yield rows, totals_of(vocabulary, unit.ids, of_tokens[: len(unit.ids), 0].sum())

        yield of_texts


@functools.lru_cache
def _of_boundaries(vocabulary: Tokenizer) -> Question:
    """Return a question for the tokens before which a word has ended."""
    pieces = vocabulary.pieces
    begins = [piece[:1].isspace() for piece in pieces.spelt]
    for i in (vocabulary.eos_id, vocabulary.unk_id if pieces.always_spaced else None):
        if i is not None:
            begins[i] = True
    return functools.partial(questions.entropies, some=np.array(begins))


def _tokens(vocabulary: Tokenizer, text: str) -> Words:
    """Return the tokens of `text` as words of one token each."""
    ids = vocabulary.encode(text)
    return Words(ids, tuple(vocabulary.words[i] for i in ids), np.arange(len(ids)))
