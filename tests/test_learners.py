"""Learners: small memories of many readers of one model, against the papers in NumPy."""

import concurrent.futures
import copy
import dataclasses
import json
import pickle
import threading

import numpy as np
import pytest

import dualnet
from dualnet import zoo
from dualnet.builders import encoder_decoder, ensemble, with_cache
from dualnet.layers import adaptation_matrix
from dualnet.learners import Learner, read_many
from dualnet.text import Vocabulary
from tests import reference
from tests.checks import array, assert_same, dtype_policy, nll, once, strong, values

WORDS, UNITS, LENGTH = 7, 3, 4
VOCABULARY = Vocabulary(("<eos>", *(f"w{i}" for i in range(1, WORDS))))
RATE, DECAY = 0.7, 0.1

pytestmark = pytest.mark.usefixtures("without_tracing")


@pytest.fixture(scope="module")
def model():
    return strong(zoo.build("dual_lstm", vocabulary_size=WORDS, units=UNITS), VOCABULARY)


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(1).integers(1, WORDS, size=(3, 11)).astype("int32")


def learner(model, adapt="connection", **settings):
    settings = {"rule": "sgd", "learning_rate": RATE, "sequence_length": LENGTH, **settings}
    return Learner(model, adapt, **settings)


def kept(one):
    """Return all that a learner holds."""
    state = one._state
    return [state.memory, *state.moments, *state.states]


# --- values, against NumPy in float64


def logits_of(tokens, states, weights, learnt, adapt):
    """Return logits and states of a plain or dual LSTM whose `learnt` weights are as given."""
    connection = "dual" if "connection/kernel" in weights else "plain"
    changed = {**weights, **{k: w for k, w in learnt.items() if k in weights}}
    matrix = None
    if adapt.startswith(("matrix", "recurrent_matrix")):
        matrix = learnt["kernel"] if "kernel" in learnt else learnt["down"] @ learnt["up"]
    inside = matrix if adapt.startswith("recurrent") else None
    logits, states, outputs = reference.language_model(
        tokens, changed, states, connection=connection, matrix=inside
    )
    if adapt == "output_bias":
        return logits + learnt["bias"], states
    if adapt.startswith("output_matrix"):
        return logits + outputs[-1] @ learnt["down"] @ learnt["up"], states
    if adapt.startswith("matrix"):
        h = outputs[-1]
        return (h + h @ matrix) @ weights["embedding/embeddings"].T, states
    return logits, states


def places(adapt, weights):
    """Return what learns, and its values at first."""
    if adapt == "output_bias":
        return {"bias": np.zeros(WORDS)}
    if adapt in ("matrix", "recurrent_matrix"):
        return {"kernel": np.zeros((UNITS, UNITS))}
    if adapt.endswith(":2"):
        down = array(adaptation_matrix.random_factor((UNITS, 2), "float32")).astype("float64")
        return {"down": down, "up": np.zeros((2, WORDS if "output" in adapt else UNITS))}
    return {name: weights[name] for name in weights if name.startswith(f"{adapt}/")}


def nadam(g, moments, t, beta_1, beta_2=0.999, epsilon=1e-7):
    """Return the step of Nadam (Dozat, 2016), with Keras's schedule of the momentum."""
    m, v, product = moments
    u, u_next = (beta_1 * (1 - 0.5 * 0.96**s) for s in (t, t + 1))
    product = product * u
    m, v = beta_1 * m + (1 - beta_1) * g, beta_2 * v + (1 - beta_2) * g**2
    m_hat = u_next * m / (1 - product * u_next) + (1 - u) * g / (1 - product)
    return m_hat / (np.sqrt(v / (1 - beta_2**t)) + epsilon), (m, v, product)


