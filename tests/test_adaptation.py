from unittest import mock

import keras
import numpy as np
import pytest
from keras import ops

import dualnet
from dualnet import rescoring, zoo
from dualnet.adaptation import GradientStatistics, dynamic_evaluation, rules
from dualnet.adaptation.adapted_copy import AdaptedCopy
from dualnet.adaptation.rules import DecayToPrior
from dualnet.text import Vocabulary
from tests.checks import (
    assert_close,
    assert_same,
    few_elsewhere,
    gradients,
    once,
    small,
    strong,
    values,
)

WORDS = 9

WORDS_OF_MODEL = Vocabulary(("<eos>", *(f"w{i}" for i in range(1, WORDS))))

pytestmark = pytest.mark.usefixtures("without_tracing")


@pytest.fixture
def model():
    return zoo.build("dual_lstm", vocabulary_size=WORDS, units=4)


def copy_of(model):
    other = zoo.build("dual_lstm", vocabulary_size=WORDS, units=4)
    other.set_weights(values(model))
    return other


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(0).integers(WORDS, size=24).astype("int32")


def segments(model, inputs, targets, length):
    """Yield the loss and the gradients of each segment, with the weights as they then are."""
    state = model.initial_state(len(inputs))
    for start in range(0, inputs.shape[1], length):
        x, y = inputs[:, start : start + length], targets[:, start : start + length]

        def loss(x=x, y=y, state=state):
            log_p = ops.log_softmax(model.advance(x, state)[0])
            return -ops.mean(ops.take_along_axis(log_p, ops.convert_to_tensor(y[..., None]), -1))

        slopes = gradients(loss, model.trainable_variables)
        value = float(ops.convert_to_numpy(ops.stop_gradient(loss())))
        state = [ops.stop_gradient(s) for s in model.advance(x, state)[1]]
        yield value, slopes


def by_hand(model, tokens, length, update):
    """Dynamic evaluation in plain NumPy but for the gradient, which the backend gives."""
    losses = []
    for value, slopes in segments(model, tokens[None, :-1], tokens[None, 1:], length):
        losses.append(value)
        for i, (weight, slope) in enumerate(zip(model.trainable_variables, slopes)):
            now = ops.convert_to_numpy(weight).astype("float64")
            weight.assign(update(i, now, np.asarray(slope, "float64")).astype("float32"))
    return np.array(losses)


def test_sgd_scores_each_segment_and_then_steps_with_decay_to_the_prior(model, tokens):
    tokens, prior = tokens[:13], values(model)
    found = dualnet.dynamic_evaluation(
        model, tokens, rule="sgd", learning_rate=0.3, decay=0.1, sequence_length=5, keep=True
    )
    ours = values(model)
    assert any((one != two).any() for one, two in zip(ours, prior))
    model.set_weights(prior)
    first = dualnet.evaluate(model, tokens[:6]).token_losses
    np.testing.assert_allclose(found.token_losses[:5], first, rtol=1e-4)
    means = [part.mean() for part in np.split(found.token_losses, [5, 10])]
    np.testing.assert_allclose(means, found.segment_losses, rtol=1e-5)
    expected = by_hand(
        model, tokens, 5, lambda i, now, slope: now - 0.3 * slope + 0.1 * (prior[i] - now)
    )
    np.testing.assert_allclose(found.segment_losses, expected, rtol=1e-4)
    np.testing.assert_array_equal(found.segment_lengths, [5, 5, 2])
    assert_close(ours, values(model), rtol=1e-4, atol=1e-5)


CHOICES = {
    "connection": ["connection/kernel", "connection/hidden_kernel", "connection/bias"],
    "recurrence": [f"recurrence_1/cell_1/{w}" for w in ("kernel", "recurrent_kernel", "bias")],
    "output": ["embedding/embeddings"],  # which it is tied to
    "embedding": ["embedding/embeddings"],
    "*bias": ["recurrence_1/cell_1/bias", "connection/bias"],
}


@pytest.mark.parametrize("adapt", [*CHOICES, ["embedding", "*bias"]])
def test_only_the_chosen_weights_learn(model, tokens, adapt):
    names = dualnet.weight_names(model)
    before = dict(zip(names, map(ops.convert_to_numpy, names.values())))
    before = {name: value.copy() for name, value in before.items()}
    found = dualnet.dynamic_evaluation(model, tokens, rule="sgd", adapt=adapt, keep=True)
    moved = [name for name in names if (ops.convert_to_numpy(names[name]) != before[name]).any()]
    items = [adapt] if isinstance(adapt, str) else adapt
    assert found.settings["adapt"] == items
    assert sorted(moved) == sorted(name for item in items for name in CHOICES[item])
    assert len(model.trainable_variables) == len(names)  # all train again


