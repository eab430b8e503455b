"""Mixtures of softmaxes, fed by one layer or by several."""

import keras
import numpy as np
import pytest
from keras import ops

from dualnet.layers import DOCOutput, MixtureSoftmax, _fused_cross_entropy
from tests import reference
from tests.checks import (
    array,
    assert_close,
    by_name,
    check_against_reference,
    gradients,
    normal,
    once,
    randomise,
    total,
)

BATCH, TIME, LATENT, WORDS = 2, 3, 3, 6
UNITS = (3, 2, 4)  # of three layers


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of at most two tokens, with four experts, so that the last chunk is not full."""
    monkeypatch.setattr(_fused_cross_entropy, "CHUNK_BYTES", 2 * 4 * WORDS * 4)


def some_inputs(rng, units=UNITS, batch=BATCH, time=TIME):
    return [normal(rng, batch, time, size) for size in units]


def some_targets(rng, batch=BATCH, time=TIME):
    return rng.integers(0, WORDS, (batch, time)).astype("int32")


def randomised(layer, rng, **sizes):
    """Return inputs of `layer`, which is built and gets random weights."""
    inputs = some_inputs(rng, **sizes)
    inputs = inputs[-1] if isinstance(layer, MixtureSoftmax) else inputs
    layer(inputs)
    randomise(layer, rng)
    return inputs


def chosen(values, targets):
    return np.take_along_axis(values, targets[..., None], axis=-1)[..., 0]


# --- the equations


@pytest.mark.parametrize(
    ("experts", "activation", "tied", "use_bias"),
    [((1, 0, 3), "tanh", True, True), ((0, 2, 2), "linear", False, False)],
)
@pytest.mark.parametrize("given", [False, True])
def test_values_and_gradients_match_the_papers(
    experts, activation, tied, use_bias, given, rng, small_chunks
):
    embedding = keras.layers.Embedding(WORDS, LATENT) if tied else None
    layer = DOCOutput(
        WORDS, list(experts), LATENT, tied_to=embedding, use_bias=use_bias,
        latent_activation=activation,
    )  # fmt: skip
    inputs, targets = randomised(layer, rng), some_targets(rng)
    variables = list(layer.trainable_variables)
    assert ("embeddings" in {variable.name for variable in variables}) == tied

    def unread(hidden):  # TensorFlow has no gradient for unused inputs
        return [h for h, count in zip(hidden[:-1], experts) if not count]

    def call(*hidden):
        log_p = layer(list(hidden), targets) if given else layer(list(hidden))
        return [log_p, *unread(hidden)]

    def expected(weights, *hidden):
        log_p = np.log(reference.mixture(hidden, weights, experts, activation))
        return [-chosen(log_p, targets) if given else log_p, *unread(hidden)]

    check_against_reference(call, variables, inputs, expected)


def test_chunks_change_nothing(rng, monkeypatch):
    layer = DOCOutput(WORDS, [1, 0, 3], LATENT)
    inputs, targets = randomised(layer, rng, time=4), some_targets(rng, time=4)
    weights = layer.trainable_variables

    def both():
        return ops.mean(ops.square(layer(inputs))) + ops.mean(ops.square(layer(inputs, targets)))

    def results():
        return [array(both()), *gradients(both, weights)]

    whole = results()
    # Of eight tokens at most four at a time: three chunks of three, one to spare.
    monkeypatch.setattr(_fused_cross_entropy, "CHUNK_BYTES", 4 * 4 * WORDS * 4)
    assert_close(results(), whole)


def test_all_experts_in_the_last_layer_are_a_mixture_of_softmaxes(rng):
    inputs = some_inputs(rng)
    several, one = DOCOutput(WORDS, [0, 0, 4], LATENT), MixtureSoftmax(WORDS, 4, LATENT)
    several(inputs)
    one(inputs[-1])
    assert [w.shape for w in several.weights] == [w.shape for w in one.weights]
    randomise(several, rng)
    one.set_weights(several.get_weights())
    np.testing.assert_array_equal(array(several(inputs)), array(one(inputs[-1])))
    np.testing.assert_array_equal(array(several.priors(inputs)), array(one.priors(inputs[-1])))


def test_log_probabilities_are_exact_where_every_softmax_underflows(rng):
    layer = DOCOutput(WORDS, [1, 0, 3], LATENT, latent_activation="linear")
    inputs, targets = randomised(layer, rng), some_targets(rng)
    bias = np.array([1e3, -1e3, 500, -500, 999, 0])
    layer.bias.assign(bias)
    weights = by_name(layer)
    pi = reference.softmax(inputs[-1] @ weights["prior_kernel"])
    k = np.concatenate(
        [inputs[0] @ weights["latent_kernel_0"], inputs[2] @ weights["latent_kernel_2"]], axis=-1
    ).reshape(BATCH, TIME, 4, LATENT)
    s = k.astype("longdouble") @ weights["kernel"] + bias
    s = s - s.max(axis=-1, keepdims=True)
    s = s - np.log(np.exp(s).sum(axis=-1, keepdims=True))
    s = s + np.log(pi)[..., None]
    most = s.max(axis=2, keepdims=True)
    expected = (most + np.log(np.exp(s - most).sum(axis=2, keepdims=True)))[:, :, 0]
    assert expected.min() < -1900
    assert_close([layer(inputs)], [expected.astype("float64")], atol=1e-4)
    for arguments in ([inputs, targets], [inputs]):
        mean = lambda arguments=arguments: ops.mean(layer(*arguments))  # noqa: E731
        assert all(np.isfinite(g).all() for g in gradients(mean, layer.trainable_variables))


# --- dropout of the latents


@pytest.mark.parametrize("per_expert", [False, True])
@pytest.mark.parametrize("locked", [False, True])
def test_latents_are_dropped_with_the_masks_asked_for(per_expert, locked, rng):
    experts, size, rate = 3, 40, 0.3
    layer = MixtureSoftmax(
        WORDS, experts, size, latent_dropout=rate, latent_dropout_per_expert=per_expert,
        latent_dropout_locked=locked, seed=1,
    )  # fmt: skip
    inputs = normal(rng, 2, 6, 4)
    layer(inputs)
    kept = array(layer._latents([inputs], False))
    dropped = array(layer._latents([inputs], True))
    mask = dropped / kept  # (rows, steps, experts, features)
    np.testing.assert_allclose(np.unique(np.round(mask, 4)), [0, 1.4286], atol=1e-3)
    assert abs((mask == 0).mean() - rate) < 0.15
    zero = mask == 0
    assert np.array_equal(zero, np.repeat(zero[:, :1], 6, axis=1)) == locked
    assert np.array_equal(zero, np.repeat(zero[:, :, :1], experts, axis=2)) == (not per_expert)
    assert np.any(zero[0] != zero[1])
    assert np.any((array(layer._latents([inputs], True)) == 0) != zero)
    evaluated = array(layer(inputs))
    np.testing.assert_array_equal(array(layer(inputs, training=False)), evaluated)
    assert np.any(array(layer(inputs, training=True)) != evaluated)


# --- the penalty


def numpy_balance(pi, form):
    """Return cv ** 2, of `pi` (batch, time, experts), zeros where padding is."""
    if form == "paper":
        used = pi.sum(axis=(0, 1))
        return (used.std() / used.mean()) ** 2
    used = pi.sum(axis=1)
    return used.var(ddof=1) * (pi.shape[-1] - 1) / used.mean() ** 2


@pytest.mark.parametrize("form", ["code", "paper"])
@pytest.mark.parametrize("padding", ["none", "mask", "targets", "mask, with targets"])
def test_the_penalty_is_the_squared_variation_of_use_without_padding(form, padding, rng):
    layer = DOCOutput(WORDS, [1, 0, 3], LATENT, balance=0.3, balance_form=form)
    inputs, targets = randomised(layer, rng), some_targets(rng)
    pi = array(layer.priors(inputs)).astype("float64")
    mask = np.ones((BATCH, TIME), bool)
    if padding != "none":
        mask[0, 1:] = False
    if padding == "mask":
        layer(inputs, mask=[None, None, mask], training=True)
    elif padding == "mask, with targets":
        layer(inputs, targets, mask=[None, None, mask], training=True)
    else:
        layer(inputs, np.where(mask, targets, -1), training=True)
    expected = 0.3 * numpy_balance(pi * mask[..., None], form)
    assert total(layer.losses) == pytest.approx(expected, rel=1e-4)
    layer(inputs, training=False)
    assert total(layer.losses) == 0


# --- in a model


@once
@pytest.mark.slow
def test_a_compiled_model_of_any_length_learns(rng, small_chunks):
    policy = "mixed_float16"
    tokens = keras.Input((None,), dtype="int32")
    embedding = keras.layers.Embedding(WORDS, LATENT, mask_zero=True, dtype=policy)
    embedded = embedding(tokens)
    hidden = keras.layers.Dense(4, activation="tanh", dtype=policy)(embedded)
    layer = DOCOutput(
        WORDS, [1, 3], LATENT, tied_to=embedding, latent_dropout=0.1, balance=0.001, dtype=policy
    )
    log_p = layer([embedded, hidden])
    model = keras.Model(tokens, log_p)
    assert log_p.shape == (None, None, WORDS) and log_p.dtype == "float32"
    model.compile(
        keras.optimizers.Adam(0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=keras.backend.backend() == "jax",
    )
    words = rng.integers(1, WORDS, (8, 5)).astype("int32")
    words[0, 3:] = 0  # padding
    history = model.fit(words, words, batch_size=4, epochs=6, verbose=0).history["loss"]
    assert np.all(np.isfinite(history)) and history[-1] < 0.8 * history[0]


# --- bad arguments


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DOCOutput(5, [0, 0], 2),
         "`experts` must contain a count above 0.*OutputProjection"),
        (lambda: DOCOutput(5, [0, 1], 2, balance=0.1), "`balance` must be 0 with a single expert"),
        (lambda: DOCOutput(5, [1], 2, tied_to=keras.layers.Embedding(5, 3)),
         "`latent_units` must equal the 3 units"),
        (lambda: DOCOutput(5, [1, 1], 2)([keras.Input((None, 3))]),
         "`experts` must have one count per input. Received.* for 1 inputs"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()
