import keras
import numpy as np
import pytest
from keras import ops

from dualnet.layers import (
    ElmanCell,
    GRUCell,
    LayerNormGRUCell,
    LayerNormLSTMCell,
    LSTMCell,
    PerGateLSTMCell,
    Recurrence,
)
from dualnet.layers._layer_norm import layer_norm
from tests import reference
from tests.checks import (
    array,
    by_name,
    check_against_reference,
    check_layer,
    gradients,
    normal,
    randomise,
)

BATCH, TIME, FEATURES, UNITS = 2, 5, 3, 4

STEPS = {
    ElmanCell: reference.elman_step,
    GRUCell: reference.gru_step,
    PerGateLSTMCell: reference.per_gate_lstm_step,
    LayerNormLSTMCell: reference.layer_norm_lstm_step,
    LayerNormGRUCell: reference.layer_norm_gru_step,
}
PLAIN = [ElmanCell, GRUCell, PerGateLSTMCell]
NORMALISED = [LayerNormLSTMCell, LayerNormGRUCell]
PLACEMENTS = ["separate", "joint", "gates", "output", "none"]
EPSILON = 0.03  # large enough to be seen

# Every cell, the normalised ones at each placement.
CELLS = [(kind, {}) for kind in PLAIN]
CELLS += [
    (kind, {"placement": placement, "epsilon": EPSILON})
    for kind in NORMALISED
    for placement in PLACEMENTS
]
DROPPED = {"input_dropout": 0.4, "recurrent_dropout": 0.4, "weight_dropout": 0.4}


def name_of(value):
    if isinstance(value, dict):
        return "-".join(str(v) for v in value.values()) or "plain"
    return getattr(value, "__name__", None)


every_cell = pytest.mark.parametrize(("kind", "own"), CELLS, ids=name_of)
one_of_each = pytest.mark.parametrize("kind", STEPS, ids=name_of)


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def built(cell, rng):
    cell.build((BATCH, FEATURES))
    return randomise(cell, rng)


def a_step(cell, rng):
    """Return x and states of one time step, none of them zero."""
    return [normal(rng, BATCH, size) for size in (FEATURES, *cell.state_size)]


def reference_step(cell):
    """Return the reference of `cell`, `step(x, states, weights, masks)`."""
    names = ("placement", "epsilon") if isinstance(cell, tuple(NORMALISED)) else ()
    options = {name: getattr(cell, name) for name in names}
    return lambda *arguments: STEPS[type(cell)](*arguments, **options)


def masks_of(cell, rng):
    """Return random masks for one step of `cell`, and those of its weights apart."""
    masks, of_weights = {}, {}
    for spec in cell.mask_specs():
        shape = spec.size if isinstance(spec.size, tuple) else (BATCH, spec.size)
        mask = np.where(rng.random(shape) < 0.4, 0, 1.7).astype("float32")
        (of_weights if isinstance(spec.size, tuple) else masks)[spec.name] = mask
    return masks, of_weights


def check_step(cell, rng):
    """Values and gradients of a step, with random masks if the cell has dropouts."""
    masks, of_weights = masks_of(cell, rng)

    def call(x, *states):
        dropped = {name: getattr(cell, name) * mask for name, mask in of_weights.items()}
        training = bool(masks or dropped)
        out, states = cell(x, list(states), training=training, masks={**masks, **dropped})
        return [out, *states]

    def expected(weights, x, *states):
        dropped = {name: weights[name] * mask for name, mask in of_weights.items()}
        states = reference_step(cell)(x, states, {**weights, **dropped}, masks)
        return [states[0], *states]

    check_against_reference(call, cell.trainable_variables, a_step(cell, rng), expected)


def assert_close(found, expected, rtol=1e-5, atol=1e-6):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(array(a), array(b), rtol=rtol, atol=atol)


# --- values and gradients against the papers


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("kind", PLAIN)
def test_a_step_and_its_gradients_match_the_papers(kind, use_bias, rng):
    check_step(built(kind(UNITS, use_bias=use_bias), rng), rng)


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("kind", NORMALISED)
def test_a_normalised_step_and_its_gradients_match_the_paper(
    kind, placement, affine, use_bias, rng
):
    options = {"placement": placement, "affine": affine, "epsilon": EPSILON}
    check_step(built(kind(UNITS, use_bias=use_bias, **options), rng), rng)