def by_hand(model, ids, adapt, update, start=0):
    """Return the loss of each token, and the memory: gradients by central differences."""
    names = dualnet.weight_names(model)
    weights = {
        "/".join(name.split("/")[-2:]): array(w).astype("float64") for name, w in names.items()
    }
    base = places(adapt, weights)
    learnt, states, losses = dict(base), None, []
    stream = np.append(start, ids)
    for step, first in enumerate(range(0, len(ids), LENGTH)):
        part = stream[first : first + LENGTH + 1][None]
        tokens, targets = part[:, :-1], part[:, 1:]

        def loss(*values, tokens=tokens, targets=targets, states=states):
            now = dict(zip(base, values))
            return nll(logits_of(tokens, states, weights, now, adapt)[0], targets).mean()

        slopes = reference.differences(loss, list(learnt.values()))
        logits, states = logits_of(tokens, states, weights, learnt, adapt)
        losses.append(nll(logits, targets)[0])
        learnt = {
            name: update(i, step + 1, learnt[name], slope, base[name])
            for i, (name, slope) in enumerate(zip(learnt, slopes))
        }
    memory = np.concatenate([(learnt[name] - base[name]).ravel() for name in learnt])
    return np.concatenate(losses), memory


def sgd(i, t, now, g, prior):
    return now - RATE * g + DECAY * (prior - now)


