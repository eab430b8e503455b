"""The optimizers, against NumPy; averages and fine-tuning within a run."""

import json

import keras
import numpy as np
import pytest
from keras import ops

import dualnet
from dualnet import _optimizers
from dualnet.runs.loading import load_weights
from dualnet.training import Recipe, fitting, two_tailed
from dualnet.training.optimizers import SGD, Adam, Nadam, RectifiedAdam, weights_in
from tests.checks import assert_close, assert_same, once, values

pytestmark = pytest.mark.slow

QUICK = {
    "units": 4, "batch_size": 8, "sequence_length": 9, "epochs": 2, "optimizer": "sgd",
    "learning_rate": 2.0, "global_clipnorm": 1.0, "input_dropout": 0.2,
}  # fmt: skip
ASGD = {**QUICK, "averaging": "asgd", "average_from": 2}


def train(corpus, output, **settings):
    arguments = QUICK if not settings.get("resume") else {}
    return dualnet.train(
        "dual_lstm", corpus, output=output, progress=False, **{**arguments, **settings}
    )


def arrays(variables):
    return [np.array(ops.convert_to_numpy(variable)) for variable in variables]


# --- the optimizers


REPEATED = np.array([[1, 1, 1, 2, 1, 5], [1, 2, 2, 2, 6, 1]])