@pytest.mark.parametrize("mask_per_gate", [True, False])
@every_cell
def test_a_step_with_given_masks_and_its_gradients_match_the_papers(kind, own, mask_per_gate, rng):
    cell = built(kind(UNITS, mask_per_gate=mask_per_gate, **DROPPED, **own), rng)
    masks, of_weights = masks_of(cell, rng)
    times = cell.gates if mask_per_gate else 1
    assert {name: mask.shape[1] for name, mask in masks.items()} == {
        "input": times * FEATURES,
        "recurrent": times * UNITS,
    }
    assert sum(mask.size for mask in of_weights.values()) == cell.gates * UNITS**2
    check_step(cell, rng)


@pytest.mark.parametrize("time", [1, 3])
@one_of_each
def test_outputs_states_and_gradients_over_time_match_the_papers(kind, time, rng):
    cell = kind(UNITS)
    layer = Recurrence(cell)
    layer.build((None, None, FEATURES))
    randomise(layer, rng)

    def call(sequence, *states):
        return list(layer(sequence, initial_state=list(states)))

    def expected(weights, sequence, *states):
        return reference.over_time(reference_step(cell), sequence, states, weights, {})

    _, *states = a_step(cell, rng)
    inputs = [normal(rng, BATCH, time, FEATURES), *states]
    check_against_reference(call, layer.trainable_variables, inputs, expected)


@one_of_each
def test_a_cell_predicts_under_keras_rnn(kind, rng):
    cell = kind(UNITS, **DROPPED)
    layer = keras.layers.RNN(cell, return_sequences=True, return_state=True)
    sequence = normal(rng, BATCH, TIME, FEATURES)
    layer.build(sequence.shape)
    randomise(layer, rng)
    zeros = [np.zeros((BATCH, size)) for size in cell.state_size]
    expected = reference.over_time(reference_step(cell), sequence, zeros, by_name(cell), {})
    assert_close(layer(sequence), expected)


@one_of_each
def test_a_cell_trains_under_keras_rnn_without_dropout_alone(kind, rng):
    sequence = normal(rng, BATCH, TIME, FEATURES)
    layer = keras.layers.RNN(kind(UNITS))
    layer(sequence)
    variables = layer.trainable_variables
    found = gradients(lambda: ops.sum(layer(sequence, training=True)), variables)
    assert all(np.any(gradient) for gradient in found)
    dropping = keras.layers.RNN(kind(UNITS, weight_dropout=0.5))
    dropping.build(sequence.shape)
    with pytest.raises(ValueError, match=f"`{kind.__name__}` with a dropout rate above 0"):
        dropping(sequence, training=True)


# --- cells that are one and the same


@pytest.mark.parametrize(
    ("kind", "stock"),
    [(ElmanCell, keras.layers.SimpleRNN), (GRUCell, keras.layers.GRU)],
    ids=name_of,
)
def test_a_cell_equals_that_of_keras_and_starts_as_it_does(kind, stock, rng):
    fresh = kind(UNITS)
    fresh.build((BATCH, 30))
    assert not np.any(array(fresh.bias))
    orthogonal = array(fresh.recurrent_kernel)
    np.testing.assert_allclose(orthogonal @ orthogonal.T, np.eye(UNITS), atol=1e-5)
    limit = (6 / (30 + kind.gates * UNITS)) ** 0.5  # Glorot, uniform
    assert 0.9 * limit < np.abs(array(fresh.kernel)).max() <= limit

    sequence, start = normal(rng, BATCH, 6, FEATURES), normal(rng, BATCH, UNITS)
    stock = stock(UNITS, return_sequences=True, return_state=True)
    ours = keras.layers.RNN(kind(UNITS), return_sequences=True, return_state=True)
    for layer in (stock, ours):
        layer.build(sequence.shape)
    assert [(w.name, w.shape) for w in stock.weights] == [(w.name, w.shape) for w in ours.weights]
    randomise(stock, rng)
    ours.set_weights(stock.get_weights())
    assert_close(ours(sequence, initial_state=[start]), stock(sequence, initial_state=[start]))


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="compares with PyTorch's own GRU")
def test_the_gru_is_that_of_pytorch(rng):
    import torch

    cell = built(GRUCell(UNITS), rng)
    x, h = a_step(cell, rng)
    theirs = torch.nn.GRUCell(FEATURES, UNITS)

    def in_order_of_torch(weight):
        z, r, n = np.split(weight, 3, axis=-1)
        return torch.tensor(np.concatenate([r, z, n], axis=-1).T.copy())

    kernel, recurrent_kernel, bias = cell.get_weights()
    with torch.no_grad():
        theirs.weight_ih.copy_(in_order_of_torch(kernel))
        theirs.weight_hh.copy_(in_order_of_torch(recurrent_kernel))
        theirs.bias_ih.copy_(in_order_of_torch(bias[0]))
        theirs.bias_hh.copy_(in_order_of_torch(bias[1]))
        expected = theirs(torch.tensor(x), torch.tensor(h)).numpy()
    np.testing.assert_allclose(array(cell(x, [h])[0]), expected, rtol=1e-5, atol=1e-6)


