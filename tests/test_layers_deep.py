"""The cells that are deep within one time step."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

from dualnet.layers import DepthGatedLSTMCell, LSTMCell, Recurrence, RecurrentHighwayCell
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

BATCH, TIME, FEATURES, UNITS = 2, 3, 4, 3
RATES = {"input_dropout": 0.4, "recurrent_dropout": 0.4}
FIRST_GATES = ("own", "shared", "none")


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def a_highway(rng, **arguments):
    return built(RecurrentHighwayCell(UNITS, **arguments), rng)


def a_stack(rng, **arguments):
    return built(DepthGatedLSTMCell(UNITS, **arguments), rng)


def built(cell, rng):
    cell.build((BATCH, FEATURES))
    return randomise(cell, rng)


def inputs_of(cell, rng):
    """Return x and the states of one time step."""
    return normal(rng, BATCH, FEATURES), [normal(rng, BATCH, size) for size in cell.state_size]


def masks_of(cell, rng):
    """Return random masks for one step of `cell`: zeros and values away from 1.

    For weights that are to be dropped they have the weight's shape.
    """

    def mask(size):
        shape = size if isinstance(size, tuple) else (BATCH, size)
        return np.where(rng.random(shape) < 0.4, 0, 1.7).astype("float32")

    return {spec.name: mask(spec.size) for spec in cell.mask_specs()}


def expected_step(cell, x, states, weights, masks=None):
    """Return the new states after one step, from the papers; the output is the last h or s.

    `masks` may hold masks of weights, too.
    """
    weights = {name: weight * (masks or {}).get(name, 1) for name, weight in weights.items()}
    if isinstance(cell, RecurrentHighwayCell):
        return [reference.highway_step(x, *states, weights, depth=cell.depth, masks=masks)]
    names = ("peepholes", "coupled", "first_gate", "stabilised", "affine")
    options = {name: getattr(cell, name) for name in names}
    return reference.depth_gated_step(x, states, weights, masks=masks, **options)


def output_of(states):
    return states[-2] if len(states) > 1 else states[-1]


def check_step(cell, rng, masks=None):
    """The step of `cell` and its gradients are those of the papers."""
    x, states = inputs_of(cell, rng)

    def handed():
        """Return what the cell is handed: masks, and copies of weights, dropped out."""
        if masks is None:
            return None
        kernels = {
            name: getattr(cell, name) * masks[name]
            for name in cell.recurrent_kernels()
            if name in masks
        }
        return {**masks, **kernels}

    def call(x, *states):
        out, new_states = cell(x, list(states), training=masks is not None, masks=handed())
        return [out, *new_states]

    def expected(weights, x, *states):
        new_states = expected_step(cell, x, list(states), weights, masks)
        return [output_of(new_states), *new_states]

    check_against_reference(call, cell.trainable_variables, [x, *states], expected)


def assert_close(found, expected, atol=1e-6):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(array(a), array(b), rtol=1e-5, atol=atol)


# --- values and gradients against the papers


@pytest.mark.parametrize("arguments", [{}, {"depth": 3}, {"depth": 2, "use_bias": False}])
def test_highway_step_and_its_gradients_match_the_paper(arguments, rng):
    check_step(a_highway(rng, **arguments), rng)


@pytest.mark.parametrize("mask_per_gate", [False, True])
def test_masked_highway_step_and_its_gradients_match_the_paper(mask_per_gate, rng):
    cell = a_highway(rng, depth=2, mask_per_gate=mask_per_gate, weight_dropout=0.4, **RATES)
    check_step(cell, rng, masks_of(cell, rng))


@pytest.mark.parametrize(
    ("peepholes", "coupled", "first_gate"),
    [*itertools.product(["full", "diagonal"], [True, False], FIRST_GATES)],
)
def test_depth_gated_step_and_its_gradients_match_the_paper(peepholes, coupled, first_gate, rng):
    cell = a_stack(rng, depth=2, peepholes=peepholes, coupled=coupled, first_gate=first_gate)
    check_step(cell, rng)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"use_bias": False, "coupled": False},
        {"depth": 2, "affine": True},
        {"depth": 2, "affine": True, "use_bias": False, "peepholes": "diagonal"},
        {"depth": 2, "stabilised": True},
        {"stabilised": True, "first_gate": "shared"},
        {"depth": 3, "stabilised": True, "affine": True, "coupled": False},
    ],
    ids=str,
)
def test_options_of_the_depth_gated_step_and_their_gradients_match_the_paper(arguments, rng):
    check_step(a_stack(rng, **arguments), rng)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"mask_per_gate": True, "coupled": False, "affine": True},
        {"mask_per_gate": True, "first_gate": "shared", "stabilised": True},
        {"mask_per_gate": True, "first_gate": "none", "peepholes": "diagonal"},
    ],
    ids=str,
)
def test_masked_depth_gated_step_and_its_gradients_match_the_paper(arguments, rng):
    rates = {**RATES, "internal_dropout": 0.4, "weight_dropout": 0.4}
    cell = a_stack(rng, depth=2, **arguments, **rates)
    check_step(cell, rng, masks_of(cell, rng))


# --- degenerate cases


def test_a_highway_of_depth_one_is_one_highway_layer_of_input_and_state(rng):
    cell = a_highway(rng)
    x, [s] = inputs_of(cell, rng)
    both = np.concatenate([x, s], axis=1)
    matrix = np.concatenate([array(cell.kernel), array(cell.recurrent_kernel_1)])
    z = both @ matrix + by_name(cell)["bias_1"]
    t = 1 / (1 + np.exp(-z[:, UNITS:]))
    assert_close([cell(x, [s])[0]], [t * np.tanh(z[:, :UNITS]) + (1 - t) * s])


def with_gate(cell, gate, bias):
    """Set the part of `gate` (its number) of every bias of `cell`."""
    for weight in cell.weights:
        if weight.name.startswith("bias_"):
            values = array(weight).copy()
            values[gate * UNITS : (gate + 1) * UNITS] = bias
            weight.assign(values)
    return cell


def test_a_highway_whose_transform_gate_is_closed_keeps_its_state(rng):
    cell = with_gate(a_highway(rng, depth=3), 1, -60)
    x, [s] = inputs_of(cell, rng)
    assert_close(cell(x, [s])[1], [s])


def test_a_highway_whose_transform_gate_is_open_is_a_plain_recurrent_network(rng):
    cell = with_gate(a_highway(rng), 1, 60)
    stock = keras.layers.SimpleRNNCell(UNITS)
    stock.build((BATCH, FEATURES))
    stock.set_weights([weight[..., :UNITS] for weight in cell.get_weights()])
    x, [s] = inputs_of(cell, rng)
    assert_close([cell(x, [s])[0]], [stock(x, [s])[0]])


def test_a_stack_whose_depth_gates_are_closed_is_one_of_peephole_lstms(rng):
    cell = with_gate(a_stack(rng, depth=3, coupled=False, peepholes="diagonal"), 4, -60)
    x, states = inputs_of(cell, rng)
    weights, expected, y = by_name(cell), [], x
    for k, (h, c) in enumerate(zip(states[::2], states[1::2]), start=1):
        W, U, b = (weights[f"{name}_{k}"] for name in ("kernel", "recurrent_kernel", "bias"))
        n = 4 * UNITS
        i, f, j, o = np.split(y @ W[:, :n] + h @ U + b[:n], 4, axis=1)
        i = reference.sigmoid(i + weights[f"peephole_input_{k}"] * c)
        f = reference.sigmoid(f + weights[f"peephole_forget_{k}"] * c)
        c = f * c + i * np.tanh(j)
        y = reference.sigmoid(o + weights[f"peephole_output_{k}"] * c) * np.tanh(c)
        expected += [y, c]
    out, found = cell(x, states)
    assert_close([out, *found], [y, *expected])


@pytest.mark.parametrize("peepholes", ["full", "diagonal"])
def test_a_stack_without_depth_gates_and_peepholes_is_one_of_lstm_cells(peepholes, rng):
    arguments = {"depth": 2, "coupled": False, "first_gate": "none", "peepholes": peepholes}
    cell = with_gate(a_stack(rng, **arguments), 4, -60)  # layer 2 has a depth gate still
    x, states = inputs_of(cell, rng)
    expected, y = [], x
    for weight in cell.weights:
        if weight.name.startswith("peephole"):
            weight.assign(np.zeros(weight.shape))
    weights = by_name(cell)
    for k, own in enumerate((states[:2], states[2:]), start=1):
        lstm = LSTMCell(UNITS)
        lstm.build(y.shape)
        n = 4 * UNITS
        names = ("kernel", "recurrent_kernel", "bias")
        lstm.set_weights([weights[f"{name}_{k}"][..., :n] for name in names])
        y, new = lstm(y, own)
        expected += new
    out, found = cell(x, states)
    assert_close([out, *found], [y, *expected])


def with_weights_of(other, cell, **values):
    """Return `cell` with the weights of `other` by name, and with `values`."""
    for weight in cell.weights:
        weight.assign(values.get(weight.name, array(getattr(other, weight.name, weight))))
    return cell


@pytest.mark.parametrize("option", ["stabilised", "affine"])
def test_a_stabiliser_of_zero_and_an_affine_identity_change_nothing(option, rng):
    cell = a_stack(rng, depth=2)
    other = a_stack(rng, depth=2, **{option: True})
    neutral = {"stabiliser_1": 0, "stabiliser_2": 0, "affine_kernel_2": np.eye(UNITS)}
    with_weights_of(cell, other, **neutral, affine_bias_2=np.zeros(UNITS))
    x, states = inputs_of(cell, rng)
    assert_close(other(x, states)[1], cell(x, states)[1])


def test_a_shared_first_gate_is_an_own_one_whose_two_matrices_are_equal(rng):
    shared, own = (a_stack(rng, depth=2, first_gate=gate) for gate in ("shared", "own"))
    with_weights_of(shared, own, memory_kernel=array(shared.kernel_1)[:, -UNITS:])
    x, states = inputs_of(own, rng)
    assert_close(shared(x, states)[1], own(x, states)[1])


# --- weights


def test_highway_has_the_weights_of_its_manual_in_that_order():
    cell = RecurrentHighwayCell(4, depth=2)
    cell.build((None, 3))
    assert [(w.name, tuple(w.shape)) for w in cell.weights] == [
        ("kernel", (3, 8)),
        ("recurrent_kernel_1", (4, 8)),
        ("recurrent_kernel_2", (4, 8)),
        ("bias_1", (8,)),
        ("bias_2", (8,)),
    ]
    assert cell.state_size == [4]
    assert cell.output_size == 4


def test_depth_gated_cell_has_the_weights_of_its_manual_in_that_order():
    def weights(**arguments):
        cell = DepthGatedLSTMCell(4, **arguments)
        cell.build((None, 3))
        assert cell.state_size == [4] * (2 * cell.depth)
        assert cell.output_size == 4
        return [(w.name, tuple(w.shape)) for w in cell.weights]

    first = [
        ("kernel_1", (3, 16)),
        ("recurrent_kernel_1", (4, 12)),
        ("bias_1", (16,)),
        ("peephole_input_1", (4, 4)),
        ("peephole_output_1", (4, 4)),
        ("depth_previous_1", (4,)),
    ]
    assert weights(first_gate="shared") == first
    assert weights() == [*first, ("memory_kernel", (3, 4))]
    assert weights(first_gate="none", use_bias=False, stabilised=True) == [
        ("kernel_1", (3, 12)),
        *first[1:2],
        *first[3:5],
        ("stabiliser_1", ()),
    ]
    several = {"coupled": False, "peepholes": "diagonal", "affine": True, "stabilised": True}
    assert weights(depth=2, **several) == [
        ("kernel_1", (3, 20)),
        ("recurrent_kernel_1", (4, 16)),
        ("bias_1", (20,)),
        ("peephole_input_1", (4,)),
        ("peephole_forget_1", (4,)),
        ("peephole_output_1", (4,)),
        ("depth_previous_1", (4,)),
        ("memory_kernel", (3, 4)),
        ("stabiliser_1", ()),
        ("kernel_2", (4, 20)),
        ("recurrent_kernel_2", (4, 16)),
        ("bias_2", (20,)),
        ("peephole_input_2", (4,)),
        ("peephole_forget_2", (4,)),
        ("peephole_output_2", (4,)),
        ("depth_previous_2", (4,)),
        ("depth_lower_2", (4,)),
        ("affine_kernel_2", (4, 4)),
        ("affine_bias_2", (4,)),
        ("stabiliser_2", ()),
    ]


def test_the_published_sizes_have_their_counts(monkeypatch):
    # Large orthogonal matrices take JAX half a minute.
    monkeypatch.setattr(
        keras.initializers.Orthogonal,
        "__call__",
        lambda self, shape, dtype=None: ops.zeros(shape, dtype),
    )
    highway = RecurrentHighwayCell(890, depth=8)
    highway.build((None, 890))
    assert highway.count_params() == 1_584_200 + 12_687_840
    stack = DepthGatedLSTMCell(200, depth=2)
    stack.build((None, 200))
    counts = [0, 0]
    for weight in stack.weights:
        counts[weight.name.endswith("_2")] += int(np.prod(weight.shape))
    assert counts == [401_000, 361_200]


def test_fresh_cells_start_as_their_manual_says():
    highway = RecurrentHighwayCell(UNITS, depth=2, transform_bias=-3)
    stack = DepthGatedLSTMCell(UNITS, depth=2, coupled=False, stabilised=True, affine=True)
    for cell in (highway, stack):
        cell.build((None, FEATURES))
    for bias in highway.biases:
        np.testing.assert_array_equal(array(bias), [0] * UNITS + [-3] * UNITS)
    for name, value in by_name(stack).items():
        if name.startswith("bias"):
            np.testing.assert_array_equal(value, np.repeat([0, 1, 0, 0, 0], UNITS))
        elif value.ndim < 2:
            assert not np.any(value), name
        elif name.startswith(("recurrent", "peephole")):
            np.testing.assert_allclose(value @ value.T, np.eye(UNITS), atol=1e-5, err_msg=name)
        else:
            limit = (6 / sum(value.shape)) ** 0.5  # Glorot, uniform
            assert 0.3 * limit < np.abs(value).max() <= limit, name
    coupled = DepthGatedLSTMCell(UNITS)
    coupled.build((None, FEATURES))
    assert not np.any(array(coupled.bias_1))


def test_penalties_are_on_the_weights_of_the_manual(rng):
    rates = {"input_l2": 0.3, "recurrent_l2": 0.5}
    for cell in (
        a_highway(rng, depth=2, **rates),
        a_stack(rng, depth=2, affine=True, **rates),
        a_stack(rng, depth=2, peepholes="diagonal", **rates),
    ):
        expected = 0
        for name, value in by_name(cell).items():
            if value.ndim == 2:
                recurrent = name.startswith(("recurrent", "peephole"))
                expected += (0.5 if recurrent else 0.3) * np.sum(value**2)
        assert sum(float(array(loss)) for loss in cell.losses) == pytest.approx(expected, rel=1e-5)


# --- masks


def test_the_deep_cells_ask_for_the_masks_of_their_manual():
    def specs(kind, **arguments):
        cell = kind(UNITS, depth=2, **arguments)
        cell.build((None, FEATURES))
        return [tuple(spec) for spec in cell.mask_specs()]

    highway, stack = RecurrentHighwayCell, DepthGatedLSTMCell
    assert specs(highway) == specs(stack) == []
    assert specs(highway, **RATES, weight_dropout=0.2, locked=["input"]) == [
        ("input", 0.4, 4, True),
        ("recurrent", 0.4, 3, False),
        ("recurrent_kernel_1", 0.2, (3, 6), True),
        ("recurrent_kernel_2", 0.2, (3, 6), True),
    ]
    per_gate = {**RATES, "mask_per_gate": True}
    assert specs(highway, **per_gate) == [("input", 0.4, 8, True), ("recurrent", 0.4, 6, True)]
    assert specs(stack, **RATES, internal_dropout=0.1, weight_dropout=0.2, locked=["internal"]) == [
        ("input", 0.4, 4, False),
        ("recurrent_1", 0.4, 3, False),
        ("recurrent_2", 0.4, 3, False),
        ("internal_1", 0.1, 3, True),
        ("recurrent_kernel_1", 0.2, (3, 9), True),
        ("recurrent_kernel_2", 0.2, (3, 9), True),
    ]
    for first_gate, gates in (("own", 6), ("shared", 5), ("none", 4)):
        found = specs(stack, coupled=False, first_gate=first_gate, internal_dropout=0.1, **per_gate)
        assert found == [
            ("input", 0.4, gates * 4, True),
            ("recurrent_1", 0.4, 12, True),
            ("recurrent_2", 0.4, 12, True),
            ("internal_1", 0.1, 3, True),
        ]


DEEP = {
    "highway": lambda **arguments: RecurrentHighwayCell(UNITS, depth=2, **arguments),
    "stack": lambda **arguments: DepthGatedLSTMCell(UNITS, depth=2, **arguments),
}


@pytest.mark.parametrize("make", DEEP.values(), ids=DEEP)
@pytest.mark.parametrize("rate", ["input_dropout", "recurrent_dropout", "weight_dropout"])
def test_a_deep_cell_with_dropout_refuses_to_train_under_keras_rnn(make, rate, rng):
    layer = keras.layers.RNN(make(**{rate: 0.5}))
    layer.build((BATCH, TIME, FEATURES))
    with pytest.raises(ValueError, match="dualnet.layers.Recurrence"):
        layer(normal(rng, BATCH, TIME, FEATURES), training=True)


@pytest.mark.parametrize("make", DEEP.values(), ids=DEEP)
def test_a_dropped_out_deep_step_without_training_is_a_plain_step(make, rng):
    cell = built(make(**RATES, weight_dropout=0.5), rng)
    x, states = inputs_of(cell, rng)
    assert_close(cell(x, states)[1], expected_step(cell, x, states, by_name(cell)))


# --- over time


def over_time(cell, sequence, states, weights, masks=None):
    """Return the outputs and last states of a loop over the steps of the papers.

    `masks` are those of every step, `(batch, time, size)`, or of a weight.
    """
    outputs = []
    for t in range(sequence.shape[1]):
        now = {name: m[:, t] if m.ndim == 3 else m for name, m in (masks or {}).items()}
        states = expected_step(cell, sequence[:, t], states, weights, now)
        outputs.append(output_of(states))
    return [np.stack(outputs, axis=1), *states]


@pytest.mark.parametrize("make", DEEP.values(), ids=DEEP)
def test_a_deep_cell_runs_over_time_as_the_papers_say(make, rng):
    cell = built(make(), rng)
    x, states = normal(rng, BATCH, TIME, FEATURES), inputs_of(cell, rng)[1]
    expected = over_time(cell, x, states, by_name(cell))
    layer = Recurrence(cell)
    assert_close(layer(x, initial_state=states), expected, atol=1e-5)
    zeros = [np.zeros_like(state) for state in states]
    assert_close(layer(x), over_time(cell, x, zeros, by_name(cell)), atol=1e-5)
    stock = keras.layers.RNN(cell, return_sequences=True, return_state=True)
    assert_close(stock(x, initial_state=states), expected, atol=1e-5)


@pytest.mark.parametrize("make", DEEP.values(), ids=DEEP)
def test_a_deep_cell_trains_under_keras_rnn(make, rng):
    layer = keras.layers.RNN(make())
    sequence = normal(rng, BATCH, TIME, FEATURES)
    layer(sequence)
    randomise(layer, rng)
    variables = layer.trainable_variables
    found = gradients(lambda: ops.sum(layer(sequence, training=True)), variables)
    assert all(np.any(gradient) for gradient in found)


@pytest.mark.parametrize("locked", [("input", "recurrent"), ()], ids=["locked", "fresh"])
@pytest.mark.parametrize(
    ("make", "rates"),
    [(DEEP["highway"], RATES), (DEEP["stack"], {**RATES, "internal_dropout": 0.4})],
    ids=DEEP,
)
def test_a_training_pass_of_a_deep_cell_matches_the_papers_under_what_was_drawn(
    make, rates, locked, rng
):
    cell = built(make(**rates, weight_dropout=0.4, mask_per_gate=True, locked=locked), rng)
    x, states = normal(rng, BATCH, TIME, FEATURES), inputs_of(cell, rng)[1]
    found = Recurrence(cell, seed=7)(x, initial_state=states, training=True)
    # Another with the same seed draws the same.
    kept, fresh = Recurrence(cell, seed=7)._draw_masks(BATCH, TIME)
    weights = by_name(cell)
    masks = {name: array(mask) for name, mask in kept.items() if name not in weights}
    masks = {name: np.repeat(mask[:, None], TIME, axis=1) for name, mask in masks.items()}
    masks |= {name: np.swapaxes(array(mask), 0, 1) for name, mask in fresh.items()}
    assert {*masks, *kept} == {spec.name for spec in cell.mask_specs()}
    weights |= {name: array(kernel) for name, kernel in kept.items() if name in weights}
    assert any(np.any(mask == 0) for mask in masks.values())
    assert_close(found, over_time(cell, x, states, weights, masks), atol=1e-5)


def test_padding_leaves_every_state_of_a_stack_as_it_is(rng):
    layer = Recurrence(a_stack(rng, depth=2))
    x, states = normal(rng, BATCH, TIME, FEATURES), inputs_of(layer.cell, rng)[1]
    mask = np.array([[True, True, False], [False, False, False]])
    outputs, *last = layer(x, initial_state=states, mask=mask)
    _, *after_two = layer(x[:, :2], initial_state=states)
    assert not np.any(array(outputs)[~mask])
    assert_close([array(state)[0] for state in last], [array(state)[0] for state in after_two])
    assert_close([array(state)[1] for state in last], [state[1] for state in states])


# --- what every cell owes its users


@pytest.mark.parametrize(
    "cell",
    [
        RecurrentHighwayCell(UNITS, depth=2, transform_bias=-1, weight_dropout=0.1, locked=[]),
        DepthGatedLSTMCell(UNITS, depth=2, internal_dropout=0.2, input_l2=1e-3, locked=["input"]),
        DepthGatedLSTMCell(
            UNITS,
            depth=2,
            peepholes="diagonal",
            coupled=False,
            first_gate="shared",
            stabilised=True,
            affine=True,
            mask_per_gate=True,
            name="options",
        ),
    ],
    ids=lambda cell: cell.name,
)
def test_deep_cells_pass_the_common_checks(cell, rng, tmp_path):
    count = len(cell.state_size)
    check_layer(cell, *inputs_of(cell, rng), folder=tmp_path, dtypes=["bfloat16"] * (count + 1))


@pytest.mark.parametrize("make", DEEP.values(), ids=DEEP)
def test_a_deep_cell_comes_near_in_float16(make, rng):
    cell = built(make(), rng)
    coarse = built(make(dtype="mixed_float16"), rng)
    coarse.set_weights(cell.get_weights())
    x, states = inputs_of(cell, rng)
    found = coarse(x, states)[1]
    assert {keras.backend.standardize_dtype(state.dtype) for state in found} == {"float16"}
    for a, b in zip(found, cell(x, states)[1]):
        np.testing.assert_allclose(array(a), array(b), rtol=0.01, atol=0.01)


# --- refusals


@pytest.mark.parametrize(
    ("kind", "argument", "value"),
    [
        *[(RecurrentHighwayCell, "depth", value) for value in (0, -1, 1.5, True, None)],
        *[(DepthGatedLSTMCell, "depth", value) for value in (0, 1.5, True, None)],
        *[(DepthGatedLSTMCell, "peepholes", value) for value in ("diag", None, True)],
        *[(DepthGatedLSTMCell, "first_gate", value) for value in ("owned", None)],
        *[(DepthGatedLSTMCell, "internal_dropout", value) for value in (1.0, -0.1, "a")],
        *[(RecurrentHighwayCell, "transform_bias", v) for v in (None, "a", True, float("inf"))],
        (RecurrentHighwayCell, "transform_bias", float("nan")),
        (RecurrentHighwayCell, "locked", ["internal"]),
        (DepthGatedLSTMCell, "locked", ["mogrifier"]),
        (DepthGatedLSTMCell, "units", 0),
    ],
)
def test_values_out_of_range_are_refused_by_name_and_value(kind, argument, value):
    with pytest.raises(ValueError) as error:
        kind(**({"units": UNITS} | {argument: value}))
    assert f"`{argument}` must be" in str(error.value)
    assert f"Received: {argument}={value!r}." in str(error.value)
