"""`Recurrence`: against the papers, the plain loop and Keras; states, masks, padding."""

import keras
import numpy as np
import pytest
from keras import ops

from dualnet.layers import (
    DepthGatedLSTMCell,
    ElmanCell,
    GRUCell,
    LayerNormLSTMCell,
    LSTMCell,
    MogrifierLSTMCell,
    PerGateLSTMCell,
    Recurrence,
    RecurrentHighwayCell,
    without_gradients,
)
from tests import reference
from tests.checks import (
    KINDS,
    array,
    assert_close,
    by_name,
    check_layer,
    few_elsewhere,
    normal,
    outputs_and_gradients,
    randomise,
    reference_step,
)
from tests.own_parts import DiagonalCell

BATCH, TIME, FEATURES, UNITS = 2, 5, 3, 4

CELLS = {kind.__name__: (kind, {}) for kind in KINDS} | {
    "low_rank": (MogrifierLSTMCell, {"rounds": 4, "rank": 2}),
    "highway": (RecurrentHighwayCell, {"depth": 2}),
    "stack": (DepthGatedLSTMCell, {"depth": 2}),
}
DROPPED = {"recurrent_dropout": 0.4, "mogrifier_dropout": 0.3}

# Other backends compile each.
IN_BFLOAT16 = CELLS if keras.config.backend() == "tensorflow" else ("LSTMCell", "low_rank", "stack")


def a_recurrence(name, rng, seed=None, **arguments):
    """Return a recurrence over a built cell with random weights."""
    kind, options = CELLS[name]
    layer = Recurrence(kind(UNITS, **options, **arguments), seed=seed)
    layer.build((None, None, FEATURES))
    return randomise(layer, rng)


def a_sequence(rng, time=TIME):
    return normal(rng, BATCH, time, FEATURES)


def some_states(rng, layer):
    return [normal(rng, BATCH, size) for size in layer.cell.state_size]


def drawn_by(layer, time):
    """Return the masks that `layer` draws first, `(batch, time, size)`, and its dropped weights."""
    locked, fresh = Recurrence(layer.cell, seed=layer.seed)._draw_masks(BATCH, time)
    names = {weight.name for weight in layer.weights}
    masks = {name: np.swapaxes(array(mask), 0, 1) for name, mask in fresh.items()}
    for name in locked.keys() - names:
        masks[name] = np.repeat(array(locked[name])[:, None], time, axis=1)
    return masks, {name: array(locked[name]) for name in locked.keys() & names}


def test_without_gradients_the_outputs_are_the_same(rng):
    layer, sequence = a_recurrence("low_rank", rng), a_sequence(rng)
    with without_gradients():
        outputs = layer(sequence)
    assert_close(outputs, layer(sequence))


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a SavedModel is of TensorFlow")
def test_a_model_of_ones_own_is_exported_without_gradients(rng, tmp_path):
    tokens = keras.Input((None,), dtype="int32")
    read = keras.layers.Bidirectional(Recurrence(LSTMCell(3), return_state=False))
    model = keras.Model(tokens, read(keras.layers.Embedding(9, 4, mask_zero=True)(tokens)))
    model.compile("sgd", "mse")
    ids = np.array([[1, 2, 0], [3, 4, 5]], "int32")
    model.fit(ids, np.ones((2, 3, 6), "float32"), verbose=0)
    with without_gradients():
        model.export(tmp_path / "served", verbose=False)
    served = keras.layers.TFSMLayer(tmp_path / "served", call_endpoint="serve")
    assert_close(served(ids), model(ids))


# --- the same as the plain loop, whatever the cell: it carries states, is causal and skips padding