def test_an_added_output_bias_learns_as_that_of_a_model_does(model, tokens):
    with_bias = zoo.build("dual_lstm", vocabulary_size=WORDS, units=4, output_bias=True)
    dualnet.transfer(model, with_bias)
    settings = {"rule": "sgd", "learning_rate": 0.5, "sequence_length": 5}
    added = dualnet.dynamic_evaluation(model, tokens, adapt="output_bias", **settings)
    own = dualnet.dynamic_evaluation(with_bias, tokens, adapt="output/bias", **settings)
    np.testing.assert_allclose(added.token_losses, own.token_losses, rtol=1e-5)
    assert added.perplexity != dualnet.perplexity(model, tokens)


@pytest.mark.parametrize("arguments", [{"experts": 3, "tied": False}, {"experts": [1, 2]}])
def test_the_matrix_adapts_what_a_mixture_reads_last(arguments, tokens):
    model = zoo.build("lstm", vocabulary_size=WORDS, units=4, **arguments)
    before, settings = values(model), {"rule": "sgd", "learning_rate": 0.5, "sequence_length": 5}
    fixed = dualnet.evaluate(model, tokens)
    for adapt in ("matrix", "matrix:2"):
        found = dualnet.dynamic_evaluation(model, tokens, adapt=adapt, **settings)
        np.testing.assert_allclose(found.token_losses[:5], fixed.token_losses[:5], rtol=1e-5)
        assert abs(found.token_losses[5:] - fixed.token_losses[5:]).max() > 1e-5
    assert_same(values(model), before)


@pytest.mark.parametrize("matrix", ["matrix", "output_matrix", "recurrent_matrix"])
def test_each_rank_is_one_of_its_own_also_after_another(matrix, tokens):
    model = strong(zoo.build("lstm", vocabulary_size=WORDS, units=4))
    settings = {"rule": "sgd", "learning_rate": 0.5, "sequence_length": 5}

    def losses(rank):
        found = dualnet.dynamic_evaluation(model, tokens, adapt=f"{matrix}:{rank}", **settings)
        return found.token_losses

    low, high = losses(1), losses(3)
    assert abs(high - low).max() > 1e-5
    assert_same(losses(1), low)


def test_the_statistics_of_few_weights_are_those_of_all(model, tokens):
    of_all = dualnet.gradient_statistics(model, tokens, batch_size=2)
    few = dualnet.gradient_statistics(model, tokens, batch_size=2, adapt="connection")
    assert few.names == CHOICES["connection"]
    assert_close(few.roots, [of_all.by_name[name] for name in few.names], rtol=1e-5)
    settings = {"rule": "rms", "adapt": "connection", "learning_rate": 0.01, "sequence_length": 5}
    losses = [
        dualnet.dynamic_evaluation(model, tokens, statistics=s, **settings) for s in (few, of_all)
    ]
    assert_same(losses[0].token_losses, losses[1].token_losses)
    # From the training text itself.
    train = np.tile(tokens, 40)
    few = dualnet.gradient_statistics(model, train, sequence_length=5, adapt="connection")
    losses = [
        dualnet.dynamic_evaluation(model, tokens, statistics=s, **settings) for s in (few, train)
    ]
    assert_same(losses[0].token_losses, losses[1].token_losses)
    with pytest.raises(ValueError, match="matrix/kernel is missing"):
        dualnet.dynamic_evaluation(model, tokens, rule="rms", adapt=["matrix"], statistics=of_all)


@pytest.mark.slow
def test_rms_divides_by_the_root_mean_square_and_decays_in_proportion(model, tokens):
    train = np.random.default_rng(1).integers(WORDS, size=61).astype("int32")
    found = dualnet.gradient_statistics(model, train, batch_size=4, sequence_length=5)
    assert found.batches == 3  # 15 columns in segments of 5
    # The same statistics by hand: one gradient for each batch, with carried state.
    by_batch = segments(model, train[:60].reshape(4, 15), train[1:].reshape(4, 15), 5)
    by_weight = zip(*(slopes for _, slopes in by_batch))
    roots = [np.sqrt(np.mean(np.square(slopes), axis=0)) for slopes in by_weight]
    assert_close(found.roots, roots, rtol=1e-3, atol=1e-7)

    settings = {"learning_rate": 0.01, "decay": 0.3, "epsilon": 0.02, "sequence_length": 5}
    dynamic = dualnet.dynamic_evaluation(model, tokens, rule="rms", statistics=found, **settings)
    prior = [w.astype("float64") for w in values(model)]
    mean = np.mean([root.mean() for root in roots])

    def update(i, now, slope):
        pull = np.minimum(0.3 * roots[i] / mean, 1)
        return now - 0.01 * slope / (roots[i] + 0.02) + pull * (prior[i] - now)

    expected = by_hand(model, tokens, 5, update)
    np.testing.assert_allclose(dynamic.segment_losses, expected, rtol=1e-4)


