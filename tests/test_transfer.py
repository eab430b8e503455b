"""Weights by name, and from one model into another."""

import keras
import numpy as np
import pytest
from keras import ops

import dualnet
from dualnet import zoo
from dualnet.builders import language_model, weight_names
from dualnet.corpora import Vocabulary
from tests.checks import once

TOKENS = np.array([[0, 5, 1, 4], [2, 2, 6, 3]])
WORDS = Vocabulary(["<eos>", "<unk>", "the", "cat", "sees", "a", "dog"])


def build(**settings):
    return language_model(7, **{"units": 4, **settings})


def by_name(model):
    return {name: ops.convert_to_numpy(w).tolist() for name, w in weight_names(model).items()}


def assert_taken(found, source, before, target):
    """All that was taken is the source's, all else is as it was `before`."""
    there, here = by_name(source), by_name(target)
    assert set(found.taken) | {name for name, *_ in found.other_shape} | {*found.missing} == {*here}
    assert here == {name: (there if name in found.taken else before)[name] for name in here}


def test_names_are_places_in_the_graph_and_a_tied_matrix_comes_once():
    model = build(recurrent_layers=2, connection="dual", past_decode_regularization=0.1)
    names = weight_names(model)
    assert {id(weight) for weight in names.values()} == {id(weight) for weight in model.weights}
    assert len(names) == len({id(weight) for weight in model.weights})
    assert list(names)[:2] == ["embedding/embeddings", "recurrence_1/cell_1/kernel"]
    assert {"recurrence_2/cell_2/bias", "connection/hidden_kernel", "past_decode/kernel"} < {*names}


def test_an_equal_model_takes_all_weights_and_the_vocabulary():
    source, target = build(), build()
    source.vocabulary = WORDS
    before = by_name(source)
    found = dualnet.transfer(source, target)
    assert str(found) == "All 4 weights were copied."
    assert (found.other_shape, found.missing, found.unused) == ((), (), ())
    assert target.vocabulary is WORDS
    logits = [ops.convert_to_numpy(model(TOKENS)) for model in (source, target)]
    np.testing.assert_array_equal(*logits)
    # And they are two models still.
    target.compile(keras.optimizers.SGD(1.0))
    target.train_on_batch(TOKENS, TOKENS)
    assert by_name(source) == before != by_name(target)


@once
def test_a_deeper_model_keeps_its_own_weights_and_says_so():
    source, target = build(), build(recurrent_layers=2)
    before = by_name(target)
    found = dualnet.transfer(source, target)
    assert_taken(found, source, before, target)
    upper = [f"recurrence_2/cell_2/{name}" for name in ("kernel", "recurrent_kernel", "bias")]
    assert found.missing == tuple(upper) and found.unused == ()
    assert f"3 missing, unchanged: {', '.join(upper)}." in str(found)
    back = dualnet.transfer(target, build())
    assert back.unused == tuple(upper) and back.missing == ()


def test_weights_of_another_size_stay_and_their_shapes_are_told():
    source, target = build(tied=False), build(recurrent_units=6, tied=False)
    before = by_name(target)
    found = dualnet.transfer(source, target)
    assert_taken(found, source, before, target)
    assert found.other_shape == (
        ("recurrence_1/cell_1/kernel", (4, 16), (4, 24)),
        ("recurrence_1/cell_1/recurrent_kernel", (4, 16), (6, 24)),
        ("recurrence_1/cell_1/bias", (16,), (24,)),
        ("output/kernel", (4, 7), (6, 7)),
    )


def test_another_vocabulary_is_refused_and_nothing_copied():
    source, target = build(), build()
    source.vocabulary = WORDS
    target.vocabulary = Vocabulary([*WORDS.words[:-1], "bird"])
    before = by_name(target)
    with pytest.raises(ValueError, match="`source` must have the vocabulary of `target`"):
        dualnet.transfer(source, target)
    assert by_name(target) == before
    more = language_model(9, units=4)
    found = dualnet.transfer(source, more)  # without one, and of another size
    assert found.other_shape == (("embedding/embeddings", (7, 4), (9, 4)),)
    assert more.vocabulary is None


OTHER_WORDS = Vocabulary(["dog", "bird", "cat", "<eos>", "<unk>", "the", "fish", "fly", "on"])


@pytest.mark.parametrize(
    ("settings", "axes"),
    [
        ({"tied": False, "output_bias": True}, {"output/kernel": 1, "output/bias": 0}),
        ({"experts": [1, 2]}, {}),
        ({"gate": "input", "gate_units": 3}, {"gate/embeddings": 0, "gate/kernel": 1,
                                              "gate/bias": 0}),
    ],
)  # fmt: skip
def test_words_that_both_have_keep_their_weights_and_new_ones_are_their_mean(settings, axes):
    source, target = build(**settings), language_model(9, units=4, **settings)
    source.vocabulary, target.vocabulary = WORDS, OTHER_WORDS
    rng = np.random.default_rng(0)
    for weight in source.weights:
        weight.assign(rng.normal(size=weight.shape))
    found = dualnet.transfer(source, target, match="words")
    axes = {"embedding/embeddings": 0, **axes}
    assert set(found.by_word) == {*axes} and found.shared_words == 5
    assert (found.other_shape, found.missing, found.unused) == ((), (), ())
    assert f"{len(axes)} by word, 5 kept and others at their mean: embedding/emb" in str(found)
    assert target.vocabulary is OTHER_WORDS
    there, here = by_name(source), by_name(target)
    for name, value in here.items():
        if name not in axes:
            assert value == there[name]
            continue
        old, new = (np.moveaxis(np.array(x, "float32"), axes[name], 0)
                    for x in (there[name], value))  # fmt: skip
        kept = [WORDS.words.index(word) for word in OTHER_WORDS.words if word in WORDS.words]
        mean = old[kept].mean(axis=0, dtype="float64").astype("float32")
        for word, row in zip(OTHER_WORDS.words, new):
            expected = old[WORDS.words.index(word)] if word in WORDS.words else mean
            np.testing.assert_array_equal(row, expected)