def give_per_gate(fused, cell):
    """Set the weights of a PerGateLSTMCell to those of an LSTMCell."""
    for name in ("kernel", "recurrent_kernel", "bias"):
        for gate, part in zip("ifjo", np.split(array(getattr(fused, name)), 4, axis=-1)):
            getattr(cell, f"{name}_{gate}").assign(part)


@pytest.mark.parametrize("mask_per_gate", [True, False])
def test_a_step_per_gate_equals_a_fused_one_with_every_dropout(mask_per_gate, rng):
    fused, apart = (
        built(kind(UNITS, mask_per_gate=mask_per_gate, capped_input_gate=True, **DROPPED), rng)
        for kind in (LSTMCell, PerGateLSTMCell)
    )
    give_per_gate(fused, apart)
    x, h, c = a_step(fused, rng)
    masks, of_weights = masks_of(fused, rng)
    dropped = array(fused.recurrent_kernel) * of_weights["recurrent_kernel"]
    names = [f"recurrent_kernel_{gate}" for gate in "ifjo"]
    of_gates = dict(zip(names, np.split(dropped, 4, axis=1)))
    out, states = fused(
        x,
        [h, c],
        training=True,
        masks={**masks, "recurrent_kernel": ops.convert_to_tensor(dropped)},
    )
    found, found_states = apart(x, [h, c], training=True, masks={**masks, **of_gates})
    assert_close([found, *found_states], [out, *states])


@pytest.mark.parametrize("locked", [["input"], ["recurrent"]])
def test_a_recurrence_per_gate_draws_what_a_fused_one_does(locked, rng):
    rates = {"input_dropout": 0.4, "recurrent_dropout": 0.4, "mask_per_gate": True}
    fused, apart = (
        Recurrence(built(kind(UNITS, locked=locked, **rates), rng), seed=3)
        for kind in (LSTMCell, PerGateLSTMCell)
    )
    give_per_gate(fused.cell, apart.cell)
    sequence = normal(rng, BATCH, TIME, FEATURES)
    assert_close(apart(sequence, training=True), fused(sequence, training=True))


def test_fresh_weights_per_gate_are_those_of_a_fused_cell():
    cells = [LSTMCell(UNITS), PerGateLSTMCell(UNITS)]
    for cell in cells:
        keras.utils.set_random_seed(3)
        cell.build((BATCH, FEATURES))
    fused, apart = (by_name(cell) for cell in cells)
    for name, weight in fused.items():
        parts = [apart[f"{name}_{gate}"] for gate in "ifjo"]
        np.testing.assert_array_equal(np.concatenate(parts, axis=-1), weight)


@pytest.mark.parametrize("kind", NORMALISED)
def test_a_cell_that_normalises_nothing_is_the_plain_one(kind, rng):
    options = {**DROPPED, "mask_per_gate": True, "locked": ["input"]}
    plain = {LayerNormLSTMCell: LSTMCell, LayerNormGRUCell: GRUCell}[kind](UNITS, **options)
    cells = [plain, kind(UNITS, placement="none", **options)]
    layers = [Recurrence(built(cell, rng), seed=3) for cell in cells]
    shapes = [[(w.name, w.shape) for w in layer.weights] for layer in layers]
    assert shapes[0] == shapes[1]
    layers[1].set_weights(layers[0].get_weights())
    sequence = normal(rng, BATCH, TIME, FEATURES)
    assert_close(*[layer(sequence, training=True) for layer in layers])
    assert_close(*[layer(sequence) for layer in layers])


# --- the normalisation


