from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

EOS = "<eos>"
UNK = "<unk>"


class Vocabulary:
    """Words and their ids; immutable.

    Args:
        words: distinct non-empty words without white space; a word's place is its id.

    Attributes:
        words: tuple of str.
        eos_id: int or None. Id of `<eos>`, the end of a line.
        unk_id: int or None. Id of `<unk>`, which stands for every unknown word.

    Raises:
        ValueError: if a word comes twice, is empty or holds white space.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.words: tuple[str, ...] = tuple(words)
        self._ids = {word: i for i, word in enumerate(self.words)}
        for word in self.words:
            if word.split() != [word]:
                raise ValueError(
                    f"`words` must be non-empty and hold no white space. Received: {word!r}."
                )
        if len(self._ids) < len(self.words):
            twice = Counter(self.words).most_common(1)[0][0]
            raise ValueError(f"`words` must be distinct. Received: {twice!r} twice.")
        self.eos_id = self._ids.get(EOS)
        self.unk_id = self._ids.get(UNK)

    @classmethod
    def from_tokens(
        cls,
        tokens: Sequence[str],
        *,
        vocabulary_size: int | None = None,
        min_count: int = 1,
        unknown: bool = False,
    ) -> Vocabulary:
        """Return the vocabulary of `tokens`, the most frequent word first.

        Args:
            tokens: words in reading order; equally frequent words keep it.
            vocabulary_size: int. Largest number of words, `<eos>` and `<unk>` included.
            min_count: int. Words that occur less often become `<unk>`.
            unknown: bool. Whether `<unk>` is needed though no word is cut.
        """
        counts = Counter(tokens)
        counts.pop(EOS, None)
        occurs = counts.pop(UNK, 0)
        kept = [word for word, count in counts.most_common() if count >= min_count]
        unknown = unknown or occurs > 0 or len(kept) < len(counts)
        if vocabulary_size is not None and len(kept) + 1 + unknown > vocabulary_size:
            unknown = True
            kept = kept[: max(0, vocabulary_size - 2)]
        return cls([EOS, *([UNK] if unknown else []), *kept])

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.words)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} words, sha256 {self.sha256[:12]})"

    @property
    def sha256(self) -> str:
        """Hash of the words in their order: equal hashes mean comparable perplexities."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()

    def id(self, word: str) -> int:
        """Return the id of `word`, that of `<unk>` if it is unknown.

        Raises:
            ValueError: if it is unknown and the vocabulary has no `<unk>`.
        """
        found = self._ids.get(word, self.unk_id)
        if found is None:
            raise ValueError(
                f"`word` must be in the vocabulary, which has no {UNK!r}. Received: {word!r}."
            )
        return found

    def word(self, index: int) -> str:
        """Return the word with id `index`."""
        return self.words[index]

    def ids(self, tokens: Iterable[str]) -> np.ndarray:
        """Return the ids of `tokens`, int32 `(num_tokens,)`."""
        get, unk = self._ids.get, self.unk_id
        if unk is None:
            return np.fromiter((self.id(token) for token in tokens), np.int32)
        return np.fromiter((get(token, unk) for token in tokens), np.int32)

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of the words of `text`, each newline an `<eos>`; int32 `(num_tokens,)`."""
        return self.ids(split(text))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`: words between spaces, a newline for each `<eos>`."""
        lines: list[list[str]] = [[]]
        for i in ids:
            if i == self.eos_id:
                lines.append([])
            else:
                lines[-1].append(self.words[int(i)])
        return "\n".join(" ".join(line) for line in lines)

    def save(self, path: str | Path) -> None:
        """Write one word per line, in UTF-8."""
        path = Path(path)
        unfinished = path.with_name(path.name + ".unfinished")
        unfinished.write_text("".join(word + "\n" for word in self.words), "utf-8", newline="\n")
        os.replace(unfinished, path)

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Return the vocabulary that `save` wrote to `path`."""
        return cls(Path(path).read_text("utf-8").removesuffix("\n").split("\n"))


def split(text: str) -> list[str]:
    """Return the words of `text`, `<eos>` for each newline. Only "\\n" ends a line."""
    tokens: list[str] = []
    *lines, rest = text.split("\n")
    for line in lines:
        tokens.extend(line.split())
        tokens.append(EOS)
    tokens.extend(rest.split())
    return tokens