ALL_DROPPED = {"input_dropout": 0.4, "recurrent_dropout": 0.4, "weight_dropout": 0.4}
PLAIN_LOOP = CELLS | {
    "of one's own": (DiagonalCell, {}),
    "low_rank": (
        MogrifierLSTMCell,
        {"rounds": 3, "rank": 2, **ALL_DROPPED, "mogrifier_dropout": 0.3},
    ),
    "per gate, masks": (PerGateLSTMCell, {**ALL_DROPPED, "mask_per_gate": True}),
    "masks per gate": (LSTMCell, {**ALL_DROPPED, "mask_per_gate": True}),
    "fresh masks": (GRUCell, {**ALL_DROPPED, "locked": ()}),
    "mogrifier, fresh masks": (
        MogrifierLSTMCell,
        {"rounds": 3, **ALL_DROPPED, "mogrifier_dropout": 0.3, "locked": ()},
    ),
    "layer norm, gates": (LayerNormLSTMCell, {"placement": "gates", **ALL_DROPPED}),
    "stack": (
        DepthGatedLSTMCell,
        {"depth": 2, "affine": True, "stabilised": True, "coupled": False, **ALL_DROPPED},
    ),
    "stack, diagonal": (
        DepthGatedLSTMCell,
        {"depth": 2, "peepholes": "diagonal", "first_gate": "shared", "internal_dropout": 0.3,
         "mask_per_gate": True, "locked": (), **ALL_DROPPED},
    ),
    "highway": (RecurrentHighwayCell, {"depth": 2, **ALL_DROPPED}),
    "highway of the candidate": (
        RecurrentHighwayCell,
        {"depth": 2, "gate_reads": "candidate", "mask_per_gate": True, "locked": (), **ALL_DROPPED},
    ),
}  # fmt: skip


def the_plain_loop(layer, sequence, states, padding_mask):
    """Return what `layer` returns in training, step by step, each weight read at each step."""
    cell, training = layer.cell, bool(layer.cell.mask_specs())
    locked, fresh = layer._draw_masks(*sequence.shape[:2])
    dtype = layer.cell.compute_dtype
    locked = {name: ops.cast(mask, dtype) for name, mask in locked.items()}
    outputs = []
    for t in range(sequence.shape[1]):
        masks = {**locked, **{name: ops.cast(mask[t], dtype) for name, mask in fresh.items()}}
        before, x = [ops.cast(state, dtype) for state in states], ops.cast(sequence[:, t], dtype)
        output, states = cell(x, before, training=training, masks=masks)
        real = ops.convert_to_tensor(padding_mask[:, t, None])
        outputs.append(ops.where(real, output, ops.zeros_like(output)))
        states = [ops.where(real, *pair) for pair in zip(states, before)]
    return [ops.stack(outputs, axis=1), *states]


@pytest.mark.parametrize(
    ("name", "time", "policy"),
    [
        *[(name, 4, "float32") for name in PLAIN_LOOP],
        *[(name, 3, "mixed_bfloat16") for name in IN_BFLOAT16],
        ("low_rank", 1, "float32"),
    ],
)
def test_values_and_gradients_are_those_of_the_plain_loop(name, time, policy, rng):
    kind, options = PLAIN_LOOP[name]
    layer = Recurrence(kind(UNITS, **options, dtype=policy), seed=5, dtype=policy)
    layer.build((None, None, FEATURES))
    randomise(layer, rng)
    sequence = keras.Variable(normal(rng, BATCH, time, FEATURES))
    states = [keras.Variable(normal(rng, BATCH, size)) for size in layer.cell.state_size]
    mask = np.array([[True, False, True, False], [False, True, True, True]])[:, :time]
    start = array(layer.seed_generator.state)

    def found(run):
        def call():
            layer.seed_generator.state.assign(start)  # the same masks at each call
            return run(ops.convert_to_tensor(sequence), [ops.convert_to_tensor(s) for s in states])

        return outputs_and_gradients(call, [sequence, *states, *layer.trainable_variables])

    values, slopes = found(
        lambda x, s: layer(x, initial_state=s, mask=ops.convert_to_tensor(mask), training=True)
    )
    expected, expected_slopes = found(lambda x, s: the_plain_loop(layer, x, s, mask))
    # All of bfloat16 in the plain loop, here the products alone.
    close = {"rtol": 1e-4, "atol": 1e-5} if policy == "float32" else {"rtol": 0.1, "atol": 0.1}
    assert_close(values, expected, **close)
    assert_close(slopes, expected_slopes, **close)
    assert all(np.any(slope) for slope in slopes)