def test_statistics_of_another_model_are_refused_with_the_weights_that_differ(model, tokens):
    other = zoo.build("dual_lstm", vocabulary_size=WORDS, units=4, dual_units=6, tied=False)
    statistics = dualnet.gradient_statistics(other, tokens, batch_size=2)
    with pytest.raises(ValueError, match=r"\(4, 6\) for \(4, 4\).*output/kernel is not in th"):
        dualnet.dynamic_evaluation(model, tokens, rule="rms", statistics=statistics)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "end"), few_elsewhere([("rms", -2), ("sgd", None), ("nadam", None)])
)
def test_by_sentence_each_is_read_from_the_zero_state_scored_and_then_learnt_from(rule, end):
    model = small(Vocabulary((*"abcdefgh", "<eos>")), "dual_lstm")
    text = model.vocabulary.encode("a b c\n\nh g f d a\n")[:end]
    settings = {"learning_rate": 0.01}
    if rule == "rms":
        statistics = dualnet.gradient_statistics(model, np.tile(text, 9), batch_size=4)
        settings |= {"decay": 0.3, "epsilon": 0.02, "statistics": statistics}
    prior = values(model)
    found = dualnet.dynamic_evaluation(
        model, text, rule=rule, by_sentence=True, temperature=1.3, keep=True, **settings
    )
    ours = values(model)
    model.set_weights(prior)
    settings.pop("statistics", None)
    optimizer: keras.optimizers.Optimizer = {
        "sgd": lambda: keras.optimizers.SGD(**settings),
        "rms": lambda: DecayToPrior(**settings, statistics=statistics),
        "nadam": lambda: keras.optimizers.Nadam(**settings, beta_1=0.0),
    }[rule]()
    weights = model.trainable_variables
    optimizer.build(weights)
    losses, lengths = [], []
    for line in model.vocabulary.decode(text).splitlines(keepends=True):
        ids = np.append(model.vocabulary.eos_id, model.vocabulary.encode(line))

        def loss(ids=ids):
            logits = model.advance(ids[None, :-1], model.initial_state(1))[0] / 1.3
            targets = ops.convert_to_tensor(ids[None, 1:, None])
            return -ops.mean(ops.take_along_axis(ops.log_softmax(logits), targets, -1))

        losses.append(float(ops.convert_to_numpy(ops.stop_gradient(loss()))))
        lengths.append(len(ids) - 1)
        slopes = [ops.convert_to_tensor(slope) for slope in gradients(loss, weights)]
        optimizer.apply(slopes, weights)
    np.testing.assert_allclose(found.segment_losses, losses, rtol=1e-4)
    np.testing.assert_array_equal(found.segment_lengths, lengths)
    assert found.tokens == len(text) == sum(lengths) and found.by_sentence
    mean = np.average(losses, weights=lengths)
    np.testing.assert_allclose(found.perplexity, np.exp(mean), rtol=1e-4)
    assert_close(ours, values(model), rtol=1e-4, atol=1e-5)


@once
def test_sentences_of_many_lengths_are_learnt_from_in_few_shapes(model, monkeypatch):
    model.vocabulary = Vocabulary((*"abcdefgh", "<eos>"))
    shapes = set()

    def step(self, segment, *, return_dict):
        shapes.add(segment["tokens"].shape)
        return {"loss": 1.0, "losses": np.ones(segment["tokens"].shape)}

    monkeypatch.setattr(AdaptedCopy, "train_on_batch", step)
    text = model.vocabulary.encode("".join("a " * length + "\n" for length in range(60)))
    found = dualnet.dynamic_evaluation(model, text, by_sentence=True)
    assert found.segment_lengths.tolist() == [*range(1, 61)] and len(shapes) == 15