@pytest.mark.parametrize(
    ("name", "adapt"),
    [("dual_lstm", "connection"), ("lstm", "matrix:2"), ("dual_lstm", "recurrent_matrix"),
     ("lstm", "output_matrix:2"), ("dual_lstm", "output_bias"), ("dual_lstm", "embedding")],
)  # fmt: skip
def test_a_learner_scores_each_segment_and_then_learns_as_the_paper_says(name, adapt, ids):
    model = strong(zoo.build(name, vocabulary_size=WORDS, units=UNITS), VOCABULARY)
    before = values(model)
    one = learner(model, adapt, decay=DECAY)
    found = one.read(ids[0])
    losses, memory = by_hand(model, ids[0], adapt, sgd)
    np.testing.assert_allclose(found.token_losses, losses, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(one._state.memory, memory, rtol=1e-3, atol=2e-5)
    assert np.abs(memory).max() > 0.04
    np.testing.assert_array_equal(found.segment_lengths, [4, 4, 3])
    assert found.surprisals.sum() == pytest.approx(found.token_losses.sum() / np.log(2))
    assert one.tokens == found.tokens == 11
    assert_same(values(model), before)


@pytest.mark.parametrize("beta_1", [0.0, 0.5])
def test_nadam_and_its_moments_are_those_of_the_paper(beta_1, model, ids):
    moments = {}

    def update(i, t, now, g, prior):
        step, moments[i] = nadam(g, moments.get(i, (0, 0, 1)), t, beta_1, epsilon=0.01)
        return now - 0.05 * step

    losses, memory = by_hand(model, ids[0], "connection", update)
    settings = {"rule": "nadam", "learning_rate": 0.05, "beta_1": beta_1, "epsilon": 0.01}
    one = learner(model, **settings)
    np.testing.assert_allclose(one.read(ids[0]).token_losses, losses, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(one._state.memory, memory, rtol=2e-3, atol=1e-4)
    assert len(one._state.moments) == (3 if beta_1 else 2)


@once
@pytest.mark.slow
def test_rms_and_clipping_equal_dynamic_evaluation(model, ids):
    text = np.append(0, ids[0])
    found = dualnet.gradient_statistics(model, np.tile(text, 9), batch_size=4, adapt="connection")
    for settings in (
        {"rule": "rms", "learning_rate": 0.01, "decay": 0.3, "epsilon": 0.02, "statistics": found},
        {"clipnorm": 0.05, "decay": 0.2},
        {"rule": "nadam", "beta_1": 0.3, "learning_rate": 0.01},
    ):
        one = learner(model, **settings)
        whole = {"rule": "sgd", "learning_rate": RATE, "sequence_length": LENGTH, **settings}
        expected = dualnet.dynamic_evaluation(model, text, adapt="connection", **whole)
        np.testing.assert_allclose(
            one.read(ids[0]).token_losses, expected.token_losses, rtol=1e-4, atol=1e-5
        )


def test_the_global_dtype_policy_does_not_round_what_learns(ids):
    scores = {}
    for policy in ("float32", "mixed_bfloat16"):
        with dtype_policy("mixed_bfloat16"):
            model = strong(zoo.build("dual_lstm", vocabulary_size=WORDS, units=UNITS), VOCABULARY)
        with dtype_policy(policy):  # the model's is mixed in any case
            one = learner(model)
            losses = [one.read(ids[0]).token_losses]
            settings = {"rule": "sgd", "learning_rate": RATE, "sequence_length": LENGTH}
            losses.append(dualnet.dynamic_evaluation(model, ids[0], **settings).token_losses)
        scores[policy] = [one._state.memory, *losses]
    assert_same(scores["mixed_bfloat16"], scores["float32"])


# --- many of them


def test_a_text_goes_on_where_the_one_before_ended(model, ids):
    whole, parts = learner(model), learner(model)
    losses = whole.read(ids[0][:8]).token_losses
    parts.read("w1")
    parts.reset()
    assert_same(kept(parts), kept(learner(model)))
    both = [parts.read(text).token_losses for text in (ids[0][:4], ids[0][4:8])]
    np.testing.assert_allclose(np.concatenate(both), losses, rtol=1e-5)
    parts.reset()
    words = " ".join(VOCABULARY.words[i] for i in ids[0][:8])
    np.testing.assert_array_equal(parts.read(words).token_losses, losses)


def test_interleaved_learners_equal_themselves_alone_to_the_last_bit(model, ids):
    ids, alone = ids[:, :6], []
    for text in ids:
        one = learner(model)
        alone.append([one.read(text).token_losses, one.read(text[::-1]).token_losses, *kept(one)])
    several = [learner(model) for _ in ids]
    mixed = [[one.read(text).token_losses] for one, text in zip(several, ids)]
    for one, text, found in zip(several, ids, mixed):
        found += [one.read(text[::-1]).token_losses, *kept(one)]
    for found, expected in zip(mixed, alone):
        assert_same(found, expected)
    barrier = threading.Barrier(len(ids))

    def in_a_thread(text):
        one = learner(model)
        barrier.wait()
        return [one.read(text).token_losses, one.read(text[::-1]).token_losses, *kept(one)]

    with concurrent.futures.ThreadPoolExecutor(len(ids)) as pool:
        for found, expected in zip(pool.map(in_a_thread, ids), alone):
            assert_same(found, expected)


@pytest.mark.parametrize(
    "adapt",
    [
        "connection",
        ["matrix", "output_bias", "output_matrix:3", "recurrent_matrix:2"],
        "recurrence",
    ],
)
def test_learners_read_side_by_side_equal_one_by_one(adapt, model, ids):
    texts = [ids[0], [], ids[1][:6], "w1 w2 w3", ids[2][:2]]
    rates = [0.3, 0.7, 0.1, 0.5, 0.2]
    alone = [learner(model, adapt, learning_rate=rate, decay=DECAY) for rate in rates]
    expected = [one.read(text) for one, text in zip(alone, texts)]
    together = [learner(model, adapt, learning_rate=rate, decay=DECAY) for rate in rates]
    found = read_many(together, texts)
    assert [result.tokens for result in found] == [11, 0, 6, 3, 2]
    assert found[1].perplexity == 1
    for one, two, a, b in zip(found, expected, together, alone):
        np.testing.assert_allclose(one.token_losses, two.token_losses, rtol=1e-4, atol=1e-6)
        for x, y in zip(kept(a), kept(b)):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5)
    assert_same(kept(together[1]), kept(learner(model, adapt)))


def test_scoring_changes_nothing_and_generation_uses_what_was_learnt(model, ids):
    one, before = learner(model), values(model)
    text = np.tile(ids[0][:3], 5)
    one.read(text)
    state = kept(one)
    score = one.score(text)
    assert_same(kept(one), state)
    assert score.perplexity < learner(model).score(text).perplexity
    assert_same(values(model), before)
    taught = strong(zoo.build("dual_lstm", vocabulary_size=WORDS, units=UNITS), VOCABULARY)
    settings = {"rule": "sgd", "learning_rate": RATE, "sequence_length": LENGTH, "keep": True}
    dualnet.dynamic_evaluation(taught, np.append(0, text), adapt="connection", **settings)
    prompts, settings = ["w1", "w4 w2", "w3"], {"temperature": 0, "max_tokens": 5}
    assert one.generate(prompts, **settings) == dualnet.generate(taught, prompts, **settings)
    assert one.generate("w1", seed=3) != dualnet.generate(model, "w1", seed=3)
    assert_same(values(model), before)


def test_a_learner_does_not_look_ahead(model, ids):
    found = dualnet.check_causal(
        lambda tokens: -learner(model).read(tokens).token_losses, ids[0], positions=3
    )
    assert found.causal


# --- what goes wrong


def test_an_update_that_is_not_finite_is_not_applied_but_counted_and_said(model, ids):
    one = learner(model)
    one.settings["learning_rate"] = np.inf
    with pytest.warns(UserWarning, match="3 of the updates were not finite"):
        found = one.read(ids[0])
    assert one.skipped == 3 and not one._state.memory.any()
    fixed = learner(model, learning_rate=1e-30).read(ids[0])
    np.testing.assert_allclose(found.token_losses, fixed.token_losses, rtol=1e-6)


def test_a_perplexity_that_is_not_finite_is_an_error_and_nothing_is_kept_of_it(model, ids):
    one = learner(model, learning_rate=1e5)
    one.read(ids[0][:LENGTH])  # scored before it has learnt
    before = kept(one)
    with pytest.raises(dualnet.ArgumentError, match="must keep the perplexity finite"):
        one.read(ids[1])
    assert_same(kept(one), before)


def test_an_error_or_an_interrupt_leaves_learners_as_they_were(model, ids, monkeypatch):
    several = [learner(model) for _ in ids]
    read_many(several, ids)
    before = [kept(one) for one in several]
    lesson, calls = several[0]._kind.lesson, []
    predict = type(lesson).predict_on_batch

    def stops(self, batch):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return predict(self, batch)

    monkeypatch.setattr(type(lesson), "predict_on_batch", stops)
    with pytest.raises(KeyboardInterrupt):
        read_many(several, ids)
    assert len(calls) == 2
    monkeypatch.undo()
    with pytest.raises(ValueError, match="`text` must hold ids of the model's vocabulary"):
        read_many(several, [ids[0], ids[1], [WORDS]])
    for one, state in zip(several, before):
        assert_same(kept(one), state)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: read_many([one := learner(m), one], ["w1", "w2"]), "`learners` must be differ"),
        (lambda m: read_many([learner(m)], []), "`texts` must have one text for each learner"),
        (lambda m: learner(m, "nothing"), "`adapt` must name weights of this model"),
        (lambda m: learner(zoo.build("lstm", vocabulary_size=9, units=3), "connection"),
         "of this model: 'all', 'recurrence', 'output', 'embedding', 'output_bias'"),
        (lambda m: learner(m, rule="rms"), "`statistics` must be given for the rule 'rms'"),
        (lambda m: learner(m, learning_rate="auto"), "`learning_rate` must be a number for a lea"),
    ],
)  # fmt: skip
def test_what_a_learner_cannot_do_is_refused(call, message, model):
    with pytest.raises(dualnet.ArgumentError, match=message):
        call(model)


