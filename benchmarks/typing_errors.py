"""A channel of typing errors, and the sentences that may have gone into it.

Each word of two letters or more is mistyped with a probability of `RATE`: one of four kinds of
error, equally likely, at a place and with a letter that are equally likely, too.
"""

import heapq
import math
from collections import defaultdict

RATE = 0.1
ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_PLACES = {key: (r, c + r / 3) for r, row in enumerate(ROWS) for c, key in enumerate(row)}
NEIGHBOURS = {
    key: [
        other for other, (s, d) in sorted(_PLACES.items())
        if other != key and abs(r - s) <= 1 and abs(c - d) <= 1
    ]
    for key, (r, c) in _PLACES.items()
}  # fmt: skip


def is_typed(word):
    """Return whether `word` can be mistyped: two letters or more, and nothing else."""
    return len(word) > 1 and all(letter in NEIGHBOURS for letter in word)


def errors_of(word):
    """Return the probability of each string that one error makes of `word`."""
    kinds = [
        [word[:i] + word[i + 1 :] for i in range(len(word))],  # a letter left out
        [
            word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(len(word) - 1)
        ],  # two letters swapped
        [
            word[:i] + key + word[i + 1 :] for i in range(len(word)) for key in NEIGHBOURS[word[i]]
        ],  # the key beside
        [
            word[:i] + key + word[i:] for i in range(len(word)) for key in NEIGHBOURS[word[i]]
        ],  # the key beside, too
    ]
    found = defaultdict(float)
    for kind in kinds:
        for typed in kind:
            found[typed] += 1 / len(kinds) / len(kind)
    return dict(found)


def typed(words, random):
    """Return `words` as they come out of the channel."""
    out = []
    for word in words:
        if is_typed(word) and random.random() < RATE:
            strings, probabilities = zip(*errors_of(word).items())
            word = strings[random.choice(len(strings), p=_normal(probabilities))]
        out.append(word)
    return out


def _normal(probabilities):
    total = math.fsum(probabilities)
    return [each / total for each in probabilities]


def sources_of(strings, vocabulary):
    """Return for each of `strings` the words that may be meant, with log P(string | word)."""
    strings, found = {*strings}, defaultdict(dict)
    for word in vocabulary:
        if not is_typed(word):
            if word in strings:
                found[word][word] = 0.0
            continue
        chances = {each: RATE * p for each, p in errors_of(word).items() if each in strings}
        if word in strings:
            chances[word] = chances.get(word, 0.0) + 1 - RATE
        for string, chance in chances.items():
            found[string][word] = math.log(chance)
    return found


def likeliest(choices, count):
    """Return the `count` best ways to take one of each of `choices`, with their sums, best first.

    `choices` has a list of (score, item) for each position; items of one way are a tuple.
    """
    ways = [(0.0, ())]
    for position in choices:
        longer = ((a + b, (*items, item)) for a, items in ways for b, item in position)
        ways = heapq.nlargest(count, longer, key=lambda way: way[0])
    return ways
