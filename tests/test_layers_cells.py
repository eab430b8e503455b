"""All recurrent cells: against the papers, against Keras and against each other."""

import itertools
import re
import tomllib
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from dualnet import layers
from dualnet.layers import (
    DepthGatedLSTMCell,
    ElmanCell,
    GRUCell,
    LayerNormGRUCell,
    LayerNormLSTMCell,
    LSTMCell,
    MogrifierLSTMCell,
    PerGateLSTMCell,
    RecurrentHighwayCell,
    RewiredLSTMCell,
)
from dualnet.layers._layer_norm import layer_norm
from dualnet.layers._records import recorded
from tests import reference
from tests.checks import (
    KINDS,
    a_step,
    array,
    assert_close,
    by_name,
    check_layer,
    check_step,
    few_elsewhere,
    gradients,
    normal,
    once,
    random_masks,
    randomise,
    reference_step,
    total,
)
from tests.checks import built as built_with

BATCH, TIME, FEATURES, UNITS = 2, 5, 3, 4
WITH_ROUNDS = (MogrifierLSTMCell, RewiredLSTMCell)
NORMALISED = [LayerNormLSTMCell, LayerNormGRUCell]
PLACEMENTS = ["separate", "joint", "gates", "output", "none"]
EPSILON = 0.03  # large enough to be seen
DROPPED = {"input_dropout": 0.4, "recurrent_dropout": 0.4, "weight_dropout": 0.4}
BOTH = [True, False]
MANUAL = tomllib.loads(Path(__file__).with_name("cells.toml").read_text("utf-8"))


def name_of(value):
    if isinstance(value, dict):
        return "-".join(f"{name}={v}" for name, v in value.items()) or "plain"
    return getattr(value, "__name__", None)


def built(cell, rng):
    return built_with(cell, rng, FEATURES)


def one_of_each_elsewhere(cases):
    """Return `cases` on TensorFlow, and the first of each kind on the others, which compile it."""
    if keras.backend.backend() == "tensorflow":
        return cases
    return [*{kind: (kind, *rest) for kind, *rest in reversed(cases)}.values()]


each_kind = pytest.mark.parametrize("kind", KINDS, ids=name_of)

# --- values and gradients against the papers

NORMALISED_STEPS = [
    (kind, {"placement": placement, "affine": both, "use_bias": both, "epsilon": EPSILON})
    for kind, placement, both in itertools.product(NORMALISED, PLACEMENTS, BOTH)
]
DEPTH_GATED = [
    *[
        {"depth": 2, "peepholes": peepholes, "coupled": peepholes == "full", "first_gate": gate}
        for peepholes in ("full", "diagonal")
        for gate in ("own", "shared", "none")
    ],
    {"use_bias": False, "coupled": False},
    {"depth": 2, "affine": True, "use_bias": False, "peepholes": "diagonal"},
    {"stabilised": True, "first_gate": "shared"},
    {"depth": 3, "stabilised": True, "affine": True, "coupled": False},
    {"depth": 2, "depth_gated": False},
]
UNDROPPED = [
    *[(kind, {"use_bias": b}) for kind in KINDS if kind not in NORMALISED for b in BOTH],
    (LSTMCell, {"capped_input_gate": True}),
    *[
        (MogrifierLSTMCell, {"rounds": rounds, "rank": rank})
        for rounds, rank in ((0, None), (1, 2), (2, None), (3, 0), (5, 2))
    ],
    (RewiredLSTMCell, {"rounds": 5, "rank": 2}),
    (RewiredLSTMCell, {"rounds": 2, "capped_input_gate": False}),
    (MogrifierLSTMCell, {"rounds": 3, "rank": 2, "capped_input_gate": True}),
    *NORMALISED_STEPS,
    *[
        (RecurrentHighwayCell, {"depth": 3, "gate_reads": reads, "use_bias": b})
        for reads, b in itertools.product(("state", "candidate"), BOTH)
    ],
    *[(DepthGatedLSTMCell, options) for options in DEPTH_GATED],
]


@pytest.mark.parametrize(("kind", "options"), one_of_each_elsewhere(UNDROPPED), ids=name_of)
def test_a_step_and_its_gradients_match_the_papers(kind, options, rng):
    check_step(built(kind(UNITS, **options), rng), rng)


