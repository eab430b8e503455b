"""Dynamic evaluation adapts a copy of the weights: the model never changes under it."""

import concurrent.futures
import contextlib
import gc
import itertools
import random
import sys
import threading
import weakref
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import dualnet
from dualnet import _backend, zoo
from dualnet.adaptation import dynamic, dynamic_evaluation
from dualnet.adaptation.dynamic import adapting
from dualnet.builders import Graph, LanguageModel, questions, reader_of, with_cache, with_gate
from dualnet.requests import DynamicEvaluating
from tests.checks import UNTRACED, assert_close, assert_same, few_elsewhere, once, values

WORDS, UNITS = 9, 4
SETTINGS = {"rule": "sgd", "learning_rate": 0.3, "decay": 0.1, "sequence_length": 5}
TOKENS = np.random.default_rng(0).integers(WORDS, size=24).astype("int32")
X, Y = TOKENS[None, :-1], TOKENS[None, 1:]

pytestmark = UNTRACED


def build(seed=0):
    keras.utils.set_random_seed(seed)
    model = zoo.build("dual_lstm", vocabulary_size=WORDS, units=UNITS)
    model.compile(keras.optimizers.SGD(0.5))
    return model


@pytest.fixture
def model():
    return build()


def in_another_thread(function, *arguments):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def load_weights(model, tmp_path):
    build(seed=7).save_weights(tmp_path / "other.weights.h5")
    model.load_weights(tmp_path / "other.weights.h5")


CHANGES = {
    "fit": lambda model, _: model.fit(X, Y, batch_size=1, epochs=2, verbose=0),
    "train_on_batch": lambda model, _: model.train_on_batch(X, Y),
    "assign": lambda model, _: dualnet.assign(
        model, {"recurrence_1/cell_1/bias": np.ones(4 * UNITS)}, partial=True
    ),
    "set_weights": lambda model, _: model.set_weights(values(build(seed=5))),
    "transfer": lambda model, _: dualnet.transfer(build(seed=6), model),
    "load_weights": load_weights,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_another_thread_changes_meanwhile_is_kept_and_disturbs_nothing(change, tmp_path):
    undisturbed = dynamic_evaluation(build(), TOKENS, **SETTINGS)
    alone = build()
    CHANGES[change](alone, tmp_path)
    pieces = [TOKENS[start : start + 6] for start in range(0, 23, 5)]
    for keep in (False, True):
        model = build()  # which draws the same masks
        refused = pytest.raises(dualnet.ArgumentError, match="`keep` must be False where the model")
        with (
            refused if keep else contextlib.nullcontext(),
            adapting(model, DynamicEvaluating.of(SETTINGS), keep=keep) as adaptation,
        ):
            losses = [adaptation.learn(pieces[0])]
            in_another_thread(CHANGES[change], model, tmp_path)
            losses += [adaptation.learn(piece) for piece in pieces[1:]]
        assert_same([np.concatenate(losses)], [undisturbed.token_losses])
        assert_same(values(model), values(alone))


def test_readers_and_a_fit_of_the_model_go_on_while_it_adapts(model):
    fixed, adapted = (
        dualnet.perplexity(model, TOKENS),
        adapting(model, DynamicEvaluating.of(SETTINGS)),
    )
    with adapted as adaptation:
        adaptation.learn(TOKENS[:6])
        assert dualnet.perplexity(model, TOKENS) == fixed
        assert in_another_thread(dualnet.perplexity, model, TOKENS) == fixed
        segment = {"tokens": X, "targets": Y, "states": [np.zeros((1, UNITS), np.float32)] * 2}
        losses = [
            reader_of(read, questions.losses).predict_on_batch(segment)["losses"]
            for read in (model, adaptation.copy)
        ]
        assert np.abs(losses[0] - losses[1]).max() > 1e-3
        # Another evaluation takes a copy of its own.
        with adapting(model, DynamicEvaluating.of(SETTINGS)) as second:
            assert second.copy is not adaptation.copy
            one, two = adaptation.learn(TOKENS[:6]), second.learn(TOKENS[:6])
            assert (one != two).any()


@pytest.mark.slow
def test_eight_readers_beside_a_fit_lose_none_of_its_steps():
    def fit(model):
        model.fit(np.tile(X, (4, 1)), np.tile(Y, (4, 1)), batch_size=4, epochs=3, verbose=0)

    alone, model, stop = build(), build(), threading.Event()
    fit(alone)
    finite, refused = [], []

    def read(number):
        evaluate = dynamic_evaluation if number == 0 else dualnet.evaluate
        while not stop.is_set():
            try:
                finite.append(np.isfinite(evaluate(model, TOKENS[:7]).perplexity))
            except dualnet.ArgumentError as error:  # on JAX, an epoch holds the weights
                refused.append(str(error))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(read, number) for number in range(8)]
        try:
            fit(model)
        finally:
            stop.set()
        for reader in readers:
            reader.result()
    assert_close(values(model), values(alone), rtol=1e-5)
    assert all(finite) and (finite or refused)
    if refused:
        assert keras.config.backend() == "jax"
        assert all("`model` must not be in `fit` meanwhile" in error for error in refused)
    assert np.isfinite(dualnet.perplexity(model, TOKENS))


