"""Whole models under a gate, behind a cache and side by side; models with experts in training."""

import json

import keras
import numpy as np
import pytest
from keras import ops

import dualnet
from dualnet.builders import ensemble_model, language_model, weight_names
from dualnet.corpora import Vocabulary
from dualnet.layers.ngram_cache import WEIGHTS
from tests import reference
from tests.checks import array, few_elsewhere, nll, once, strong, values

WORDS = Vocabulary(("the", "cat", "<eos>", "dog", "sees", "<unk>", "a", "bird"))
TEXT = np.random.default_rng(5).integers(len(WORDS), size=25).astype("int32")
CACHE = {"size": 4, "weight": 0.3, "scale": 0.8}
pytestmark = pytest.mark.usefixtures("without_tracing")


def a_model(seed=1, scale=0.7, **arguments):
    """Return a model whose weights are large, so that its words differ in likelihood."""
    return strong(language_model(len(WORDS), **{"units": 4, **arguments}), WORDS, seed, scale)


def strong_gate(base, seed=3, **gate):
    """Return `base` under a gate whose weights are large."""
    model = dualnet.with_gate(base, **{"units": 3, "dropout": 0.0, **gate})
    return strong(model, seed=seed, scale=0.7, only="gate")


@pytest.fixture(scope="module")
def base():
    """A model with all that a gate switches off."""
    penalties = {"fraternal": 0.5, "past_decode": 0.2, "activation": 1.0}
    penalties = {f"{name}_regularization": value for name, value in penalties.items()}
    return a_model(input_dropout=0.4, output_dropout=0.3, embedding_l2=0.1, **penalties)


@pytest.fixture(scope="module")
def other():
    return a_model(2, units=5, recurrent_layers=2, input_dropout=0.2)


@pytest.fixture(scope="module")
def gated(base):
    return strong_gate(base)


@pytest.fixture(scope="module")
def two(base, other):
    return dualnet.ensemble([base, other])


@pytest.fixture(scope="module")
def two_gated(two):
    return strong_gate(two, 4)


def logits_of(model, tokens=TEXT[None, :-1]):
    return array(model(tokens)).astype("float64")


def hidden_of(model, tokens=TEXT[None, :-1]):
    graph = keras.Model(model.core.inputs, model.hidden)
    return array(graph([ops.convert_to_tensor(tokens), *model.initial_state(len(tokens))]))


def check_losses(model, logits, **settings):
    found = dualnet.evaluate(model, TEXT, **settings).token_losses
    np.testing.assert_allclose(found, nll(logits, TEXT[None, 1:])[0], rtol=2e-5, atol=1e-5)