@once
@pytest.mark.parametrize(("kind", "options"), UNDROPPED, ids=name_of)
def test_a_cell_shows_the_gates_and_memories_of_the_papers(kind, options, rng):
    cell = built(kind(UNITS, **options), rng)
    x, states = a_step(cell, rng)
    reference.NOTED.clear()
    with recorded() as records:
        cell(x, states)
    reference_step(cell)(x, states, by_name(cell), {})
    assert {name for _, name, _ in records} == set(reference.NOTED)
    for owner, name, value in records:
        assert owner is cell
        np.testing.assert_allclose(array(value), reference.NOTED[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", few_elsewhere([
    {**DROPPED, "internal_dropout": 0.4, "affine": True, "mask_per_gate": True},
    {"first_gate": "none", "peepholes": "diagonal", "coupled": False},
    {},
    {"first_gate": "shared", "stabilised": True},
    {"affine": True, "use_bias": False},
    {"depth_gated": False},
], 2), ids=name_of)  # fmt: skip
def test_depth_gated_layers_of_unequal_sizes_match_the_paper(options, rng):
    check_step(built(DepthGatedLSTMCell(4, depth=3, lower_units=[5, 2], **options), rng), rng)


@once
def test_the_layers_of_a_depth_gated_stack_may_differ_in_size():
    stack = DepthGatedLSTMCell(3, depth=3, lower_units=[5, 3])
    for cell in [stack, DepthGatedLSTMCell.from_config(stack.get_config())]:
        assert cell.state_size == [5, 5, 3, 3, 3, 3] and cell.output_size == 3
    with pytest.raises(ValueError, match="`lower_units` must have a size for each"):
        DepthGatedLSTMCell(3, depth=3, lower_units=[5])


# Cells whose gates have masks of their own, or share one.
MASKED = [
    *[(kind, {}) for kind in KINDS if kind not in (*WITH_ROUNDS, DepthGatedLSTMCell)],
    *[
        (kind, {"placement": placement, "epsilon": EPSILON})
        for kind, placement in itertools.product(NORMALISED, PLACEMENTS)
    ],
    (RecurrentHighwayCell, {"depth": 2}),
]


# Masks of both kinds in turn.
TURNS = [(*case, bool((i + turn) % 2)) for turn in (0, 1) for i, case in enumerate(MASKED)]


@pytest.mark.parametrize(
    ("kind", "options", "mask_per_gate"), one_of_each_elsewhere(TURNS), ids=name_of
)
def test_a_masked_step_and_its_gradients_match_the_papers(kind, options, mask_per_gate, rng):
    cell = built(kind(UNITS, mask_per_gate=mask_per_gate, **DROPPED, **options), rng)
    masks, weight_masks = random_masks(cell, rng)
    times = cell.gates if mask_per_gate else 1
    assert {name: mask.shape[1] for name, mask in masks.items()} == {
        "input": times * FEATURES,
        "recurrent": times * UNITS,
    }
    matrices = getattr(cell, "depth", 1) * cell.gates
    assert sum(mask.size for mask in weight_masks.values()) == matrices * UNITS**2
    check_step(cell, rng)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    one_of_each_elsewhere(
        [
            *[
                (MogrifierLSTMCell, {"rounds": rounds, "rank": rank, "mogrifier_dropout": 0.4})
                for rounds, rank in ((1, None), (2, 2), (5, None))
            ],
            (RewiredLSTMCell, {}),
            (RewiredLSTMCell, {"rounds": 2, "rank": 2, "mogrifier_dropout": 0.4}),
            *[
                (RecurrentHighwayCell, {"depth": 2, "gate_reads": "candidate", "mask_per_gate": b})
                for b in BOTH
            ],
            *[
                (DepthGatedLSTMCell, {"depth": 2, "internal_dropout": 0.4, **options})
                for options in (
                    {},
                    {"mask_per_gate": True, "coupled": False, "affine": True},
                    {"mask_per_gate": True, "first_gate": "shared", "stabilised": True},
                    {"mask_per_gate": True, "first_gate": "none", "peepholes": "diagonal"},
                )
            ],
        ]
    ),
    ids=name_of,
)
def test_a_step_with_masks_within_it_and_its_gradients_match_the_papers(kind, options, rng):
    check_step(built(kind(UNITS, **DROPPED, **options), rng), rng)


