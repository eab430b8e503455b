"""How many hypotheses per second does a language model rescore?

Usage: python benchmarks/rescore.py [--lists 20] [--rounds 5]
`dual_lstm` of 200 units and 10,000 words reads lists of 100 hypotheses of about 20 words, which
differ in up to three places. Four forms take turns, each once unmeasured: each hypothesis alone,
one list at a time, all of them by `dualnet.score`, which pads them to similar lengths but does not
share what is equal, and all lists by `dualnet.rescore`. Prints the median of hypotheses per second,
with the interquartile range, and the ratio to each alone.
"""

import argparse
import time

import numpy as np

import dualnet
from dualnet import zoo
from dualnet.rescoring import Hypothesis, NBest
from dualnet.text import Vocabulary

WORDS = 10_000
HYPOTHESES = 100
ALONE = 100  # hypotheses that are read alone, of all lists


def make_lists(count, random):
    """Return lists of sentences that differ in a few words."""
    share = 1 / np.arange(1, WORDS - 1)  # Zipf's law
    share /= share.sum()
    lists = []
    for number in range(count):
        words = random.choice(WORDS - 2, random.integers(10, 31), p=share)
        hypotheses = []
        for _ in range(HYPOTHESES):
            changed = words.copy()
            places = random.choice(len(words), random.integers(1, 4), replace=False)
            changed[places] = random.choice(WORDS - 2, len(places), p=share)
            hypotheses.append(Hypothesis(" ".join(f"w{word}" for word in changed)))
        lists.append(NBest(number, tuple(hypotheses)))
    return lists


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lists", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    model = zoo.build("dual_lstm", vocabulary_size=WORDS, units=200)
    model.vocabulary = Vocabulary((*(f"w{i}" for i in range(WORDS - 2)), "<unk>", "<eos>"))
    lists = make_lists(options.lists, np.random.default_rng(0))
    every = [each for nbest in lists for each in nbest.hypotheses]
    alone = every[:: max(1, len(every) // ALONE)]
    forms = {
        "each alone": (
            len(alone),
            lambda: [dualnet.rescore(model, [NBest(0, (h,))]) for h in alone],
        ),
        "padded batches": (len(every), lambda: dualnet.score(model, [h.text for h in every])),
        "one list at a time": (len(every), lambda: [dualnet.rescore(model, [n]) for n in lists]),
        "all lists": (len(every), lambda: dualnet.rescore(model, lists)),
    }
    rates = {name: [] for name in forms}
    for round_number in range(options.rounds + 1):
        for name, (count, form) in forms.items():
            began = time.perf_counter()
            form()
            if round_number:
                rates[name].append(count / (time.perf_counter() - began))
    print(f"{'':<20}{'hypotheses per second':>24}{'ratio':>8}")
    for name, each in rates.items():
        low, median, high = np.percentile(each, [25, 50, 75])
        ratio = median / np.median(rates["each alone"])
        print(f"{name:<20}{f'{median:,.0f} ({high - low:,.0f})':>24}{ratio:>8.1f}")


if __name__ == "__main__":
    main()