def batch_of(rows=2, steps=5, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(len(WORDS), size=(2, rows, steps)).astype("int32")


# --- a gate


def test_fit_trains_the_gate_alone_and_no_dropout_or_penalty_of_the_base(base):
    gated = dualnet.with_gate(base, units=3, dropout=0.0)
    assert gated.count_params() == without_past(base) + 2 * 8 * 3 + 8
    x, y = batch_of()
    gated.compile(optimizer=keras.optimizers.SGD(0.0))
    losses = []
    for _ in range(2):
        losses.append(float(gated.train_on_batch(x, y)[0]))
        gated.training_rows.restart()
    assert losses[0] == losses[1]
    np.testing.assert_allclose(losses[0], nll(logits_of(gated, x), y).mean(), rtol=1e-5)

    before = weights_by_name(gated)
    gated.compile(optimizer=keras.optimizers.SGD(0.5))
    for _ in range(2):
        gated.train_on_batch(x, y)
    for name, weight in weights_by_name(gated).items():
        assert np.array_equal(weight, before[name]) != name.startswith("gate/"), name
    of_base = weights_by_name(base)
    for name in set(before) & set(of_base):
        np.testing.assert_array_equal(before[name], of_base[name])


def without_past(model):
    """Return the number of parameters of `model` that have a part in the logits."""
    return sum(w.size for name, w in weights_by_name(model).items() if "past_decode" not in name)


def weights_by_name(model):
    return {name: array(weight).copy() for name, weight in weight_names(model).items()}


def test_the_gates_own_dropout_acts_in_training_alone_and_nothing_is_read_twice(base):
    x, y = batch_of()
    found = []
    for source in (base, a_model(input_dropout=0.4)):
        keras.utils.set_random_seed(1)
        model = dualnet.with_gate(source, units=30, dropout=0.5)
        model.compile(optimizer=keras.optimizers.SGD(0.0))
        strong(model, seed=1, scale=2.0)
        model.training_rows.resize(2)
        still = array(model(x))
        np.testing.assert_array_equal(still, array(model(x)))
        assert np.abs(array(model(x, training=True)) - still).max() > 1e-3
        found.append(float(model.train_on_batch(x, y)[0]))
    # A fraternal base would read twice, and add the gap between both.
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_a_gate_multiplies_the_logits(gated, base):
    assert np.abs(logits_of(gated) - logits_of(base)).max() > 0.1
    np.testing.assert_allclose(logits_of(gated), gates_of(gated) * logits_of(base), rtol=1e-4)


def gates_of(model, features=None):
    weights = weights_by_name(model)
    if features is None:
        features = weights["gate/embeddings"][TEXT[None, :-1]]
    return reference.sigmoid(features @ weights["gate/kernel"] + weights["gate/bias"])


def test_a_gate_may_read_the_hidden_vectors(base):
    model = strong_gate(base, 6, gate="input_and_hidden")
    embedded = weights_by_name(model)["gate/embeddings"][TEXT[None, :-1]]
    gates = gates_of(model, np.concatenate([hidden_of(base), embedded], axis=-1))
    np.testing.assert_allclose(logits_of(model), gates * logits_of(base), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def lstm_gated(base):
    return strong_gate(base, 5, gate="lstm")


@pytest.mark.parametrize("cuts", few_elsewhere([[2], [2, 4, 6]]))
def test_the_state_of_an_lstm_gate_is_carried(lstm_gated, cuts):
    tokens = TEXT[:16].reshape(2, 8)
    state, parts = lstm_gated.initial_state(2), []
    for segment in np.split(tokens, cuts, axis=1):
        logits, state = lstm_gated.advance(segment, state)
        parts.append(array(logits))
    whole = logits_of(lstm_gated, tokens)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, rtol=1e-4, atol=1e-5)
    assert np.abs(logits_of(lstm_gated, tokens[:, 1:]) - whole[:, 1:]).max() > 1e-3


def test_an_ensemble_has_one_gate_for_all(two_gated, base, other):
    gates = gates_of(two_gated)
    members = [reference.softmax(gates * logits_of(each)) for each in (base, other)]
    check_losses(two_gated, np.log(np.mean(members, axis=0)))


def test_what_cannot_be_gated_is_told(base, gated, two):
    with pytest.raises(ValueError, match="`model` must have no gate. Received: one with gate='in"):
        dualnet.with_gate(gated)
    with pytest.raises(ValueError, match="`gate` must be 'input' or 'lstm' for an ensemble"):
        dualnet.with_gate(two, gate="input_and_hidden")
    model = dualnet.with_gate(base)
    model.core.get_layer("recurrence_1").trainable = True
    model.compile(optimizer="sgd")
    with pytest.raises(ValueError, match=r"'recurrence_1/cell_1/kernel' is trainable"):
        model.fit(*batch_of(), batch_size=2, verbose=0)


@once
def test_a_gate_is_sampled_with_its_own_dropout_if_it_has_one(gated, base):
    with pytest.raises(
        ValueError, match="`mc_dropout_samples` must be 0 for a model without dropout"
    ):
        dualnet.evaluate(gated, TEXT, mc_dropout_samples=2)
    model = strong_gate(base, dropout=0.5)
    sampled = dualnet.evaluate(model, TEXT, mc_dropout_samples=2)
    assert np.abs(sampled.token_losses - dualnet.evaluate(model, TEXT).token_losses).max() > 1e-3


# --- a cache


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "start"),
    few_elsewhere(
        [("two", "at_once"), ("base", "when_full"), ("base", "at_once"), ("gated", "at_once")], 2
    ),
)
def test_perplexity_with_a_cache_is_that_of_the_paper(kind, start, base, other, request):
    model = request.getfixturevalue(kind)
    members = (base, other) if kind == "two" else (base,)
    hidden = np.concatenate([hidden_of(each) for each in members], axis=-1)
    text = TEXT[None, :-1], hidden, logits_of(model)
    cached = dualnet.with_cache(model, **CACHE, start=start)
    expected = reference.neural_cache(*text, **CACHE, start=start)
    check_losses(cached, expected)
    assert np.abs(expected - np.log(reference.softmax(text[2]))).max() > 0.1
    assert cached.cache_size == 4 and cached.gated == (kind == "gated")