# --- under `keras.layers.RNN`


@once
@pytest.mark.slow
@each_kind
def test_a_cell_predicts_and_trains_under_keras_rnn_but_not_with_dropout(kind, rng):
    cell = kind(UNITS)
    layer = keras.layers.RNN(cell, return_sequences=True, return_state=True)
    sequence = normal(rng, BATCH, TIME, FEATURES)
    layer.build(sequence.shape)
    randomise(layer, rng)
    zeros = [np.zeros((BATCH, size)) for size in cell.state_size]
    expected = reference.over_time(reference_step(cell), sequence, zeros, by_name(cell))
    assert_close(layer(sequence), expected)
    variables = layer.trainable_variables
    slopes = gradients(lambda: ops.sum(layer(sequence, training=True)[0]), variables)
    assert all(np.any(slope) for slope in slopes)

    dropping = keras.layers.RNN(kind(UNITS, **DROPPED), return_sequences=True, return_state=True)
    dropping.build(sequence.shape)
    dropping.set_weights(layer.get_weights())
    assert_close(dropping(sequence), expected)
    with pytest.raises(ValueError, match=f"`{kind.__name__}` with .*`dualnet.layers.Recurrence`"):
        dropping(sequence, training=True)


# --- cells that are equal


@pytest.mark.parametrize(
    ("cell", "stock"),
    [
        (ElmanCell(UNITS), keras.layers.SimpleRNN),
        (GRUCell(UNITS), keras.layers.GRU),
        (LSTMCell(UNITS), keras.layers.LSTM),
        (MogrifierLSTMCell(UNITS, rounds=0), keras.layers.LSTM),
    ],
    ids=name_of,
)
def test_a_cell_equals_that_of_keras_and_starts_as_it_does(cell, stock, rng):
    sequence = normal(rng, BATCH, 6, FEATURES)
    start = [normal(rng, BATCH, size) for size in cell.state_size]
    stock = stock(UNITS, return_sequences=True, return_state=True)
    ours = keras.layers.RNN(cell, return_sequences=True, return_state=True)
    for layer in (stock, ours):
        layer.build(sequence.shape)
    assert [(w.name, w.shape) for w in stock.weights] == [(w.name, w.shape) for w in ours.weights]
    np.testing.assert_array_equal(array(cell.bias), array(stock.cell.bias))
    orthogonal = array(cell.recurrent_kernel)
    np.testing.assert_allclose(orthogonal @ orthogonal.T, np.eye(UNITS), atol=1e-5)
    limit = (6 / (FEATURES + cell.gates * UNITS)) ** 0.5  # Glorot, uniform
    assert 0.5 * limit < np.abs(array(cell.kernel)).max() <= limit
    randomise(stock, rng)
    ours.set_weights(stock.get_weights())
    assert_close(ours(sequence, initial_state=start), stock(sequence, initial_state=start))


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="compares with PyTorch's own GRU")
def test_the_gru_is_that_of_pytorch(rng):
    import torch

    cell = built(GRUCell(UNITS), rng)
    x, [h] = a_step(cell, rng)
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
    assert_close([cell(x, [h])[0]], [expected])


@once
def test_fresh_weights_per_gate_are_those_of_a_fused_cell():
    cells = [LSTMCell(UNITS), PerGateLSTMCell(UNITS)]
    for cell in cells:
        keras.utils.set_random_seed(3)
        cell.build((BATCH, FEATURES))
    fused, apart = (by_name(cell) for cell in cells)
    for name, weight in fused.items():
        parts = [apart[f"{name}_{gate}"] for gate in "ifjo"]
        np.testing.assert_array_equal(np.concatenate(parts, axis=-1), weight)


# --- degenerate cases of the deep cells


