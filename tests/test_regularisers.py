"""What the papers add to the loss, drop out, or start from; and the stations of the builder."""

import itertools
import math
import re

import keras
import numpy as np
import pytest
from keras import ops

from dualnet.builders import CELLS, weight_names
from dualnet.builders.functional import language_model
from dualnet.layers import (
    ActivationRegularization,
    EmbeddingDropout,
    LockedDropout,
    PastDecode,
    StepDropout,
)
from tests import reference
from tests.checks import (
    array,
    assert_close,
    assert_same,
    few_elsewhere,
    gradients,
    nll,
    normal,
    once,
    randomise,
    total,
)

BATCH, TIME, UNITS, WORDS = 3, 5, 4, 7


def some_tokens(rng, batch=BATCH, time=TIME):
    return rng.integers(0, WORDS, (batch, time)).astype("int32")


# --- embedding dropout


@pytest.mark.parametrize("per_row", [True, False])
def test_embedding_dropout_drops_a_word_wherever_it_stands(per_row):
    tokens = np.tile(np.arange(5000, dtype="int32"), (4, 2))  # every word twice in each row
    layer = EmbeddingDropout(0.3, vocabulary_size=5000, per_row=per_row, seed=1)
    ones = np.ones((4, 10_000, 2), "float32")
    dropped = array(layer([tokens, ones], training=True))
    np.testing.assert_array_equal(dropped[..., 0], dropped[..., 1])  # the whole vector
    np.testing.assert_array_equal(dropped[:, :5000], dropped[:, 5000:])  # each time it comes
    assert abs((dropped == 0).mean() - 0.3) < 0.03
    np.testing.assert_allclose(np.unique(dropped), [0, 1 / 0.7], rtol=1e-6)
    same_in_all_rows = np.array_equal(dropped, np.repeat(dropped[:1], 4, axis=0))
    assert same_in_all_rows == (not per_row)
    assert not np.array_equal(dropped, array(layer([tokens, ones], training=True)))
    np.testing.assert_array_equal(array(layer([tokens, ones])), ones)


# --- AR and TAR


def test_activation_penalties_match_the_paper(rng):
    dropped, raw = normal(rng, BATCH, TIME, UNITS), normal(rng, BATCH, TIME, UNITS)
    layer = ActivationRegularization(activation=2.0, temporal=0.5)

    def wanted(start=0):
        h = raw[:, start:]
        return 2 * np.mean(dropped[:, start:] ** 2) + 0.5 * np.mean((h[:, 1:] - h[:, :-1]) ** 2)

    np.testing.assert_array_equal(array(layer([dropped, raw], training=True)), dropped)
    np.testing.assert_allclose(total(layer.losses), wanted(), rtol=1e-5)
    layer([dropped, raw], training=False)
    assert total(layer.losses) == 0
    layer([dropped[:, :1], raw[:, :1]], training=True)  # one step: nothing to compare
    np.testing.assert_allclose(total(layer.losses), 2 * np.mean(dropped[:, :1] ** 2), rtol=1e-5)
    mask = np.tile([False, False, True, True, True], (BATCH, 1))  # padding does not count
    layer([dropped, raw], mask=[mask, mask], training=True)
    np.testing.assert_allclose(total(layer.losses), wanted(start=2), rtol=1e-5)


# --- past decode


def test_past_decode_and_its_gradients_match_the_paper(rng):
    embedding = keras.layers.Embedding(WORDS, UNITS)
    layer = PastDecode(0.3, tied_to=embedding)
    tokens, logits = some_tokens(rng), normal(rng, BATCH, TIME, WORDS)
    tokens[0, :2] = -1  # padding
    layer([tokens, logits])
    randomise(layer, rng)

    def wanted(E, W, b, b2):
        r = reference.softmax(np.tanh(reference.softmax(logits) @ E @ W + b) @ E.T + b2)
        right = np.take_along_axis(r, np.maximum(tokens, 0)[..., None], axis=-1)[..., 0]
        return 0.3 * -np.log(right[tokens >= 0]).mean()

    weights = [embedding.embeddings, layer.kernel, layer.bias, layer.output_bias]
    start = [array(weight).astype("float64") for weight in weights]
    np.testing.assert_array_equal(array(layer([tokens, logits], training=True)), logits)
    np.testing.assert_allclose(total(layer.losses), wanted(*start), rtol=1e-5)

    def scalar():
        return 0.3 * layer.past_loss(ops.convert_to_tensor(tokens), ops.convert_to_tensor(logits))

    slopes = reference.differences(wanted, start)
    assert_close(gradients(scalar, weights), slopes, rtol=1e-3, atol=1e-5)
    layer([tokens, logits], training=False)
    assert total(layer.losses) == 0


