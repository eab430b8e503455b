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
    """Return the text of each split: one sentence per line, words between spaces.

    PTB's conventions: lower case, numbers are `N`, contractions and punctuation
    stand apart. Every topic is in one split as a whole. Topics quote each other
    (a chapter and its sections are both topics), so that of a paragraph that
    comes again only the first occurrence is kept: nothing in valid or test
    stands in train.
    """
    from pydoc_data.topics import topics

    seen: set[str] = set()
    lines: dict[str, list[str]] = {}
    # The longest first: what is quoted stays in its chapter.
    for topic in sorted(topics, key=lambda topic: (-len(topics[topic]), topic)):
        fresh: list[str] = []
        for paragraph in _paragraphs(topics[topic]):
            if paragraph not in seen:
                seen.add(paragraph)
                fresh.extend(_sentences(paragraph))
        if fresh:
            lines[topic] = fresh
    sizes = {topic: sum(len(line.split()) + 1 for line in found) for topic, found in lines.items()}
    missing = {split: share * sum(sizes.values()) for split, share in SHARES.items()}
    splits: dict[str, list[str]] = {split: [] for split in SHARES}
    # Each topic, the longest first, to the split that lacks most of its share.
    for topic in sorted(lines, key=lambda topic: (-sizes[topic], topic)):
        split = max(missing, key=lambda split: missing[split])
        splits[split].extend(lines[topic])
        missing[split] -= sizes[topic]
    return {split: "".join(line + "\n" for line in found) for split, found in splits.items()}


def _paragraphs(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text):
        rows = [row.strip() for row in block.split("\n")]
        # Rows of punctuation alone underline a title or rule a table.
        rows = [row for row in rows if not re.fullmatch(r"[\W_]*", row)]
        # "::=" stands in grammar rules, which are no English.
        if rows and not any("::=" in row for row in rows):
            rows[0] = re.sub(r"^(?:[*+-]|\d+\.)\s+", "", rows[0])  # the mark of a list
            yield _EMPHASIS.sub("", " ".join(rows)).replace("\u2019", "'")


def _sentences(paragraph: str) -> Iterator[str]:
    for sentence in _SENTENCE.split(paragraph):
        tokens = _TOKEN.findall(sentence.lower())
        if tokens:
            yield " ".join("N" if token[0].isdigit() else token for token in tokens)
