"""What layers compute on the way, read from a text, and the parts of its logits."""

import keras
import numpy as np
import pytest
from keras import ops

import dualnet
from dualnet import analysis, builders
from dualnet.layers import LSTMCell
from dualnet.text import ByteTokenizer
from tests import reference
from tests.checks import array, by_name, once, small, strong
from tests.test_surprisal import TEXT, TOKENIZERS

pytestmark = pytest.mark.usefixtures("without_tracing")


def a_model(name="dual_lstm", tokenizer=TOKENIZERS["bytes"], **arguments):
    return strong(small(tokenizer, name, **arguments))


def logits_above_the_mean(model, text):
    ids = np.append(model.vocabulary.eos_id, model.vocabulary.encode(text)).astype("int32")
    logits = ops.convert_to_numpy(model(ids[None, :-1]))[0].astype("float64")
    return ids, logits - logits.mean(1, keepdims=True)


@pytest.mark.parametrize("name", ["dual_lstm", "dual_mdlstm", "lstm"])
def test_the_outputs_are_those_of_hidden_states_and_follow_from_the_gates(name):
    model = a_model(name, recurrent_layers=2)
    inside, hidden = analysis.inside(model, TEXT), analysis.hidden_states(model, TEXT)
    assert (inside.words, inside.tokens) == (hidden.words, hidden.tokens)
    for layer, vectors in hidden.layers.items():
        np.testing.assert_allclose(inside.layers[layer, "output"], vectors, rtol=1e-4, atol=1e-5)
    for layer in ("recurrence_1", "recurrence_2"):
        i, f, j, o, c, h = (inside.layers[layer, name] for name in [*"ifjoc", "output"])
        np.testing.assert_allclose(c[1:], f[1:] * c[:-1] + i[1:] * j[1:], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(h, o * np.tanh(c), rtol=1e-5, atol=1e-6)


@once
def test_the_gates_of_a_text_are_those_of_numpy_step_by_step():
    model = a_model("lstm")
    inside = analysis.inside(model, TEXT)
    weights = by_name(model.get_layer("recurrence_1").cell)
    embeddings = array(model.get_layer("embedding").embeddings)
    states = [np.zeros((1, 4))] * 2
    for t, i in enumerate([model.vocabulary.eos_id, *inside.ids]):
        states = reference.lstm_step(embeddings[[i]], states, weights, {})
        for name in "ifjoc" if t else "":
            expected = reference.NOTED[name][0]
            found = inside.layers["recurrence_1", name][t - 1]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("arguments", [{}, {"tied": False, "output_bias": True}])
def test_the_parts_of_the_logits_add_up_to_them(arguments):
    model = a_model(**arguments)
    ids, logits = logits_above_the_mean(model, TEXT)
    parts = analysis.contributions(model, TEXT, all_words=True)
    assert parts.pop("token").tolist() == [model.vocabulary.words[i] for i in ids[1:]]
    np.testing.assert_allclose(sum(parts.values()), logits, rtol=1e-4, atol=1e-4)
    of_text = analysis.contributions(model, TEXT)
    for name, part in parts.items():
        at = part[np.arange(len(part)), ids[1:]]
        np.testing.assert_allclose(of_text[name], at, rtol=1e-4, atol=1e-5)


@once
def test_the_part_of_the_current_word_is_what_numpy_takes_from_the_open_units():
    model = a_model()
    ids, _ = logits_above_the_mean(model, TEXT)
    weights = by_name(model.get_layer("connection"))
    embeddings = array(model.get_layer("embedding").embeddings).astype("float64")
    word = embeddings[ids[:-1]] @ weights["kernel"]
    hidden = array(model.hidden_states(ids[None, :-1]))[0]
    is_open = word + hidden @ weights["hidden_kernel"] + weights["bias"] > 0
    expected = (word * is_open) @ embeddings.T
    found = analysis.contributions(model, TEXT, all_words=True)["input"]
    expected -= expected.mean(1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@once
def test_cells_of_keras_and_ensembles_have_outputs_alone_and_no_parts():
    ensemble = dualnet.ensemble([a_model(), a_model()])
    ensemble.vocabulary = ByteTokenizer()
    assert [*analysis.inside(ensemble, "a").layers] == [("hidden", "output")]
    for model in (ensemble, a_model("lstm"), a_model(connection="dual_without_input")):
        with pytest.raises(ValueError, match="`model` must have a dual connection that reads"):
            analysis.contributions(model, "a")
    with pytest.warns(RuntimeWarning, match="LSTMCell"):
        stock = builders.language_model(257, units=4, cell=keras.layers.LSTMCell)
    stock.vocabulary = ByteTokenizer()
    layers = analysis.inside(stock, "a").layers
    assert [*layers] == [("embedding", "output"), ("recurrence_1", "output")]


def test_the_loop_of_a_core_of_ones_own_shows_its_outputs_alone():
    tokens, *states = keras.Input((None,), dtype="int32"), keras.Input((4,)), keras.Input((4,))
    cell = LSTMCell(4)
    recurrence = keras.layers.RNN(cell, return_sequences=True, return_state=True, name="own")
    hidden, *ended = recurrence(keras.layers.Embedding(257, 4)(tokens), initial_state=states)
    core = keras.Model([tokens, *states], [keras.layers.Dense(257)(hidden), *ended])
    model = builders.LanguageModel.from_core(core)
    model.vocabulary = ByteTokenizer()
    assert {name for _, name in analysis.inside(model, "a b").layers} == {"output"}
    dualnet.look(model, "a b")


@once
def test_frames_have_a_row_for_each_word_or_token_and_a_column_for_each_unit():
    pytest.importorskip("pandas")
    inside = analysis.inside(a_model(), TEXT)
    frame = inside.to_frame()
    assert frame.index.tolist() == [*inside.words]
    gates = frame["recurrence_1"]["f"].to_numpy()
    np.testing.assert_array_equal(gates, inside.of_words()["recurrence_1", "f"])
    assert len(frame.melt(ignore_index=False)) == frame.size
    hidden = analysis.hidden_states(a_model(), TEXT).to_frame("token")
    assert hidden.columns.names == ["layer", "unit"] and len(hidden) == len(inside.ids)


@once
def test_the_inside_of_a_layer_and_the_parts_of_logits_are_drawn(tmp_path):
    model = a_model()
    inside = analysis.inside(model, TEXT)
    analysis.plot_inside(inside, tmp_path / "inside.png", values=["i", "c"], units=3)
    analysis.plot_contributions(analysis.contributions(model, TEXT), tmp_path / "parts.png")
    for name in ("inside", "parts"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="`values` must be"):
        analysis.plot_inside(inside, tmp_path / "none.png", values=["g"])
