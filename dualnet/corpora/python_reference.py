"""The embedded corpus: the language reference that CPython ships as text."""

import functools
import re
from collections.abc import Iterator

SHARES = {"train": 0.8, "valid": 0.1, "test": 0.1}

_TOKEN = re.compile(
    r"n't\b|'(?:s|re|ve|ll|d|m)\b"  # it 's, is n't
    r"|\d(?:[\w.]*\w)?"  # a number
    r"|[^\W\d]+?(?=n't\b)|[^\W\d]\w*(?:[-.]\w+)*"  # a word, or a name such as a.b
    r"|[^\w\s]"  # a punctuation mark
)
_EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}(?=[^\s*])|(?<=[^\s*])\*{1,2}(?![\w*])")
_SENTENCE = re.compile(r"""(?<=[.?!:])["')]*\s+(?=["'(A-Z])""")


@functools.cache
def split_texts() -> dict[str, str]:
    """Return the text of each split: one sentence per line, words separated by spaces.

    The conventions are PTB's: lower case, `N` for numbers, contractions and punctuation
    apart. No topic is divided between splits. Topics quote each other (a chapter and its
    sections are both topics), so only the first occurrence of a paragraph is kept: nothing
    in valid or test occurs in train.

    Example:

    >>> from dualnet.corpora.python_reference import split_texts
    >>> sorted(split_texts())
    ['test', 'train', 'valid']
    """
    from pydoc_data.topics import topics

    seen = set()
    lines = {}
    # Longest first, so that a chapter keeps the paragraphs that other topics quote.
    for topic in sorted(topics, key=lambda topic: (-len(topics[topic]), topic)):
        paragraphs = dict.fromkeys(_paragraphs(topics[topic]))
        fresh = [paragraph for paragraph in paragraphs if paragraph not in seen]
        seen.update(fresh)
        lines[topic] = [sentence for paragraph in fresh for sentence in _sentences(paragraph)]
    sizes = {topic: sum(len(line.split()) + 1 for line in lines[topic]) for topic in lines}
    missing = {split: share * sum(sizes.values()) for split, share in SHARES.items()}
    splits = dict.fromkeys(SHARES, "")
    # Assign each topic, longest first, to the split that lacks most of its share.
    for topic in sorted(lines, key=lambda topic: (-sizes[topic], topic)):
        split = max(missing, key=missing.__getitem__)
        splits[split] += "".join(f"{line}\n" for line in lines[topic])
        missing[split] -= sizes[topic]
    return splits


def _paragraphs(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text):
        rows = [row.strip() for row in block.split("\n")]
        # Rows of punctuation underline a title or rule a table.
        rows = [row for row in rows if not re.fullmatch(r"[\W_]*", row)]
        # "::=" marks grammar rules, which are not English.
        if rows and not any("::=" in row for row in rows):
            rows[0] = re.sub(r"^(?:[*+-]|\d+\.)\s+", "", rows[0])  # bullet or number
            yield _EMPHASIS.sub("", " ".join(rows)).replace("\u2019", "'")


def _sentences(paragraph: str) -> Iterator[str]:
    for sentence in _SENTENCE.split(paragraph):
        tokens = _TOKEN.findall(sentence.lower())
        if tokens:
            yield " ".join("N" if token[0].isdigit() else token for token in tokens)
