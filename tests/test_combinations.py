"""Every pair of choices, one from each of two stations, in some model that is built and used."""

import itertools
import random

import keras
import numpy as np
import pytest

import dualnet
from dualnet.builders import CELLS, language_model
from dualnet.training import Recipe
from tests.checks import UNTRACED, array, assert_same, few_elsewhere, values

pytestmark = [*UNTRACED, pytest.mark.slow]
OUTPUTS = {
    "tied": {},
    "untied": {"tied": False, "output_bias": True},
    "mixture": {"experts": 2, "latent_dropout": 0.2, "latent_dropout_per_expert": True},
    "doc": {"experts": [1, 2], "balance_regularization": 0.01, "output_bias": True},
}
RECIPES = {
    "nadam": {"optimizer": "nadam"},
    "asgd": {"optimizer": "sgd", "averaging": "asgd", "length_deviation": 2.0},
    "adam": {
        "optimizer": "adam", "loss_reduction": "sum", "weight_decay": 1e-3, "averaging": "mean",
        "global_clipnorm": 0.5,
    },
    "sentences": {"optimizer": "sgd", "batching": "sentences"},
}  # fmt: skip
STATIONS = {
    "cell": sorted(CELLS),
    "connection": ["plain", "dual", "dual_without_input"],
    "output": list(OUTPUTS),
    "gate": ["none", "input", "input_and_hidden", "lstm"],
    "recipe": list(RECIPES),
    "evaluation": ["samples", "rms", "cache", "by_sentence"],
}
IMPOSSIBLE = {(("recipe", "sentences"), ("evaluation", "cache"))}  # a cache reaches across them


def rows_of_all_pairs():
    """Return rows, dicts of one choice for each station, which hold every possible pair."""
    draw = random.Random(0)
    left = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(STATIONS, 2)
        for x in STATIONS[a]
        for y in STATIONS[b]
    } - IMPOSSIBLE
    rows = []
    while left:
        # A pair of the longest two stations, while there is one, and the best of random rests.
        pair = min(left, key=lambda pair: (pair[0][0] != "cell", pair[1][0] != "evaluation", pair))
        drawn = [
            {name: draw.choice(choices) for name, choices in STATIONS.items()} | dict(pair)
            for _ in range(300)
        ]
        possible = [row for row in drawn if not IMPOSSIBLE & pairs_of(row)]
        rows.append(max(possible, key=lambda row: len(left & pairs_of(row))))
        left -= pairs_of(rows[-1])
    return rows


def pairs_of(row):
    return set(itertools.combinations(row.items(), 2))


ROWS = rows_of_all_pairs()
# On the others the cell that compiles fastest.
TRIED = few_elsewhere(sorted(ROWS, key=lambda row: row["cell"] != "lstm"), 4)


def built(row, words):
    dual = row["connection"] != "plain"
    output = dict(OUTPUTS[row["output"]])
    if row["output"] == "doc" and dual:
        output["experts"] = [1, 0, 2]
    choices = {"cell": row["cell"], "connection": row["connection"], **output}
    if row["cell"] == "mogrifier_lstm":
        choices["rounds"] = 2
    padded = row["recipe"] == "sentences"
    return language_model(words, units=4, input_dropout=0.2, padded=padded, **choices)


def trained(model, row, corpus):
    """Train a step by the recipe; return the weights before."""
    recipe = Recipe(batch_size=2, sequence_length=3, **RECIPES[row["recipe"]])
    if recipe.batching == "sentences":
        data = corpus.sentence_batches("train", batch_size=2)
    else:
        data = corpus.batches(
            "train", batch_size=2, sequence_length=3, length_deviation=recipe.length_deviation
        )
    before = values(model)
    model.loss_reduction = recipe.loss_reduction
    optimizer = recipe.make_optimizer()
    model.compile(optimizer=optimizer, jit_compile=False)
    optimizer.averages_on = recipe.averaging != "none"
    if recipe.batching == "sentences":  # each from the zero state, which `fit` alone knows
        losses = model.fit(data, steps_per_epoch=1, verbose=0).history["loss"]
    else:
        losses = model.train_on_batch(*data[0])
    assert np.all(np.isfinite(losses))
    return before


def evaluated(model, row, corpus):
    tokens = corpus.test[:7]
    how = row["evaluation"]
    if how == "rms":
        statistics = dualnet.gradient_statistics(
            model, corpus.train[:9], batch_size=2, sequence_length=3
        )
        return dualnet.dynamic_evaluation(
            model, tokens, rule=how, sequence_length=3, statistics=statistics
        )
    if how == "cache":
        return dualnet.evaluate(dualnet.with_cache(model, size=4), tokens)
    if how == "samples":
        return dualnet.evaluate(model, tokens, mc_dropout_samples=2)
    return dualnet.evaluate(model, tokens, by_sentence=how == "by_sentence")


@pytest.mark.parametrize("row", TRIED, ids=["-".join(row.values()) for row in TRIED])
def test_a_combination_builds_trains_a_step_evaluates_saves_and_loads(row, corpus, tmp_path):
    model = built(row, len(corpus.vocabulary))
    if row["gate"] != "none":
        model = dualnet.with_gate(model, units=3, gate=row["gate"])
    model.vocabulary = corpus.vocabulary
    before = trained(model, row, corpus)
    moved = [
        weight.path
        for weight, old in zip(model.weights, before)
        if not np.array_equal(keras.ops.convert_to_numpy(weight), old)
    ]
    assert moved
    if row["gate"] != "none":
        assert all(path.startswith("gate") for path in moved)

    kept = values(model)
    assert 1 < evaluated(model, row, corpus).perplexity < 100
    assert_same(values(model), kept)

    model.save(tmp_path / "model.keras")
    again = dualnet.load(tmp_path / "model.keras")
    tokens = corpus.test[None, :4]
    np.testing.assert_allclose(array(again(tokens)), array(model(tokens)), rtol=1e-6, atol=1e-6)