# --- in a model


def a_model(**arguments):
    return language_model(WORDS, units=UNITS, **arguments)


def loss_of(model, tokens, targets, training=True):
    """Return the loss of one step, by the model's own way."""
    logits = model(tokens, training=training)
    return float(array(model.compute_loss(tokens, targets, logits, training=training)))


def test_the_sum_over_time_is_the_mean_times_the_steps(rng):
    model, tokens, targets = a_model(), some_tokens(rng), some_tokens(rng)
    mean = loss_of(model, tokens, targets)
    model.loss_reduction = "sum"
    np.testing.assert_allclose(loss_of(model, tokens, targets), TIME * mean, rtol=1e-5)
    again = type(model).from_config(model.get_config())
    assert again.loss_reduction == "sum"


def test_fraternal_dropout_trains_on_two_readings_and_their_distance_and_evaluates_once(rng):
    arguments = {"output_dropout": 0.5, "fraternal_regularization": 0.3}
    model, tokens, targets = a_model(**arguments), some_tokens(rng), some_tokens(rng)
    randomise(model.core, rng)
    step = {"tokens": tokens}
    model.training_rows.resize(BATCH)
    readings = model(step, training=True)
    found = model.compute_loss(step, targets, readings)
    first, second = array(readings["logits"]), array(readings["second_logits"])
    assert not np.allclose(first, second)
    both = [nll(logits, targets) for logits in (first, second)]
    wanted = np.mean(both) + 0.3 * np.mean((first - second) ** 2)
    np.testing.assert_allclose(float(array(found)), wanted, rtol=1e-5)
    model.compile()
    loss = model.evaluate(tokens, targets, batch_size=BATCH, verbose=0)[0]
    np.testing.assert_allclose(loss, nll(model(tokens), targets).mean(), rtol=1e-5)


PENALTIES = {
    "activation_l2": 0.03,
    "activation_regularization": 0.7,
    "temporal_activation_regularization": 0.5,
    "balance_regularization": 0.4,
    "past_decode_regularization": 0.3,
    "fraternal_regularization": 0.6,
}


def penalised_loss(tokens, targets, weights, penalties):
    """Return the loss of a step without dropout, in which both fraternal readings are equal."""
    weights = {name.removeprefix("recurrence_1/"): weight for name, weight in weights.items()}
    E = weights["embedding/embeddings"]
    _, _, (h,) = reference.language_model(tokens, weights)
    output = {name.removeprefix("output/"): weight for name, weight in weights.items()}
    p = reference.mixture([h], {**output, "embeddings": E}, [2])
    used = reference.softmax(h @ output["prior_kernel"]).sum(axis=1)
    terms = {
        "activation_l2": np.sum(h**2) / BATCH,
        "activation_regularization": np.mean(h**2),
        "temporal_activation_regularization": np.mean((h[:, 1:] - h[:, :-1]) ** 2),
        "balance_regularization": np.var(used, ddof=1) / used.mean() ** 2,  # of two experts
        "fraternal_regularization": 0.0,
    }
    if "past_decode_regularization" in penalties:
        v = np.tanh(p @ E @ weights["past_decode/kernel"] + weights["past_decode/bias"])
        past = v @ E.T + weights["past_decode/output_bias"]
        terms["past_decode_regularization"] = nll(past, tokens).mean()
    return nll(np.log(p), targets).mean() + sum(
        factor * terms[name] for name, factor in penalties.items()
    )