@pytest.mark.skipif(keras.config.backend() != "jax", reason="JAX alone takes arrays away")
def test_weights_that_a_fit_takes_away_while_they_are_read_give_no_answer():
    def read(values):
        values[0][0].delete()
        return compiled(values)

    variable, compiled = keras.Variable(np.zeros(3)), _backend.jitted(lambda values: values[0][0])
    with pytest.raises(dualnet.ArgumentError, match="`model` must not be in `fit` meanwhile"):
        _backend.read_weights(read, [[variable]])
    with pytest.raises(dualnet.ArgumentError, match="`model` must not be in `fit` meanwhile"):
        _backend.copies_of([variable])


@once
@pytest.mark.slow
def test_an_interrupt_at_any_line_leaves_the_model_as_it_was_or_wholly_adapted(model):
    before = values(model)
    dynamic_evaluation(model, TOKENS[:7], keep=True, **SETTINGS)
    after = values(model)
    # Not in `_backend.py`: between a tape's last line and its end, it would record ever after.
    files = {str(path) for path in Path(dynamic.__file__).parent.iterdir()}
    seen, at = itertools.count(), [-1]

    def trace(frame, event, _):
        if frame.f_code.co_filename not in files:
            return None
        if event == "line" and next(seen) == at[0]:
            raise KeyboardInterrupt
        return trace

    def interrupted_at(line):
        nonlocal seen
        model.set_weights(before)
        seen, at[0] = itertools.count(), line
        sys.settrace(trace)
        try:
            dynamic_evaluation(model, TOKENS[:7], keep=True, **SETTINGS)
        except KeyboardInterrupt:
            return None
        finally:
            sys.settrace(None)
        return next(seen)

    lines = interrupted_at(-1)
    kept = []
    for line in {*range(0, lines, 23), *range(lines - 60, lines)}:
        interrupted_at(line)
        now = values(model)
        kept.append(any((new != old).any() for new, old in zip(now, before)))
        assert_same(now, after if kept[-1] else before)
    assert not all(kept) and kept.count(True) < 30
    assert lines > 200


def ensembles():
    return dualnet.ensemble([build(), zoo.build("lstm", vocabulary_size=WORDS, units=5)])


@keras.saving.register_keras_serializable("tests")
class Shift(keras.layers.Layer):
    """A layer without a configuration to rebuild it from: `get_config` fails."""

    def __init__(self, by):
        super().__init__()
        self.by = by

    def build(self, input_shape):
        self.scale = self.add_weight((input_shape[-1],), "ones", name="scale")

    def call(self, inputs):
        return inputs * self.scale + self.by


def of_own_layers():
    tokens, state = keras.Input((None,), dtype="int32"), keras.Input((4,))
    embedding = keras.layers.Embedding(WORDS, 3, name="embedding")
    embedded = keras.layers.Dropout(0.5)(embedding(tokens))
    gru = keras.layers.GRU(4, return_sequences=True, return_state=True)
    hidden, after = gru(embedded, initial_state=state)
    logits = keras.layers.Dense(WORDS)(Shift(0.5)(hidden))
    graph = Graph(tokens, [state], [after], hidden=hidden, word_logits=logits)
    return LanguageModel(graph, builder="core", arguments={})