@pytest.mark.slow
def test_how_a_text_is_cut_does_not_matter_to_a_cache(base):
    model = dualnet.with_cache(base, **CACHE)
    whole = dualnet.perplexity(model, TEXT)
    found = [dualnet.perplexity(model, TEXT, sequence_length=steps) for steps in (1, 7)]
    np.testing.assert_allclose(found, whole, rtol=1e-5)
    rows = dualnet.evaluate(model, TEXT, batch_size=2)
    halves = [dualnet.evaluate(model, part).token_losses for part in (TEXT[:13], TEXT[12:])]
    np.testing.assert_allclose(rows.token_losses, np.concatenate(halves), rtol=1e-4, atol=1e-5)


def test_perplexity_with_ngrams_is_that_of_counts(base, tmp_path):
    model = dualnet.with_cache(base, 9, kind="ngram")
    assert (model.cache_size, model.state_size[-1]) == (9, 9)
    logits = logits_of(base)
    expected = reference.ngram_cache(TEXT[None, :-1], logits, size=9, weights=WEIGHTS)
    check_losses(model, expected)
    assert np.abs(expected - np.log(reference.softmax(logits))).max() > 0.1
    warm = dualnet.evaluate(model, TEXT, temperature=1.5).token_losses
    np.testing.assert_allclose(warm, nll(expected / 1.5, TEXT[None, 1:])[0], rtol=1e-4)
    np.testing.assert_allclose(
        dualnet.evaluate(model, TEXT, sequence_length=4).token_losses,
        nll(expected, TEXT[None, 1:])[0],
        rtol=1e-4,
    )
    model.save(tmp_path / "model.keras")
    assert dualnet.perplexity(dualnet.load(tmp_path / "model.keras"), TEXT) == pytest.approx(
        dualnet.perplexity(model, TEXT)
    )
    with pytest.raises(ValueError, match="`cache_weight` cannot be combined with `cache_kind`"):
        dualnet.with_cache(base, kind="ngram", weight=0.1)


def test_weights_below_ngrams_learn_as_without_them():
    base = a_model(3)  # of its own: it is changed
    learnt = [dualnet.with_cache(base, 9, kind="ngram"), base]
    for model in learnt:
        dualnet.dynamic_evaluation(model, TEXT, rule="sgd", learning_rate=0.1, keep=True)
    for found, expected in zip(*(values(model) for model in learnt)):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@once
def test_a_cache_takes_the_place_of_another(base):
    once = dualnet.with_cache(base, **CACHE)
    again = dualnet.with_cache(dualnet.with_cache(base, 9, weight=0.7), **CACHE)
    assert again.state_size == once.state_size and again.arguments == once.arguments
    assert dualnet.perplexity(again, TEXT) == dualnet.perplexity(once, TEXT)
    with pytest.raises(ValueError, match="`by_sentence` must be False for a model with a cache"):
        dualnet.evaluate(once, TEXT, by_sentence=True)


def test_what_cannot_have_a_cache_is_told(base):
    padded = a_model(padded=True)
    with pytest.raises(ValueError, match="from_core or with a cache, which knows no padding"):
        dualnet.ensemble([padded, dualnet.with_cache(base, 3)])
    tokens = np.array([[-1, -1, 4, 5]])
    both = dualnet.ensemble([padded, base])(tokens)[:, 2:]
    mean = (ops.softmax(padded(tokens))[:, 2:] + ops.softmax(base(tokens[:, 2:]))) / 2
    np.testing.assert_allclose(ops.softmax(both), mean, rtol=1e-5)
    for model in (padded, dualnet.ensemble([padded, base])):
        with pytest.raises(ValueError, match="`cache_size` must be 0 for a model of padded sent"):
            dualnet.with_cache(model)


