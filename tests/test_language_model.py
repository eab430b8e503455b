import re

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

import dualnet
from dualnet import zoo
from dualnet._backend import restoring
from dualnet.builders import language_model
from dualnet.corpora import Vocabulary
from dualnet.text import ByteTokenizer
from tests.checks import assert_same, dtype_policy, few_elsewhere, nll, once, strong, total, values

JAX = keras.config.backend() == "jax"
EAGERLY = keras.config.backend() == "tensorflow"  # tracing takes longer than a few steps
PLACES = [
    "input", "recurrent", "internal", "cell", "output", "dual_input", "dual_output", "mogrifier",
]  # fmt: skip


def tokens_of(shape, seed=0, words=12):
    return np.random.default_rng(seed).integers(words, size=shape).astype("int32")


def compiled(model, rate=0.01, loss=None):
    """Return `model`, whose steps are not traced on TensorFlow."""
    settings = {"run_eagerly": EAGERLY, "jit_compile": JAX}
    model.compile(keras.optimizers.SGD(rate), **settings, **({"loss": loss} if loss else {}))
    return model


@pytest.fixture(scope="module")
def tiny():
    keras.utils.set_random_seed(3)
    return zoo.build("dual_mdlstm", vocabulary_size=12, units=6, rounds=2, rank=2)


@pytest.mark.slow
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_carried_state_equals_one_pass(tiny, lengths):
    tokens = tokens_of((3, sum(lengths)))
    whole = ops.convert_to_numpy(tiny(tokens))
    state, parts, start = tiny.initial_state(3), [], 0
    for length in lengths:
        logits, state = tiny.advance(tokens[:, start : start + length], state)
        parts.append(ops.convert_to_numpy(logits))
        start += length
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, rtol=1e-5, atol=1e-6)


@once
@pytest.mark.parametrize(
    ("tokens", "rows", "message"),
    [
        (np.array([[-1]]), 1, "`tokens` must hold ids of the model's vocabulary, 0 to 11"),
        ([1, 2], 1, r"`tokens` must be an integer array of shape \(batch, time\).*\(2,\)"),
        ([[]], 1, r"`tokens` must be an integer array.*both at least 1.*\(1, 0\)"),
        ([[1]], 3, r"`state` must hold 4 arrays of shapes \[\(1, 6\), \(1, 6\).*initial_state\(1"),
    ],
)
def test_advance_refuses_what_no_text_of_the_vocabulary_is(tiny, tokens, rows, message):
    with pytest.raises(dualnet.ArgumentError, match=message):
        tiny.advance(tokens, tiny.initial_state(rows))


def test_a_model_of_padded_sentences_reads_padding_in_advance():
    model = language_model(9, units=4, padded=True)
    _, state = model.advance([[1, -1], [2, 3]], model.initial_state(2))
    _, alone = model.advance([[1]], model.initial_state(1))
    np.testing.assert_allclose(*(ops.convert_to_numpy(h[0][0]) for h in (state, alone)), rtol=1e-5)
    with pytest.raises(dualnet.ArgumentError, match="0 to 8, or -1 for padding. Received: -2"):
        model.advance([[-2]], model.initial_state(1))


def test_hidden_states_are_what_the_dual_layer_reads(tiny):
    tokens = tokens_of((2, 5))
    hidden = tiny.hidden_states(tokens)
    features = tiny.core.get_layer("connection")(
        [tiny.core.get_layer("embedding")(tokens), hidden]
    )  # no dropout outside of training
    logits = tiny.core.get_layer("output")(features)
    np.testing.assert_allclose(*map(ops.convert_to_numpy, (logits, tiny(tokens))), atol=1e-5)
    first, state = tiny.hidden_states(tokens[:, :2], tiny.initial_state(2))
    second, _ = tiny.hidden_states(tokens[:, 2:], state)
    both = np.concatenate([ops.convert_to_numpy(part) for part in (first, second)], axis=1)
    np.testing.assert_allclose(both, ops.convert_to_numpy(hidden), atol=1e-5)


