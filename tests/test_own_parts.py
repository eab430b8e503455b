"""Cells, connections, outputs and whole Keras models of a user's own do what the package's do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import dualnet
from dualnet import training, zoo
from dualnet.builders import LanguageModel, language_model, weight_names
from dualnet.layers import LSTMCell, Recurrence
from tests import own_parts
from tests.checks import (
    array,
    assert_close,
    assert_same,
    dtype_policy,
    few_elsewhere,
    gradients,
    nll,
    once,
    strong,
    values,
)
from tests.own_parts import Counted, DiagonalCell, Gated, KerasStyleCell, Scaled

ROOT = Path(__file__).parents[1]
PLAIN_LOOP = pytest.mark.filterwarnings("ignore:The cell .* runs whole:RuntimeWarning")
EAGERLY = keras.config.backend() == "tensorflow"  # tracing takes longer than a few steps
SMALL = {"vocabulary_size": 9, "units": 4}
TOKENS = np.random.default_rng(0).integers(9, size=(2, 6)).astype("int32")
ALL = {"cell": DiagonalCell, "connection": Gated, "output": Scaled, "gain": 0.5, "sharpness": 3.0}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def weights_of(model):
    return {name: array(w).astype("float64") for name, w in weight_names(model).items()}


# --- what they compute


def test_parts_of_ones_own_compute_in_a_model_what_their_equations_say():
    model = strong(zoo.build("lstm", **SMALL, **ALL, slope=0.7))
    w = weights_of(model)
    embedded = w["embedding/embeddings"][TOKENS]
    h, expected = np.zeros((2, 4)), []
    for e in embedded.transpose(1, 0, 2):
        z = e @ w["recurrence_1/cell_1/kernel"] + w["recurrence_1/cell_1/bias"]
        h = 0.7 * np.tanh(z + w["recurrence_1/cell_1/u"] * h)
        d = sigmoid(e @ w["connection/gate"]) * (e @ w["connection/value"])
        d = 0.5 * (d + h @ w["connection/hidden"])
        expected.append(3.0 * d @ w["embedding/embeddings"].T)
    np.testing.assert_allclose(array(model(TOKENS)), np.stack(expected, 1), rtol=1e-4, atol=1e-5)
    assert model.arguments["cell"] == "own>DiagonalCell" and model.arguments["slope"] == 0.7


@PLAIN_LOOP
def test_a_keras_cell_gives_the_same_model_as_the_cell_of_the_package():
    both = [
        language_model(**SMALL, cell=cell, recurrent_layers=2, padded=True)
        for cell in (LSTMCell, keras.layers.LSTMCell)
    ]
    strong(both[0])
    both[1].core.set_weights(both[0].core.get_weights())
    padded = np.where(np.arange(6) < [[6], [4]], TOKENS, -1)
    states = both[0].initial_state(2)

    def loss_of(model):
        tensors = [ops.convert_to_tensor(x.astype("int32")) for x in (padded, TOKENS)]
        losses, _ = model.graph.losses(tensors[0], states, tensors[1])
        return ops.mean(losses * ops.cast(padded >= 0, "float32"))

    logits, gradient = zip(
        *((array(m(TOKENS)), gradients(lambda m=m: loss_of(m), m.core.trainable_variables))
          for m in both)
    )  # fmt: skip
    np.testing.assert_allclose(*logits, rtol=1e-4, atol=1e-5)
    assert_close(*gradient, rtol=1e-3, atol=1e-5)
    assert both[0].arguments["cell"] == "lstm"
    assert both[1].arguments["cell"] == "keras.layers.LSTMCell"


@PLAIN_LOOP
@pytest.mark.parametrize(
    "cell", [keras.layers.GRUCell, "keras.layers.SimpleRNNCell", KerasStyleCell]
)
def test_any_keras_cell_carries_its_state(cell):
    model = strong(language_model(**SMALL, cell=cell, use_bias=True))
    first, state = model.advance(TOKENS[:, :3], model.initial_state(2))
    second, _ = model.advance(TOKENS[:, 3:], state)
    assert_close([ops.concatenate([first, second], axis=1)], [model(TOKENS)], rtol=1e-4, atol=1e-5)


@once
def test_a_keras_cell_says_that_it_is_slower():
    with pytest.warns(RuntimeWarning, match="'keras.layers.GRUCell' runs whole at each step"):
        language_model(**SMALL, cell=keras.layers.GRUCell)


@once
@pytest.mark.slow
def test_an_output_is_asked_for_losses_if_it_takes_targets_and_else_for_logits():
    models = [
        language_model(**SMALL, output=output, output_bias=True) for output in (None, Counted)
    ]
    models.append(language_model(**SMALL, output=keras.layers.Dense, output_bias=True, tied=False))
    strong(models[0])
    models[1].core.set_weights(models[0].core.get_weights())
    w = weights_of(models[0])
    for name, weight in weight_names(models[2]).items():
        value = w["embedding/embeddings"].T if name == "output/kernel" else w[name]
        weight.assign(value)
    before = Counted.asked
    found = [
        [dualnet.perplexity(m, TOKENS[0]), dualnet.perplexity(m, TOKENS[0], temperature=2.0)]
        for m in models
    ]
    np.testing.assert_allclose(found[1:], [found[0]] * 2, rtol=1e-5)
    assert Counted.asked > before
    assert models[2].graph.head is None


@once
def test_logits_of_an_output_of_ones_own_are_float32_under_every_policy():
    with dtype_policy("mixed_bfloat16"):
        model = language_model(**SMALL, output=keras.layers.Dense, tied=False, output_bias=True)
    logits, states = model.advance(TOKENS, model.initial_state(2))
    assert {keras.backend.standardize_dtype(x.dtype) for x in (logits, *states)} == {"float32"}


@once
def test_initializers_and_penalties_reach_weights_with_a_role_and_leave_others_alone():
    model = language_model(
        **SMALL, cell=DiagonalCell, connection=Gated, initializer="uniform", initializer_range=0.01,
        weight_l2=0.1, input_l2=0.2,
    )  # fmt: skip
    w = weights_of(model)
    assert np.abs(w["recurrence_1/cell_1/kernel"]).max() < 0.01
    assert np.all(w["recurrence_1/cell_1/u"] == 1.0)
    assert np.abs(w["connection/gate"]).max() > 0.01
    penalty = sum((0.3 if "cell_1/kernel" in name else 0.1) * (v**2).sum() for name, v in w.items())
    np.testing.assert_allclose(float(sum(array(loss) for loss in model.losses)), penalty, rtol=1e-5)


# --- files


def in_another_process(code, *, imports="", **environment):
    """Run `code` in a process that has imported nothing of `tests`; return what it prints."""
    start = "import warnings\nwarnings.simplefilter('ignore')\nimport dualnet\nimport numpy as np\n"
    process = subprocess.run(
        [sys.executable, "-c", f"{imports}\n{start}{code}"],
        capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip
    return process.stdout if process.returncode == 0 else process.stderr


@once
@pytest.mark.slow
@pytest.mark.parametrize("how", ["import", "environment"])
def test_a_keras_file_with_parts_of_ones_own_loads_in_another_process_after_their_import(
    how, tmp_path
):
    model = strong(zoo.build("lstm", **SMALL, **ALL))
    model.save(tmp_path / "model.keras")
    path = str(tmp_path / "model.keras")
    imports = {"imports": "import tests.own_parts"} if how == "import" else {}
    imports |= {} if imports else {"DUALNET_IMPORT": "tests.own_parts"}
    code = (
        f"model = dualnet.load({path!r})\n"
        "logits, _ = model.advance([[1, 2]], model.initial_state(1))\nprint(float(logits[0, 1, 0]))"
    )
    found = float(in_another_process(code, **imports).split()[-1])
    expected = model.advance([[1, 2]], model.initial_state(1))[0]
    assert found == pytest.approx(float(array(expected)[0, 1, 0]), rel=1e-5)
    if how == "import":
        error = in_another_process(f"dualnet.load({path!r})")
        assert "ImportError: The model has a part 'own>" in error
        assert "import tests.own_parts" in error and "DUALNET_IMPORT=tests.own_parts" in error


@once
@pytest.mark.slow
def test_a_run_with_parts_of_ones_own_resumes_exactly_and_says_what_to_import(
    corpus, tmp_path, monkeypatch
):
    card = tmp_path / "mine.toml"
    card.write_text(
        'base = "lstm"\n[config]\ncell = "own>DiagonalCell"\nconnection = "own>Gated"\n'
        'output = "own>Scaled"\nsharpness = 2.0\ngain = 0.5\nunits = 4\n[recipe]\nepochs = 2\n'
    )
    settings = {"batch_size": 4, "sequence_length": 8, "progress": False, "evaluate": False}
    whole = training.train(str(card), corpus, output=tmp_path / "whole", **settings)
    training.train(str(card), corpus, output=tmp_path / "two", epochs=1, **settings)
    again = training.train(
        str(card), corpus, output=tmp_path / "two", resume=True, epochs=2,
        progress=False, evaluate=False,
    )  # fmt: skip
    assert_same(values(again.model), values(whole.model))
    loaded = dualnet.load(tmp_path / "whole")
    assert dualnet.perplexity(loaded, corpus.test) == pytest.approx(
        dualnet.perplexity(whole.model, corpus.test), rel=0.2
    )  # the best weights, not the last
    text = (tmp_path / "whole" / "card.toml").read_text()
    assert '"own>DiagonalCell" = "tests.own_parts"' in text
    assert zoo.card(tmp_path / "whole" / "card.toml").config["sharpness"] == 2.0
    monkeypatch.setattr(
        keras.saving, "get_registered_object", lambda *_: None
    )  # as where it is not imported
    with pytest.raises(ImportError, match="a part 'own>.*Import it first: import tests.own_parts"):
        dualnet.load(tmp_path / "whole")


@once
@pytest.mark.slow
@PLAIN_LOOP
@pytest.mark.parametrize(
    "build",
    [
        lambda size: language_model(size, units=4, **ALL),
        lambda size: language_model(size, units=4, cell=keras.layers.GRUCell),
        lambda size: LanguageModel.from_core(own_parts.core(size)),
    ],
)
def test_a_model_with_parts_of_ones_own_is_evaluated_learns_draws_and_is_combined(build, corpus):
    model, text = build(len(corpus.vocabulary)), corpus.test[:60]
    expected = np.exp(nll(model(text[None, :-1]), text[None, 1:]).mean())
    for length in (7, 59):
        found = dualnet.perplexity(model, text, sequence_length=length)
        assert found == pytest.approx(expected, rel=1e-4)
    model.compile(keras.optimizers.Adam(0.02), run_eagerly=EAGERLY)
    batches = corpus.batches("valid", batch_size=4, sequence_length=8)
    first, *_, last = model.fit(batches, epochs=3, verbose=0).history["perplexity"]
    assert last < first
    settings = {"rule": "sgd", "learning_rate": 0.5, "sequence_length": 10}
    learnt = dualnet.dynamic_evaluation(model, text, **settings).perplexity
    assert learnt < 0.999 * dualnet.perplexity(model, text)
    assert dualnet.generate(model, corpus.vocabulary.decode(text[:2]), max_tokens=3)
    assert tuple(model.hidden_states(text[None]).shape) == (1, 60, 4)
    both = dualnet.ensemble([model, model])
    assert np.isfinite(dualnet.perplexity(both, corpus.test[:40]))


@pytest.mark.slow
@once
@PLAIN_LOOP
@pytest.mark.parametrize(
    "build",
    [
        lambda: zoo.build("lstm", **SMALL, **ALL),
        lambda: language_model(**SMALL, cell=keras.layers.LSTMCell),
        lambda: LanguageModel.from_core(own_parts.core()),
        # And cells of the package, each with a loop of its own kind.
        *[
            lambda settings=settings: language_model(**SMALL, **settings)
            for settings in (
                {"cell": "depth_gated_lstm", "experts": [1, 2]},
                {"cell": "mogrifier_lstm", "rounds": 2, "connection": "dual", "experts": 2},
                {"cell": "recurrent_highway", "gate": "input_and_hidden", "gate_units": 3},
                {"cell": "layernorm_lstm", "gate": "lstm", "gate_units": 3},
                {"cell": "lstm_per_gate"},
            )
        ],
    ],
)
def test_a_model_with_any_parts_exports(build, tmp_path):
    import tensorflow as tf

    model = strong(build())
    dualnet.export(model, tmp_path / "saved")
    step = tf.saved_model.load(tmp_path / "saved").signatures["step"]
    states = {f"state_{i + 1}": s for i, s in enumerate(model.initial_state(2))}
    found = step(ids=tf.constant(TOKENS), **states)["logits"]
    np.testing.assert_allclose(found, array(model(TOKENS)), rtol=1e-4, atol=1e-5)


@once
def test_layers_without_names_in_a_part_have_names_that_last(tmp_path):
    model = strong(zoo.build("dual_lstm", **SMALL, connection=own_parts.Layered, dual_l2=0))
    keras.layers.Dense(1), keras.Sequential([])  # Keras counts what the process has made
    model.save(tmp_path / "model.keras")
    again = dualnet.load(tmp_path / "model.keras")
    names = [n.removeprefix("connection/") for n in weight_names(model) if "connection" in n]
    assert names == ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias",
                     "sequential/dense/kernel", "sequential/dense/bias"]  # fmt: skip
    assert [*weight_names(again)] == [*weight_names(model)]
    other = strong(zoo.build("dual_lstm", **SMALL, connection=own_parts.Layered, dual_l2=0), seed=2)
    assert str(dualnet.builders.transfer(model, other)) == "All 10 weights were copied."
    assert_same([array(other(TOKENS))], [array(model(TOKENS))])


# --- what is refused


@PLAIN_LOOP
@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"cell": "own>None"}, "`cell` must be one of .*own>None.*import the module that reg"),
        ({"cell": own_parts.Unregistered}, "`cell` must be registered with Keras.*Unregistered"),
        ({"cell": keras.layers.LSTM}, "`cell` must be a cell, .* Give the class of the cell"),
        ({"cell": keras.layers.LSTMCell}, "`recurrent_dropout` must be 0 for .*Received: .*=0.5"),
        ({"connection": own_parts.Narrow}, r"`connection` must return .*\(batch, time, 4\)"),
        (
            {"connection": Gated, "dual_l2": 0.1},
            "`dual_l2` needs .* of the connection.*Leave it out",
        ),
        ({"output": keras.layers.Dense}, "`tied` needs `tied_to` .*Set tied=False"),
        ({"output": Scaled, "experts": 3}, "`experts` cannot be combined with `output`"),
    ],
)  # fmt: skip
def test_a_part_that_does_not_fit_is_refused_with_the_way_out(own, message):
    with pytest.raises(dualnet.ArgumentError, match=message):
        zoo.build("lstm", **SMALL, **own)


@keras.saving.register_keras_serializable("own")
class LearnsStart(LSTMCell):
    def build(self, input_shape):
        super().build(input_shape)
        self.start = self.add_weight(name="start", shape=(self.units,), initializer="zeros")

    def get_initial_state(self, batch_size=None):
        return [ops.zeros((batch_size, self.units)) + self.start] * 2


@keras.saving.register_keras_serializable("own")
class OnesFirst(KerasStyleCell):
    def get_initial_state(self, batch_size=None):
        return ops.ones((batch_size, self.units))


@keras.saving.register_keras_serializable("own")
class InFours(LSTMCell):
    def __init__(self, units, **kwargs):
        if units % 4:
            raise ValueError(f"units must be a multiple of 4. Received: {units}")
        super().__init__(units, **kwargs)


def test_a_cell_is_built_with_the_sizes_that_are_asked_for_alone():
    assert zoo.build("lstm", cell=InFours, vocabulary_size=9, units=8).state_size == [8, 8]
    with pytest.raises(ValueError, match="multiple of 4. Received: 6"):
        zoo.build("lstm", cell=InFours, vocabulary_size=9, units=6)


@PLAIN_LOOP
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("lstm", {"cell": LearnsStart}),
        ("encdec", {"cell": LearnsStart}),
        ("lstm", {"cell": OnesFirst, "recurrent_dropout": 0}),
    ],
)
def test_a_cell_that_starts_from_another_state_than_zeros_is_refused(name, settings):
    with pytest.raises(dualnet.ArgumentError, match="`cell` must start from zeros.*reset_state"):
        zoo.build(name, **SMALL, **settings)


def test_a_recurrence_alone_starts_from_the_state_of_its_cell():
    recurrence = Recurrence(LearnsStart(4))
    recurrence.build((1, 1, 3))
    recurrence.cell.start.assign(np.ones(4))
    x, ones = np.ones((1, 1, 3), "float32"), np.ones((1, 4), "float32")
    assert_same([recurrence(x)[0]], [recurrence(x, initial_state=[ones, ones])[0]])


@once
def test_a_module_to_import_that_is_not_found_is_named(monkeypatch):
    monkeypatch.setenv("DUALNET_IMPORT", "no_such_parts")
    with pytest.raises(ImportError, match="DUALNET_IMPORT must name .* Received: 'no_such_parts'"):
        zoo.build("lstm", cell="own>DiagonalCell", **SMALL)


def test_a_translator_takes_recurrent_cells_connections_and_outputs_of_ones_own():
    model = zoo.build("encdec", **SMALL, **ALL, tied=True, output_bias=False)
    assert tuple(model({"source": TOKENS, "target": TOKENS}).shape) == (2, 6, 9)
    with pytest.raises(dualnet.ArgumentError, match="`cell` must be a subclass of .*RecurrentCell"):
        zoo.build("encdec", **SMALL, cell=keras.layers.GRUCell)


# --- whole Keras models


@once
@pytest.mark.slow
def test_a_keras_model_is_saved_and_trained_into_a_run(corpus, tmp_path):
    model = strong(
        LanguageModel.from_core(own_parts.core(len(corpus.vocabulary))), corpus.vocabulary
    )
    model.save(tmp_path / "model.keras")
    again = dualnet.load(tmp_path / "model.keras")
    assert_same([again(TOKENS)], [model(TOKENS)])
    config = model.arguments
    card = zoo.Card(name="mine", builder="core", config=config, recipe={"epochs": 1})
    settings = {"batch_size": 4, "sequence_length": 8, "progress": False, "evaluate": False}
    run = training.train(card, corpus, output=tmp_path / "run", **settings)
    loaded = dualnet.load(tmp_path / "run")
    assert_same(values(loaded), values(run.model))
    more = training.train(
        card, corpus, output=tmp_path / "run", resume=True, epochs=2, progress=False, evaluate=False
    )
    assert len(more.history) == 2


def reads_ahead():
    tokens, state = keras.Input((None,), dtype="int32"), keras.Input((4,))
    embedded = keras.layers.Embedding(9, 4)(tokens)
    mean = ops.mean(embedded, axis=1, keepdims=True)
    return keras.Model([tokens, state], [keras.layers.Dense(9)(embedded + mean), state])


def forgets():
    tokens, state = keras.Input((None,), dtype="int32"), keras.Input((4,))
    hidden = keras.layers.GRU(4, return_sequences=True)(keras.layers.Embedding(9, 4)(tokens))
    return keras.Model([tokens, state], [keras.layers.Dense(9)(hidden), state])


@keras.saving.register_keras_serializable("own")
class WithoutConfig(keras.layers.Layer):
    def __init__(self, size, **kwargs):
        super().__init__(**kwargs)
        self.size = size

    def call(self, x):
        return x


class NotRegistered(keras.layers.Dense):
    """A layer that no file can name."""


def with_layer(layer):
    model = own_parts.core()
    return keras.Model(model.inputs, [layer(model.outputs[0]), model.outputs[1]])


def last_logits_only():
    model = own_parts.core()
    return keras.Model(model.inputs, [model.outputs[0][:, -1], model.outputs[1]])


@pytest.mark.parametrize(
    ("core", "message"),
    [
        (last_logits_only, r"logits \(batch, time, words\)"),
        (reads_ahead, "same logits whether it reads a text at once or token by token"),
        (forgets, "same logits whether it reads a text at once or token by token"),
        (lambda: with_layer(WithoutConfig(np.ones(9))), "override `get_config\\(\\)`"),
        (lambda: with_layer(NotRegistered(9)), "must be registered with Keras.*NotRegistered"),
    ],
)
def test_a_keras_model_of_another_shape_is_refused_early(core, message):
    with pytest.raises((dualnet.ArgumentError, NotImplementedError), match=message):
        LanguageModel.from_core(core())


@pytest.mark.parametrize("policy", few_elsewhere(["mixed_bfloat16", "float32"]))
def test_a_keras_model_of_a_large_layer_is_taken_with_its_weights(policy):
    with dtype_policy(policy):
        core = own_parts.core(words=50, units=500)
    before = core.get_weights()
    LanguageModel.from_core(core)
    assert_same(core.get_weights(), before)


@pytest.mark.parametrize("layer", few_elsewhere([keras.layers.GRU, keras.layers.SimpleRNN]))
def test_a_keras_model_trains_on_one_stream(layer, corpus):
    tokens, state = keras.Input((None,), dtype="int32"), keras.Input((4,))
    embedded = keras.layers.Embedding(words := len(corpus.vocabulary), 3)(tokens)
    recurrent = layer(4, return_sequences=True, return_state=True)
    hidden, after = recurrent(embedded, initial_state=state)
    logits = keras.layers.Dense(words)(hidden)
    model = LanguageModel.from_core(keras.Model([tokens, state], [logits, after]))
    model.compile("sgd")
    batches = corpus.batches("test", batch_size=1, sequence_length=200)
    model.fit(batches, validation_data=batches, verbose=0)
    assert model.evaluate(batches, verbose=0)


def test_a_gate_a_cache_and_another_vocabulary_are_refused_for_a_keras_model():
    model = LanguageModel.from_core(own_parts.core())
    with pytest.raises(
        dualnet.ArgumentError, match="`cache_size` must be left out of a model from"
    ):
        dualnet.with_cache(model, 5)
    with pytest.raises(dualnet.ArgumentError, match="`vocabulary_size` must be that of .* 9"):
        dualnet.builders.core_model(model.arguments["core"], vocabulary_size=8)
    both = dualnet.ensemble([model, language_model(**SMALL)])
    assert json.dumps(both.get_config()["arguments"])