@pytest.mark.slow
@pytest.mark.parametrize("momentum", few_elsewhere([0.5, 0.0]))
def test_nadam_is_kerass_with_fresh_moments(momentum, model, tokens):
    tokens, settings = tokens[:13], {"learning_rate": 0.01, "beta_1": momentum, "clipnorm": 0.1}
    found = dualnet.dynamic_evaluation(model, tokens, sequence_length=5, **settings)
    optimizer = keras.optimizers.Nadam(**settings)
    weights = model.trainable_variables
    optimizer.build(weights)
    losses = []
    for loss, slopes in segments(model, tokens[None, :-1], tokens[None, 1:], 5):
        losses.append(loss)
        optimizer.apply([ops.convert_to_tensor(slope) for slope in slopes], weights)
    np.testing.assert_allclose(found.segment_losses, losses, rtol=1e-4)


@pytest.mark.parametrize("rule", ["nadam", "sgd", "rms"])
def test_every_rule_learns_and_restores_the_weights_bit_for_bit(model, rule):
    tokens = np.tile(np.arange(4, dtype="int32"), 16)  # a pattern worth learning
    before = values(model)
    static = dualnet.evaluate(model, tokens)
    rate = {"nadam": 3e-2, "sgd": 2.0, "rms": 1e-2}[rule]
    statistics = {}
    if rule == "rms":
        statistics["statistics"] = dualnet.gradient_statistics(model, tokens, batch_size=4)
    found = dualnet.dynamic_evaluation(
        model, tokens, rule=rule, learning_rate=rate, sequence_length=5, **statistics
    )
    assert found.perplexity < 0.9 * static.perplexity
    np.testing.assert_allclose(
        found.segment_losses[0], static.token_losses[:5].mean(), rtol=1e-5
    )  # scored before it is learnt from
    mean = np.average(found.segment_losses, weights=found.segment_lengths)
    np.testing.assert_allclose(found.perplexity, np.exp(mean), rtol=1e-9)
    assert found.segment_lengths.sum() == found.tokens == 63
    assert_same(values(model), before)


@pytest.mark.parametrize("rule", few_elsewhere(["rms", "sgd", "nadam"]))
def test_a_model_that_learns_again_learns_as_one_that_never_did(model, tokens, rule, monkeypatch):
    statistics = [{}, {}]
    if rule == "rms":
        found = (dualnet.gradient_statistics(model, part, batch_size=1, sequence_length=5)
                 for part in (tokens, tokens[:11]))  # fmt: skip
        statistics = [{"statistics": one} for one in found]
    other_step = {"beta_1": 0.5} if rule == "nadam" else {"decay": 0.1}
    settings = {"rule": rule, "learning_rate": 0.02, "sequence_length": 5, "keep": True}
    learners, step = [], AdaptedCopy.train_on_batch
    monkeypatch.setattr(
        AdaptedCopy, "train_on_batch",
        lambda self, *args, **options: learners.append(self) or step(self, *args, **options),
    )  # fmt: skip
    changes = [statistics[0], {**statistics[1], "learning_rate": 0.01}, other_step | statistics[0]]
    for change, count in zip(changes, (2, 3, 5)):  # of learners, each of which compiles its step
        other = copy_of(model)
        found, expected = (
            dualnet.dynamic_evaluation(one, tokens[:9], **{**settings, **change})
            for one in (model, other)
        )
        assert_same(found.token_losses, expected.token_losses)
        assert_same(values(model), values(other))
        assert len({id(learner) for learner in learners}) == count


@pytest.mark.slow
@once
def test_a_large_model_has_the_same_losses_in_a_compiled_step(tokens, monkeypatch):
    import tensorflow as tf

    model, tokens = zoo.build("lstm", vocabulary_size=WORDS, units=2), tokens[:9]
    settings = {"rule": "nadam", "learning_rate": 0.01, "sequence_length": 4}
    plain = dualnet.dynamic_evaluation(model, tokens, **settings)
    same = zoo.build("lstm", vocabulary_size=WORDS, units=2)
    same.set_weights(values(model))
    monkeypatch.setattr("dualnet.adaptation.adapted_copy.LEAST_WEIGHTS", 1)
    compile_step = AdaptedCopy.compile
    tf.config.run_functions_eagerly(False)
    try:
        patch = {"autospec": True, "side_effect": compile_step}
        with mock.patch.object(AdaptedCopy, "compile", **patch) as compiled:
            found = dualnet.dynamic_evaluation(same, tokens, **settings)
    finally:
        tf.config.run_functions_eagerly(True)
    assert compiled.call_args.kwargs["jit_compile"] is True
    np.testing.assert_allclose(found.segment_losses, plain.segment_losses, rtol=1e-5)