def with_gate(cell, gate, bias):
    """Set the part of `gate` (its number) of every bias of `cell`."""
    for weight in cell.weights:
        if weight.name.startswith("bias_"):
            values = array(weight).copy()
            values[gate * UNITS : (gate + 1) * UNITS] = bias
            weight.assign(values)
    return cell


def test_a_highway_whose_transform_gate_is_open_is_a_plain_recurrent_network(rng):
    cell = with_gate(built(RecurrentHighwayCell(UNITS), rng), 1, 60)
    stock = keras.layers.SimpleRNNCell(UNITS)
    stock.build((BATCH, FEATURES))
    stock.set_weights([weight[..., :UNITS] for weight in cell.get_weights()])
    x, states = a_step(cell, rng)
    assert_close([cell(x, states)[0]], [stock(x, states)[0]])


@pytest.mark.parametrize("peepholes", ["full", "diagonal"])
def test_a_stack_without_depth_gates_and_peepholes_is_one_of_lstm_cells(peepholes, rng):
    options = {"depth": 2, "coupled": False, "first_gate": "none", "peepholes": peepholes}
    # Layer 2 still has a depth gate.
    cell = with_gate(built(DepthGatedLSTMCell(UNITS, **options), rng), 4, -60)
    for weight in cell.weights:
        if weight.name.startswith("peephole"):
            weight.assign(np.zeros(weight.shape))
    y, states = a_step(cell, rng)
    out, new_states = cell(y, states)
    expected, weights = [], by_name(cell)
    for k in (1, 2):
        lstm = LSTMCell(UNITS)
        lstm.build(y.shape)
        names = ("kernel", "recurrent_kernel", "bias")
        lstm.set_weights([weights[f"{name}_{k}"][..., : 4 * UNITS] for name in names])
        y, [h, c] = lstm(y, states[2 * k - 2 : 2 * k])
        expected += [h, c]
    assert_close([out, *new_states], [y, *expected])


# --- layer normalisation


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_layer_norm_has_its_statistics_in_float32(dtype, rng):
    # The squares of these are above the largest float16; their mean is far above their spread.
    vector = ops.cast(1000 + 50 * normal(rng, BATCH, 64), dtype)
    normal_vector = layer_norm(vector, 1e-5)
    assert keras.backend.standardize_dtype(normal_vector.dtype) == dtype
    expected = reference.layer_norm(array(vector).astype("float64"), 1e-5)
    assert_close([array(normal_vector).astype("float64")], [expected], rtol=0.01, atol=1e-3)


# --- weights


EVERY_OPTION = {"coupled": False, "peepholes": "diagonal", "affine": True, "stabilised": True}


def num_states(cell):
    """Return the number of states that the manual of a cell, or of its base, lists."""
    manuals = (base.__doc__ or "" for base in type(cell).__mro__)
    states = next(filter(None, (re.search(r"States: `\[(.*)\]`", manual) for manual in manuals)))[1]
    return 2 * cell.depth if states.endswith("...") else states.count(",") + 1


@pytest.mark.parametrize(("cell", "expected"), MANUAL["weights"].items())
def test_a_cell_has_the_weights_of_its_manual_in_that_order(cell, expected):
    cell = eval(cell, vars(layers))
    cell.build((None, 3))
    assert [f"{w.name} {tuple(w.shape)}" for w in cell.weights] == expected
    for weight in cell.weights:
        if weight.name.endswith(("gain", "shift")):
            assert np.all(array(weight) == weight.name.endswith("gain"))
    assert cell.state_size == [4] * num_states(cell)
    assert cell.output_size == 4


def test_fresh_deep_cells_start_as_their_manual_says():
    highway = RecurrentHighwayCell(UNITS, depth=2, transform_bias=-3)
    stack = DepthGatedLSTMCell(UNITS, depth=2, coupled=False, stabilised=True, affine=True)
    coupled = DepthGatedLSTMCell(UNITS)
    for cell in (highway, stack, coupled):
        cell.build((None, FEATURES))
    for bias in highway.biases:
        np.testing.assert_array_equal(array(bias), [0] * UNITS + [-3] * UNITS)
    for name, value in by_name(stack).items():
        if name.startswith("bias"):
            np.testing.assert_array_equal(value, np.repeat([0, 1, 0, 0, 0], UNITS))
        elif value.ndim < 2:
            assert not np.any(value), name
        elif name.startswith(("recurrent", "peephole", "forget", "update", "output")):
            np.testing.assert_allclose(value @ value.T, np.eye(UNITS), atol=1e-5, err_msg=name)
        else:
            limit = (6 / sum(value.shape)) ** 0.5  # Glorot, uniform
            assert 0.3 * limit < np.abs(value).max() <= limit, name
    assert not np.any(array(coupled.bias_1))