@pytest.mark.parametrize("adapt", ["matrix:2", "output_bias"])
def test_a_taught_model_with_added_weights_is_never_saved_or_built_without_them(
    adapt, ids, tmp_path
):
    model = strong(zoo.build("lstm", vocabulary_size=WORDS, units=UNITS, output_dropout=0.1))
    one = learner(model, adapt)
    one.read(ids[0])
    with one.taught() as taught:
        for use in (
            lambda: taught.save(tmp_path / "model.keras"),
            lambda: with_cache(taught, 3),
            lambda: ensemble([taught, taught]),
            lambda: dualnet.evaluate(taught, ids[0], mc_dropout_samples=2),
        ):
            with pytest.raises(dualnet.ArgumentError, match="must have the weights of its builder"):
                use()
    few = learner(model, "output")
    few.read(ids[0])
    with few.taught() as taught:
        taught.save(tmp_path / "model.keras")
        expected = dualnet.perplexity(taught, ids[1])
    loaded = dualnet.load(tmp_path / "model.keras")
    assert dualnet.perplexity(loaded, ids[1]) == pytest.approx(expected, rel=1e-6)


# --- files


def test_texts_of_a_surprisal_begin_anew_also_when_another_thread_reads_in_between(model, ids):
    expected = learner(model, learning_rate=1e-30).surprisal(["w1 w2", "w3 w1"])
    one, reads = learner(model, learning_rate=1e-30), iter(ids)

    class Taken:
        """A lock that another thread's reading has taken just before."""

        def __enter__(self):
            other = learner(model)
            other.read(next(reads))
            one._state = one._state._replace(states=other._state.states, last=other._state.last)

        def __exit__(self, *error):
            pass

    one._lock = Taken()
    for row, same in zip(one.surprisal(["w1 w2", "w3 w1"]), expected):
        assert row["surprisal"] == pytest.approx(same["surprisal"], rel=1e-5)