def test_layer_norm_equals_that_of_keras(rng):
    vector = 5 * normal(rng, BATCH, 12) + 3
    stock = keras.layers.LayerNormalization(epsilon=EPSILON, center=False, scale=False)
    assert_close([layer_norm(vector, EPSILON)], [stock(vector)])
    parts = [layer_norm(part, EPSILON) for part in np.split(vector, 3, axis=1)]
    whole = np.concatenate([array(part) for part in parts], axis=1)
    assert_close([layer_norm(vector, EPSILON, parts=3)], [whole])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_layer_norm_has_its_statistics_in_float32(dtype, rng):
    # The squares of these are above the largest float16; their mean is far above their spread.
    vector = ops.cast(1000 + 50 * normal(rng, BATCH, 64), dtype)
    found = layer_norm(vector, 1e-5)
    assert keras.backend.standardize_dtype(found.dtype) == dtype
    expected = reference.layer_norm(array(vector).astype("float64"), 1e-5)
    np.testing.assert_allclose(array(found).astype("float64"), expected, rtol=0.01, atol=1e-3)


@pytest.mark.parametrize("kind", NORMALISED)
def test_a_separate_step_takes_no_notice_of_the_scale_of_its_products(kind, rng):
    cell = built(kind(UNITS, epsilon=1e-12), rng)
    x, *states = a_step(cell, rng)
    before = array(cell(x, states)[0])
    cell.kernel.assign(100 * array(cell.kernel))
    cell.recurrent_kernel.assign(0.01 * array(cell.recurrent_kernel))
    np.testing.assert_allclose(array(cell(x, states)[0]), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("placement", ["separate", "gates"])
def test_a_forget_bias_in_all_units_outlasts_the_normalisation(placement, rng):
    cell = LayerNormLSTMCell(UNITS, placement=placement, affine=False)
    cell.build((BATCH, FEATURES))
    x, h = normal(rng, BATCH, FEATURES), np.zeros((BATCH, UNITS), "float32")
    cell.kernel.assign(np.zeros((FEATURES, 4 * UNITS)))
    c = normal(rng, BATCH, UNITS)
    _, [_, found] = cell(x, [h, c])
    np.testing.assert_allclose(array(found), c * reference.sigmoid(1.0), rtol=1e-5)


# --- what every layer owes its users


@every_cell
def test_cells_pass_the_common_checks(kind, own, rng, tmp_path):
    options = {**DROPPED, "input_l2": 1e-3, "mask_per_gate": True, "locked": ["input"]}
    cell = kind(UNITS, **options, **own)
    x, *states = a_step(cell, rng)
    check_layer(cell, x, states, folder=tmp_path, dtypes=["bfloat16"] * (1 + len(states)))


@one_of_each
def test_recurrences_over_the_cells_pass_the_common_checks(kind, rng, tmp_path):
    cell = kind(UNITS, weight_dropout=0.2)
    dtypes = ["bfloat16", *["float32"] * len(cell.state_size)]
    sequence = normal(rng, BATCH, TIME, FEATURES)
    check_layer(Recurrence(cell, seed=1), sequence, folder=tmp_path, dtypes=dtypes)


@every_cell
def test_a_step_in_float16_is_near_that_in_float32(kind, own, rng):
    policies = ["float32", "mixed_float16"]
    layers = [Recurrence(kind(UNITS, dtype=policy, **own), dtype=policy) for policy in policies]
    sequence = normal(rng, BATCH, 1, FEATURES)
    for layer in layers:
        layer(sequence)
    randomise(layers[0], rng)
    layers[1].set_weights(layers[0].get_weights())
    expected, found = (layer(sequence, training=True)[0] for layer in layers)
    assert keras.backend.standardize_dtype(found.dtype) == "float16"
    np.testing.assert_allclose(array(found), array(expected), atol=0.01)


def test_a_cell_trains_in_a_compiled_model_with_new_masks_at_each_step(rng):
    inputs = keras.Input((None, FEATURES))
    cell = LayerNormGRUCell(UNITS, **DROPPED, recurrent_l2=0.1, locked=["input"])
    outputs, *_ = Recurrence(cell, seed=3)(inputs)
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x, y = normal(rng, BATCH, TIME, FEATURES), normal(rng, BATCH, TIME, UNITS)
    assert len(set(model.fit(x, y, epochs=3, verbose=0).history["loss"])) == 3


LSTM_WEIGHTS = [("kernel", (3, 16)), ("recurrent_kernel", (4, 16)), ("bias", (16,))]
GRU_WEIGHTS = [("kernel", (3, 12)), ("recurrent_kernel", (4, 12)), ("bias", (2, 12))]


def affine_weights(**sizes):
    return [(f"{name}_{k}", (size,)) for name, size in sizes.items() for k in ("gain", "shift")]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (ElmanCell(4), [("kernel", (3, 4)), ("recurrent_kernel", (4, 4)), ("bias", (4,))]),
        (GRUCell(4), GRU_WEIGHTS),
        (GRUCell(4, use_bias=False), GRU_WEIGHTS[:2]),
        (
            PerGateLSTMCell(4),
            [
                weight
                for gate in "ifjo"
                for weight in (
                    (f"kernel_{gate}", (3, 4)),
                    (f"recurrent_kernel_{gate}", (4, 4)),
                    (f"bias_{gate}", (4,)),
                )
            ],
        ),
        (LayerNormLSTMCell(4), LSTM_WEIGHTS + affine_weights(input=16, recurrent=16, cell=4)),
        (
            LayerNormLSTMCell(4, placement="joint"),
            LSTM_WEIGHTS + affine_weights(gates=16, cell=4),
        ),
        (
            LayerNormLSTMCell(4, placement="gates"),
            LSTM_WEIGHTS + affine_weights(gates=16, cell=4),
        ),
        (LayerNormLSTMCell(4, placement="output"), LSTM_WEIGHTS + affine_weights(output=4)),
        (LayerNormLSTMCell(4, affine=False), LSTM_WEIGHTS),
        (LayerNormLSTMCell(4, placement="none", use_bias=False), LSTM_WEIGHTS[:2]),
        (
            LayerNormGRUCell(4),
            GRU_WEIGHTS
            + affine_weights(
                input_gates=8, recurrent_gates=8, input_candidate=4, recurrent_candidate=4
            ),
        ),
        (
            LayerNormGRUCell(4, placement="joint"),
            GRU_WEIGHTS + affine_weights(gates=8, candidate=4),
        ),
        (
            LayerNormGRUCell(4, placement="gates"),
            GRU_WEIGHTS + affine_weights(gates=8, candidate=4),
        ),
        (LayerNormGRUCell(4, placement="output"), GRU_WEIGHTS + affine_weights(output=4)),
        (LayerNormGRUCell(4, placement="none"), GRU_WEIGHTS),
    ],
)
def test_cells_have_the_weights_of_their_manual_in_that_order(cell, expected):
    cell.build((None, 3))
    assert [(w.name, tuple(w.shape)) for w in cell.weights] == expected
    for weight in cell.weights:
        if weight.name.endswith(("gain", "shift")):
            assert np.all(array(weight) == weight.name.endswith("gain"))
    assert cell.state_size == ([4, 4] if isinstance(cell, LSTMCell) else [4])
    assert cell.output_size == 4