@once
def test_a_fresh_mogrifier_round_has_the_same_scale_with_and_without_factors():
    full, low_rank = (MogrifierLSTMCell(100, rounds=1, rank=rank) for rank in (None, 30))
    for cell in (full, low_rank):
        cell.build((None, 80))
    [([matrix], bias)], [([left, right], _)] = full.mogrifiers, low_rank.mogrifiers
    # Keras does not make up for what a truncation takes off the spread.
    assert 0.85 < np.std(array(matrix)) / 100**-0.5 < 1.05
    assert 0.7 < np.std(array(left) @ array(right)) / 100**-0.5 < 1.1
    assert not np.any(array(bias))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *[(kind, {}) for kind in KINDS],
        (MogrifierLSTMCell, {"rounds": 2, "rank": 2}),
        (RecurrentHighwayCell, {"depth": 2}),
        (DepthGatedLSTMCell, {"depth": 2, "affine": True}),
        (DepthGatedLSTMCell, {"depth": 2, "peepholes": "diagonal"}),
    ],
    ids=name_of,
)
def test_penalties_are_on_the_matrices_of_the_manual(kind, options, rng):
    rates = {"input_l2": 0.3, "recurrent_l2": 0.5}
    if kind in WITH_ROUNDS:
        rates["mogrifier_l2"] = 0.7
    cell = built(kind(UNITS, **rates, **options), rng)
    expected = 0
    for name, value in by_name(cell).items():
        if value.ndim == 2 and name != "bias":
            recurrent = name.startswith(("recurrent", "peephole", "forget", "update", "output"))
            rate = 0.7 if name.startswith("mogrifier") else 0.5 if recurrent else 0.3
            expected += rate * np.sum(value**2)
    assert total(cell.losses) == pytest.approx(expected, rel=1e-5)


# --- masks


@pytest.mark.parametrize(("cell", "expected"), MANUAL["masks"].items())
def test_the_cells_ask_for_the_masks_of_their_manual(cell, expected):
    cell = eval(cell, vars(layers))
    cell.build((None, FEATURES))
    assert [" ".join(map(str, spec)) for spec in cell.mask_specs()] == expected


# --- what every cell owes its users

CHECKED = [
    *[(kind, {"mask_per_gate": True}) for kind in KINDS if kind not in WITH_ROUNDS],
    *[(kind, {"placement": "output", "epsilon": EPSILON}) for kind in NORMALISED],
    (MogrifierLSTMCell, {"mogrifier_dropout": 0.2, "mogrifier_l2": 1e-3}),
    (MogrifierLSTMCell, {"rounds": 4, "rank": 2, "capped_input_gate": True}),
    (DepthGatedLSTMCell, {"depth": 2, "internal_dropout": 0.2}),
    (DepthGatedLSTMCell, {"depth": 2, **EVERY_OPTION, "first_gate": "shared"}),
    (RecurrentHighwayCell, {"depth": 2, "gate_reads": "candidate"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options"), few_elsewhere(CHECKED, 4), ids=name_of)
def test_a_cell_passes_the_common_checks(kind, options, rng, tmp_path):
    cell = kind(UNITS, **DROPPED, input_l2=1e-3, locked=["input"], **options)
    cell.input_size = FEATURES
    x, states = a_step(cell, rng)
    check_layer(cell, x, states, folder=tmp_path, dtypes=["bfloat16"] * (1 + len(states)))


# --- refusals


def test_masks_per_gate_are_refused_if_the_gates_share_their_input():
    with pytest.raises(ValueError, match="`mask_per_gate` must be False for the Mogrifier"):
        MogrifierLSTMCell(UNITS, mask_per_gate=True)
