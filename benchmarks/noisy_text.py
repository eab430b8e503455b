"""Do language models find what was meant by mistyped text?

Usage: DUALNET_DATA=FOLDER_WITH_ptb python benchmarks/noisy_text.py OUTPUT [--epochs 2]
           [--valid 500] [--test 2000] [--candidates 50]
The first sentences of valid and test go through the channel of benchmarks/typing_errors.py. Each
gives the 50 likeliest sentences of the channel and the frequencies of words in train, which the
models then rescore: `lstm` and `dual_lstm` of 200 units, trained here unless OUTPUT has them. The
weights of channel, frequency and models are tuned on valid. Prints the word error rate of test: of
the first candidates, rescored, with models that learn from what they chose, and of the oracle.
"""

import numpy as np
from options import options_of
from typing_errors import likeliest, sources_of, typed

from dualnet import corpora, rescore, runs, training
from dualnet.rescoring import Hypothesis, NBest, compare, tune

SETTINGS = {
    "units": 200, "input_dropout": 0.3, "output_dropout": 0.3, "recurrent_dropout": 0.0, "seed": 1,
}  # fmt: skip
MODELS = ("lstm", "dual_lstm")


def sentences(corpus, split, count):
    """Return the words of the first `count` sentences."""
    words = np.array(corpus.vocabulary.words, object)[corpus.split(split)[: 100 * count]]
    ends = np.flatnonzero(words == "<eos>")[:count]
    return [list(part[1:] if i else part) for i, part in enumerate(np.split(words, ends)[:count])]


def candidates(texts, corpus, random, count):
    """Return a list of `count` candidates for each of `texts`, as typed."""
    counts = np.bincount(corpus.train[:], minlength=len(corpus.vocabulary))
    frequency = dict(
        zip(corpus.vocabulary.words, np.log(counts / counts.sum()).tolist(), strict=True)
    )
    noisy = [typed(words, random) for words in texts]
    meant = sources_of({word for words in noisy for word in words}, corpus.vocabulary.words)
    lists = []
    for number, words in enumerate(noisy):
        choices = [
            [(chance + frequency[word], (word, chance)) for word, chance in meant[string].items()]
            for string in words
        ]
        hypotheses = []
        for score, items in likeliest(choices, count):
            channel = sum(chance for _, chance in items)
            features = {"channel": channel, "frequency": score - channel}
            hypotheses.append(Hypothesis(" ".join(word for word, _ in items), features, score))
        lists.append(NBest(number, tuple(hypotheses)))
    return lists


def main():
    options = options_of(__doc__, "output", epochs=2, valid=500, test=2_000, candidates=50)
    models = {}
    for name in MODELS:
        folder = options.output / name
        if not (folder / "results.json").is_file():
            more = {"resume": True} if (folder / "card.toml").is_file() else SETTINGS
            training.train(name, "ptb", output=folder, **{**more, "epochs": options.epochs})
        models[name] = runs.load(folder)
    corpus = corpora.load("ptb")
    random = np.random.default_rng(0)
    texts = {
        split: sentences(corpus, split, getattr(options, split)) for split in ("valid", "test")
    }
    lists = {
        split: candidates(text, corpus, random, options.candidates) for split, text in texts.items()
    }
    references = {split: [" ".join(words) for words in text] for split, text in texts.items()}

    def report(label, chosen, weights=None, **settings):
        """Rescore, tune on valid, print the figures of test; return these and the weights.

        `weights` choose the hypotheses that models learn from.
        """
        scored = {
            split: rescore(chosen, each, weights=weights or {"base": 1.0}, **settings)
            if chosen else each for split, each in lists.items()
        }  # fmt: skip
        weights = tune(scored["valid"], references["valid"], metric="wer")
        found = compare(scored["test"], references["test"], weights, metric="wer")
        print(f"{label:<28}{found.rescored}", flush=True)
        return found, weights

    found, _ = report("channel and frequency", {})
    print(f"{'first candidate':<28}{found.base}\n{'oracle':<28}{found.oracle}", flush=True)
    tuned = {name: report(name, {name: model})[1] for name, model in models.items()}
    report("both", models)
    for name, model in models.items():
        report(f"{name}, adapting", {name: model}, tuned[name], adapt=True, learning_rate=3e-5)


if __name__ == "__main__":
    main()
