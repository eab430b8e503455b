import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

import dualnet
from dualnet.builders import LanguageModel, language_model
from dualnet.builders.bucketing import BucketedBatches, bucket_length
from dualnet.corpora.token_batches import TokenBatches
from tests import own_parts
from tests.checks import assert_close, once

JAX = keras.config.backend() == "jax"
TENSORFLOW = keras.config.backend() == "tensorflow"


class Batches(keras.utils.PyDataset):
    lengths_vary = True

    def __init__(self, lengths):
        super().__init__()
        self.tokens = [np.random.default_rng(n).integers(10, size=(2, n + 1)) for n in lengths]
        self.ended = 0

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = self.tokens[index].astype("int32")
        return tokens[:, :-1], tokens[:, 1:]

    def on_epoch_end(self):
        self.ended += 1


@once
@given(st.integers(1, 5000))
def test_lengths_are_rounded_up_to_a_few_by_an_eighth_at_most(length):
    found = bucket_length(length)
    assert length <= found < length + max(4, length / 8)
    assert bucket_length(found) == found
    assert bucket_length(length + 1) >= found


def test_batches_are_padded_on_the_right_and_nothing_else_is_changed():
    plain = Batches([6, 8, 30])
    padded = BucketedBatches(plain)
    lengths = []
    for index in range(3):
        inputs, targets, weight = padded[index]
        lengths.append(inputs.shape[1])
        there = plain[index][0].shape[1]
        for found, expected in zip((inputs, targets), plain[index]):
            np.testing.assert_array_equal(found[:, :there], expected)
        assert (inputs[:, there:] == -1).all() and (targets[:, there:] == 0).all()
        assert (weight[:, :there] == 1).all() and (weight[:, there:] == 0).all()
        assert {inputs.dtype, targets.dtype} == {np.dtype("int32")} and weight.dtype == np.float32
    # Keras sees on TensorFlow that lengths vary only if those of the first two differ.
    assert lengths == ([12, 8, 32] if TENSORFLOW else [8, 8, 32])
    padded.on_epoch_end()
    assert plain.ended == 1


EVERYTHING = {  # that looks at more than one step, or at the tokens themselves
    "cell": "elman", "connection": "dual", "experts": [1, 0, 1], "balance_regularization": 0.1,
    "activation_l2": 0.1, "activation_regularization": 0.5, "fraternal_regularization": 0.5,
    "temporal_activation_regularization": 0.5, "past_decode_regularization": 0.5,
    "weight_dropout": 0.3, "recurrent_dropout": 0.3, "input_dropout": 0.3,
    "embedding_dropout": 0.3, "latent_dropout": 0.3,
}  # fmt: skip


@pytest.fixture(scope="module")
def train():
    """A function that trains a model, always from the same weights, with or without padding."""
    models = {}
    for pads in (False, True):
        models[pads] = language_model(10, units=4, **EVERYTHING)
        models[pads].compile(
            optimizer=keras.optimizers.SGD(1.0), jit_compile=JAX, run_eagerly=TENSORFLOW
        )
        models[pads].optimizer.build(models[pads].trainable_variables)
        models[pads].training_rows.resize(2)
        models[pads]._uses_buckets = lambda pads=pads: pads
    first = [np.array(ops.convert_to_numpy(each)) for each in models[True].variables]

    def train(lengths, pads):
        model = models[pads]
        for variable, value in zip(model.variables, first):
            variable.assign(value)
        history = model.fit(Batches(lengths), verbose=0).history
        assert model.training_rows.bucketed == pads
        return history, [np.array(ops.convert_to_numpy(each)) for each in model.variables]

    return train


# JAX compiles each length.
@pytest.mark.slow
@pytest.mark.parametrize("lengths", [[7, 3], *([] if JAX else [[5, 1]])])
def test_padded_segments_give_the_losses_gradients_and_states_of_the_plain_ones(train, lengths):
    plain_history, plain = train(lengths, False)
    history, padded = train(lengths, True)
    for name, values in plain_history.items():
        np.testing.assert_allclose(history[name], values, rtol=2e-6)
    # Weights after steps of size 1, carried rows, and states of the generators.
    assert_close(padded, plain, rtol=1e-5, atol=2e-6)


@once
def test_the_sum_over_time_counts_no_padding():
    model = language_model(10, units=4, cell="elman")
    model.loss_reduction = "sum"
    model.compile(optimizer="sgd", jit_compile=False)
    losses = []
    for pads in (False, True):
        model._uses_buckets = lambda pads=pads: pads
        losses.append(model.evaluate(Batches([6, 7]), verbose=0, return_dict=True)["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-6)
    assert losses[0] > 6 * np.log(4)


@once
def test_members_of_an_ensemble_know_padding_too():
    members = [language_model(10, units=4, recurrent_layers=2), language_model(10, units=3)]
    model = dualnet.with_gate(dualnet.ensemble(members), 3, gate="lstm")
    count = len(model.variables)
    core = model.graph.with_masks().core
    tokens = np.array([[1, 2, 3], [4, 5, 6]], "int32")
    states = model.initial_state(2)
    padded = np.pad(tokens, ((0, 0), (0, 2)), constant_values=-1)
    plain = model.core([ops.convert_to_tensor(tokens), *states])
    found = core([ops.convert_to_tensor(padded), *states])
    found[0] = found[0][:, :3]
    assert_close(found, plain)
    assert len(model.variables) == count


@pytest.mark.slow
@pytest.mark.skipif(keras.config.backend() == "torch", reason="torch compiles no step")
def test_an_epoch_of_random_lengths_compiles_few_steps(monkeypatch):
    traced = []
    call = LanguageModel.call

    def counted(self, inputs, training=False):
        traced.append((inputs["tokens"].shape[1], training))
        return call(self, inputs, training=training)

    monkeypatch.setattr(LanguageModel, "call", counted)
    tokens = np.random.default_rng(0).integers(10, size=800)
    batches = TokenBatches(tokens, batch_size=2, sequence_length=28, length_deviation=2.0)
    assert len(set(batches.lengths)) > 6
    model = language_model(10, units=2, cell="elman")
    model.compile(optimizer="sgd")
    rates = model.fit(batches, epochs=2, verbose=0, validation_data=Batches([3, 4, 2])).history
    few = [None] if TENSORFLOW else sorted({bucket_length(length) for length in batches.lengths})
    assert len(few) < 6
    assert sorted(length for length, training in traced if training) == few
    assert [length for length, training in traced if not training] == [None if TENSORFLOW else 4]
    assert np.isfinite(rates["val_perplexity"]).all()


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (lambda: language_model(10, units=2), {"loss": "mse"}),
        (lambda: language_model(10, units=2), {"metrics": ["accuracy"]}),
        (lambda: language_model(10, units=2, cache_size=3), {}),
        (lambda: LanguageModel.from_core(own_parts.core()), {}),
    ],
)
def test_what_would_count_padding_is_read_without(make, settings):
    model = make()
    model.compile(optimizer="sgd", jit_compile=keras.config.backend() != "torch", **settings)
    assert not model._uses_buckets()