def test_a_surprisal_that_is_stopped_leaves_a_learner_where_it_was(model, ids, monkeypatch):
    one = learner(model)
    one.read(ids[0])
    before = kept(one)

    def stops(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(one._kind.lesson), "predict_on_batch", stops)
    with pytest.raises(KeyboardInterrupt):
        one.surprisal(["w1 w2"])
    assert_same(kept(one), before)


@pytest.mark.parametrize("rule", ["sgd", "nadam"])
def test_a_saved_learner_goes_on_to_the_last_bit(rule, model, ids, tmp_path):
    one = learner(model, rule=rule, clipnorm=1.0)
    one.read(ids[0])
    one.save(tmp_path / "one.learner")
    assert [path.name for path in tmp_path.iterdir()] == ["one.learner"]
    two = Learner.load(tmp_path / "one.learner", model)
    assert_same(kept(two), kept(one))
    assert (two.settings, two.rule, two.adapt) == (one.settings, one.rule, one.adapt)
    assert two.tokens == one.tokens == 11 and two.size == one.size
    assert_same([two.read(ids[1]).token_losses], [one.read(ids[1]).token_losses])
    two.reset()
    assert_same(kept(two), kept(learner(model, rule=rule)))


@pytest.mark.parametrize("rule", ["sgd", "nadam"])
def test_a_learner_saved_in_half_precision_takes_half_the_bytes_and_reads_on_alike(
    rule, model, ids, tmp_path
):
    one = learner(model, rule=rule, learning_rate=0.01)
    one.read(ids[0])
    for name, half in (("whole", False), ("half", True)):
        one.save(tmp_path / name, half=half)
    whole, half = ((tmp_path / name).stat().st_size for name in ("whole", "half"))
    assert whole - half == (one._state.memory.nbytes + sum(a.nbytes for a in one._state.states)) / 2
    loaded = Learner.load(tmp_path / "half", model)
    assert {array.dtype.name for array in loaded._state.states} == {"float32"}
    found, expected = (each.read(ids[1]).token_losses for each in (loaded, one))
    np.testing.assert_allclose(found, expected, rtol=1e-2)


