"""Trees are read, learnt as text and compared by the rules of EVALB."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualnet.rescoring import (
    BracketF1,
    Tree,
    clean,
    linearize,
    parse_tree,
    read_tree_nbest,
    read_trees,
)
from tests.checks import once

pytestmark = once

DOGS = "(S (NP (NNS dogs)) (VP (VBP bark)))"
LABELS = ["S", "NP", "NP-SBJ", "VP", "ADVP", "PRT", "TOP", "SBAR=2"]
TAGS = ["NN", "IN", ",", ".", "``", "-NONE-", "$"]
texts = st.text("abc-=$|XNP'", min_size=1, max_size=3)


def bracketings(words, labels=LABELS):
    """Return a strategy of trees over `words`, each a tree under its tag."""

    def of_span(start, end, depth):
        if end - start == 1 and depth:
            plain = st.just(words[start])
            return plain if depth > 3 else st.one_of(plain, node(start, end, depth))
        return node(start, end, depth)

    @st.composite
    def node(draw, start, end, depth):
        cuts = draw(st.sets(st.integers(start + 1, end - 1))) if end - start > 1 else set()
        ends = [start, *sorted(cuts), end] if depth < 4 else range(start, end + 1)
        children = (draw(of_span(a, b, depth + 1)) for a, b in itertools.pairwise(ends))
        return Tree(draw(st.sampled_from(labels)), tuple(children))

    return of_span(0, len(words), 0)


words = st.lists(st.builds(lambda tag, word: Tree(tag, (word,)), st.sampled_from(TAGS), texts),
                 min_size=1, max_size=6)  # fmt: skip
trees = words.flatmap(bracketings)
pairs = words.flatmap(lambda words: st.tuples(bracketings(words), bracketings(words)))


def retagged(tree, tag):
    if tree.word is not None:
        return Tree(tag, tree.children)
    return Tree(tree.label, tuple(retagged(child, tag) for child in tree.children))


@given(trees)
def test_a_tree_survives_its_linear_form_but_for_its_tags(tree):
    text = linearize(tree)
    assert parse_tree(text, tag="T") == retagged(tree, "T")
    assert linearize(parse_tree(text)) == text
    assert parse_tree(str(tree)) == tree
    assert re.findall(r"(?<!\S)[^\s()]+", text) == [leaf.word for leaf in tree.leaves()]
    assert clean(clean(tree)) == clean(tree)


def test_cleaning_takes_away_traces_functions_and_the_outer_bracket():
    tree = parse_tree(
        "( (S (NP-SBJ-1 (NNP Smith)) (VP (VBD said) (SBAR (-NONE- 0) (S (-NONE- *T*-1))))"
        " (NP=2 (-LRB- -LRB-) (NN x)) (. .)))"
    )
    assert linearize(clean(tree)) == "(S (NP Smith )NP (VP said )VP (NP -LRB- x )NP . )S"
    assert str(clean(parse_tree("(TOP (S (NP (-NONE- *))))"))) == "()"
    assert str(clean(parse_tree("(S1 (NP (NN a)) (VP (VB b)))"))).startswith("(S1 ")  # holds two


@pytest.mark.parametrize(
    "text",
    [
        f"{DOGS}\n{DOGS}\n",
        f"{DOGS} {DOGS}",
        "\ufeff( S(NP(NNS dogs) )( VP\n\t(VBP bark ) ))\r\n\r\n\r\n" + DOGS,
        "(S\n  (NP (NNS dogs))\n  (VP (VBP bark)))\n" * 2,
    ],
)
def test_trees_are_read_however_they_are_spaced(text, tmp_path):
    path = tmp_path / "trees.mrg"
    path.write_text(text, encoding="utf-8")
    assert [str(tree) for tree in read_trees(path)] == [DOGS, DOGS]


def test_white_space_beyond_ascii_is_part_of_a_word(tmp_path):
    space, word = "\u00a0", "\u202f1\u2028000\x85\x1c"
    text = f"(NP (CD {word}) (NNS dogs))"
    (tmp_path / "trees").write_text(text, encoding="utf-8")
    [tree] = read_trees(tmp_path / "trees")
    assert [leaf.word for leaf in tree.leaves()] == [word, "dogs"] and str(tree) == text
    assert parse_tree(text) == tree == Tree("NP", (Tree("CD", (word,)), Tree("NNS", ("dogs",))))
    assert parse_tree(linearize(tree)).leaves()[0].word == word
    (tmp_path / "trees").write_text(f"-1\n{text}\n-2 (NN {space})\n \n{text}", encoding="utf-8")
    first, second = read_tree_nbest(tmp_path / "trees")
    assert [str(tree) for tree, _ in first + second] == [text, f"(NN {space})", text]
    assert BracketF1().statistics(linearize(tree), text).tolist() == [1, 1, 1]


def test_an_outer_bracket_may_lack_its_label_and_a_failed_parse_its_words(tmp_path):
    path = tmp_path / "trees"
    path.write_text(f"( {DOGS})\n(())\n")
    outer, failed = read_trees(path)
    assert (outer.label, str(clean(outer)), clean(failed)) == ("", DOGS, Tree("", ()))
    (tmp_path / "none").write_text("")
    assert not list(read_trees(tmp_path / "none"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{DOGS}\n(S (NP\n(NN a)", "line 2: the bracket that opens here is never closed."),
        (f"{DOGS}\nwords {DOGS}", "line 2: 'words' stands outside of all brackets."),
        ("(NP (DT the)\n(NN))", "line 2: .*the bracket 'NN' of nothing."),
        ("(NP the\ndog)", "line 2: .*'the' beside others in the bracket 'NP'."),
        (b"(S (NN a))\n(S (NN \xff))", "in line 2"),
    ],
)
def test_a_malformed_tree_is_named_with_its_file_and_line(text, message, tmp_path):
    path = tmp_path / "bad.mrg"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=f"bad.mrg.*{message}"):
        list(read_trees(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S (NN a)) (S (NN b))", "must hold one tree. Received: 2 in"),
        ("(S (NP dogs )VP )S", r"in line 1, '\)VP' closes no bracket of its label"),
    ],
)
def test_a_text_that_is_not_one_tree_is_refused(text, message):
    with pytest.raises(ValueError, match=f"`text` .*{message}"):
        parse_tree(text)


A, B, C = "(S (NN a))", "(S (VB a))", "(S (NN b))"


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        (f"{A}\n{B}\n\n{C}\n", (None, None, None)),
        (f"\n\n{A}\n{B}\n \n\n\n{C}", (None, None, None)),
        (f"-1.5 {A}\n-2e0\t{B}\n\n-3 {C}\n", (-1.5, -2, -3)),
        (f"2\tid-1\n-1.5\n{A}\n-2\n(S\n(VB a))\n\n0 b\n\n1\tid-2\n-3\n{C}\n\n", (-1.5, -2, -3)),
    ],
)
def test_n_best_lists_are_read_with_and_without_scores(text, scores, tmp_path):
    path = tmp_path / "kbest"
    path.write_text(text)
    lists = list(read_tree_nbest(path))
    candidates = [candidate for several in lists for candidate in several]
    assert [str(candidate.tree) for candidate in candidates] == [A, B, C]
    assert tuple(candidate.score for candidate in candidates) == scores
    assert len(lists) == 2 + ("0 b" in text)  # a sentence without parses has an empty list


GOLD = "(TOP (S (NP (DT the) (NN dog)) (VP (VBD ran) (ADVP (RB away))) (. .)))"


@pytest.mark.parametrize(
    ("hypothesis", "reference", "expected"),
    [
        (GOLD, GOLD, (4, 4, 4)),
        # TOP counts on neither side, nor do ROOT, S1 and no label.
        (GOLD.replace("TOP", "S1"), GOLD.replace("TOP ", ""), (4, 4, 4)),
        # ADVP and PRT are one; functions are cut off; tags do not count.
        (GOLD.replace("ADVP", "PRT").replace("NP", "NP-SBJ"), GOLD, (4, 4, 4)),
        # The full stop may hang anywhere, since it is deleted first.
        ("(S (NP (DT the) (NN dog)) (VP (VBD ran) (ADVP (RB away)) (. .)))", GOLD, (4, 4, 4)),
        # A wrong label, a missing bracket, a wrong span.
        (GOLD.replace("(NP", "(QP"), GOLD, (3, 4, 4)),
        ("(S (DT the) (NN dog) (VP (VBD ran) (ADVP (RB away))) (. .))", GOLD, (3, 3, 4)),
        # A bracket of deleted words alone is gone: README, 7.1.
        (GOLD, GOLD.replace("(. .)", "(X (. .)) (SBAR (-NONE- 0) (S (-NONE- *T*-1)))"), (4, 4, 4)),
        # n brackets of a label and span against m: README, 7.5.
        ("(NP (NP (NP (NN man))))", "(NP (NP (NN man)))", (2, 3, 2)),
        # A word that one tree alone takes for punctuation stays: README, bug fix of 2006.
        ("(S (NP (NN a)) (POS '))", "(S (NP (NN a)) ('' '))", (2, 2, 2)),
        ("(S (NP (NN a) (POS ')))", "(S (NP (NN a)) ('' '))", (1, 2, 2)),
        # The linear form has the tags of its reference.
        (linearize(parse_tree(GOLD)), GOLD, (4, 4, 4)),
        ("(S (NP the dog )NP (VP ran away . )VP )S", GOLD, (3, 3, 4)),
        # No parse at all misses every bracket.
        ("", GOLD, (0, 0, 4)),
    ],
)
def test_brackets_are_counted_by_the_rules_of_evalb(hypothesis, reference, expected):
    assert tuple(BracketF1().statistics(hypothesis, reference)) == expected


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"equivalent": ()}, (3, 4, 4)),
        ({"labeled": False, "equivalent": ()}, (4, 4, 4)),
        ({"punctuation": ()}, (3, 4, 4)),
        ({"longest": 5}, (4, 4, 4)),
        ({"longest": 4}, (0, 0, 0)),
    ],
)
def test_the_rules_are_parameters(parameters, expected):
    hypothesis = "(S (NP (DT the) (NN dog)) (VP (VBD ran) (PRT (RB away))) (. .))"
    if "punctuation" in parameters:
        hypothesis = "(S (NP (DT the) (NN dog)) (VP (VBD ran) (PRT (RB away)) (. .)))"
    assert tuple(BracketF1(**parameters).statistics(hypothesis, GOLD)) == expected


def evalb(hypothesis, reference):
    """Count as EVALB does: in one pass over the text of each tree, then greedily."""

    def brackets(text):
        found, opened, position = [], [], 0
        for label, tag, word, _ in re.findall(r"\((\S*) (?=\()|\((\S+) ([^()\s]+)\)|(\))", text):
            if word:
                position += tag not in TAGS[2:6]
            elif label:
                opened.append(len(found))
                found.append([label.split("-")[0].split("=")[0], position, None])
            else:
                found[opened.pop()][2] = position
        return [b for b in found if b[1] < b[2] and b[0] != "TOP"]

    ours, theirs = brackets(str(hypothesis)), brackets(str(reference))
    sizes, matched = (len(ours), len(theirs)), 0
    for bracket in theirs:
        for other in ours:
            same = bracket[0] == other[0] or {bracket[0], other[0]} == {"ADVP", "PRT"}
            if same and bracket[1:] == other[1:]:
                ours.remove(other)
                matched += 1
                break
    return matched, *sizes


@given(pairs)
def test_an_independent_count_agrees(pair):
    assert tuple(BracketF1().statistics(*map(str, pair))) == evalb(*pair)
