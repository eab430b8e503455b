"""Cells with attention: against the papers, the plain loop and padding; constants of a segment."""

import itertools

import numpy as np
import pytest
from keras import ops

from dualnet.layers import (
    AdditiveAttentionCell,
    DepthGatedLSTMCell,
    GeneralAttentionCell,
    GRUCell,
    LSTMCell,
    Recurrence,
)
from tests import reference
from tests.checks import (
    array,
    assert_close,
    check_against_reference,
    few_elsewhere,
    normal,
    randomise,
    reference_step,
)

BATCH, TIME, SOURCE, FEATURES, UNITS, MEMORY = 2, 3, 4, 3, 4, 5
ALIGNMENT = 6
MASK = np.array([[True, True, True, False], [True, True, True, True]])

STACKS = {
    "LSTM": lambda **kwargs: [LSTMCell(UNITS, **kwargs), LSTMCell(UNITS, **kwargs)],
    "GRU": lambda **kwargs: [GRUCell(UNITS, **kwargs)],
    "depth-gated": lambda **kwargs: [DepthGatedLSTMCell(UNITS, depth=2, **kwargs)],
}
KINDS = {
    "general": (GeneralAttentionCell, 5, UNITS, reference.general_attention_step),
    "additive": (AdditiveAttentionCell, ALIGNMENT, ALIGNMENT, reference.additive_attention_step),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def a_recurrence(kind, stack, rng, seed=None, dtype="float32", internal_dropout=0.0, **dropouts):
    cell_type, units, _, _ = KINDS[kind]
    cells = STACKS[stack](**dropouts)
    cell = cell_type(cells, units, internal_dropout=internal_dropout, dtype=dtype)
    layer = Recurrence(cell, seed=seed, dtype=dtype)
    constants = [(None, None, MEMORY), (None, None, KINDS[kind][2]), (None, None)]
    layer.build((None, None, FEATURES), constants_shape=constants)
    return randomise(layer, rng)


def some_inputs(kind, layer, rng, time=TIME):
    states = [normal(rng, BATCH, size) for size in layer.cell.state_size]
    memory, keys = normal(rng, BATCH, SOURCE, MEMORY), normal(rng, BATCH, SOURCE, KINDS[kind][2])
    return [normal(rng, BATCH, time, FEATURES), memory, keys, *states]


def names_of(cell):
    """Return each weight of `cell` by a name of its own, those of its cells behind a prefix."""
    names = {
        f"cell_{number}/{weight.name}": weight
        for number, member in enumerate(cell.cells, start=1)
        for weight in member.weights
    }
    own = [weight for weight in cell.weights if all(weight is not w for w in names.values())]
    return names | {weight.name: weight for weight in own}


PAIRS = [*zip(["general", "additive", "general"], STACKS)]
PAIRS += [pair for pair in itertools.product(KINDS, STACKS) if pair not in PAIRS]


@pytest.mark.parametrize(("kind", "stack"), few_elsewhere(PAIRS, 3))
def test_outputs_states_and_all_gradients_match_the_papers(kind, stack, rng):
    layer = a_recurrence(kind, stack, rng)
    cell = layer.cell
    steps = [(reference_step(member), len(member.state_size)) for member in cell.cells]

    def call(sequence, memory, keys, *states):
        constants = [memory, keys, ops.convert_to_tensor(MASK)]
        return list(layer(sequence, initial_state=list(states), constants=constants))

    def expected(weights, sequence, memory, keys, *states):
        states, outputs = list(states), []
        for t in range(TIME):
            output, states = KINDS[kind][3](
                sequence[:, t], states, weights, steps, memory, keys, MASK
            )
            outputs.append(output)
        return [np.stack(outputs, axis=1), *states]

    names = names_of(cell)
    inputs = some_inputs(kind, layer, rng)
    check_against_reference(call, list(names.values()), inputs, expected, names=names)


@each_kind
def test_the_dropouts_of_all_cells_are_those_of_the_plain_loop(kind, rng):
    rates = {"input_dropout": 0.3, "recurrent_dropout": 0.3, "weight_dropout": 0.3}
    layer = a_recurrence(kind, "LSTM", rng, seed=5, internal_dropout=0.4, **rates)
    sequence, memory, keys, *states = some_inputs(kind, layer, rng)
    constants = [ops.convert_to_tensor(constant) for constant in (memory, keys, MASK)]
    start = array(layer.seed_generator.state)
    outputs, *_ = layer(sequence, initial_state=states, constants=constants, training=True)
    layer.seed_generator.state.assign(start)
    locked, fresh = layer._draw_masks(BATCH, TIME)
    assert len(locked) + len(fresh) == 7  # 3 dropouts of two cells, and the one between them
    for t in range(TIME):
        masks = {**locked, **{name: mask[t] for name, mask in fresh.items()}}
        output, states = layer.cell(
            ops.convert_to_tensor(sequence[:, t]),
            [ops.convert_to_tensor(state) for state in states],
            constants=constants,
            training=True,
            masks=masks,
        )
        assert_close([outputs[:, t]], [output])


@each_kind
def test_a_source_of_padding_alone_gives_a_context_of_zero(kind, rng):
    cell = a_recurrence(kind, "GRU", rng).cell
    keys = normal(rng, BATCH, SOURCE, KINDS[kind][2])
    mask = np.stack([np.zeros(SOURCE, bool), np.ones(SOURCE, bool)])
    query = normal(rng, BATCH, UNITS)
    memory = normal(rng, BATCH, SOURCE, MEMORY)
    query, memory, keys, mask = map(ops.convert_to_tensor, (query, memory, keys, mask))
    context = array(cell.context(query, [memory, keys, mask]))
    assert np.all(context[0] == 0) and np.all(np.isfinite(context[1]))
    weights = array(cell.alignments(query[:, None], keys, mask))
    np.testing.assert_allclose(weights.sum(axis=-1), [[0], [1]], rtol=1e-6)


def test_cells_without_constants_say_what_is_missing():
    layer = Recurrence(GeneralAttentionCell([LSTMCell(4)], 5))
    with pytest.raises(ValueError, match=r"constants.*\[memory, keys\]"):
        layer(np.ones((2, 3, 4), "float32"))