def test_a_file_of_another_model_and_a_damaged_one_are_refused(model, ids, tmp_path):
    path = tmp_path / "one.learner"
    one = learner(model)
    one.read(ids[0])
    one.save(path)
    other = strong(zoo.build("dual_lstm", vocabulary_size=WORDS, units=UNITS), VOCABULARY, seed=9)
    with pytest.raises(dualnet.ArgumentError, match="belongs to, 'dual_lstm' with .*'dual_lstm' w"):
        Learner.load(path, other)
    data = path.read_bytes()
    for damage in (b"", data[: len(data) // 2], data[:-600] + data[-500:]):
        path.write_bytes(damage)
        with pytest.raises(dualnet.ArgumentError, match="`path` must be a file that Learner.save"):
            Learner.load(path, model)


@pytest.mark.parametrize("change", ["weights", "lowercase", "cache"])
def test_a_learner_belongs_to_the_model_as_it_was_at_the_first_text(change, ids, tmp_path):
    model, path = strong(zoo.build("dual_lstm", vocabulary_size=WORDS, units=UNITS)), tmp_path / "l"
    model.vocabulary, before = VOCABULARY, model.get_weights()
    one = learner(model)
    one.read(ids[0])
    changed = model
    if change == "weights":
        model.set_weights([weight + 0.1 for weight in before])
        one.read(ids[1])
    elif change == "lowercase":
        model.vocabulary = dataclasses.replace(VOCABULARY, lowercase=True)
    else:
        changed = with_cache(model, 5)
    one.save(path)
    with pytest.raises(dualnet.ArgumentError, match="this model and its cache|that the learner be"):
        Learner.load(path, changed)
    one.reset()
    one.read(ids[0])
    one.save(path)
    assert_same(kept(Learner.load(path, model)), kept(one))


def test_a_moved_learner_adds_its_bias_to_other_weights_and_recalls_the_same_tokens(
    model, ids, tmp_path
):
    other = strong(zoo.build("lstm", vocabulary_size=WORDS, units=5), VOCABULARY, seed=9)
    one = learner(model, "output_bias", cache=8)
    one.read(ids[0])
    moved = one.move(other)
    assert (moved.model, moved.tokens, moved.adapt) == (other, one.tokens, one.adapt)
    bare = learner(other, "output_bias")
    bare._state = bare._state._replace(memory=one._state.memory)
    with bare.taught() as taught:
        logits = array(taught.advance(ids[:1], taught.initial_state(1))[0])
    plain = array(other.advance(ids[:1], other.initial_state(1))[0])
    np.testing.assert_allclose(logits, plain + one._state.memory, rtol=1e-5, atol=1e-5)
    there = learner(other, "output_bias", cache=8)
    there.read(ids[0])
    states = [*there._start().states[:-1], there._state.states[-1]]  # from the zero state
    there._state = there._state._replace(memory=one._state.memory, states=states)
    again = moved.read(ids[1]).token_losses
    np.testing.assert_array_equal(again, there.read(ids[1]).token_losses)
    moved.save(tmp_path / "a.learner")
    assert_same(kept(Learner.load(tmp_path / "a.learner", other)), kept(moved))


def test_what_does_not_fit_other_weights_is_not_moved(model, ids):
    other = strong(zoo.build("dual_lstm", vocabulary_size=WORDS, units=UNITS), VOCABULARY, seed=9)
    one = learner(model, ["connection", "output_bias"], cache=8)
    one.move(other)  # which has learnt nothing
    one.read(ids[0])
    with pytest.raises(dualnet.ArgumentError, match="`forget` must be True.*read the texts again"):
        one.move(other)
    fresh = one.move(other, forget=True)
    assert not fresh._state.memory.any() and one._state.memory.any()
    np.testing.assert_array_equal(fresh._state.states[-1], one._state.states[-1])
    words = Vocabulary(("<eos>", *(f"v{i}" for i in range(1, WORDS))))
    with pytest.raises(dualnet.ArgumentError, match="`model` must read as the learner's does"):
        one.move(strong(zoo.build("lstm", vocabulary_size=WORDS, units=UNITS), words))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("checksum", 3), ("model", None), ("adapt", 3), ("rule", None), ("settings", [1]),
        ("tokens", -1), ("last", "a"), ("format", 9), ("memory", np.zeros(30, "float32")),
        ("state_0", np.zeros(3)), ("state_1", np.full(3, np.nan, "float32")),
        ("state_9", np.zeros(3, "float32")), ("cache", -1), ("cache", 1.5), ("cache", "a"),
        ("cache", 9), ("cache", 10**12),
    ],
)  # fmt: skip
def test_a_file_with_one_wrong_value_is_refused(name, value, model, tmp_path):
    learner(model).save(tmp_path / "l.npz")
    arrays = {**np.load(tmp_path / "l.npz")}
    about = json.loads(arrays["about"].tobytes())
    if isinstance(value, np.ndarray):
        arrays[name] = value
    else:
        about |= {name: value}
    if name == "model":
        del about[name]
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    np.savez(tmp_path / "l.npz", **arrays)
    with pytest.raises(dualnet.ArgumentError, match="`(path|model)` must .* Received: .*"):
        Learner.load(tmp_path / "l.npz", model)


