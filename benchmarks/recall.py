"""How well does a learner know the names that it has read?

Usage: python benchmarks/recall.py FILE [--run RUN] [--adapt WEIGHTS ...] [--cache 0 4000]
       [--rate 0.1] [--clipnorm 1] [--times 1 3] [--between 2000]

A learner of each choice of weights and cache reads thirty sentences, each with an invented name of
several tokens, once or several times. Each name then stands in a new sentence: printed is how many
of its tokens but the first are the likeliest, and their mean probability, at once and after the
first `between` tokens of FILE. "none" are fixed weights.
"""

import numpy as np
from options import options_of

import dualnet
from dualnet.builders import questions, reader_of

NUMBER = 30
FACTS = ("keeps bees in", "sells lamps in", "was born in", "mends clocks in", "paints boats in")
NEW = ("Yesterday I had a letter from", "Nobody had seen", "We asked the way of", "I remember")
SYLLABLES = [
    "bar", "dol", "fen", "gru", "hask", "jil", "kor", "lum", "mav", "nith", "orp", "quel", "rys",
    "tov", "ulm", "vash", "wex", "yor", "zan",
]  # fmt: skip


def names() -> list[str]:
    """Return invented names of two words, each of three syllables."""
    random = np.random.default_rng(0)
    words = ["".join(random.choice(SYLLABLES, 3)).title() for _ in range(2 * NUMBER)]
    return [" ".join(pair) for pair in zip(words[::2], words[1::2])]


def later_tokens(vocabulary, beginning: str, name: str) -> tuple[np.ndarray, slice]:
    """Return the ids of a new sentence, and where the tokens of the name but the first are."""
    before = len(vocabulary.encode(beginning))
    ids = vocabulary.encode(f"{beginning} {name}")
    return np.append(vocabulary.eos_id, ids), slice(before + 1, None)


def recall(model, everyone: list[str]) -> tuple[float, float]:
    """Return how many of the later tokens are the likeliest, and their mean probability."""
    found: dict[str, list[float]] = {"first": [], "p": []}
    reader = reader_of(model, questions.ranks)
    for i, name in enumerate(everyone):
        ids, later = later_tokens(model.vocabulary, NEW[i % len(NEW)], name)
        segment = {"tokens": ids[None, :-1], "targets": ids[None, 1:]}
        answer = reader.predict_on_batch({**segment, "states": model.graph.begin(1)})
        found["first"] += (answer["ranks"][0, later] == 0).tolist()
        found["p"] += np.exp(-answer["losses"][0, later]).tolist()
    return float(np.mean(found["first"])), float(np.mean(found["p"]))


def main() -> None:
    options = options_of(
        __doc__, "file", run="dual_lstm.english", adapt=["output_bias", "matrix:16", "connection"],
        cache=[0, 4000], rate=0.1, clipnorm=1.0, times=[1, 3], between=2000,
    )  # fmt: skip
    model, everyone = dualnet.load(options.run), names()
    facts = [f"{name} {FACTS[i % len(FACTS)]} the town.\n" for i, name in enumerate(everyone)]
    other = model.vocabulary.encode(options.file.read_text("utf-8")[: 10 * options.between])
    other = other[: options.between]
    print(f"{options.run}, {NUMBER} names; at once, after {len(other):,} tokens of {options.file}")
    print(f"{'what learns':28} {'times':>5} {'bytes':>9} {'likeliest':>14} {'probability':>14}")
    print(line("none", 0, 0, [recall(model, everyone)] * 2))
    for adapt in options.adapt:
        for size in map(int, options.cache):
            for times in map(int, options.times):
                settings = {"learning_rate": options.rate, "clipnorm": options.clipnorm}
                learner = dualnet.Learner(model, adapt.split("+"), cache=size, **settings)
                for _ in range(times):
                    learner.read("".join(facts))
                found = []
                for text in ([], other):
                    learner.read(text)
                    with learner.taught() as taught:
                        found.append(recall(taught, everyone))
                name = adapt + (f", cache {size:,}" if size else "")
                print(line(name, times, learner.size, found), flush=True)


def line(name, times, size, found) -> str:
    likeliest, p = ("{:.0%} {:.0%}".format(*values) for values in zip(*found))
    return f"{name:28} {times:5} {size:9,} {likeliest:>14} {p:>14}"


if __name__ == "__main__":
    main()