@once
@pytest.mark.slow
@pytest.mark.parametrize("pair", list(itertools.combinations(PENALTIES, 2)), ids="-".join)
def test_each_of_two_penalties_counts_once_in_the_loss_and_in_the_gradients(pair, rng):
    penalties = {name: PENALTIES[name] for name in pair}
    model, tokens, targets = a_model(experts=2, **penalties), some_tokens(rng), some_tokens(rng)
    randomise(model.core, rng)
    names, variables = zip(*weight_names(model).items())
    before = [array(variable).astype("float64") for variable in variables]
    model.compile(optimizer=keras.optimizers.SGD(1.0), run_eagerly=True)
    loss = model.train_on_batch(tokens, targets, return_dict=True)["loss"]
    gradient = [old - array(variable) for old, variable in zip(before, variables)]
    direction = [rng.normal(size=old.shape) for old in before]

    def wanted(distance):
        moved = [old + distance * change for old, change in zip(before, direction)]
        return penalised_loss(tokens, targets, dict(zip(names, moved)), penalties)

    np.testing.assert_allclose(loss, wanted(0.0), rtol=1e-5)
    slope = sum(np.sum(part * change) for part, change in zip(gradient, direction))
    (right,) = reference.differences(wanted, [0.0])
    np.testing.assert_allclose(slope, right, rtol=1e-3, atol=1e-4)