@once
@pytest.mark.parametrize(
    ("arguments", "layers"),
    [
        ({"connection": "dual"}, {"embedding": 4, "recurrence_1": 4, "connection": 4}),
        ({"recurrent_layers": 2, "skip_connections": True},
         {"embedding": 4, "recurrence_1": 4, "recurrence_2": 4, "hidden": 4}),
    ],
)  # fmt: skip
def test_the_hidden_states_of_all_layers_are_aligned_with_words(arguments, layers, monkeypatch):
    model = strong(language_model(257, units=4, **arguments), ByteTokenizer())
    text = "two wörds\n"
    monkeypatch.setattr("dualnet.extras.analysis.SEGMENT", 3)
    found = dualnet.analysis.hidden_states(model, text)
    assert found.words == ("two", "wörds", "<eos>") and found.starts.tolist() == [0, 3, 10]
    assert {name: v.shape[1] for name, v in found.layers.items()} == layers
    ids = np.append(model.vocabulary.eos_id, found.ids)
    whole = model.hidden_states(ids[None], layers="all")
    last = "hidden" if "hidden" in layers else [n for n in layers if n.startswith("rec")][-1]
    assert_same([model.hidden_states(ids[None])], [whole[last]])
    for name, vectors in found.layers.items():
        np.testing.assert_allclose(vectors, ops.convert_to_numpy(whole[name])[0, 1:], atol=1e-5)
        words = found.of_words()[name], found.of_words("mean")[name]
        np.testing.assert_array_equal(words[0], vectors[[2, 9, 10]])
        means = [part.mean(axis=0) for part in np.split(vectors, [3, 10])]
        np.testing.assert_allclose(words[1], means, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_fit_carries_the_state_from_batch_to_batch_and_starts_epochs_from_zero(build, corpus):
    model = build("dual_lstm")
    model.compile(optimizer=keras.optimizers.SGD(1e-30))  # the weights stay as they are
    batches = corpus.batches("train", batch_size=4, sequence_length=7)
    history = model.fit(batches, epochs=2, verbose=0).history
    whole, targets = (np.concatenate(part, axis=1) for part in zip(*batches))
    expected = np.exp(nll(model(whole), targets).mean())
    np.testing.assert_allclose(history["perplexity"], expected, rtol=1e-5)
    found = model.evaluate(batches, verbose=0, return_dict=True)["perplexity"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
def test_neither_validation_nor_another_evaluation_disturbs_training(build, corpus):
    train, valid, others = (
        corpus.batches("valid", batch_size=rows, sequence_length=6) for rows in (4, 2, 3)
    )

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.evaluate(others, verbose=0)

    ends, validated = [], []
    validates = {"validation_data": valid}
    for settings in ({}, validates, {**validates, "callbacks": [Look()]}):
        keras.utils.set_random_seed(1)
        model = build("dual_lstm", input_dropout=0.3, recurrent_dropout=0.3, output_dropout=0.2)
        model.compile(optimizer="nadam", run_eagerly=EAGERLY)
        history = model.fit(train, epochs=2, verbose=0, **settings).history
        ends.append(values(model))
        validated.append(history.get("val_perplexity"))
    assert validated[1] == validated[2]
    for other in ends[1:]:
        assert_same(other, ends[0])


@once
def test_what_is_frozen_is_still_frozen_after_loading(tmp_path):
    tokens = tokens_of((4, 3))
    model = language_model(12, units=4)
    model.get_layer("embedding").trainable = False
    model.compile("adam", run_eagerly=True)
    model.fit(tokens, tokens, batch_size=4, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for end in (model, loaded):
        end.fit(tokens, tokens, batch_size=4, verbose=0)
    assert_same(values(model), values(loaded))
    assert loaded.optimizer.iterations == 2


@pytest.mark.slow
def test_save_load_and_go_on_equals_one_run(build, corpus, tmp_path):
    train = corpus.batches("valid", batch_size=4, sequence_length=6)
    model = build("dual_mdlstm", **{f"{place}_dropout": 0.3 for place in PLACES})
    model.compile(optimizer="nadam", run_eagerly=EAGERLY)
    model.fit(train, epochs=1, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = dualnet.load(tmp_path / "model.keras")
    assert loaded.vocabulary == corpus.vocabulary
    tokens = corpus.test[None, :20]
    np.testing.assert_array_equal(*(ops.convert_to_numpy(m(tokens)) for m in (model, loaded)))
    for end in (model, loaded):
        end.fit(train, epochs=1, verbose=0)
    assert_same(values(model), values(loaded))


def test_streams_that_do_not_go_on_and_unknown_ids_and_words_are_refused(build, corpus):
    model = build()
    model.compile(optimizer="nadam")
    with pytest.raises(ValueError, match=r"`x` must hold a multiple of `batch_size` rows.*7 rows"):
        model.fit(tokens_of((7, 5)), tokens_of((7, 5)), batch_size=4, verbose=0)
    with pytest.raises(ValueError, match="`shuffle` must be False"):
        model.fit(tokens_of((8, 5)), tokens_of((8, 5)), shuffle=True, verbose=0)
    with pytest.raises(ValueError, match="`x` must hold ids of the model's vocabulary, 0 to 9"):
        model.fit(tokens_of((8, 5)) + 90, tokens_of((8, 5)), batch_size=4, verbose=0)
    with pytest.raises(ValueError, match="`inputs` must hold ids of the model's vocabulary"):
        model(np.array([[1, 90]]))
    words = corpus.vocabulary.words
    readings = {"documents": "blank-line"}, {"lowercase": True}
    for vocabulary in (Vocabulary(words[::-1]), *(Vocabulary(words, **how) for how in readings)):
        model.vocabulary = vocabulary
        with pytest.raises(ValueError, match="`x` must have the vocabulary of the model, and read"):
            model.fit(corpus.batches("train", batch_size=4, sequence_length=9), verbose=0)
    with pytest.raises(ValueError, match=r"`vocabulary` must have the .* words.*vocabulary_size="):
        model.vocabulary = Vocabulary(("more", *corpus.vocabulary.words))


BAD_TARGETS = {
    "vocabulary, 0 to 8. Received: 0 to 9. A target": [[1, 9, -1]] * 4,
    "must hold integers, the ids of words. Received: 0.5": [[1, 0.5, 2]] * 4,
    "each token of `x`, shape (4, 3). Received: shape (4, 2)": [[1, 2]] * 4,
}


@pytest.mark.parametrize("message", BAD_TARGETS)
@pytest.mark.parametrize("method", ["train_on_batch", "test_on_batch"])
def test_targets_that_are_no_ids_of_the_tokens_are_refused(method, message):
    model, x = language_model(9, units=4), tokens_of((4, 3), words=9)
    compiled(model)
    with pytest.raises(dualnet.ArgumentError, match=re.escape(message)):
        getattr(model, method)(x, np.array(BAD_TARGETS[message]))


KINDS = {
    "plain": {}, "gate": {"gate": "input", "gate_units": 3}, "mixture": {"experts": 2},
    "fraternal": {"fraternal_regularization": 0.1}, "smoothed": {}, "padded": {"padded": True},
}  # fmt: skip


@pytest.mark.parametrize("kind", few_elsewhere(KINDS, 3))
def test_targets_below_zero_and_padding_count_for_nothing(kind):
    x = tokens_of((4, 6), words=9)
    kept = np.arange(6) >= [[3], [0], [1], [2]]
    y = np.where(kept, tokens_of((4, 6), seed=1, words=9), -100)
    if kind == "padded":
        x, y = np.where(kept, x, -1), np.maximum(y, 0)
    found = []
    for target, weight in ((y, None), (np.maximum(y, 0), kept.astype("float32"))):
        keras.utils.set_random_seed(0)
        model = language_model(9, units=4, **KINDS[kind])
        model.label_smoothing = 0.1 * (kind == "smoothed")
        compiled(model, 0.5)
        settings = {"sample_weight": weight, "batch_size": 4, "verbose": 0}
        losses = model.fit(x, target, epochs=2, **settings).history["loss"]
        figures = [*losses, *model.evaluate(x, target, **settings)]
        found.append([*model.get_weights(), np.array(figures)])
    assert_same(*found)
    logits = model(x)
    right = np.exp(nll(logits, np.maximum(y, 0))[kept].mean())
    np.testing.assert_allclose(model.evaluate(x, y, **settings)[1], right, rtol=1e-5)


@once
def test_metrics_of_ones_own_read_targets_below_zero_as_weight_0():
    x = tokens_of((4, 6), words=9)
    y = np.where(np.arange(6) < 4, x, -1)
    model = language_model(9, units=4)
    metrics = [keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="nll")]
    model.compile("sgd", weighted_metrics=metrics)
    found = model.evaluate(x, y, batch_size=4, verbose=0, return_dict=True)
    assert found["nll"] == pytest.approx(np.log(found["perplexity"]), rel=1e-5)


@pytest.mark.parametrize(
    "loss",
    [
        "sparse_categorical_crossentropy",
        keras.losses.SparseCategoricalCrossentropy(),
    ],
)
def test_a_loss_of_probabilities_is_refused(tiny, loss):
    message = r"`loss` must take logits.*SparseCategoricalCrossentropy\(from_logits=True\)"
    with pytest.raises(dualnet.ArgumentError, match=message):
        tiny.compile(optimizer="sgd", loss=loss)


def test_a_loss_of_your_own_leaves_no_place_for_parts_of_the_default():
    model, x = language_model(9, units=4, fraternal_regularization=0.1), tokens_of((4, 3), words=9)
    compiled(model, 0.0, of_logits)
    with pytest.raises(dualnet.ArgumentError, match="`loss` must be left out with `label_smoo"):
        model.fit(x, x, batch_size=4, verbose=0)
    model.evaluate(x, x, batch_size=4, verbose=0)


def test_a_loss_of_your_own_may_ignore_targets_and_has_its_targets_checked():
    model, x = language_model(9, units=4), tokens_of((4, 3), words=9)
    ignoring = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    compiled(model, 0.0, ignoring)
    y = np.where(x % 2, x, -1)
    loss, perplexity = model.evaluate(x, y, batch_size=4, verbose=0)
    assert perplexity == pytest.approx(np.exp(nll(model(x), np.maximum(y, 0))[y >= 0].mean()))
    if keras.config.backend() != "tensorflow":  # whose own loss cannot ignore a word
        assert loss == pytest.approx(np.log(perplexity), rel=1e-5)
    with pytest.raises(dualnet.ArgumentError, match="^`y` must hold ids of the model's vocabulary"):
        model.evaluate(x, x + 9, batch_size=4, verbose=0)


def test_targets_have_the_forms_that_keras_takes():
    model, x = language_model(9, units=4), tokens_of((4, 3), words=9)
    for loss in (None, of_logits):
        compiled(model, 0.0, loss)
        plain, *others = (
            model.fit(x, y, batch_size=4, verbose=0).history["loss"] for y in (x, [x], x[..., None])
        )
        assert [plain, plain] == others


def of_logits(y, logits, from_logits=True):
    return keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=from_logits)


def test_a_model_that_is_not_compiled_and_quantization_are_refused():
    model, x = language_model(9, units=4), tokens_of((4, 3), words=9)
    with pytest.raises(ValueError, match="You must call `compile"):
        model.fit(x, x, batch_size=4)
    with pytest.raises(dualnet.ArgumentError, match="must not be called, since matrices may be t"):
        model.quantize("int8")


def test_a_model_is_called_on_symbols():
    model, x = language_model(9, units=4), tokens_of((4, 3), words=9)
    whole = keras.Sequential([keras.Input((None,), dtype="int32"), model, keras.layers.Softmax()])
    assert whole.output_shape == (None, None, 9) and model.compute_output_shape((2, 3)) == (2, 3, 9)
    found, expected = map(ops.convert_to_numpy, (whole(x), ops.softmax(model(x))))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_dataset_whose_last_batch_may_be_short_is_refused():
    model = language_model(9, units=4)
    model.compile(optimizer="sgd")

    class Dataset:  # as `tf.data.Dataset`, which JAX and torch take too, without TensorFlow
        element_spec = (keras.KerasTensor((None, 5)), keras.KerasTensor((None, 5)))

    with pytest.raises(dualnet.ArgumentError, match="`x` must come in batches.*drop_remainder=Tr"):
        model.fit(Dataset())


class Short(keras.utils.PyDataset):
    """Three batches, of 4 rows, 4 and 3. Keras looks at the first two before the first step."""

    x = tokens_of((11, 3), words=9)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return (self.x[4 * index :][:4],) * 2


def test_a_short_last_batch_of_a_py_dataset_is_refused_before_the_first_step():
    model = compiled(language_model(9, units=4))
    message = r"^`x` must come in batches of 4 rows, .*a batch of 3\. Leave the incomplete"
    with pytest.raises(dualnet.ArgumentError, match=message):
        model.fit(Short(), verbose=0)


@once
@pytest.mark.slow
def test_streams_start_from_the_state_that_they_are_given(tiny):
    tokens = tokens_of((4, 9))
    x, y = tokens[:, 3:8], tokens[:, 4:]
    compiled(tiny, 0.0)
    for rows in (1, 4):
        _, state = tiny.advance(tokens[:rows, :3], tiny.initial_state(rows))
        tiny.reset_state(state, training=False)
        start = [np.tile(ops.convert_to_numpy(part), (4 // rows, 1)) for part in state]
        wanted = np.exp(nll(tiny.advance(x, start)[0], y).mean())
        for _ in range(2):  # each evaluation starts from it
            found = tiny.evaluate(x, y, batch_size=4, verbose=0, return_dict=True)
            np.testing.assert_allclose(found["perplexity"], wanted, rtol=1e-5)
    assert tiny.training_rows.first is None
    with pytest.raises(dualnet.ArgumentError, match="`state` must have one row, or 2, the number"):
        tiny.evaluate(x, y, batch_size=2, verbose=0)
    tiny.reset_state()
    found = tiny.evaluate(x, y, batch_size=2, verbose=0, return_dict=True)
    assert abs(found["perplexity"] - wanted) > 1e-3


def test_training_streams_start_each_epoch_from_the_state_that_they_are_given():
    model = language_model(9, units=4)
    tokens = tokens_of((2, 9), words=9)
    compiled(model, 0.0)
    _, state = model.advance(tokens[:, :3], model.initial_state(2))
    model.reset_state(state)
    data = {"x": tokens[:, 3:8], "y": tokens[:, 4:], "batch_size": 2, "verbose": 0}
    losses = model.fit(**data, epochs=2).history["loss"]
    wanted = nll(model.advance(data["x"], state)[0], data["y"]).mean()
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    model.dropout_samples = 2  # each of them starts from it, too
    np.testing.assert_allclose(model.fit(**data).history["loss"], wanted, rtol=1e-5)


@once
def test_a_model_shows_the_layers_and_shapes_of_its_core(tiny):
    assert tiny.inputs[0].shape == tiny.input_shape == (None, None)
    assert tiny.get_layer("embedding") is tiny.core.get_layer("embedding")
    lines = []
    tiny.summary(print_fn=lines.append)
    assert "embedding" in "".join(lines) and "recurrence_2" in "".join(lines)


@pytest.mark.slow
def test_keras_exports_logits_of_tokens(tiny, tmp_path):
    with pytest.raises(dualnet.ArgumentError, match=r"`format` must be.*dualnet.export\(model"):
        tiny.export(tmp_path / "model.onnx", format="onnx")
    if not EAGERLY:
        with pytest.raises(ImportError, match="needs the TensorFlow backend"):
            tiny.export(tmp_path / "model")
        return
    import tensorflow as tf

    tiny.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    for shape in ((1, 3), (2, 5)):
        tokens = tokens_of(shape)
        np.testing.assert_allclose(loaded.serve(tokens), tiny(tokens), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("place", few_elsewhere(PLACES, 2))
def test_each_of_the_dropouts_acts_in_training_alone(place):
    sizes = {"units": 6, "recurrent_layers": 2, "rounds": 2, "rank": 3}
    choices = {"cell": "mogrifier_lstm", "connection": "dual", f"{place}_dropout": 0.5}
    model = language_model(12, **sizes, **choices)
    tokens = tokens_of((3, 6))
    still, again = (ops.convert_to_numpy(model(tokens)) for _ in range(2))
    np.testing.assert_array_equal(still, again)
    one, two = (ops.convert_to_numpy(model(tokens, training=True)) for _ in range(2))
    assert np.abs(one - still).max() > 0
    assert np.abs(one - two).max() > 0  # a new mask at each call


def test_perplexity_leaves_penalties_out(build, corpus):
    model = build("dual_lstm", embedding_l2=1.0)
    model.compile(optimizer=keras.optimizers.SGD(0.0))
    batch = corpus.batches("valid", batch_size=2, sequence_length=9)[1]
    loss, perplexity = model.train_on_batch(*batch)
    np.testing.assert_allclose(loss, np.log(perplexity) + total(model.losses), rtol=1e-5)
    assert np.exp(loss) > 2 * perplexity


def test_advance_in_training_drops_out_and_leaves_the_penalties_in_the_losses():
    model = language_model(12, units=6, output_dropout=0.5, activation_regularization=2.0)
    tokens, state = tokens_of((3, 6)), model.initial_state(3)
    first, second = (
        ops.convert_to_numpy(model.advance(tokens, state, training=True)[0]) for _ in range(2)
    )
    assert np.abs(first - second).max() > 0
    assert total(model.losses) > 0
    model.advance(tokens, state)
    assert total(model.losses) == 0


@pytest.mark.slow
def test_bfloat16_trains_with_float32_weights_and_logits(corpus):
    with dtype_policy("mixed_bfloat16"):
        model = zoo.build("dual_lstm", vocabulary_size=len(corpus.vocabulary), units=8)
    model.compile(optimizer="nadam", jit_compile=JAX)
    history = model.fit(
        corpus.batches("train", batch_size=4, sequence_length=9), epochs=2, verbose=0
    ).history
    assert history["loss"][1] < history["loss"][0]
    for tensor in (*model.weights, model(corpus.test[None, :9])):
        assert keras.backend.standardize_dtype(tensor.dtype) == "float32"


# --- batches that are no streams


@pytest.mark.slow
def test_sentences_start_from_zeros_and_leave_the_carried_rows_alone(build, corpus):
    model = build("lstm", padded=True)
    model.compile(optimizer=keras.optimizers.SGD(0.0), jit_compile=JAX)
    batches = corpus.sentence_batches("train", batch_size=7, shuffle=False)
    found = model.evaluate(batches, verbose=0, return_dict=True)["perplexity"]
    wanted = dualnet.perplexity(model, corpus.train, by_sentence=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)  # padding counts for nothing
    model.fit(batches, epochs=1, verbose=0)
    for row in model.training_rows.read(None):
        assert not np.any(ops.convert_to_numpy(row))
    streams = corpus.batches("train", batch_size=7, sequence_length=9)
    model.fit(streams, epochs=1, verbose=0)  # and streams are carried again
    assert any(np.any(ops.convert_to_numpy(row)) for row in model.training_rows.read(None))


def test_weights_of_rows_count_as_weights_of_their_tokens():
    tokens, of_rows = tokens_of((4, 3)), np.array([1.0, 0.0, 2.0, 1.0])
    found = []
    for weights in (of_rows, np.repeat(of_rows[:, None], 3, axis=1)):
        keras.utils.set_random_seed(0)
        model = compiled(language_model(12, units=4))
        model.fit(tokens, tokens, sample_weight=weights, batch_size=4, verbose=0)
        model.train_on_batch(tokens, tokens, sample_weight=weights)
        loss = model.evaluate(tokens, tokens, sample_weight=weights, batch_size=4, verbose=0)[0]
        valid = {"validation_data": (tokens, tokens, weights), "verbose": 0, "batch_size": 4}
        last = model.fit(tokens, tokens, **valid).history["val_loss"]
        found.append([*model.get_weights(), np.array([loss, *last])])
    assert_same(*found)
    model.fit(tokens, tokens, **valid | {"validation_data": (tokens, tokens, of_rows)})


def test_a_batch_without_weight_has_no_loss_and_changes_nothing():
    model, tokens = language_model(12, units=4), tokens_of((4, 3))
    before = values(model)
    compiled(model)
    assert model.train_on_batch(tokens, tokens, sample_weight=np.zeros(4))[0] == 0
    assert_same(values(model), before)


def test_training_without_targets_is_refused():
    model = compiled(language_model(12, units=4))
    for method in (model.fit, model.evaluate, model.train_on_batch):
        with pytest.raises(ValueError, match="`y` must be the targets"):
            method(tokens_of((32, 3)))


@pytest.mark.parametrize(
    ("name", "setting"),
    [("loss_reduction", "sum"), ("label_smoothing", 0.5), ("dropout_samples", 4)],
)
def test_what_a_step_is_traced_with_may_change_between_two_steps(name, setting):
    tokens, found = tokens_of((4, 3)), []
    for at_first in (None, setting):
        keras.utils.set_random_seed(3)
        model = language_model(12, units=6, output_dropout=0.5)
        model.compile(optimizer=keras.optimizers.SGD(0.0))
        for value in (at_first, setting):
            if value is not None:
                setattr(model, name, value)
            model.reset_metrics()
            model.reset_state()
            with restoring(model.core.non_trainable_variables):  # the same masks again
                loss = model.train_on_batch(tokens, tokens)[0]
        found.append(loss)
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("fit", {"validation_split": 0.25}, "`validation_split` must be 0"),
        ("fit", {"sample_weight": np.ones((4, 2))}, r"`sample_weight` must .*Received: .*\(4, 2\)"),
        ("test_on_batch", {"sample_weight": np.ones(3)}, "`sample_weight` must"),
    ],
)
def test_arguments_of_keras_that_streams_do_not_have_are_refused_by_name(
    tiny, method, arguments, message
):
    tokens = tokens_of((4, 3))
    tiny.compile("sgd")
    with pytest.raises(ValueError, match=message):
        getattr(tiny, method)(tokens, tokens, **arguments)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.data is TensorFlow's")
def test_tensorflow_tunes_no_input_of_fit_and_evaluate(corpus, monkeypatch):
    import tensorflow as tf

    tuned, iterate = [], tf.data.Dataset.__iter__

    def spied(dataset):
        tuned.append(dataset.options().autotune.enabled)
        return iterate(dataset)

    monkeypatch.setattr(tf.data.Dataset, "__iter__", spied)
    batches = corpus.batches("valid", batch_size=4, sequence_length=9)
    model = compiled(zoo.build("lstm", vocabulary_size=len(corpus.vocabulary), units=4))
    model.fit(batches, epochs=2, steps_per_epoch=1, validation_data=batches, verbose=0)
    model.evaluate(batches, steps=1, verbose=0)
    assert set(tuned) == {False}
    with pytest.raises(ValueError, match="sample_weight"):  # as Keras refuses it beside batches
        model.fit(batches, sample_weight=np.ones(4), verbose=0)


@once
@pytest.mark.slow
@pytest.mark.parametrize(
    ("saved", "loaded"),
    [("float32", "mixed_bfloat16"), ("mixed_bfloat16", "float32"), ("mixed_float16", "float32")],
)
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")
def test_a_file_saved_under_one_dtype_policy_opens_under_another(saved, loaded, tmp_path):
    tokens = tokens_of((2, 3))
    with dtype_policy(saved):
        model = zoo.build("lstm", vocabulary_size=12, units=4)
        model.compile("nadam")
        model.optimizer.build(model.trainable_variables)
        model.save(tmp_path / "model.keras")
    with dtype_policy(loaded):
        opened = dualnet.load(tmp_path / "model.keras")
    assert_same(model.get_weights(), opened.get_weights())
    assert opened(tokens).shape == (2, 3, 12)


OUTPUTS = [
    {"output_bias": True},
    {"experts": 3, "connection": "dual"},
    {"experts": [0, 1, 2], "recurrent_layers": 2, "latent_dropout": 0.3},
    {"padded": True},
]


def of_samples(model, batches, count):
    """Return the loss of each batch by hand: -log of the mean over `count` readings."""
    states = model.initial_state(2 * count)
    for tokens, targets, *_ in batches:
        many, of_many = (ops.convert_to_tensor(np.tile(x, (count, 1))) for x in (tokens, targets))
        losses, states = model.graph.losses(many, states, of_many, training=True)
        losses = ops.convert_to_numpy(losses).astype("float64").reshape(count, *tokens.shape)
        yield -np.log(np.exp(-losses).mean(axis=0)).mean()


@pytest.mark.parametrize("output", few_elsewhere(OUTPUTS))
def test_the_loss_of_dropout_samples_is_that_of_the_mean_of_their_probabilities(corpus, output):
    words = len(corpus.vocabulary)
    places = {f"{place}_dropout": 0.4 for place in ("input", "recurrent", "output")}
    batches = [corpus.batches("train", batch_size=2, sequence_length=5)[i] for i in range(3)]
    found, single = [], []
    for losses, count in ((found, 4), (single, 1)):
        keras.utils.set_random_seed(5)
        model = language_model(words, units=6, **places, **output)
        model.dropout_samples = count
        compiled(model, 0.0)
        for batch in batches:
            model.reset_metrics()
            loss, perplexity = model.train_on_batch(*batch)
            losses.append(loss)
            assert np.log(perplexity) == pytest.approx(loss, rel=1e-4)
    keras.utils.set_random_seed(5)
    model = language_model(words, units=6, **places, **output)
    wanted = [*of_samples(model, batches, 4)]
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert np.abs(np.subtract(found, single)).max() > 1e-3


def test_dropout_samples_without_dropout_are_one_reading(corpus):
    weights = []
    for count in (1, 3):
        keras.utils.set_random_seed(5)
        model = language_model(len(corpus.vocabulary), units=6, recurrent_l2=0.1, activation_l2=0.1)
        model.dropout_samples = count
        compiled(model, 0.5)
        for i in range(3):
            model.train_on_batch(*corpus.batches("train", batch_size=2, sequence_length=5)[i])
        weights.append(values(model))
    for one, three in zip(*weights):
        np.testing.assert_allclose(one, three, rtol=1e-4, atol=1e-6)


@once
def test_dropout_samples_are_refused_where_a_step_needs_logits(corpus):
    batch = corpus.batches("train", batch_size=2, sequence_length=5)[0]
    model = language_model(len(corpus.vocabulary), units=4)
    model.dropout_samples = 2
    model.compile(optimizer="sgd", metrics=[keras.metrics.SparseCategoricalAccuracy()])
    with pytest.raises(ValueError, match="`dropout_samples` must be 1 with a loss or metrics"):
        model.train_on_batch(*batch)