# --- what every layer owes its users


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "with_state"),
    few_elsewhere(
        [("LSTMCell", True), ("stack", False), ("GRUCell", False), ("low_rank", True)], 2
    ),
)
def test_recurrence_passes_the_common_checks(name, with_state, rng, tmp_path):
    kind, options = CELLS[name]
    rates = {"recurrent_dropout": 0.2, "weight_dropout": 0.2, "input_l2": 0.1}
    layer = Recurrence(kind(UNITS, **options, **rates), seed=3)
    inputs = [a_sequence(rng), *([some_states(rng, layer)] if with_state else [])]
    dtypes = ["bfloat16", *["float32"] * len(layer.cell.state_size)]
    check_layer(layer, *inputs, folder=tmp_path, dtypes=dtypes)


# --- in the place of `keras.layers.RNN`

MASK = np.array([[False, True, False, True, False], [True, True, True, False, False], [True] * 5])


# The first five hold every pair of choices.
CHOICES = ["0000", "0111", "1011", "1101", "1110", "1111", "1000", "0100", "0010", "0001"]


@pytest.mark.parametrize(
    ("return_sequences", "return_state", "go_backwards", "masked"),
    [[digit == "1" for digit in choice] for choice in few_elsewhere(CHOICES, 5)],
)
def test_values_and_gradients_are_those_of_keras_rnn(
    return_sequences, return_state, go_backwards, masked, rng
):
    options = {
        "return_sequences": return_sequences,
        "return_state": return_state,
        "go_backwards": go_backwards,
    }
    layer = Recurrence(LSTMCell(UNITS), **options)
    layer.build((None, None, FEATURES))
    randomise(layer, rng)
    # Without sequences the last output is the last word's, which is Keras's own default.
    kerass = keras.layers.RNN(layer.cell, **options, zero_output_for_mask=return_sequences)
    sequence = keras.Variable(normal(rng, *MASK.shape, FEATURES))
    states = [keras.Variable(normal(rng, len(MASK), UNITS)) for _ in range(2)]
    mask = ops.convert_to_tensor(MASK) if masked else None

    def found(run):
        def call():
            given = [ops.convert_to_tensor(state) for state in states]
            outputs = run(ops.convert_to_tensor(sequence), initial_state=given, mask=mask)
            return list(outputs) if return_state else [outputs]

        return outputs_and_gradients(call, [sequence, *states, *layer.trainable_variables])

    (values, slopes), (expected, expected_slopes) = found(layer), found(kerass)
    assert_close(values, expected)
    assert_close(slopes, expected_slopes, rtol=1e-4, atol=1e-5)
    symbolic = layer(keras.Input((None, FEATURES)))
    shapes = [out.shape for out in (symbolic if return_state else [symbolic])]
    assert shapes == [(*[None] * (value.ndim - 1), UNITS) for value in map(array, values)]


def a_tagger(recurrence):
    """Return a model of features padded with 0: a recurrence, and a number at each step."""
    return keras.Sequential(
        [
            keras.Input((None, FEATURES)),
            keras.layers.Masking(),
            recurrence,
            keras.layers.Dense(1, name="tags"),
        ]
    )


def padded_features(rng):
    return np.where(MASK[..., None], normal(rng, *MASK.shape, FEATURES), 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("merge_mode", "return_sequences"),
    [("concat", True), ("sum", False)],
)
def test_a_bidirectional_recurrence_is_a_bidirectional_rnn_of_keras(
    merge_mode, return_sequences, rng
):
    cell, options = LSTMCell(UNITS), {"return_sequences": return_sequences}
    ours, kerass = (
        a_tagger(keras.layers.Bidirectional(layer, merge_mode=merge_mode))
        for layer in (
            Recurrence(cell, **options, return_state=False),
            keras.layers.RNN(cell, **options),
        )
    )
    kerass.set_weights(randomise(ours, rng).get_weights())
    features = padded_features(rng)
    assert_close([ours(features)], [kerass(features)])
    assert ours.output_shape == kerass.output_shape


