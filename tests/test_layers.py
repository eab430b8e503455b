"""The dual connection, the output projection, the dropouts and a whole language model."""

import keras
import numpy as np
import pytest
from keras import ops, tree

from dualnet import layers
from dualnet.builders import token_losses
from dualnet.builders.functional import language_model
from dualnet.layers import (
    ActivationRegularization,
    AdaptationMatrix,
    DOCOutput,
    DualConnection,
    EmbeddingDropout,
    FeatureGate,
    IOGate,
    LockedDropout,
    LSTMCell,
    MeanOfProbabilities,
    MixtureSoftmax,
    OutputProjection,
    Recurrence,
    StepDropout,
)
from tests import reference
from tests.checks import (
    array,
    assert_close,
    check_against_reference,
    check_layer,
    gradients,
    nll,
    normal,
    once,
    randomise,
)

BATCH, TIME, FEATURES, UNITS, WORDS = 2, 4, 3, 4, 7

each_dropout = pytest.mark.parametrize("kind", [LockedDropout, StepDropout])


def a_dropped_recurrence(rate, seed=None):
    return Recurrence(LSTMCell(50, recurrent_dropout=rate), seed=seed)


each_seeded = pytest.mark.parametrize("kind", [LockedDropout, StepDropout, a_dropped_recurrence])
ONES = np.ones((2, 4, 50), "float32")


def trained(layer):
    """Return the outputs of `layer` in training."""
    return array(tree.flatten(layer(ONES, training=True))[0])


# --- values and gradients against the papers


@pytest.mark.parametrize("use_input", [True, False])
def test_dual_connection_and_its_gradients_match_the_paper(use_input, rng):
    layer = DualConnection(UNITS, use_input=use_input)
    embedded, hidden = normal(rng, BATCH, TIME, FEATURES), normal(rng, BATCH, TIME, 5)
    layer([embedded, hidden])
    randomise(layer, rng)

    def call(*inputs):
        # Torch knows no gradient for what is not used.
        return [layer(list(inputs) if use_input else [embedded, *inputs])]

    def expected(weights, *inputs):
        return [reference.dual(inputs[0], inputs[-1], weights, use_input=use_input)]

    inputs = [embedded, hidden] if use_input else [hidden]
    check_against_reference(call, layer.trainable_variables, inputs, expected)


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_output_projection_and_its_gradients_match_the_paper(tied, use_bias, rng):
    embedding = keras.layers.Embedding(WORDS, UNITS) if tied else None
    layer = OutputProjection(WORDS, tied_to=embedding, use_bias=use_bias)
    inputs = normal(rng, BATCH, TIME, UNITS)
    layer(inputs)
    randomise(layer, rng)

    def expected(weights, inputs):
        return [reference.output(inputs, weights, embeddings=weights.get("embeddings"))]

    check_against_reference(lambda x: [layer(x)], layer.trainable_variables, [inputs], expected)


MODELS = [
    {},
    {"embedding_units": 3, "recurrent_units": 4, "connection": "dual", "recurrent_layers": 2},
    {"cell": "mogrifier_lstm", "rounds": 5, "recurrent_layers": 2},
    {"cell": "mogrifier_lstm", "rounds": 4, "rank": 2, "connection": "dual"},
    {"cell": "mogrifier_lstm", "rounds": 3, "rank": 1, "connection": "dual_without_input"},
]


def a_model(rng, **arguments):
    """Return a small model with random weights, and these by name."""
    arguments = {"units": 3, "vocabulary_size": WORDS} | arguments
    model = randomise(language_model(**arguments), rng)
    return model, ["/".join(weight.path.split("/")[-2:]) for weight in model.weights]


def as_reference(arguments):
    renamed = {"recurrent_layers": "layers", **{k: k for k in ("rounds", "rank", "connection")}}
    return {renamed[key]: value for key, value in arguments.items() if key in renamed}


@pytest.mark.parametrize("arguments", MODELS)
def test_language_model_matches_the_papers(arguments, rng):
    model, names = a_model(rng, **arguments)
    weights = dict(zip(names, [w.astype("float64") for w in model.get_weights()]))
    tokens = rng.integers(WORDS, size=(BATCH, TIME))
    logits, states, _ = reference.language_model(tokens, weights, **as_reference(arguments))
    advanced_logits, advanced_states = model.advance(tokens, model.initial_state(BATCH))
    assert_close([model(tokens)], [logits])
    assert_close([advanced_logits, *advanced_states], [logits, *states])

    start = [ops.convert_to_tensor(normal(rng, BATCH, size)) for size in model.state_size]
    advanced_logits, advanced_states = model.advance(tokens, start)
    start = [array(state) for state in start]
    logits, states, _ = reference.language_model(tokens, weights, start, **as_reference(arguments))
    assert_close([advanced_logits, *advanced_states], [logits, *states])