@once
def test_a_perplexity_beyond_all_numbers_is_refused_and_nothing_of_it_is_kept(model, tokens):
    before = values(model)
    for keep in (False, True):
        with pytest.raises(ValueError, match="`learning_rate` must keep the perplexity finite"):
            dualnet.dynamic_evaluation(model, tokens, rule="sgd", learning_rate=1e10, keep=keep)
    assert_same(values(model), before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rule": "rms"}, "`statistics` must be given for the rule 'rms'"),
        ({"rule": "rms", "statistics": GradientStatistics([np.ones(3)], batches=1)},
         "`statistics` must be those of this model's.* 1 roots for 7 weights"),

        ({"adapt": "gate"}, "'connection', 'recurrence', 'output', 'embedding', 'output_bias', 'ou"
                            ".*embedding/embeddings, recurrence_1/cell_1/kernel.* Received: 'gat"),
        ({"adapt": ["matrix", "matrix:2"]}, "can name one 'matrix'"),
        ({"adapt": "output_matrix"}, "must give 'output_matrix' a rank, as in 'output_matrix:8'"),
        ({"adapt": "output_bias", "keep": True}, "`keep` must be False .*adapt=.'output_bias"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_by_name(model, tokens, arguments, message):
    with pytest.raises(ValueError, match=message):
        dualnet.dynamic_evaluation(model, **{"tokens": tokens, **arguments})


@pytest.mark.slow
@pytest.mark.parametrize("rule", few_elsewhere(["nadam", "sgd", "rms"]))
def test_an_update_that_is_not_finite_changes_nothing_but_is_counted(model, tokens, rule):
    settings = {"rule": rule, "learning_rate": 0.1, "sequence_length": 5}
    if rule == "rms":
        settings["statistics"] = dualnet.gradient_statistics(
            model, tokens, batch_size=1, sequence_length=5
        )
    whole = dynamic_evaluation(copy_of(model), tokens, **settings)
    compute, calls = rules.Rule.update_all, []

    def spoil_the_second(self, grads, variables):
        which = self.iterations + self.skipped  # a tensor, as the step is compiled
        nan = ops.where(ops.equal(which, 1), np.float32(np.nan), np.float32(0))
        calls.append(rule)
        compute(self, [gradient + nan for gradient in grads], variables)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules.Rule, "update_all", spoil_the_second)
        with pytest.warns(UserWarning, match="1 of the updates had gradients that are not finite"):
            result = dynamic_evaluation(model, tokens, **settings)
    assert calls
    losses = result.segment_losses
    assert_close(losses[:2], whole.segment_losses[:2], rtol=1e-6)
    assert np.isfinite(losses).all() and not np.allclose(losses[2:], whole.segment_losses[2:])


TEXT = "w1 w2 w3"
LISTS = [rescoring.NBest(i, (rescoring.Hypothesis(TEXT),)) for i in range(3)]
PAIRS = [{"sentence_good": TEXT, "sentence_bad": "w2 w1"}]
USES = {  # of a model by its public functions
    "score": lambda model, **learn: dualnet.score(model, TEXT),
    "surprisal": lambda model, **learn: dualnet.surprisal(model, [TEXT] * 3, **learn),
    "generate": lambda model, **learn: dualnet.generate(model, TEXT, max_tokens=2),
    "beam": lambda model, **learn: dualnet.generate(model, TEXT, max_tokens=2, beam=2),
    "minimal_pairs": lambda model, **learn: dualnet.minimal_pairs(model, PAIRS),
    "rescore": lambda model, **learn: rescoring.rescore(model, LISTS, **learn),
    "look": lambda model, **learn: dualnet.look(model, TEXT, **learn),
}


@once
@pytest.mark.slow
def test_a_model_of_nan_gives_no_score(model, tokens):
    model.vocabulary = WORDS_OF_MODEL
    model.trainable_variables[0].assign(np.full((WORDS, 4), np.nan, "float32"))
    for score in (dualnet.perplexity, dualnet.evaluate, dualnet.gradient_statistics):
        with pytest.raises(ValueError, match="`model` must"):
            score(model, tokens, batch_size=1)
    for use in USES.values():
        with pytest.raises(ValueError, match="`models?` must compute|logits"):
            use(model)


@once
@pytest.mark.slow
@pytest.mark.parametrize("use", ["surprisal", "rescore", "look"])
def test_every_adaptation_that_diverges_keeps_nothing(model, use):
    model.vocabulary = WORDS_OF_MODEL
    before = values(model)
    length = {"sequence_length": 1} if use == "look" else {}
    with pytest.raises(ValueError, match="finite.*smaller.*learning_rate|learning_rate.*finite"):
        USES[use](model, adapt=True, rule="sgd", learning_rate=1e38, decay=0.0, **length)
    assert_close(values(model), before, rtol=0, atol=0)