def test_a_cell_of_ones_own_trains_again_wherever_keras_builds_it(rng, tmp_path):
    features, targets = normal(rng, BATCH, TIME, 3), normal(rng, BATCH, 1)

    def trains(layer):
        model = keras.Sequential([keras.Input((TIME, 3)), layer, keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        model.fit(features, targets, verbose=0)
        return model

    model = trains(Recurrence(DiagonalCell(4), return_sequences=False, return_state=False))
    model.save(tmp_path / "model.keras")
    keras.models.load_model(tmp_path / "model.keras").fit(features, targets, verbose=0)
    trains(keras.layers.RNN(DiagonalCell(4)))
    cell = DiagonalCell(4)
    cell(features[:, 0], [normal(rng, BATCH, 4)])
    trains(Recurrence(cell, return_sequences=False, return_state=False))


@pytest.mark.slow
def test_a_sequential_model_of_features_trains_and_is_saved(rng, tmp_path):
    cell = MogrifierLSTMCell(UNITS, rounds=2, rank=2, recurrent_dropout=0.2)
    layer = Recurrence(cell, return_state=False, seed=3)
    model = a_tagger(keras.layers.Bidirectional(layer))
    model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
    features, targets = padded_features(rng), normal(rng, *MASK.shape, 1)
    before = model.get_weights()
    model.fit(features, targets, epochs=1, verbose=0)
    assert all(np.any(a != b) for a, b in zip(model.get_weights(), before) if a.dtype == "float32")
    model.save(tmp_path / "tagger.keras")
    reloaded = keras.models.load_model(tmp_path / "tagger.keras")
    assert_close([reloaded(features)], [model(features)])
    assert_close([reloaded(features, training=True)], [model(features, training=True)])


def test_backwards_the_mask_goes_on_in_the_order_of_the_outputs(rng):
    inputs = keras.layers.Masking()(padded_features(rng))
    outputs, *_ = Recurrence(LSTMCell(UNITS), go_backwards=True)(inputs)
    mask = array(outputs._keras_mask)
    np.testing.assert_array_equal(mask, MASK[:, ::-1])
    np.testing.assert_array_equal(np.any(array(outputs), axis=-1), mask)


def test_the_last_output_of_a_row_of_padding_is_zero(rng):
    layer = Recurrence(LSTMCell(UNITS), return_sequences=False, return_state=False)
    sequence, states = a_sequence(rng), [normal(rng, BATCH, UNITS) for _ in range(2)]
    mask = np.array([[False] * TIME, [True] * TIME])
    padded, read = array(layer(sequence, initial_state=states, mask=mask))
    assert not np.any(padded) and np.all(read)


def test_one_state_may_be_given_alone_and_a_missing_one_is_told(rng):
    layer, sequence, state = a_recurrence("GRUCell", rng), a_sequence(rng), normal(rng, BATCH, 4)
    assert_close(layer(sequence, initial_state=state), layer(sequence, initial_state=[state]))
    for cell in (ElmanCell(4), GRUCell(4)):  # as Keras's own cells take it
        assert_close(*([cell(sequence[:, 0], h)[0]] for h in (state, [state])))
    with pytest.raises(ValueError, match="`initial_state` must be a list of 2 tensors"):
        a_recurrence("LSTMCell", rng)(sequence, initial_state=[state])


# --- masks


def test_masks_have_the_rates_and_sizes_of_the_cell_and_are_drawn_again_where_it_says():
    rates = {"input_dropout": 0.1, "recurrent_dropout": 0.5, "mogrifier_dropout": 0.8}
    layer = Recurrence(MogrifierLSTMCell(300, rounds=2, locked=["recurrent"], **rates), seed=2)
    layer.build((None, None, 200))
    masks, _ = drawn_by(layer, 20)
    for spec in layer.cell.mask_specs():
        mask = masks[spec.name]
        assert mask.shape == (BATCH, 20, spec.size)
        assert np.mean(mask == 0) == pytest.approx(spec.rate, abs=0.06)
        np.testing.assert_allclose(np.unique(mask), [0, 1 / (1 - spec.rate)], rtol=1e-5)
        for t in range(1, 20):
            assert np.all(mask[:, t] == mask[:, t - 1]) == spec.locked
        assert np.all(np.any(mask[1:] != mask[:-1], axis=-1))  # another one in each row
    assert np.any(masks["mogrifier_1"][..., :200] != masks["mogrifier_2"])


@pytest.mark.parametrize("options", [{**DROPPED, "locked": ["recurrent"]}, {}])
def test_nothing_is_dropped_or_drawn_outside_training_or_without_dropout(options, rng):
    layer = a_recurrence("low_rank", rng, **options)
    sequence, states = a_sequence(rng), some_states(rng, layer)
    before = array(layer.seed_generator.state)
    expected = reference.over_time(reference_step(layer.cell), sequence, states, by_name(layer))
    for training in (None, False) if options else (False, True):
        assert_close(layer(sequence, initial_state=states, training=training), expected)
    np.testing.assert_array_equal(array(layer.seed_generator.state), before)


@pytest.mark.slow
def test_a_recurrence_trains_in_a_compiled_model_with_new_masks_at_each_step(rng):
    # `fit` traces the call once; the masks must not be traced in.
    inputs = keras.Input((None, FEATURES))
    cell = MogrifierLSTMCell(UNITS, **DROPPED, rounds=2, locked=["recurrent"])
    outputs, *_ = Recurrence(cell, seed=3)(inputs)
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x, y = a_sequence(rng), normal(rng, BATCH, TIME, UNITS)
    losses = model.fit(x, y, epochs=3, verbose=0).history["loss"]
    assert len(set(losses)) == 3
    assert model.evaluate(x, y, verbose=0) == model.evaluate(x, y, verbose=0)


# --- padding


def test_a_mask_of_another_kind_is_refused(rng):
    layer = a_recurrence("LSTMCell", rng)
    with pytest.raises(ValueError, match=r"`mask` must be bool of shape \(batch, time\)"):
        layer(a_sequence(rng), mask=np.ones((BATCH, TIME), "float32"))


def test_the_mask_of_an_embedding_reaches_the_recurrence_and_goes_on():
    tokens = keras.Input((None,), dtype="int32")
    states = [keras.Input((UNITS,)) for _ in range(2)]
    embedded = keras.layers.Embedding(5, FEATURES, mask_zero=True)(tokens)
    outputs, *_ = Recurrence(LSTMCell(UNITS))(embedded, initial_state=states)
    model = keras.Model([tokens, *states], outputs)
    given = [np.zeros((2, UNITS), "float32")] * 2
    found = array(model([np.array([[0, 0, 3, 1], [2, 0, 1, 4]]), *given]))
    assert not np.any(found[0, :2]) and np.all(np.any(found[1, 2:], axis=-1))
    assert getattr(outputs, "_keras_mask", None) is not None


# --- dropped weights


def test_weight_drop_zeroes_its_rate_of_the_matrix_and_keeps_the_expectation():
    layer = Recurrence(LSTMCell(50, weight_dropout=0.3), seed=1)
    layer.build((None, None, 2))
    layer.cell.recurrent_kernel.assign(np.ones((50, 200), "float32"))
    masks, weights = drawn_by(layer, 3)
    assert list(weights) == ["recurrent_kernel"] and not masks
    drawn = weights["recurrent_kernel"]
    assert drawn.shape == (50, 200)
    np.testing.assert_allclose(np.unique(drawn), [0, 1 / 0.7], rtol=1e-6)
    assert abs((drawn == 0).mean() - 0.3) < 0.03


# --- cells of users


class SumCell(keras.layers.Layer):
    """A cell that has no parts."""

    state_size, output_size = [FEATURES], FEATURES

    def mask_specs(self):
        return []

    def call(self, inputs, states, training=False, masks=None):
        return inputs + states[0], [inputs + states[0]]


class HalvingCell(SumCell):
    """A cell that is given half of the input."""

    def input_projection(self, inputs, masks):
        return 0.5 * inputs

    step = SumCell.call


def test_a_cell_may_have_no_parts_or_an_input_projection(rng):
    sequence = a_sequence(rng)
    for cell, factor in ((SumCell(), 1), (HalvingCell(), 0.5)):
        expected = factor * np.cumsum(sequence, axis=1)
        assert_close([Recurrence(cell)(sequence)[0]], [expected])