def test_loss_of_a_language_model_and_its_gradients_match_the_papers(rng):
    # A tied matrix gets gradients from both its ends.
    arguments = MODELS[3]
    model, names = a_model(rng, **arguments)
    tokens, targets = rng.integers(WORDS, size=(2, BATCH, TIME))

    def loss():
        return ops.mean(token_losses(model(tokens), targets))

    def reference_loss(*weights):
        weights = dict(zip(names, weights))
        logits, *_ = reference.language_model(tokens, weights, **as_reference(arguments))
        return nll(logits, targets).mean()

    start = [w.astype("float64") for w in model.get_weights()]
    assert_close([loss()], [reference_loss(*start)])
    differences = reference.differences(reference_loss, start)
    variables = model.trainable_variables
    assert len(variables) == len(names)
    for name, a, b in zip(names, gradients(loss, variables), differences, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6, err_msg=name)


# --- what every layer owes its users


TIED = {"tied_to": keras.layers.Embedding(WORDS, UNITS)}
EXACT = ["float32"]  # under every policy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "inputs", "dtypes"),
    [
        (ActivationRegularization(activation=1.0), "hidden hidden", ["bfloat16"]),
        (AdaptationMatrix(), "hidden", ["bfloat16"]),
        (AdaptationMatrix(2), "hidden", ["bfloat16"]),
        (DOCOutput(WORDS, [1, 0, 2], UNITS, **TIED), "embedded embedded hidden", EXACT),
        (DualConnection(5, dual_l2=0.1), "embedded hidden", ["bfloat16"]),
        (DualConnection(5, use_input=False), "embedded hidden", ["bfloat16"]),
        (EmbeddingDropout(0.2, vocabulary_size=WORDS), "tokens embedded", ["bfloat16"]),
        (FeatureGate(WORDS), "hidden logits logits", EXACT * 2),
        (IOGate(WORDS, UNITS, dropout=0.3), "tokens logits", EXACT),
        (IOGate(WORDS, use_hidden=True), "tokens hidden logits logits", EXACT * 2),
        (LockedDropout(0.3, seed=5), "hidden", ["bfloat16"]),
        (MeanOfProbabilities(), "logits logits", EXACT),
        (MixtureSoftmax(WORDS, 2, UNITS, use_bias=False), "hidden", EXACT),
        (OutputProjection(WORDS), "hidden", EXACT),
        (OutputProjection(**TIED), "hidden", EXACT),
        (StepDropout(0.3, seed=5), "hidden", ["bfloat16"]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_layer_passes_the_common_checks(layer, inputs, dtypes, rng, tmp_path):
    sizes = {"embedded": FEATURES, "hidden": UNITS, "logits": WORDS}
    arrays = {name: normal(rng, BATCH, TIME, size) for name, size in sizes.items()}
    arrays["tokens"] = rng.integers(WORDS, size=(BATCH, TIME)).astype("int32")
    first, *others = (arrays[name] for name in inputs.split())
    check_layer(layer, [first, *others] if others else first, folder=tmp_path, dtypes=dtypes)


@pytest.mark.parametrize(
    ("layer", "place"),
    [
        (DOCOutput(WORDS, [1, 1, 2], UNITS), 2),
        (DualConnection(UNITS), 1),
        (MeanOfProbabilities(), 0),
        (IOGate(WORDS), slice(1, None)),
        (IOGate(WORDS, use_hidden=True), 2),
        (MixtureSoftmax(WORDS, 2, UNITS), slice(None)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_layer_of_several_inputs_passes_on_the_mask_of_its_manual(layer, place):
    masks = [np.full((BATCH, TIME), value) for value in (True, False, True)]
    assert layer.compute_mask([None] * 3) is None
    np.testing.assert_array_equal(layer.compute_mask([None] * 3, masks), masks[place])
    assert layer.supports_masking


# --- penalties


def test_all_penalties_of_a_model_join_its_loss(rng):
    names = ("embedding", "input", "recurrent", "activation", "dual", "mogrifier")
    rates = {f"{name}_l2": 0.1 * k for k, name in enumerate(names, start=1)} | {"weight_l2": 0.7}
    arguments = {**MODELS[3], "recurrent_layers": 2}
    model, names = a_model(rng, **arguments, **rates)
    model.compile()
    weights = dict(zip(names, [w.astype("float64") for w in model.get_weights()]))
    tokens, targets = rng.integers(WORDS, size=(2, BATCH, TIME))
    logits, _, outputs = reference.language_model(tokens, weights, **as_reference(arguments))
    expected = nll(logits, targets).mean()
    expected += 0.4 * sum(np.sum(h**2) for h in outputs) / BATCH
    expected += 0.7 * sum(np.sum(weight**2) for weight in weights.values())  # biases, too
    for name, weight in weights.items():
        layer, name = name.split("/")
        if name.endswith("bias"):
            continue
        kind = {"embeddings": 0.1, "kernel": 0.2, "recurrent_kernel": 0.3}.get(name, 0.6)
        expected += (0.5 if layer == "connection" else kind) * np.sum(weight**2)
    y_pred = model(tokens)
    loss = model.compute_loss(y=ops.convert_to_tensor(targets), y_pred=y_pred)
    assert float(array(loss)) == pytest.approx(expected, rel=1e-5)


# --- the output


def test_output_projection_refuses_sizes_that_contradict_each_other(rng):
    embedding = keras.layers.Embedding(WORDS, UNITS)
    with pytest.raises(ValueError, match="`vocabulary_size` must equal the 7 .*vocabulary_size=6"):
        OutputProjection(6, tied_to=embedding)
    with pytest.raises(ValueError, match="`inputs` must have as many .* tied to, 4. Received: 5"):
        OutputProjection(tied_to=embedding)(normal(rng, BATCH, TIME, 5))


# --- the dropouts


@each_dropout
def test_dropouts_are_the_identity_outside_training_and_at_rate_zero(kind, rng):
    layer = kind(0.5, seed=1)
    before = array(layer.seed_generator.state)
    inputs = normal(rng, BATCH, TIME, FEATURES)
    np.testing.assert_array_equal(array(layer(inputs)), inputs)
    np.testing.assert_array_equal(array(layer(inputs, training=False)), inputs)
    np.testing.assert_array_equal(array(kind(0)(inputs, training=True)), inputs)
    np.testing.assert_array_equal(array(layer.seed_generator.state), before)
    layer(inputs, training=True)
    assert np.any(array(layer.seed_generator.state) != before)


@each_dropout
def test_dropouts_zero_their_rate_in_each_row_and_a_locked_one_alike_at_all_steps(kind):
    out = array(kind(0.3, seed=2)(np.ones((64, 5, 400), "float32"), training=True))
    np.testing.assert_allclose(np.unique(out), [0, 1 / 0.7], rtol=1e-6)
    assert np.mean(out == 0) == pytest.approx(0.3, abs=0.015)
    assert np.mean(out) == pytest.approx(1, abs=0.02)
    assert np.all(np.any(out[1:] != out[:-1], axis=(1, 2)))
    for t in range(4):
        assert np.array_equal(out[:, t], out[:, t + 1]) == (kind is LockedDropout)


@each_seeded
def test_masks_differ_at_each_call_and_repeat_with_their_seed(kind):
    layer, same, other = kind(0.5, seed=3), kind(0.5, seed=3), kind(0.5, seed=4)
    for one in (layer, same, other):
        one.build(ONES.shape)
        one.set_weights(layer.get_weights())
    first, second = trained(layer), trained(layer)
    assert np.any(first != second)
    np.testing.assert_array_equal([trained(same), trained(same)], [first, second])
    assert np.any(trained(other) != first)


@once
@each_seeded
def test_without_a_seed_masks_follow_that_of_keras(kind):
    def draw():
        keras.utils.set_random_seed(11)
        return [trained(layer) for layer in (kind(0.5), kind(0.5))]

    (a, b), (again, _) = draw(), draw()
    np.testing.assert_array_equal(a, again)
    assert np.any(a != b)


@each_seeded
def test_a_generator_goes_on_with_the_weights_that_are_loaded(kind, tmp_path):
    inputs = keras.Input((None, 50))
    models = [keras.Model(inputs, kind(0.5, seed=seed)(inputs)) for seed in (3, 99)]
    trained(models[0])
    models[0].save_weights(tmp_path / "m.weights.h5")
    models[1].load_weights(tmp_path / "m.weights.h5")
    np.testing.assert_array_equal(*map(trained, models))


@once
@pytest.mark.parametrize(
    "layer",
    [LockedDropout(0.5), StepDropout(0.5), OutputProjection(WORDS)],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_over_time_pass_on_the_mask_of_their_input(layer):
    tokens = np.array([[1, 2, 0], [3, 0, 0]])
    embedded = keras.layers.Embedding(WORDS, UNITS, mask_zero=True)(tokens)
    mask = keras.src.backend.get_keras_mask(layer(embedded))
    np.testing.assert_array_equal(array(mask), tokens != 0)


# --- refusals


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: DOCOutput(7, [1], 4, balance_form="codes"), "balance_form"),
        (lambda: LSTMCell(4, recurrent_dropout=1.0), "recurrent_dropout"),
        (lambda: LSTMCell(4, locked="recurrent"), "locked"),
        (lambda: LSTMCell(4, forget_bias="chrono:x"), "forget_bias"),
        (lambda: layers.DepthGatedLSTMCell([4, 3]), "units"),
        (lambda: layers.DepthGatedLSTMCell(4, peepholes="fill"), "peepholes"),
        (lambda: layers.NeuralCache(9, weight=1.5), "weight"),
        (lambda: StepDropout(-0.1), "rate"),
    ],
)
def test_values_out_of_range_are_refused_by_name(make, argument):
    with pytest.raises(ValueError, match=f"^`{argument}` must be .* Received: {argument}="):
        make()