@once
@pytest.mark.slow
def test_a_cache_may_be_larger_than_the_text(base):
    cached = dualnet.with_cache(base, 40, weight=0.3, start="when_full")  # it never is
    found, plain = dualnet.evaluate(cached, TEXT), dualnet.evaluate(base, TEXT)
    np.testing.assert_allclose(found.token_losses, plain.token_losses, rtol=1e-4, atol=1e-5)
    frozen = dualnet.dynamic_evaluation(cached, TEXT, rule="sgd", learning_rate=1e-9)
    np.testing.assert_allclose(frozen.perplexity, found.perplexity, rtol=1e-4)


@once
def test_texts_are_scored_and_gone_on_with_through_a_cache(base):
    model = dualnet.with_cache(base, **CACHE)
    (text,) = dualnet.generate(model, ["the cat sees the"], max_tokens=4, temperature=0)
    ids = np.array([[2, *WORDS.encode(text)]], "int32")
    logits = logits_of(model, ids[:, :-1])
    (found,) = dualnet.score(model, [text])
    expected = -nll(logits, ids[:, 1:])[0]
    np.testing.assert_allclose(found.log_probabilities, expected, rtol=1e-4, atol=1e-5)
    logits[..., WORDS.unk_id] = -np.inf
    np.testing.assert_array_equal(logits[0, 4:].argmax(-1), ids[0, 5:])
    assert ids.shape == (1, 9)


@once
@pytest.mark.slow
def test_a_wrapped_model_is_saved_with_its_gate_and_cache(two_gated, tmp_path):
    model = dualnet.with_cache(two_gated, **CACHE)
    model.save(tmp_path / "model.keras")
    again = dualnet.load(tmp_path / "model.keras")
    assert again.vocabulary == WORDS
    assert json.dumps(again.arguments) == json.dumps(model.arguments)  # lists for tuples
    assert [w.path for w in again.trainable_variables] == [
        w.path for w in model.trainable_variables
    ]
    assert dualnet.perplexity(again, TEXT) == dualnet.perplexity(model, TEXT)


# --- an ensemble


@pytest.mark.slow
def test_twins_are_as_good_as_one_and_two_are_their_mean(base, other, two):
    twins = dualnet.ensemble([base, base])
    check_losses(twins, logits_of(base))
    for weight in twins.weights:
        weight.assign(weight * 0)
    assert all(np.any(weight) for weight in values(base))  # the twins have copies
    mean = np.mean([reference.softmax(logits_of(each)) for each in (base, other)], axis=0)
    check_losses(two, np.log(mean))
    assert two.count_params() == without_past(base) + other.count_params()
    nested = dualnet.ensemble([two, base])
    check_losses(nested, np.log((mean + reference.softmax(logits_of(base))) / 2))
    assert "member_1/member_2/embedding/embeddings" in weight_names(nested)


def test_a_member_that_decodes_the_past_learns_beside_one_that_knows_padding():
    members = [a_model(past_decode_regularization=0.1), a_model(padded=True)]
    both = dualnet.ensemble(members)
    assert not any("past_decode" in name for name in weight_names(both))
    assert {name.split("/")[0] for name in moved(both)} == {"member_1", "member_2"}


def test_what_is_no_ensemble_is_told(base):
    stranger = language_model(len(WORDS), units=4)
    message = "`models` must have one vocabulary.*with 8 words. Train them on one corpus, read"
    for other in (Vocabulary(WORDS.words[::-1]), Vocabulary(WORDS.words, documents="file")):
        stranger.vocabulary = other
        with pytest.raises(ValueError, match=message):
            dualnet.ensemble([base, stranger])
    sizes = [{"vocabulary_size": words, "units": 3} for words in (5, 6)]
    members = [{"builder": "language_model", "arguments": arguments} for arguments in sizes]
    with pytest.raises(ValueError, match=r"`members` must have one vocabulary.*\[5, 6\]"):
        ensemble_model(members=members)


