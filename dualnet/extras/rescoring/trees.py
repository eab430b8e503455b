"""Bracketed trees: read from files, and written as the text that a language model learns.

Source of the linear form: Choe and Charniak, 2016, *Parsing as Language Modeling*,
https://aclanthology.org/D16-1257.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from typing import NamedTuple

from dualnet._checks import ArgumentError, StrPath
from dualnet.extras.rescoring.lists import SPACES, words_of
from dualnet.text.files import lines

TAG = "XX"  # of a word whose own the linear form has dropped
TRACE = "-NONE-"
ROOTS = ("", "TOP", "ROOT", "S1")
_TOKEN = re.compile(r"[()]|[^\s()]+", re.ASCII)
_CLOSING = re.compile(r"(?:^|\s)\)[^\s()]", re.ASCII)  # of the linear form alone
Line = tuple[int, str]


@dataclass(frozen=True)
class Tree:
    """A constituent, or a word under its tag.

    `str(tree)` is the tree in brackets, on one line.

    Args:
        label: str. The category, or the tag of the word; "" for the outer bracket of a treebank.
        children: tuple of `Tree`, or of one word.

    Raises:
        ValueError: if a word is not alone in its bracket, or a bracket with a label is empty.

    Example:

    >>> from dualnet.rescoring import Tree
    >>> noun = Tree("NN", ("dog",))
    >>> print(Tree("NP", (Tree("DT", ("the",)), noun)))
    (NP (DT the) (NN dog))
    """

    label: str
    children: tuple[Tree | str, ...]

    def __post_init__(self) -> None:
        if self.word is not None and len(self.children) > 1:
            raise ArgumentError(
                "children",
                f"must be trees, or one word. Received: {self.word!r} beside others in the "
                f"bracket {self.label!r}.",
                " Give each word a bracket with its tag, as in (NN dog).",
            )
        if not self.children and self.label:
            raise ArgumentError(
                "children", f"must not be empty. Received: the bracket {self.label!r} of nothing."
            )

    def __str__(self) -> str:
        return f"({' '.join([self.label, *map(str, self.children)])})"

    @property
    def word(self) -> str | None:
        """The word, if this is a word under its tag."""
        return next((child for child in self.children if isinstance(child, str)), None)

    @property
    def trees(self) -> tuple[Tree, ...]:
        """The children that are trees."""
        return tuple(child for child in self.children if isinstance(child, Tree))

    def leaves(self) -> list[Tree]:
        """Return the words in reading order, each under its tag."""
        return [self] if self.word is not None else list(chain(*(t.leaves() for t in self.trees)))


class Candidate(NamedTuple):
    """A tree of an n-best list, with its score if the list has one.

    Example:

    >>> from dualnet.rescoring import Candidate, parse_tree
    >>> Candidate(parse_tree("(NP (NN dogs))"), score=-2.5).score
    -2.5
    """

    tree: Tree
    score: float | None


def read_trees(path: StrPath) -> Iterator[Tree]:
    """Read bracketed trees, such as those of the Penn Treebank, one after the other.

    A tree may span several lines. Brackets may be spaced in any way; the outer one may lack its
    label. White space of ASCII separates; a no-break space is part of a word, as in EVALB.

    Args:
        path: a file in UTF-8.

    Yields:
        Each `Tree`, as it is read.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is not one of trees; the message names the file and the line.

    Example:

    >>> import pathlib, tempfile
    >>> from dualnet.rescoring import read_trees
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "wsj_0001.mrg")
    ...     _ = path.write_text("( (S\\n    (NP (NNS dogs))\\n    (VP (VBP bark)) ))\\n")
    ...     [tree] = read_trees(path)
    >>> str(tree)
    '( (S (NP (NNS dogs)) (VP (VBP bark))))'
    """
    return _trees(_tokens(_numbered(path)), os.fspath(path))


def read_tree_nbest(path: StrPath) -> Iterator[list[Candidate]]:
    """Read n-best lists of bracketed trees, those of one sentence after the other.

    A blank line stands between sentences. A tree may have its score before it, on the same line
    or on the one above. The first may have the number of trees and the name of its sentence
    before it, as the parser of Charniak and Johnson writes them.

    Args:
        path: a file in UTF-8.

    Yields:
        A list of `Candidate` for each sentence.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is not such a list; the message names the file and the line.

    Example:

    >>> import pathlib, tempfile
    >>> from dualnet.rescoring import read_tree_nbest
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "kbest.txt")
    ...     _ = path.write_text("2 sentence-1\\n-1.5\\n(NP (NN fish))\\n-2\\n(VP (VB fish))\\n\\n")
    ...     [candidates] = read_tree_nbest(path)
    >>> [(candidate.score, str(candidate.tree)) for candidate in candidates]
    [(-1.5, '(NP (NN fish))'), (-2.0, '(VP (VB fish))')]
    """
    source = os.fspath(path)
    groups = groupby(_numbered(path), key=lambda line: bool(line[1].strip(SPACES)))
    for sentence in (list(group) for is_text, group in groups if is_text):
        tokens = [*_tokens(sentence)]
        if len(tokens) > 1 and "(" not in (tokens[0][1], tokens[1][1]):
            tokens = tokens[2:]  # without the number of trees and the name of the sentence
        yield [
            Candidate(tree, _score(words, source, line))
            for tree, line, words in _read(tokens, source)
        ]


def parse_tree(text: str, *, tag: str = TAG) -> Tree:
    """Return the one tree that `text` holds, in brackets or in the linear form.

    Args:
        text: str. A tree in brackets, or one written by `linearize`.
        tag: str. The tag of a word that has none, which is each one in the linear form.

    Raises:
        ValueError: if `text` is not one tree.

    Example:

    >>> from dualnet.rescoring import parse_tree
    >>> print(parse_tree("(S (NP dogs )NP (VP bark )VP )S"))
    (S (NP (XX dogs)) (VP (XX bark)))
    >>> parse_tree("(S (NP (NNS dogs)) (VP (VBP bark)))").leaves()[1]
    Tree(label='VBP', children=('bark',))
    """
    numbered = enumerate(text.split("\n"), start=1)
    is_linear = "(" not in text or _CLOSING.search(text) is not None
    tokens = _expanded(numbered, tag) if is_linear else _tokens(numbered)
    trees = [*_trees(tokens, "text")]
    if len(trees) != 1:
        raise ArgumentError("text", f"must hold one tree. Received: {len(trees)} in {text!r}.")
    return trees[0]


def linearize(tree: Tree) -> str:
    """Return a tree as the text that a language model learns: `(X … )X`, without tags.

    A constituent is opened by `(X` and closed by `)X`. The tags of words are dropped; `parse_tree`
    is the way back. `clean` first takes away what belongs to the annotation alone.

    Example:

    >>> from dualnet.rescoring import linearize, parse_tree
    >>> linearize(parse_tree("(S (NP (DT the) (NN dog)) (VP (VBZ barks)))"))
    '(S (NP the dog )NP (VP barks )VP )S'
    """
    if tree.word is not None:
        return tree.word
    return " ".join([f"({tree.label}", *map(linearize, tree.trees), f"){tree.label}"])


def clean(tree: Tree) -> Tree:
    """Return `tree` as parsers write it: without traces, functions and the outer bracket.

    - Traces (`-NONE-`) go, and constituents that hold nothing else.
    - Labels end before their first `-` or `=`: NP-SBJ-1 is NP.
    - An outer bracket without a label, or of the label TOP, ROOT or S1, goes if it holds one tree.

    Example:

    >>> from dualnet.rescoring import clean, parse_tree
    >>> print(clean(parse_tree("( (S (NP-SBJ-1 (NNS dogs)) (VP (VBP bark) (NP (-NONE- *)))))")))
    (S (NP (NNS dogs)) (VP (VBP bark)))
    """
    tree = _without_annotation(tree) or Tree("", ())
    while tree.label in ROOTS and len(tree.trees) == 1:
        (tree,) = tree.trees
    return tree


def category(label: str) -> str:
    """Return a label without its functions; one that begins with a dash has none."""
    return re.split(r"(?<!^)[-=]", label, maxsplit=1)[0]


def _without_annotation(tree: Tree) -> Tree | None:
    if tree.word is not None:
        return None if tree.label == TRACE else tree
    children = tuple(filter(None, map(_without_annotation, tree.trees)))
    return Tree(category(tree.label), children) if children else None


def _numbered(path: StrPath) -> Iterator[Line]:
    return ((line.number, line.text) for line in lines(path))


def _tokens(lines: Iterable[Line]) -> Iterator[Line]:
    """Return the brackets, labels and words of trees in brackets, each with its line."""
    return ((number, token) for number, line in lines for token in _TOKEN.findall(line))


def _expanded(lines: Iterable[Line], tag: str) -> Iterator[Line]:
    """Yield the tokens of trees in the linear form, as if they stood in brackets."""
    labels = []
    for number, line in lines:
        for token in words_of(line):
            if token.startswith("("):
                labels.append(token[1:])
                pieces = ["(", token[1:]]
            elif token.startswith(")"):
                if not labels or labels.pop() != token[1:]:
                    raise _malformed("text", number, f"{token!r} closes no bracket of its label.")
                pieces = [")"]
            else:
                pieces = ["(", tag, token, ")"]
            yield from ((number, piece) for piece in pieces)


def _trees(tokens: Iterable[Line], source: str) -> Iterator[Tree]:
    """Yield each tree; raise `ArgumentError` for words before it. `source` is as for `_read`."""
    for tree, line, before in _read(tokens, source):
        if before:
            raise _outside(source, line, before[0])
        yield tree


def _read(tokens: Iterable[Line], source: str) -> Iterator[tuple[Tree, int, list[str]]]:
    """Yield each tree, the line in which it begins, and the words that stand before it.

    `source` is the file, or "text".
    """
    opened: list[tuple[int, list[Tree | str]]] = []  # brackets: the line, label and children
    before = []
    line = 0
    for line, token in tokens:
        if token == "(":
            opened.append((line, []))
        elif not opened:
            before.append(token)
        elif token != ")":
            opened[-1][1].append(token)
        else:
            start, children = opened.pop()
            has_label = bool(children) and isinstance(children[0], str)
            label = str(children.pop(0)) if has_label else ""
            try:
                tree = Tree(label, tuple(children))
            except ArgumentError as error:
                raise _malformed(source, line, str(error)) from None
            if opened:
                opened[-1][1].append(tree)
            else:
                yield tree, start, before
                before = []
    if opened:
        raise _malformed(source, opened[0][0], "the bracket that opens here is never closed.")
    if before:
        raise _outside(source, line, before[0])


def _score(words: list[str], source: str, line: int) -> float | None:
    try:
        return float(" ".join(words)) if words else None
    except ValueError:
        raise _malformed(source, line, f"{' '.join(words)!r} before a tree is no score.") from None


def _outside(source: str, line: int, word: str) -> ArgumentError:
    return _malformed(source, line, f"{word!r} stands outside of all brackets.")


def _malformed(source: str, line: int, reason: str) -> ArgumentError:
    if source == "text":
        return ArgumentError("text", f"must hold one tree. Received: in line {line}, {reason}")
    return ArgumentError("path", f"must hold bracketed trees. {source}, line {line}: {reason}")
