"""Weights by name, and from one model into another."""

import keras
import numpy as np
import pytest
from keras import ops

import dualnet
from dualnet.builders import language_model, weight_names
from dualnet.corpora import Vocabulary

TOKENS = np.array([[0, 5, 1, 4], [2, 2, 6, 3]])
WORDS = Vocabulary(["<eos>", "<unk>", "the", "cat", "sees", "a", "dog"])


def build(**settings):
    return language_model(7, **{"units": 4, **settings})


def by_name(model):
    return {name: np.array(ops.convert_to_numpy(w)) for name, w in weight_names(model).items()}


def assert_taken(found, source, before, target):
    """All that was taken is the source's, all else is as it was `before`."""
    there, here = by_name(source), by_name(target)
    assert set(found.taken) | {name for name, *_ in found.other_shape} | {*found.missing} == {*here}
    for name, value in here.items():
        expected = there if name in found.taken else before
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_names_are_places_in_the_graph_and_a_tied_matrix_comes_once():
    model = build(recurrent_layers=2, connection="dual", past_decode_regularization=0.1)
    names = weight_names(model)
    assert {id(weight) for weight in names.values()} == {id(weight) for weight in model.weights}
    assert len(names) == len({id(weight) for weight in model.weights})
    assert list(names)[:2] == ["embedding/embeddings", "recurrence_1/cell_1/kernel"]
    assert {"recurrence_2/cell_2/bias", "connection/hidden_kernel", "past_decode/kernel"} < {*names}


def test_names_within_an_ensemble_begin_with_the_member():
    names = weight_names(dualnet.ensemble([build(), build(tied=False)]))
    cell = [f"recurrence_1/cell_1/{name}" for name in ("kernel", "recurrent_kernel", "bias")]
    both = [f"member_{i}/{name}" for i in (1, 2) for name in ("embedding/embeddings", *cell)]
    assert sorted(names) == sorted([*both, "member_2/output/kernel"])
    assert all(name.endswith(weight.path) for name, weight in names.items())


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
    for name, value in by_name(source).items():
        np.testing.assert_array_equal(value, before[name])
    assert any(np.any(value != before[name]) for name, value in by_name(target).items())


def test_a_deeper_or_untied_model_keeps_its_own_weights_and_says_so():
    source, target = build(), build(recurrent_layers=2)
    before = by_name(target)
    found = dualnet.transfer(source, target)
    assert_taken(found, source, before, target)
    upper = [f"recurrence_2/cell_2/{name}" for name in ("kernel", "recurrent_kernel", "bias")]
    assert found.missing == tuple(upper) and found.unused == ()
    assert str(found).splitlines() == [
        "4 of 7 weights were copied.",
        f"3 missing, unchanged: {', '.join(upper)}.",
    ]
    back = dualnet.transfer(target, build())
    assert back.unused == tuple(upper) and back.missing == ()
    assert str(back).splitlines()[1] == f"3 unused: {', '.join(upper)}."
    untied = build(tied=False)
    before = by_name(untied)
    found = dualnet.transfer(source, untied)
    assert_taken(found, source, before, untied)
    assert found.missing == ("output/kernel",) and len(found.taken) == 4


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
    assert str(found).splitlines() == [
        "1 of 5 weights were copied.",
        "4 of another shape, unchanged: recurrence_1/cell_1/kernel (4, 16) for (4, 24), "
        "recurrence_1/cell_1/recurrent_kernel (4, 16) for (6, 24), "
        "recurrence_1/cell_1/bias (16,) for (24,), output/kernel (4, 7) for (6, 7).",
    ]


def test_another_vocabulary_is_refused_and_nothing_copied():
    source, target = build(), build()
    source.vocabulary = WORDS
    target.vocabulary = Vocabulary([*WORDS.words[:-1], "bird"])
    before = by_name(target)
    with pytest.raises(ValueError, match="`source` must have the vocabulary of `target`"):
        dualnet.transfer(source, target)
    for name, value in by_name(target).items():
        np.testing.assert_array_equal(value, before[name])
    more = language_model(9, units=4)
    found = dualnet.transfer(source, more)  # without one, and of another size
    assert found.other_shape == (("embedding/embeddings", (7, 4), (9, 4)),)
    assert more.vocabulary is None


def test_a_model_of_which_nothing_matches_is_refused():
    target = build(units=5)
    with pytest.raises(ValueError, match=r"`source` must have a weight.*embeddings \(7, 4\)"):
        dualnet.transfer(build(), target)
    source = build(units=4)
    source.vocabulary = WORDS
    with pytest.raises(ValueError, match="Build the target with layers and sizes"):
        dualnet.transfer(source, target)
    assert target.vocabulary is None
    with pytest.raises(ValueError, match="`target` must be a LanguageModel.*of type Functional"):
        dualnet.transfer(source, target.core)


def test_a_cache_of_a_member_counts_as_one_of_the_ensemble():
    small, large = (dualnet.with_cache(build(), size) for size in (3, 20))
    both = dualnet.ensemble([small, dualnet.ensemble([large])])
    assert (both.cache_size, dualnet.with_cache(both, 30).cache_size) == (20, 30)
    with pytest.raises(ValueError, match="must be more than the 20 that the cache"):
        dualnet.perplexity(both, TOKENS.reshape(-1))


def test_the_balance_of_one_expert_is_refused_by_the_name_of_the_argument():
    with pytest.raises(ValueError, match="`balance_regularization` needs more than one expert"):
        build(experts=[0, 1], balance_regularization=0.1)