def step(optimizer, ids=REPEATED, *, run_eagerly=True):
    """Return weights before and after one step; on TensorFlow one has a gradient in rows."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((6,), dtype="int32"), keras.layers.Embedding(7, 3), keras.layers.Dense(7)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    model.compile(optimizer, loss, run_eagerly=run_eagerly)
    before = values(model)
    model.train_on_batch(ids, ids[:, ::-1])
    return before, values(model)


@pytest.mark.parametrize(
    ("kind", "eager", "settings"),
    [
        (SGD, True, {"average": "asgd", "clipnorm": 0.5, "weight_decay": 0.1}),
        (Adam, False, {"average": "mean", "global_clipnorm": 0.5, "coupled_decay": 0.1}),
        (Nadam, True, {}),
    ],
)
def test_all_weights_in_one_kernel_are_updated_as_one_by_one(kind, eager, settings, monkeypatch):
    def found():
        optimizer = kind(0.1, **settings)
        optimizer.averages_on = "average" in settings
        return [*step(optimizer, run_eagerly=eager)[1], *arrays(optimizer.averages)]

    one_by_one = found()
    monkeypatch.setattr(_optimizers, "LEAST_WEIGHTS", 1)
    assert_close(found(), one_by_one, atol=1e-7)


@pytest.mark.parametrize("limit", [0.1, 1e6])
def test_the_norms_of_all_and_of_each_gradient_count_a_repeated_word_once(limit):
    before, after = step(keras.optimizers.SGD(1.0))
    gradients = [one - two for one, two in zip(before, after)]
    norm = np.sqrt(sum((gradient.astype("float64") ** 2).sum() for gradient in gradients))
    assert norm > 1
    recipe = Recipe(optimizer="sgd", learning_rate=0.5, global_clipnorm=limit, weight_decay=0.01)
    _, found = step(recipe.make_optimizer())
    factor = min(1.0, limit / norm)  # the decay is not clipped
    assert_close(found, [w - 0.5 * (factor * g + 0.01 * w) for w, g in zip(before, gradients)])
    before, after = step(SGD(1.0, clipnorm=0.1))
    norms = [np.linalg.norm(one - two) for one, two in zip(before, after)]
    np.testing.assert_allclose(norms, 0.1, rtol=1e-4)


def first_adam_step(weights, gradients, clip, *, rate, decay, epsilon=1e-7):
    """Return `weights` after their first step of Adam, float64: Kingma and Ba, Algorithm 1.

    `decay * w` joins the gradient g; the moments are 0.1 g and 0.001 g^2, or g and g^2 once
    their bias is corrected. As Keras has it, epsilon stands beside the uncorrected root.
    """
    found = []
    for weight, gradient, factor in zip(weights, gradients, clip):
        g = factor * gradient.astype("float64") + decay * weight.astype("float64")
        step = rate * np.sqrt(1 - 0.999) / (1 - 0.9)
        found.append(weight - step * 0.1 * g / (np.sqrt(0.001 * g**2) + epsilon))
    return found


@pytest.mark.parametrize("limit", ["clipnorm", "global_clipnorm"])
def test_adam_takes_the_decay_of_weights_for_a_part_of_the_clipped_gradient(limit):
    before, after = step(keras.optimizers.SGD(1.0))
    gradients = [one - two for one, two in zip(before, after)]
    norms = [np.linalg.norm(gradient) for gradient in gradients]
    whole = np.linalg.norm(norms)
    clip = [1e-3 / (norm if limit == "clipnorm" else whole) for norm in norms]
    assert min(norms) > 1e-3
    # An epsilon of the size of the clipped gradients: the first step tells them apart.
    settings = {"optimizer": "adam", "learning_rate": 0.5, "epsilon": 1e-4, limit: 1e-3}
    _, found = step(Recipe(**settings, weight_decay=0.01).make_optimizer())
    _, undecayed = step(Recipe(**settings).make_optimizer())
    given = {"rate": 0.5, "epsilon": 1e-4}
    for decay, weights in ((0.01, found), (0.0, undecayed)):
        expected = first_adam_step(before, gradients, clip, decay=decay, **given)
        assert_close(weights, expected, rtol=1e-4, atol=1e-5)
    assert max(np.abs(one - two).max() for one, two in zip(found, undecayed)) > 0.1


@pytest.mark.parametrize("optimizer", [Adam, Nadam])
def test_the_decay_of_weights_is_that_of_a_penalty_on_their_squares(optimizer):
    random = np.random.default_rng(1)
    start = random.normal(size=(4, 3)).astype("float32")
    decayed, penalised = keras.Variable(start), keras.Variable(start)
    one, two = optimizer(0.1, coupled_decay=0.2), optimizer(0.1)
    for gradient in random.normal(size=(3, 4, 3)).astype("float32"):
        one.apply([ops.convert_to_tensor(gradient)], [decayed])
        total = gradient + 0.2 * ops.convert_to_numpy(penalised)
        two.apply([ops.convert_to_tensor(total)], [penalised])
    np.testing.assert_allclose(*arrays([decayed, penalised]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", [SGD, Adam, Nadam])
def test_steps_are_those_of_keras(optimizer):
    ids = np.array([[0, 5, 1, 4, 2, 6]])
    _, ours = step(optimizer(0.1, average="mean"), ids)
    _, plain = step(getattr(keras.optimizers, optimizer.__name__)(0.1), ids)
    assert_close(ours, plain, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("kind", "optimizer"), [("asgd", SGD(0.3, average="asgd")), ("mean", Adam(0.3, average="mean"))]
)
def test_averages_are_exact(build, corpus, kind, optimizer):
    model = build("lstm", units=4)
    model.compile(optimizer, run_eagerly=True)
    batches = corpus.batches("train", batch_size=4, sequence_length=3)
    walk = []
    for count in range(6):
        if count == 2:  # two steps come before
            assert int(optimizer.averaged_steps) == 0
            optimizer.averages_on = True
            model.train_function = None
        model.train_on_batch(*batches[1 + count])
        if count < 2:
            continue
        walk.append([weight.astype("float64") for weight in arrays(model.trainable_variables)])
        k = len(walk)
        meant = walk[1:] if kind == "asgd" and k > 1 else walk
        expected = [np.mean(each, axis=0) for each in zip(*meant)]
        found = arrays(optimizer.averages)
        assert int(optimizer.averaged_steps) == k
        assert_close(found, expected)
        if len(meant) == 1:
            assert_same(found, arrays(model.trainable_variables))
    optimizer.begin_anew()
    model.train_on_batch(*batches[1])
    assert_same(arrays(optimizer.averages), arrays(model.trainable_variables))


@pytest.mark.skipif(keras.config.backend() != "torch", reason="compares with torch's own ASGD")
def test_steps_and_averages_are_those_of_torch():
    import torch

    random = np.random.default_rng(0)
    start, *gradients = random.normal(size=(8, 5)).astype("float32")
    theirs = torch.nn.Parameter(torch.tensor(start))
    reference = torch.optim.ASGD([theirs], lr=0.3, lambd=0.0, t0=0.0, weight_decay=0.1)
    ours = keras.Variable(start)
    optimizer = SGD(0.3, weight_decay=0.1, average="asgd")
    optimizer.averages_on = True
    for gradient in gradients:
        theirs.grad = torch.tensor(gradient)
        reference.step()
        optimizer.apply([ops.convert_to_tensor(gradient)], [ours])
        expected = [theirs.detach().numpy(), reference.state[theirs]["ax"].numpy()]
        assert_close(arrays([ours, *optimizer.averages]), expected)


def rectified_adam(gradients, weight, *, rate, epsilon, beta_1=0.9, beta_2=0.999):
    """Return the weight after each gradient, as Algorithm 2 of Liu et al. has it."""
    m, v, walk = 0.0, 0.0, []
    most = 2 / (1 - beta_2) - 1
    for t, gradient in enumerate(gradients, start=1):
        m = beta_1 * m + (1 - beta_1) * gradient
        v = beta_2 * v + (1 - beta_2) * gradient**2
        move = m / (1 - beta_1**t)
        length = most - 2 * t * beta_2**t / (1 - beta_2**t)
        if length > 5:
            r = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
            move = move * np.sqrt(r) * np.sqrt(1 - beta_2**t) / (np.sqrt(v) + epsilon)
        weight = weight - rate * move
        walk.append(weight)
    return walk


@pytest.mark.parametrize(("decay", "beta_2"), [(0.0, 0.999), (0.1, 0.999), (0.0, 0.6)])
def test_twenty_steps_of_rectified_adam_are_those_of_the_paper_and_of_torch(decay, beta_2):
    start, *gradients = np.random.default_rng(0).normal(size=(21, 8, 5)).astype("float32")
    ours, walk = keras.Variable(start), []
    recipe = Recipe(optimizer="rectified_adam", learning_rate=0.1, weight_decay=decay)
    optimizer = recipe.make_optimizer()
    optimizer.beta_2 = beta_2
    for gradient in gradients:
        optimizer.apply([ops.convert_to_tensor(gradient)], [ours])
        walk.append(arrays([ours])[0])
    if not decay:
        double = [gradient.astype("float64") for gradient in gradients]
        expected = rectified_adam(double, start, rate=0.1, epsilon=1e-7, beta_2=beta_2)
        assert_close(walk, expected)
    if keras.config.backend() == "torch":
        import torch

        theirs = torch.nn.Parameter(torch.tensor(start))
        settings = {"betas": (0.9, beta_2), "eps": 1e-7, "weight_decay": decay}
        reference = torch.optim.RAdam([theirs], lr=0.1, **settings)
        for gradient, weight in zip(gradients, walk):
            theirs.grad = torch.tensor(gradient)
            reference.step()
            assert_close(weight, theirs.detach().numpy())


def test_adamw_decays_past_the_moments():
    start, gradient = np.random.default_rng(0).normal(size=(2, 8, 5)).astype("float32")
    found = []
    for decay in (0.0, 0.1):
        weight = keras.Variable(start)
        optimizer = Recipe(optimizer="adamw", learning_rate=0.5, weight_decay=decay)
        optimizer.make_optimizer().apply([ops.convert_to_tensor(gradient)], [weight])
        found += arrays([weight])
    assert_close(found[0] - found[1], 0.5 * 0.1 * start)


@once
def test_an_optimizer_comes_back_from_its_config():
    settings = {"beta_1": 0.0, "averaging": "mean", "weight_decay": 0.25}
    optimizer = Recipe(optimizer="adam", **settings).make_optimizer()
    config = keras.saving.serialize_keras_object(optimizer)
    again = keras.saving.deserialize_keras_object(json.loads(json.dumps(config)))
    assert type(again) is Adam and again.average == "mean" and again.beta_1 == 0.0
    assert again.coupled_decay == 0.25 and again.weight_decay is None
    plain = Recipe(optimizer="rectified_adam", averaging="two_tailed").make_optimizer().plain()
    assert type(plain) is RectifiedAdam and plain.average == "none"


# --- runs


@pytest.fixture(scope="module")
def plain(corpus, tmp_path_factory):
    """A finished run without averages."""
    return train(corpus, tmp_path_factory.mktemp("plain") / "RUN", evaluate=False)


@pytest.fixture(scope="module")
def averaged(corpus, tmp_path_factory):
    """A finished run whose second and last epoch is averaged."""
    return train(corpus, tmp_path_factory.mktemp("averaged") / "RUN", **ASGD)


@once
def test_the_phase_before_averaging_is_plain_sgd_and_the_results_tell_both(plain, averaged):
    for key in ("loss", "val_loss", "val_perplexity", "learning_rate"):
        assert plain.history[0][key] == averaged.history[0][key]
    # Training continues from the raw weights; validation uses the averages.
    assert plain.history[1]["loss"] == averaged.history[1]["loss"]
    assert plain.history[1]["val_loss"] != averaged.history[1]["val_loss"]
    assert [row["phase"] for row in plain.history] == ["train", "train"]
    assert averaged.results["phases"] == {"train": 1, "averaged": 1}
    assert (averaged.folder / "metrics.csv").read_text().startswith("epoch,phase,loss")
    assert type(averaged.model.optimizer) is type(keras.optimizers.SGD())


@once
def test_the_averages_that_were_validated_are_kept(corpus, averaged):
    best = min(averaged.history, key=lambda row: row["val_perplexity"])
    assert best["phase"] == "averaged"
    model = dualnet.load(averaged.folder)
    model.compile()
    batches = corpus.batches("valid", batch_size=8, sequence_length=9)
    found = model.evaluate(batches, verbose=0, return_dict=True)["perplexity"]
    assert found == pytest.approx(best["val_perplexity"], rel=1e-5)


@once
def test_the_weights_come_back_after_an_error_too(build):
    model = build("lstm")
    model.compile(SGD(0.1, average="asgd"))
    model.optimizer.build(model.trainable_variables)
    before = arrays(model.trainable_variables)
    with (
        pytest.raises(RuntimeError, match="evaluation"),
        weights_in(model, model.optimizer.averages),
    ):
        for weight in model.trainable_variables:
            assert not np.any(ops.convert_to_numpy(weight))
        raise RuntimeError("evaluation")
    assert_same(before, arrays(model.trainable_variables))


@once
def test_the_rate_of_a_step_follows_the_length_of_its_segment(corpus, tmp_path):
    seen = []
    begin = fitting.FollowPlan.on_train_batch_begin

    def noted(self, batch, logs=None):
        begin(self, batch, logs)
        seen.append(float(self.model.optimizer.learning_rate))

    settings = {"length_deviation": 1.0, "longest_length": 10, "partial_shuffle": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting.FollowPlan, "on_train_batch_begin", noted)
        run = train(
            corpus, tmp_path / "RUN", seed=4, decay=0.5, loss_reduction="sum", evaluate=False,
            **settings,
        )  # fmt: skip
    assert run.model.loss_reduction == "sum"
    assert [row["learning_rate"] for row in run.history] == [1.0, 0.5]
    batches = corpus.batches("train", batch_size=8, sequence_length=9, seed=4, **settings)
    expected = []
    for epoch, rate in enumerate([1.0, 0.5]):
        batches.epoch = epoch
        expected.extend(rate * length / 9 for length in batches.lengths)
    assert seen == np.array(expected, "float32").tolist()
    assert len(set(seen)) > 3


# --- fine-tuning


@once
def test_a_finished_run_that_averaged_is_fine_tuned_as_if_it_had_been_meant_to(
    corpus, tmp_path, averaged, monkeypatch
):
    settings = {"finetune": "once", "finetune_epochs": 2}
    at_once = train(corpus, tmp_path / "RUN", **ASGD, **settings, evaluate=False)
    phases = ["train", "averaged", "finetune-1", "finetune-1"]
    assert [row["phase"] for row in at_once.history] == phases
    began = []
    whole = fitting.FollowPlan.begin_round

    def begin(self):
        whole(self)
        model = self.model
        began.append(arrays(model.trainable_variables))
        assert not any(np.any(each) for each in arrays(model.optimizer.averages))
        assert int(model.optimizer.averaged_steps) == 0

    monkeypatch.setattr(fitting.FollowPlan, "begin_round", begin)
    best = arrays(averaged.model.trainable_variables)
    later = train(corpus, averaged.folder, resume=True, learning_rate=2.0, **settings)
    assert later.results["phases"] == {"train": 1, "averaged": 1, "finetune-1": 2}
    (first,) = began
    assert_same(first, best)
    assert_same(values(at_once.model), values(later.model))
    for key in ("loss", "val_loss", "phase"):
        assert [row[key] for row in at_once.history] == [row[key] for row in later.history]
    with pytest.raises(ValueError, match=r"`epochs` must stay 2, as when .* its fine-tuning has"):
        train(corpus, averaged.folder, resume=True, epochs=3)


# --- two-tailed averages


def test_both_averages_are_means_from_their_own_beginnings():
    random = np.random.default_rng(2)
    weight = keras.Variable(random.normal(size=(4, 3)).astype("float32"))
    optimizer = SGD(0.3, average="two_tailed")
    optimizer.averages_on = True
    walk, begin, begin_short = [], 0, 0
    actions = {3: "shorten", 5: "empty_short", 8: "shorten", 10: "empty"}
    for step in range(1, 13):
        optimizer.apply([ops.convert_to_tensor(random.normal(size=(4, 3)))], [weight])
        walk.append(ops.convert_to_numpy(weight).astype("float64"))
        assert int(optimizer.averaged_steps) == step - begin
        assert int(optimizer.short_steps) == step - begin_short
        found = arrays([*optimizer.averages, *optimizer.short_averages])
        assert_close(found, [np.mean(walk[begin:], 0), np.mean(walk[begin_short:], 0)], rtol=1e-5)
        match actions.get(step):
            case "shorten":
                optimizer.shorten()
                begin, begin_short = begin_short, step
            case "empty_short":
                optimizer.empty(short_only=True)
                begin_short = step
            case "empty":
                optimizer.empty(short_only=False)
                begin = begin_short = step


def rows(*results):
    """Return a history with these validation perplexities: plain, short and long."""
    names = two_tailed.CANDIDATES
    return [{f"val_perplexity_{name}": x for name, x in zip(names, row)} for row in results]


def actions_after(history):
    return [two_tailed.next_action(history[: n + 1]) for n in range(len(history))]


@once
def test_the_averages_begin_anew_as_the_algorithm_says():
    # Plain weights best at first, then the short average wins, loses, wins.
    history = rows((9, 10, 10), (8, 8.5, 8.5), (8, 7, 7), (7, 6.5, 6.6), (7, 6.4, 6.3), (7, 6, 6.2))
    assert actions_after(history) == ["empty", "empty", "shorten", "shorten", "keep", "shorten"]
    # Neither gains: the short one is dropped after three, and the long one replaced.
    history = rows((9, 8, 8), *[(9, 8.5, 7.9 - 0.1 * n) for n in range(5)])
    assert actions_after(history) == ["shorten", *["keep"] * 3, "empty_short", "keep"]
    history = rows((9, 8, 8), (9, 8.9, 7), (9, 8.8, 7), (9, 8.7, 7), (9, 8.6, 7))
    assert actions_after(history) == ["shorten", "keep", "keep", "keep", "shorten"]


TWO_TAILED = {**QUICK, "averaging": "two_tailed", "epochs": 5}


@once
def test_a_run_reports_the_better_of_its_weights_and_their_average(corpus, tmp_path, plain):
    run = train(corpus, tmp_path / "RUN", **TWO_TAILED)
    for row in run.history:
        tried = {name: row[f"val_perplexity_{name}"] for name in two_tailed.CANDIDATES}
        assert row["val_perplexity"] == min(tried["plain"], tried["long"])
        assert row["phase"] == "averaged"
    # The walk of the weights is that of a run without averages.
    for row, other in zip(run.history, plain.history):
        assert row["loss"] == other["loss"]
        assert row["val_perplexity_plain"] == other["val_perplexity"]
    actions = actions_after(run.history)
    assert len(set(actions)) > 1
    model = dualnet.load(run.folder)
    best = min(run.history, key=lambda row: row["val_perplexity"])
    batches = corpus.batches("valid", batch_size=8, sequence_length=9)
    model.compile()
    found = model.evaluate(batches, verbose=0, return_dict=True)["perplexity"]
    assert found == pytest.approx(best["val_perplexity"], rel=1e-5)
    load_weights(model, run.folder / "plain.weights.h5")
    found = model.evaluate(batches, verbose=0, return_dict=True)["perplexity"]
    least = min(row["val_perplexity_plain"] for row in run.history)
    assert found == pytest.approx(least, rel=1e-5)


@once
def test_a_run_with_two_tailed_averages_resumes_exactly(corpus, tmp_path):
    whole = train(corpus, tmp_path / "whole", **TWO_TAILED)
    stopped = train(corpus, tmp_path / "RUN", **{**TWO_TAILED, "epochs": 2}, evaluate=False)
    assert len(stopped.history) == 2
    (tmp_path / "RUN" / "plain.weights.h5").write_bytes(b"")  # comes back from the checkpoint
    again = train(corpus, tmp_path / "RUN", resume=True, epochs=5)
    timed = {"seconds", "tokens_per_second"}
    one, two = ([{k: v for k, v in r.items() if k not in timed} for r in run.history]
                for run in (whole, again))  # fmt: skip
    assert one == two
    assert_same(values(whole.model), values(again.model))
    for name in ("model.weights.h5", "plain.weights.h5"):
        load_weights(whole.model, tmp_path / "whole" / name)
        load_weights(again.model, tmp_path / "RUN" / name)
        assert_same(values(whole.model), values(again.model))
