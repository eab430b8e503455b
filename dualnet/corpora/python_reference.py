"""The embedded corpus: the prose of CPython's own language reference.

CPython ships its reference as plain text (`pydoc_data.topics`, the source of
`help()`), so the text is on every machine and none of it is copied here. What
comes out differs a little between Python versions: results name the hash.
"""

import re
from collections.abc import Iterator

SHARES = {"train": 0.8, "valid": 0.1, "test": 0.1}

MARKER = re.compile(r"(?:[*•+-]|\d+\.|\[\d+\])\s+")  # opens an item of a list, or a footnote
NOT_PROSE = re.compile(r"\s*(?:[|+][-=| ]|>>>|-\[)|.*::=")  # a line of a table, session, grammar
PROSE = re.compile(r"[\"'(*<“‘]*[A-Za-z_].*[.:;?!,)\"”]")
SIGNATURE = re.compile(r"(?:[a-z]+ )*[\w.]+\(")  # `class object(...)`; prose quotes its code
VERSION_NOTE = re.compile(
    r"(?:Changed|New|Added|Deprecated)[\w ,]* (?:in|since) version [\d.]*\d[:.]?"
)
LABEL = re.compile(r"(?:CPython implementation detail|Note|See also|Warning|Hint):\s*")
FOOTNOTE = re.compile(r"\s*\[\d+\]")
QUOTED = re.compile(r'"+([^"]*)"+')  # code
NAME = re.compile(r"@?([A-Za-z_][\w.]*?)(?:\(\))?")  # `len`, `len()`, `object.__len__()`
WORDS = re.compile(r"[A-Za-z][a-z'-]*(?: [A-Za-z][a-z'-]*)*")
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,.]*(?<=\d)(?![\w.]*\w)")
SENTENCE_END = re.compile(r"""(?<=[.!?])['")]*\s+(?=["'(]*[A-Z<_])""")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|resp)\.(?!\w)")
SINGLE_QUOTED = re.compile(r"(?<!\w)'([^']*)'(?!\w)")
BRACKETS = re.compile(r"[()\[\]{}\"“”]")
PUNCTUATION = re.compile(r"[,;:!?…—–/]|\.(?=[\s.]|$)|(?<=\s)[-']+(?=\s)")
CONTRACTION = re.compile(r"(?<=[a-zN])('s|'re|'ve|'ll|'d|'m|n't|(?<=s)')(?![\w'])")
TOKEN = re.compile(r"<code>|N|n't|'\w*|(?:e\.g|i\.e|etc|vs|cf|resp)\.|[a-zN_]\w*(?:[-.']\w+)*")
LEAST_WORDS = 4  # per sentence: shorter ones are labels such as "For example:"


def split_texts() -> dict[str, str]:
    """Return the text of "train", "valid" and "test", one sentence a line.

    Every topic stands wholly in one split. Topics of `help()` quote each other
    (all of `if` stands in `compound` again), and a test split that repeats the
    training text would measure memory: each paragraph is kept once, in the
    shortest topic that has it.
    """
    from pydoc_data.topics import topics  # here: half a megabyte

    seen: set[str] = set()
    texts = {}
    for name in sorted(topics, key=lambda name: (len(topics[name]), name)):
        lines = []
        for paragraph in _paragraphs(topics[name]):
            if paragraph not in seen:
                seen.add(paragraph)
                lines += _sentences(paragraph)
        texts[name] = "".join(line + "\n" for line in lines)
    sizes = {name: len(text.split()) for name, text in texts.items() if text}
    return {
        split: "".join(texts[name] for name in sorted(names))
        for split, names in _assign(sizes).items()
    }