@once
def test_equal_vocabularies_need_no_matching_and_members_and_translators_are_matched_too():
    source, target = build(), build()
    source.vocabulary = target.vocabulary = WORDS
    assert str(dualnet.transfer(source, target, match="words")) == "All 4 weights were copied."
    source, target = (dualnet.ensemble([language_model(n, units=4), language_model(n, units=3)])
                      for n in (7, 9))  # fmt: skip
    source.vocabulary, target.vocabulary = WORDS, OTHER_WORDS
    found = dualnet.transfer(source, target, match="words")
    assert found.by_word == ("member_1/embedding/embeddings", "member_2/embedding/embeddings")
    source, target = (zoo.build("attention_gru", vocabulary_size=n, source_vocabulary_size=m,
                                units=4, depth=1) for n, m in ((7, 9), (9, 7)))  # fmt: skip
    source.vocabulary, source.source_vocabulary = WORDS, OTHER_WORDS
    target.vocabulary, target.source_vocabulary = OTHER_WORDS, WORDS
    dualnet.transfer(source, target, match="words")
    there, here = by_name(source), by_name(target)
    for name, old, new in (
        ("embedding/embeddings", WORDS, OTHER_WORDS),
        ("source_embedding/embeddings", OTHER_WORDS, WORDS),
    ):
        assert here[name][new.id("dog")] == there[name][old.id("dog")]


@once
def test_words_are_matched_only_where_there_are_common_ones():
    source, target = build(), language_model(2, units=4)
    source.vocabulary, before = WORDS, by_name(target)
    for vocabulary, message in (
        (None, "`match` can be 'words' for models with vocabularies"),
        (Vocabulary(["ein", "Hund"]), "`source` must share a word with `target`"),
    ):
        target.vocabulary = vocabulary
        with pytest.raises(ValueError, match=message):
            dualnet.transfer(source, target, match="words")
        assert by_name(target) == before


def test_a_model_of_which_nothing_matches_is_refused():
    target = build(units=5)
    with pytest.raises(ValueError, match=r"`source` must have a weight.*embeddings \(7, 4\)"):
        dualnet.transfer(build(), target)


# --- from other programs


def test_arrays_of_any_dtype_are_assigned_by_name(rng):
    model = build(output_bias=True)
    arrays = {name: rng.normal(size=w.shape) for name, w in weight_names(model).items()}
    arrays["output/bias"] = list(range(7))
    dualnet.assign(model, arrays)
    assert by_name(model) == {n: np.asarray(a, "float32").tolist() for n, a in arrays.items()}
    kept = by_name(model)
    dualnet.assign(model, {"output/bias": np.ones(7, "float16")}, partial=True)
    assert by_name(model) == {**kept, "output/bias": [1.0] * 7}


BIAS = "recurrence_1/cell_1/bias"


@once
@pytest.mark.parametrize(
    ("change", "partial", "message"),
    [
        ({BIAS: None}, False, rf"1 missing: {BIAS}\. Nothing was assigned\. Use partial=True"),
        ({BIAS: None, "rnn": np.ones(3)}, True, r"1 unknown: rnn\. Nothing was assigned\.$"),
        ({BIAS: np.ones((4, 4))}, False, rf"1 of another shape: {BIAS} \(4, 4\) for \(16,\)\."),
        ({BIAS: np.full(16, np.nan)}, False, f"1 not finite: {BIAS}"),
    ],
)
def test_nothing_is_assigned_when_one_name_or_shape_is_wrong(change, partial, message):
    model = build()
    before = by_name(model)
    arrays = {name: np.add(value, 1) for name, value in before.items()}
    arrays = {name: value for name, value in {**arrays, **change}.items() if value is not None}
    with pytest.raises(dualnet.ArgumentError, match=message):
        dualnet.assign(model, arrays, partial=partial)
    assert by_name(model) == before


@once
@pytest.mark.slow
def test_a_tied_lstm_of_torch_has_the_same_logits_after_the_import():
    torch = pytest.importorskip("torch")
    embedding = torch.nn.Embedding(7, 4)
    lstm = torch.nn.LSTM(4, 4, num_layers=2, batch_first=True)
    output = torch.nn.Linear(4, 7)
    output.weight = embedding.weight
    with torch.no_grad():
        expected = output(lstm(embedding(torch.from_numpy(TOKENS)))[0]).numpy()
        state = {name: value.cpu().numpy() for name, value in lstm.state_dict().items()}
    tensors = {"embedding/embeddings": embedding.weight, "output/bias": output.bias}
    arrays = {name: tensor.detach() for name, tensor in tensors.items()}
    for i in range(2):
        cell = f"recurrence_{i + 1}/cell_{i + 1}"
        arrays[f"{cell}/kernel"] = state[f"weight_ih_l{i}"].T
        arrays[f"{cell}/recurrent_kernel"] = state[f"weight_hh_l{i}"].T
        arrays[f"{cell}/bias"] = state[f"bias_ih_l{i}"] + state[f"bias_hh_l{i}"]
    model = build(recurrent_layers=2, output_bias=True)
    dualnet.assign(model, arrays)
    np.testing.assert_allclose(ops.convert_to_numpy(model(TOKENS)), expected, rtol=1e-5, atol=1e-6)