@pytest.mark.parametrize("how", ["copy", "deepcopy", "pickle"])
def test_a_copy_of_a_learner_learns_by_itself(how, model, ids):
    one = learner(model)
    one.read(ids[0])
    expected, state = learner(model), kept(one)
    expected.read(ids[0])
    copies = {"copy": copy.copy, "deepcopy": copy.deepcopy}
    other = copies.get(how, lambda one: pickle.loads(pickle.dumps(one)))(one)
    losses = expected.read(ids[1]).token_losses
    np.testing.assert_allclose(other.read(ids[1]).token_losses, losses, rtol=1e-4)
    assert_same(kept(one), state)
    assert (other.model is model) == (how != "pickle")


def test_a_learner_writes_and_is_saved_while_another_one_reads(model, ids, tmp_path):
    one, two = learner(model), learner(model)
    two.read(ids[0])
    text, path, stop = two.generate("w1", seed=1, max_tokens=4), tmp_path / "two", threading.Event()

    def read():
        while not stop.is_set():
            one.read(ids[0])

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        try:
            for _ in range(20):
                two.save(path)
                assert_same(kept(Learner.load(path, model)), kept(two))
                assert two.generate("w1", seed=1, max_tokens=4) == text
                dualnet.evaluate(model, ids[1])
        finally:
            stop.set()
        reading.result()


# --- other models


@once
@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [{"experts": 2, "tied": False}, {"gate": "input"}, {"cache_size": 4}],
    ids=["mixture", "gate", "cache"],
)
def test_learners_of_other_models_equal_dynamic_evaluation(arguments, ids):
    model = zoo.build("dual_lstm", vocabulary_size=WORDS, units=UNITS, **arguments)
    model = strong(model, VOCABULARY, scale=0.5)
    settings = {"rule": "sgd", "learning_rate": RATE, "sequence_length": LENGTH}
    for adapt in ("connection", "all"):
        found = learner(model, adapt).read(ids[0]).token_losses
        expected = dualnet.dynamic_evaluation(
            model, np.append(0, ids[0]), adapt=adapt, **settings
        ).token_losses
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@once
@pytest.mark.slow
def test_a_translator_learns_from_corrections():
    words = Vocabulary(("<eos>", "<unk>", *"abcdef"))
    model = strong(encoder_decoder(len(words), units=4), words, scale=0.5)
    model.source_vocabulary = words
    pairs = [("a b", "c d"), ("b", "d")]
    before = values(model)
    for adapt in ("matrix", "recurrence"):
        one = learner(model, adapt, decay=0.05, learning_rate=1.0)
        first = one.read(pairs)
        assert first.tokens == 5 and len(first.segment_losses) == 2
        assert one.read(pairs).perplexity < first.perplexity
        assert isinstance(one.translate("a b", beam=1, max_tokens=3), str)
        found = read_many([learner(model, adapt), learner(model, adapt)], [pairs[0], pairs])
        np.testing.assert_allclose(found[0].token_losses, found[1].token_losses[:3], rtol=1e-4)
    assert_same(values(model), before)
    with pytest.raises(dualnet.ArgumentError, match="`text` must be a pair"):
        one.read("a b")


@once
@pytest.mark.slow
def test_what_is_learnt_of_shared_embeddings_reads_the_source_too():
    words = Vocabulary(("<eos>", "<unk>", *"abcdef"))
    model = encoder_decoder(len(words), units=4, share_embeddings=True)
    model = strong(model, words, scale=0.5)
    model.source_vocabulary = words
    one = learner(model, "embedding", learning_rate=2.0)
    before = one.score(("a b", "c d"))
    for _ in range(3):
        one.read(("a b", "c d"))
    found = one.score(("a b", "c d"))
    assert found.perplexity < before.perplexity
    # As by a model with the weights that were learnt.
    taught = one._kind.taught(model, one._state.memory)
    [expected] = dualnet.score(taught, ["c d"], source=["a b"])
    np.testing.assert_allclose(-found.token_losses, expected.log_probabilities, rtol=1e-4)