def _assign(sizes: dict[str, int]) -> dict[str, list[str]]:
    """Return the topics of each split, from the largest to the smallest.

    A topic that would fill a third of the test split goes to train. The others
    are dealt out by size, each to the split that lacks most of its share, so
    that all splits get long and short topics.
    """
    total = sum(sizes.values())
    needs = {split: share * total for split, share in SHARES.items()}
    splits: dict[str, list[str]] = {split: [] for split in SHARES}
    ordered = sorted(sizes, key=lambda name: (-sizes[name], name))
    large = [name for name in ordered if sizes[name] > needs["test"] / 3]
    splits["train"] += large
    needs["train"] -= sum(sizes[name] for name in large)
    missing = dict(needs)
    for name in ordered[len(large) :]:
        split = max(missing, key=lambda split: missing[split] / max(needs[split], 1))
        splits[split].append(name)
        missing[split] -= sizes[name]
    return splits


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the running text of a topic, each paragraph on one line.

    Left out: headings, tables, grammar, signatures and code. The text is the
    output of Sphinx's text writer: code is indented by 3 after a paragraph
    that ends in a colon, notes and list items by 2, definitions by 3.
    """
    code_indent = None  # text this deep is code
    for block in re.split(r"\n[ \t]*\n", text):
        lines = [line.rstrip() for line in block.split("\n") if line.strip()]
        if not lines:
            continue
        if code_indent is not None and _indent(lines[0]) >= code_indent:
            continue
        code_indent = None
        if any(NOT_PROSE.match(line) for line in lines):
            continue
        for indent, paragraph in _items(lines):
            if paragraph.endswith(":") and not LABEL.fullmatch(paragraph):
                code_indent = indent + 3
            else:
                code_indent = None
            if PROSE.fullmatch(paragraph) and not SIGNATURE.match(paragraph):
                yield paragraph


def _items(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield `(indent, text)` of each list item, definition and paragraph of a block."""
    indent, parts = -1, []
    for line in lines:
        words = line.strip()
        if len(words) > 2 and re.fullmatch(r"([*=\-~^\"#])\1+", words):
            parts = []  # the line before was a heading
            continue
        marker = MARKER.match(words)
        if marker or _indent(line) != indent:
            if parts:
                yield indent, _join(parts)
            parts = []
            indent = _indent(line) + (marker.end() if marker else 0)
        parts.append(words[marker.end() :] if marker else words)
    if parts:
        yield indent, _join(parts)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _join(parts: list[str]) -> str:
    # A line that ends in a hyphen was broken inside a word.
    return re.sub(r"(?<=\w)- (?!and |or )", "-", " ".join(parts))


def _sentences(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph as Penn Treebank words, in lower case.

    As there, numbers are N, punctuation is gone and `'s` and `n't` are words.
    Quoted code is read as its name, or is `<code>`. A sentence with anything
    else in it, such as a bare formula, is left out.
    """
    text = re.sub(r"‘([^’]*)’(?!\w)", r"\1", paragraph)
    text = text.replace("’", "'").replace("*", "")
    text = VERSION_NOTE.sub("", LABEL.sub("", text))
    text = FOOTNOTE.sub("", text)
    text = QUOTED.sub(_inline, text)
    for sentence in SENTENCE_END.split(text):
        if "://" in sentence:
            continue
        sentence = NUMBER.sub("0", sentence).lower()
        sentence = re.sub(r"(?<![\w.])0(?![\w.]*\w)", "N", sentence)
        sentence = SINGLE_QUOTED.sub(r"\1", BRACKETS.sub(" ", sentence))
        sentence = ABBREVIATION.sub("\\1\0", sentence)  # keeps its point from the next line
        sentence = PUNCTUATION.sub(" ", sentence).replace("\0", ".")
        sentence = re.sub(r"\bcannot\b", "can not", CONTRACTION.sub(r" \1", sentence))
        tokens = sentence.split()
        if len(tokens) >= LEAST_WORDS:
            bad = [t for t in tokens if not TOKEN.fullmatch(t)]
            if bad:
                BAD.append((bad, " ".join(tokens)))
            else:
                yield " ".join(tokens)

BAD = []

def _inline(found: re.Match) -> str:
    """Return quoted code as it is read: a name or words as such, else `<code>`."""
    quoted = found[1].strip()
    name = NAME.fullmatch(quoted)
    if name:
        return name[1]
    if WORDS.fullmatch(quoted):
        return quoted
    if NUMBER.fullmatch(quoted):
        return "0"
    return "<code>"