def test_padding_changes_nothing_but_its_own_place(rng):
    model = a_model(cell="depth_gated_lstm", padded=True, recurrent_layers=2, connection="dual")
    randomise(model.core, rng)
    words = some_tokens(rng)
    alone = array(model(words))
    before = np.concatenate([np.full((BATCH, 2), -1, "int32"), words], axis=1)
    after = np.concatenate([words, np.full((BATCH, 2), -1, "int32")], axis=1)
    np.testing.assert_allclose(array(model(before))[:, 2:], alone, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(array(model(after))[:, :TIME], alone, rtol=1e-5, atol=1e-5)


def test_the_skip_sum_is_the_sum_of_the_layers_outputs(rng):
    model = a_model(recurrent_layers=2, skip_connections=True)
    randomise(model.core, rng)
    weights = {"/".join(w.path.split("/")[-2:]): array(w) for w in model.core.weights}
    tokens = some_tokens(rng)
    _, _, layers = reference.language_model(tokens, weights, layers=2)
    wanted = sum(layers) @ weights["embedding/embeddings"].T
    np.testing.assert_allclose(array(model(tokens)), wanted, rtol=1e-4, atol=1e-5)


def test_each_layer_reads_the_sum_of_all_below_it_and_the_output_that_of_all(rng):
    tokens = some_tokens(rng)
    three = a_model(recurrent_layers=3, residual=True)
    randomise(three.core, rng)
    weights = {"/".join(w.path.split("/")[-2:]): array(w) for w in three.core.weights}
    total = weights["embedding/embeddings"][tokens]
    for k in (1, 2, 3):
        prefix = f"cell_{k}/"
        cell = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
        states = [np.zeros((BATCH, total.shape[-1]))] * 2
        outputs, *_ = reference.over_time(reference.lstm_step, total, states, cell)
        total = outputs if k == 1 else total + outputs
    wanted = total @ weights["embedding/embeddings"].T
    np.testing.assert_allclose(array(three(tokens)), wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="`residual` cannot be combined with skip_connections"):
        a_model(recurrent_layers=2, skip_connections=True, residual=True)


@once
@pytest.mark.parametrize("joined", ["residual", "skip_connections"])
def test_the_output_of_each_cell_has_a_dropout_of_its_own_wherever_it_is_read(joined):
    model = a_model(recurrent_layers=3, cell_dropout=0.5, **{joined: True})
    names = [layer.name for layer in model.core.layers if layer.name.startswith("cell_dropout")]
    assert names == ["cell_dropout_1", "cell_dropout_2", "cell_dropout_3"]
    for k in (1, 2, 3):
        layer = model.core.get_layer(f"cell_dropout_{k}")
        assert type(layer) is StepDropout and layer.rate == 0.5
        assert layer.input is model.core.get_layer(f"recurrence_{k}").output[0]
    locked = a_model(recurrent_layers=2, cell_dropout=0.5, locked_dropouts=["cell"])
    assert type(locked.core.get_layer("cell_dropout_1")) is LockedDropout


@once
def test_an_untied_output_has_a_matrix_of_its_own_and_sizes_are_free(rng):
    model = language_model(
        WORDS, embedding_units=3, recurrent_units=5, tied=False, output_bias=True
    )
    assert model.count_params() == 7 * 3 + 4 * 5 * 8 + 4 * 5 + 5 * 7 + 7
    dual = language_model(
        WORDS, embedding_units=3, recurrent_units=5, dual_units=6, tied=False, connection="dual"
    )
    assert dual.count_params() == 7 * 3 + 4 * 5 * 8 + 4 * 5 + (3 + 5 + 1) * 6 + 6 * 7
    mixture = language_model(WORDS, units=4, experts=2, tied=False, latent_units=3)
    assert tuple(mixture.core.get_layer("output").kernel.shape) == (3, WORDS)
    with pytest.raises(ValueError, match="`past_decode_regularization` needs a tied output"):
        a_model(tied=False, past_decode_regularization=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("cell", few_elsewhere(CELLS, 3))
def test_every_cell_is_causal_under_the_dual_connection_and_its_biases_can_be_off(cell, rng):
    tokens = some_tokens(rng)
    model = a_model(cell=cell, connection="dual", recurrent_layers=2, use_bias=False)
    weights = model.core.get_layer("recurrence_2").cell.weights
    assert not any(re.match("(?!mogrifier).*bias", weight.name) for weight in weights)
    logits = array(model(tokens))
    changed = tokens.copy()
    changed[:, 3] = (changed[:, 3] + 1) % WORDS
    np.testing.assert_allclose(array(model(changed))[:, :3], logits[:, :3], atol=1e-6)  # causal
    assert not np.allclose(array(model(changed))[:, 3:], logits[:, 3:])


@once
@pytest.mark.slow
@pytest.mark.parametrize("cell", sorted(set(CELLS) - {"mogrifier_lstm", "rewired_lstm"}))
def test_every_cell_trains_with_masks_per_gate_and_dropped_weights(cell, rng):
    rates = {f"{place}_dropout": 0.3 for place in ("input", "internal", "recurrent", "weight")}
    # The second layer's input is masked at each step.
    locks = {"mask_per_gate": True, "locked_dropouts": ["input", "recurrent"]}
    model = a_model(cell=cell, recurrent_layers=2, **rates, **locks)
    inputs = [ops.convert_to_tensor(some_tokens(rng)), *model.initial_state(BATCH)]
    first, second = (array(model.core(inputs, training=True)[0]) for _ in range(2))
    assert np.all(np.isfinite(first)) and not np.allclose(first, second)
    specs = {spec.name: spec for spec in model.core.get_layer("recurrence_2").cell.mask_specs()}
    assert not specs["input"].locked


# --- initial weights


def fresh(rule, **arguments):
    """Return the largest absolute value and the standard deviation of each weight by name."""
    arguments |= {"embedding_units": 100, "recurrent_units": 64, "tied": False}
    model = language_model(400, output_bias=True, initializer=rule, **arguments)
    weights = {"/".join(w.path.split("/")[-2:]): array(w) for w in model.trainable_variables}
    return {name: (np.abs(weight).max(), weight.std()) for name, weight in weights.items()}


@once
def test_initial_weights_are_as_the_papers_have_them():
    spread = fresh("uniform", initializer_range=0.05)
    for name in ("embedding/embeddings", "cell_1/kernel", "cell_1/bias", "output/bias"):
        largest, deviation = spread[name]
        assert 0.045 < largest <= 0.05 and abs(deviation - 0.05 / math.sqrt(3)) < 0.003

    spread = fresh("uniform_matrices", initializer_range=0.04, forget_bias=0.0)
    assert spread["cell_1/bias"] == (0, 0) == spread["output/bias"]
    assert 0.039 < spread["cell_1/recurrent_kernel"][0] <= 0.04

    spread = fresh("by_units", initializer_range=0.1)
    for name in ("cell_1/kernel", "cell_1/recurrent_kernel", "cell_1/bias"):
        assert 0.12 < spread[name][0] <= 1 / 8
    assert 0.099 < spread["embedding/embeddings"][0] <= 0.1
    assert spread["output/bias"] == (0, 0)

    sizes = {"embedding/embeddings": 100, "cell_1/kernel": 100, "cell_1/recurrent_kernel": 64}
    spread = fresh("by_shape")
    others = {"embedding/embeddings": 0, "cell_1/bias": 0, "output/kernel": 400}  # else 64
    for name, size in (sizes | {"cell_1/bias": 64, "output/kernel": 64}).items():
        limit = math.sqrt(6 / (size + others.get(name, 64)))
        assert 0.95 * limit < spread[name][0] <= limit

    spread = fresh("by_fan_in", forget_bias=0.0)
    for name, size in (sizes | {"output/kernel": 64}).items():
        assert abs(spread[name][1] * math.sqrt(size) - 1) < 0.05
    assert 0.1 < spread["cell_1/bias"][1] < 0.15  # 1 / sqrt(64)
    model = language_model(9, units=64, initializer="by_fan_in")
    bias = array(model.core.get_layer("recurrence_1").cell.bias)
    assert abs(bias[64:128].mean() - 1) < 0.1 and abs(bias[:64].mean()) < 0.1


@once
def test_the_rounds_of_a_mogrifier_start_as_melis_et_al_have_them():
    spread = fresh("by_fan_in", cell="mogrifier_lstm", rounds=2, rank=16)
    for name, size in (("1_left", 64), ("1_right", 64), ("2_left", 100)):
        wanted = (size * 16) ** -0.25
        assert abs(spread[f"cell_1/mogrifier_{name}"][1] / wanted - 0.88) < 0.05  # truncated
    assert spread["cell_1/mogrifier_1_bias"] == (0, 0)


@once
@pytest.mark.parametrize(
    ("rule", "cell", "forget", "options"),
    [
        ("keras", "lstm", (1, 4), {}),
        ("by_units", "lstm", (1, 4), {}),
        ("uniform", "layernorm_lstm", (1, 4), {}),
        ("by_fan_in", "mogrifier_lstm", (1, 4), {"rounds": 2}),
        ("by_shape", "lstm_per_gate", (0, 1), {}),
        ("by_shape", "depth_gated_lstm", (1, 5), {"depth": 2, "coupled": False}),
    ],
)
def test_forget_gates_start_with_memories_of_many_lengths_under_every_rule(
    rule, cell, forget, options
):
    draw = {"initializer_range": 0.1} if rule in ("uniform", "by_units") else {}
    options |= {"cell": cell, "forget_bias": "chrono:20", "initializer": rule}
    options |= {"embedding_units": 4, "recurrent_units": 300, "tied": False}
    model = language_model(9, **draw, **options)
    cell = model.core.get_layer("recurrence_1").cell
    names = {"lstm_per_gate": ["f"], "depth_gated_lstm": ["1", "2"]}.get(options["cell"])
    for bias in [cell.bias] if names is None else [getattr(cell, f"bias_{n}") for n in names]:
        parts = np.split(array(bias), forget[1])
        lengths = np.exp(parts[forget[0]])
        assert 1 <= lengths.min() < 2 and 18 < lengths.max() < 19.001
        assert abs(lengths.mean() - 10) < 1.2 and len(np.unique(lengths)) > 290
        others = [part for i, part in enumerate(parts) if i != forget[0]]
        assert all(np.abs(part).max() < 1 for part in others)


def test_a_seed_gives_the_same_initial_weights():
    weights = []
    for _ in range(2):
        keras.utils.set_random_seed(3)
        weights.append(a_model(initializer="by_fan_in").get_weights())
    assert_same(*weights)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"initializer": "unifrm"}, "`initializer` must be one of.*Did you mean 'uniform'"),
        ({"initializer": "uniform"}, "`initializer_range` must be above 0"),
        ({"depth": 2}, "`depth` must be an argument.*take it: .*recurrent_highway"),
        (
            {"cell": "gru", "rounds": 2},
            "`rounds` must be an argument.* the cell 'gru'.*take it: mogrifier",
        ),
        ({"cell": "mogrifier_lstm", "mask_per_gate": True}, "`mask_per_gate` must be False"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        a_model(**arguments)