@pytest.mark.parametrize("kernels", ["kernel", "recurrent_kernel"])
@one_of_each
def test_penalties_of_a_cell_are_on_the_right_weights(kind, kernels, rng):
    argument = {"kernel": "input_l2", "recurrent_kernel": "recurrent_l2"}[kernels]
    cell = built(kind(UNITS, **{argument: 0.3}), rng)
    penalised = [w for name, w in by_name(cell).items() if name.startswith(kernels)]
    expected = 0.3 * sum(np.sum(matrix**2) for matrix in penalised)
    assert float(sum(array(loss) for loss in cell.losses)) == pytest.approx(expected, rel=1e-5)


# --- refusals

REFUSED = [
    *[(kind, "units", value) for kind in STEPS for value in (0, 1.5, True)],
    *[(kind, "units", 1) for kind in NORMALISED],
    *[(kind, "weight_dropout", 1.0) for kind in STEPS],
    *[(kind, "locked", ["cell"]) for kind in STEPS],
    *[
        (kind, "epsilon", value)
        for kind in NORMALISED
        for value in (0, -1e-5, None, "a", True, float("nan"), float("inf"))
    ],
    *[(kind, "placement", value) for kind in NORMALISED for value in (None, "Separate", 1)],
]


@pytest.mark.parametrize(("kind", "argument", "value"), REFUSED)
def test_values_out_of_range_are_refused_by_name_and_value(kind, argument, value):
    with pytest.raises(ValueError) as error:
        kind(**{"units": UNITS, argument: value})
    assert f"`{argument}` must be" in str(error.value)
    assert f"Received: {argument}={value!r}." in str(error.value)


@pytest.mark.parametrize("kind", NORMALISED)
def test_a_misspelt_placement_is_refused_with_the_nearest(kind):
    with pytest.raises(ValueError, match="Did you mean 'separate'?"):
        kind(UNITS, placement="seperate")


@pytest.mark.parametrize("kind", NORMALISED)
def test_one_unit_will_do_where_nothing_is_normalised(kind):
    assert kind(1, placement="none").units == 1