MODELS = {
    "gate": lambda: with_gate(build(), 3),
    "ensemble": ensembles,
    "gated ensemble": lambda: with_gate(ensembles(), 3),
    "cache": lambda: with_cache(build(), 5),
    "own layers": of_own_layers,
    "past decoding": lambda: dualnet.builders.language_model(
        WORDS, units=UNITS, past_decode_regularization=0.1
    ),
    "frozen": lambda: build(),
}


@pytest.mark.parametrize("kind", few_elsewhere(MODELS, 5))
def test_nothing_of_the_model_is_drawn_built_anew_or_unfrozen(kind):
    model = MODELS[kind]()
    if kind == "frozen":
        model.get_layer("embedding").trainable = False
    flags, before = [v.trainable for v in model.variables], values(model)
    state, names = random.getstate(), [v.path for v in model.variables]
    with adapting(model, DynamicEvaluating.of(SETTINGS)) as adaptation:
        first = adaptation.learn(TOKENS[:6])
        assert [v.trainable for v in model.variables] == flags
        copies = adaptation.copy.weight_copy.copies
        of_graph = dualnet.weight_names(model)
        assert {name for name in of_graph if "past_decode" not in name} == copies.keys()
        assert all(of_graph[name].dtype == copy.dtype for name, copy in copies.items())
        learnt = [name for name, copy in copies.items() if copy.trainable]
        assert ("embedding/embeddings" in learnt) == (
            kind not in {"frozen", "ensemble", "gated ensemble"}
        )
    np.testing.assert_allclose(first, dualnet.evaluate(model, TOKENS[:6]).token_losses, rtol=1e-5)
    dynamic_evaluation(model, TOKENS, keep=True, **SETTINGS)
    moved = [(new != old).any() for new, old in zip(values(model), before)]
    assert any(moved) and [v.trainable for v in model.variables] == flags
    assert random.getstate() == state and [v.path for v in model.variables] == names


@once
def test_the_copy_is_kept_for_the_next_call_and_gone_with_the_model():
    model = build()
    first = dynamic_evaluation(model, TOKENS, **SETTINGS)
    _, copy = dynamic._idle[model]
    model.set_weights([2 * weight for weight in values(model)])
    second = dynamic_evaluation(model, TOKENS, **SETTINGS)
    assert dynamic._idle[model][1] is copy  # which has the new weights
    np.testing.assert_allclose(
        second.token_losses[:5], dualnet.evaluate(model, TOKENS).token_losses[:5], rtol=1e-5
    )
    assert (first.token_losses != second.token_losses).any()
    with pytest.raises(dualnet.ArgumentError):
        dynamic_evaluation(model, TOKENS, **{**SETTINGS, "learning_rate": 1e38, "decay": 0.0})
    assert model not in dynamic._idle or dynamic._idle[model][1] is not copy
    dynamic_evaluation(model, TOKENS, **SETTINGS)
    reference = weakref.ref(model), weakref.ref(dynamic._idle[model][1])
    del model, copy
    for _ in range(3):
        gc.collect()
    assert [one() for one in reference] == [None, None]


def test_in_mixed_precision_the_copy_is_as_precise_as_the_weights(model):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        mixed = zoo.build("dual_lstm", vocabulary_size=WORDS, units=UNITS)
    finally:
        keras.config.set_dtype_policy("float32")
    mixed.set_weights(values(model))
    found = dynamic_evaluation(mixed, TOKENS, **SETTINGS)
    _, copy = dynamic._idle[mixed]
    assert {v.dtype for v in copy.weight_copy.copies.values()} == {"float32"}
    expected = dynamic_evaluation(model, TOKENS, **SETTINGS)
    np.testing.assert_allclose(found.token_losses, expected.token_losses, rtol=0.05)
    assert (found.token_losses != expected.token_losses).any()


@pytest.mark.skipif(keras.config.backend() != "jax", reason="layouts are those of JAX")
def test_the_copy_has_the_layout_of_the_weights():
    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), devices[:1])
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*kernel"] = (None, "model")
    distribution = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    with distribution.scope():
        model = zoo.build("dual_lstm", vocabulary_size=WORDS, units=UNITS)
        with adapting(model, DynamicEvaluating.of(SETTINGS)) as adaptation:
            adaptation.learn(TOKENS[:6])
            for name, weight in dualnet.weight_names(model).items():
                copy = adaptation.copy.weight_copy.copies[name]
                assert copy.value.sharding == weight.value.sharding, name
    assert np.isfinite(ops.convert_to_numpy(model.weights[0])).all()
