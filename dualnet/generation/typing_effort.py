"""The field's measure of word completion: how many keys it saves."""

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from dualnet._checks import as_texts
from dualnet._fields import documented
from dualnet.builders import LanguageModel
from dualnet.generation.completion import Taught, completer_of
from dualnet.requests import Completing, CompletingArguments
from dualnet.text.pieces import patterns

LETTERS = 3  # numbers of letters, from 0, after which words are looked for


@dataclass(frozen=True)
class Keystrokes:
    """The result of `keystrokes`.

    Attributes:
        characters: int. Characters of the texts: the keys without completion.
        keys: int. Keys with it.
        words: int. Number of words.
        recall: list of `[top_1, top_k]`, for 0, 1 and 2 letters that are typed: the share of the
            words of more letters that were the first of those offered, and one of them.
    """

    characters: int
    keys: int
    words: int
    recall: list[list[float]]

    @property
    def saved(self) -> float:
        """The share of keys that completion saves."""
        return 1 - self.keys / max(self.characters, 1)


@documented(Completing)
def keystrokes(
    model: LanguageModel | Taught, texts: str | list[str], **settings: Unpack[CompletingArguments]
) -> Keystrokes:
    """Count the keys needed to type `texts` with the words that `complete` offers.

    A writer types letter by letter, and takes a word as soon as it is offered, if that saves a key.
    A choice costs one key; it also writes the space that follows the word. Each text begins after
    `<eos>`. A learner reads it, with a newline, when it has been typed.

    Args:
        model: `LanguageModel` with a vocabulary, or a `dualnet.Learner`, which learns.
        texts: str or list of str.
        {arguments}

    Example:
        >>> import dualnet
        >>> model = dualnet.load("dual_lstm.english")
        >>> keystrokes = dualnet.keystrokes(model, "The President of the United States")
        >>> keystrokes.characters, keystrokes.words, round(keystrokes.saved, 1)
        (34, 6, 0.8)
    """
    texts, saved, words = as_texts(texts), 0, 0
    hits = defaultdict(list)
    for text in texts:
        with completer_of(model, settings) as complete:
            for match in re.finditer(patterns()[1], text):
                word, words = match[0], words + 1
                keys = len(word) + (text[match.end() :][:1] == " ")  # that are left to type
                best = 0
                for typed in range(len(word)):
                    if best and typed >= LETTERS:
                        break
                    offered = [one.word for one in complete(text[: match.start() + typed])]
                    hits[typed].append((offered[:1] == [word], word in offered))
                    if word in offered:
                        best = max(best, keys - typed - 1)
                saved += best
        if isinstance(model, Taught):
            model.read(f"{text}\n")
    characters = sum(map(len, texts))
    recall = [np.mean(hits[typed] or [(False, False)], axis=0).tolist() for typed in range(LETTERS)]
    return Keystrokes(characters, characters - saved, words, recall)