def test_an_ensemble_is_sampled_with_the_dropouts_of_its_members(two):
    still = dualnet.evaluate(two, TEXT[:9]).token_losses
    found = [
        dualnet.evaluate(two, TEXT[:9], mc_dropout_samples=2, seed=seed).token_losses
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(found[0] - still).max() > 1e-3 and np.abs(found[0] - found[2]).max() > 1e-4


LEARN = {"rule": "sgd", "learning_rate": 0.5, "sequence_length": 4}


def moved(model):
    """Return the names of the weights that dynamic evaluation moves."""
    before, flags = weights_by_name(model), flags_of(model)
    dualnet.dynamic_evaluation(model, TEXT[:9], **LEARN, keep=True)
    assert flags_of(model) == flags
    return {
        name for name, w in weights_by_name(model).items() if not np.array_equal(w, before[name])
    }


def test_each_step_of_an_ensemble_has_gradients_of_its_own():
    x, y = batch_of()
    plain = a_model()
    twins = dualnet.ensemble([plain, plain])
    twins.compile(optimizer=keras.optimizers.SGD(0.1))
    for _ in range(2):
        twins.train_on_batch(x, y)
    ends = weights_by_name(twins)
    for name, start in weights_by_name(plain).items():
        one, two = (ends[f"member_{i}/{name}"] for i in (1, 2))
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)
        assert not np.array_equal(one, start)


def flags_of(model):
    return {variable.path: variable.trainable for variable in model.core.variables}


@once
def test_what_is_below_a_gate_goes_on_learning_too_and_is_frozen_again(base, two, gated, other):
    for model in (
        dualnet.with_gate(base, units=3, dropout=0.0),
        dualnet.with_gate(two, units=3, dropout=0.0),
        dualnet.ensemble([gated, other]),
    ):
        assert moved(model) == set(weight_names(model))


# --- experts


MIXTURES = {
    "mixture": {"experts": 2},
    "doc": {"experts": [1, 2], "output_bias": True, "balance_regularization": 0.3},
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "padded"), few_elsewhere([("doc", True), ("mixture", False)]))
def test_a_step_that_asks_for_losses_alone_is_the_one_that_makes_all_logits(kind, padded):
    x, y = batch_of()
    weight = np.ones(x.shape, "float32")
    if padded:
        x[0, :3], y[0, :3], weight[0, :3] = -1, 0, 0
    asked = {
        "losses": {},
        "logits": {"metrics": [keras.metrics.SparseCategoricalAccuracy()]},
        "own": {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
    }
    losses, ends = {}, {}
    for name, settings in asked.items():
        model = a_model(**MIXTURES[kind], padded=padded, embedding_l2=0.01)
        start, embeddings = logits_of(model, x), weights_by_name(model)["embedding/embeddings"]
        model.compile(optimizer=keras.optimizers.SGD(0.5), **settings)
        found = model.train_on_batch(x, y, weight, return_dict=True)
        losses[name], ends[name] = float(found["loss"]), weights_by_name(model)
        expected = (nll(start, y) * weight).sum() / weight.sum()
        np.testing.assert_allclose(float(found["perplexity"]), np.exp(expected), rtol=1e-5)
        if kind != "doc":
            expected += 0.01 * np.square(embeddings, dtype="float64").sum()
            np.testing.assert_allclose(losses[name], expected, rtol=1e-5)
    for other in ("logits", "own"):
        np.testing.assert_allclose(losses[other], losses["losses"], rtol=1e-5)
        for name, end in ends["losses"].items():
            np.testing.assert_allclose(end, ends[other][name], rtol=1e-4, atol=1e-5)


DROPPED = ["input_dropout", "internal_dropout", "output_dropout", "dual_output_dropout"]


@once
@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ({"experts": [1, 1, 1]}, ["embedding", "recurrence_1", "recurrence_2"]),
        ({"experts": [1, 1, 1], **dict.fromkeys(DROPPED[:3], 0.1)}, DROPPED[:3]),
        ({"experts": [1] * 4, "connection": "dual", **dict.fromkeys(DROPPED, 0.1)}, DROPPED),
    ],
)
def test_experts_read_each_layer_with_the_dropout_that_follows_it(arguments, read):
    model = language_model(9, units=4, recurrent_layers=2, **arguments)
    inputs = model.core.get_layer("output").input
    assert [tensor._keras_history.operation.name for tensor in inputs] == read


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"experts": [1, 2, 3]}, "`experts` must have 2 numbers, the first for the embedding"),
        ({"experts": 2, "latent_units": 5}, "`latent_units` must equal `embedding_units`, 4"),
        ({"latent_dropout": 0.1}, "`latent_dropout` needs `experts`"),
    ],
)
def test_experts_that_cannot_be_are_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        language_model(9, units=4, **arguments)
