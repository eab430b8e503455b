"""Keras callbacks of a training are called as by one `fit`, also where it is killed and resumed."""

import collections
import contextlib
import math
import signal
import sys

import keras
import numpy as np
import pytest
from keras import ops

import dualnet
from dualnet import corpora
from dualnet.training import fitting
from dualnet.training.interrupts import Stopped
from tests.checks import UNTRACED, assert_same, few_elsewhere, once

pytestmark = UNTRACED
SETTINGS = {
    "units": 4, "batch_size": 4, "sequence_length": 15, "epochs": 2, "learning_rate": 0.05,
    "evaluate": False, "progress": False, "seed": 5,
}  # fmt: skip
LOGGED = ["learning_rate", "loss", "perplexity", "val_loss", "val_perplexity"]
STEPS = 6


def train(corpus, output, *callbacks, **settings):
    arguments = {"name": "dual_lstm", **({} if settings.get("resume") else SETTINGS), **settings}
    always = {key: SETTINGS[key] for key in ("evaluate", "progress")}
    return dualnet.train(corpus=corpus, output=output, callbacks=callbacks, **always | arguments)


HOOKS = [
    f"on_{when}" for when in (
        "train_begin", "train_end", "epoch_begin", "epoch_end", "train_batch_begin",
        "train_batch_end", "test_begin", "test_end", "test_batch_begin", "test_batch_end",
    )
]  # fmt: skip


class Spy(keras.callbacks.Callback):
    """Notes every call in a list that is no attribute, and counts some in one that is."""

    def __init__(self, calls, act=lambda self, hook: None):
        super().__init__()
        self.steps = 0

        def called(hook):
            def call(*place, logs=None):
                if logs is None:
                    *place, logs = place
                calls.append((hook, *place, logs))
                self.steps += hook == "on_train_batch_end"
                act(self, hook)

            return call

        vars(self).update({hook: called(hook) for hook in HOOKS})


def names(calls):
    return collections.Counter(hook for hook, *_ in calls)


@pytest.fixture(scope="module")
def told(corpus, tmp_path_factory):
    """A run and all calls of the callbacks of it."""
    calls, order = [], []
    first, second = (
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs, i=i: order.append(i))
        for i in range(2)
    )
    output = tmp_path_factory.mktemp("told") / "RUN"
    spy = Spy(calls)
    return train(corpus, output, spy, first, second), spy, calls, order


def test_a_training_of_several_epochs_has_one_begin_and_one_end(told):
    _, spy, calls, order = told
    valid = -(-(11 * 6) // (4 * 15))  # batches
    assert calls[0] == ("on_train_begin", {}) and calls[-1][0] == "on_train_end"
    assert names(calls) == {
        "on_train_begin": 1, "on_train_end": 1, "on_epoch_begin": 2, "on_epoch_end": 2,
        "on_train_batch_begin": 2 * STEPS, "on_train_batch_end": 2 * STEPS,
        "on_test_begin": 2, "on_test_end": 2,
        "on_test_batch_begin": 2 * valid, "on_test_batch_end": 2 * valid,
    }  # fmt: skip
    assert order == [0, 1, 0, 1]
    assert spy.params == {"verbose": 0, "epochs": 2, "steps": STEPS}
    for hook in ("epoch_begin", "epoch_end"):
        assert [call[1] for call in calls if call[0] == f"on_{hook}"] == [0, 1]
    for hook in ("train_batch_begin", "train_batch_end"):
        assert [call[1] for call in calls if call[0] == f"on_{hook}"] == [*range(STEPS)] * 2
    batch = next(call[-1] for call in calls if call[0] == "on_train_batch_end")
    assert sorted(batch) == ["loss", "perplexity"]


def test_an_epoch_ends_with_the_figures_of_its_row(told):
    run, _, calls, _ = told
    epochs = [logs for hook, *_, logs in calls if hook == "on_epoch_end"]
    assert epochs == [{key: row[key] for key in epochs[0]} for row in run.history]
    assert sorted(epochs[0]) == LOGGED and calls[-1] == ("on_train_end", epochs[-1])


@pytest.mark.slow
def test_callbacks_leave_the_run_as_it_is_without_them(told, corpus, tmp_path):
    plain = dualnet.train("dual_lstm", corpus, output=tmp_path / "RUN", **SETTINGS)
    assert_same(plain.model.weights, told[0].model.weights)
    figures = [[row[key] for key in LOGGED] for row in plain.history]
    assert figures == [[row[key] for key in LOGGED] for row in told[0].history]


@once
@pytest.mark.slow
def test_a_linear_decay_sets_the_rate_of_each_step_also_where_a_run_goes_on(corpus, tmp_path):
    rates = []

    def act(spy, hook):
        if hook == "on_train_batch_end":
            rates.append(float(spy.model.optimizer.learning_rate))
            if len(rates) == STEPS + 2:
                signal.raise_signal(signal.SIGINT)

    with contextlib.suppress(Stopped, KeyboardInterrupt):
        train(corpus, tmp_path / "RUN", Spy([], act), linear_decay=True)
    assert len(rates) == STEPS + 2
    train(corpus, tmp_path / "RUN", Spy([], act), resume=True)
    np.testing.assert_allclose(rates, 0.05 * np.arange(2 * STEPS, 0, -1) / (2 * STEPS), rtol=1e-6)


@pytest.mark.slow
def test_streams_drop_their_states_by_chance_also_where_a_run_goes_on(corpus, tmp_path):
    zeros, settings = [], {"drop_state_probability": 0.4, "batch_size": 16, "sequence_length": 3}

    def spy(stop_at=None):
        def act(spy, hook):
            if hook == "on_train_batch_begin":
                states = map(ops.convert_to_numpy, spy.model.training_rows.read(None))
                zeros.append([not row.any() for row in np.concatenate([*states], axis=1)])
            if hook == "on_train_batch_end" and len(zeros) == stop_at:
                signal.raise_signal(signal.SIGINT)

        return Spy([], act)

    whole = train(corpus, tmp_path / "whole", spy(), **settings)
    expected, steps = zeros.copy(), len(zeros) // 2
    assert all(expected[0]) and all(expected[steps])
    assert 0.25 < np.mean(expected[1:steps]) < 0.55 and expected[1:steps] != expected[steps + 1 :]
    zeros.clear()
    with contextlib.suppress(Stopped, KeyboardInterrupt):
        train(corpus, tmp_path / "RUN", spy(stop_at=4), **settings)
    run = train(corpus, tmp_path / "RUN", spy(), resume=True)
    assert zeros == expected
    assert_same(run.model.weights, whole.model.weights)


@once
@pytest.mark.slow
def test_early_stopping_ends_a_run_and_a_resumed_one_stays_ended(corpus, tmp_path):
    stopping = keras.callbacks.EarlyStopping(
        "val_perplexity", patience=1, min_delta=1e9, restore_best_weights=True
    )
    run = train(corpus, tmp_path / "RUN", stopping, epochs=5)
    assert len(run.history) == 2 and stopping.stopped_epoch == 1
    assert_same(run.model.weights, dualnet.load(run.folder).weights)
    again = train(corpus, run.folder, stopping, resume=True)
    assert again.history == run.history
    assert len(train(corpus, run.folder, resume=True, epochs=3).history) == 3


@pytest.mark.slow
@pytest.mark.parametrize("steps", few_elsewhere([STEPS + 3, 0]))
def test_stop_training_is_obeyed_between_batches(corpus, tmp_path, steps):
    calls = []
    spy = Spy(calls, lambda spy, hook: setattr(spy.model, "stop_training", True)
              if spy.steps == steps and hook in ("on_train_begin", "on_train_batch_end")
              else None)  # fmt: skip
    run = train(corpus, tmp_path / "RUN", spy, epochs=4)
    assert names(calls)["on_train_batch_end"] == max(steps, 1)
    epochs = steps // STEPS + 1
    assert len(run.history) == names(calls)["on_epoch_end"] == epochs  # the last is validated, too
    assert names(calls)["on_train_end"] == 1
    assert len(train(corpus, run.folder, resume=True, epochs=epochs + 1).history) == epochs + 1


@pytest.mark.slow
def test_a_run_killed_and_resumed_calls_each_step_and_keeps_plain_state(corpus, tmp_path):
    class Counting(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.seen, self.by_epoch, self.lowest = 0, {}, np.float32(math.inf)
            self.kept_array = np.zeros(3)

        def on_epoch_begin(self, epoch, logs=None):
            self.seen += 100

        def on_train_batch_end(self, batch, logs=None):
            self.seen += 1
            self.by_epoch.setdefault("steps", []).append([batch, logs["loss"]])
            self.with_nan = [batch, math.nan]
            self.lowest = np.float32(min(self.lowest, logs["loss"]))

        def on_test_batch_end(self, batch, logs=None):
            self.seen += 10_000

    def stop_once(at, stop):
        places = [STEPS, STEPS + 3]

        def act(spy, hook):
            if hook == at and spy.steps in places:
                places.remove(spy.steps)
                stop()

        return act

    def interrupt():
        signal.raise_signal(signal.SIGINT)

    whole = [Counting(), keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=1e9)]
    undisturbed = train(corpus, tmp_path / "whole", *whole, epochs=5)
    for at, stop, repeated in (
        ("on_train_batch_end", interrupt, 0),
        ("on_test_batch_end", interrupt, 0),
        ("on_train_batch_end", sys.exit, 2 + 1),  # as good as a kill: since the last checkpoint
        ("on_epoch_end", sys.exit, 2),
    ):
        folder, calls = tmp_path / f"{at}-{repeated}", []
        act = stop_once(at, stop)
        for attempt in range(5):
            counting = Counting()
            stopping = keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=1e9)
            spy = Spy(calls, act)
            settings = {"resume": True} if attempt else {"epochs": 5}
            with contextlib.suppress(Stopped, SystemExit):
                run = train(corpus, folder, counting, stopping, spy, checkpoint_steps=2, **settings)
                break
        assert attempt
        losses = [[row["val_loss"] for row in ended.history] for ended in (run, undisturbed)]
        assert losses[0] == losses[1]
        for name in ("seen", "by_epoch", "lowest"):
            assert getattr(counting, name) == getattr(whole[0], name)
        assert repr(counting.with_nan) == repr(whole[0].with_nan)
        assert (stopping.wait, stopping.best) == (whole[1].wait, whole[1].best)
        steps = [call[1] for call in calls if call[0] == "on_train_batch_end"]
        assert {*steps} == {*range(STEPS)} and len(steps) == 2 * STEPS + repeated
        counts = names(calls)
        assert counts["on_epoch_end"] == 2 + (at == "on_epoch_end")
        # As with Keras, no end after an interruption.
        assert counts["on_train_begin"] == attempt + 1 and counts["on_train_end"] == 1


# --- recipes


AVERAGED = {
    "optimizer": "sgd", "averaging": "asgd", "average_from": 2, "finetune": "once",
    "finetune_epochs": 1,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("recipe", few_elsewhere([
    AVERAGED,
    {"averaging": "two_tailed", "optimizer": "rectified_adam", "dropout_samples": 2},
    {"name": "gru", "batching": "sentences", "batch_size": 40},
]))  # fmt: skip
def test_every_recipe_tells_of_its_epochs_and_shows_the_validated_weights(corpus, tmp_path, recipe):
    calls, losses, sizes = [], [], []

    def act(spy, hook):
        if hook == "on_epoch_end" and "batching" not in recipe:
            valid = corpus.batches("valid", batch_size=4, sequence_length=15)
            logs = spy.model.evaluate(valid, verbose=0, return_dict=True)
            losses.append(logs["perplexity"])
        if hook == "on_epoch_begin":
            sizes.append(spy.params["epochs"])

    spy = Spy(calls, act)
    path = str(tmp_path / "best.keras")
    best = keras.callbacks.ModelCheckpoint(path, monitor="val_perplexity", save_best_only=True)
    run = train(corpus, tmp_path / "RUN", spy, best, **recipe)
    epochs = len(run.history)
    assert [call[1] for call in calls if call[0] == "on_epoch_end"] == [*range(epochs)]
    counts = names(calls)
    assert counts["on_train_begin"] == counts["on_train_end"] == 1
    assert counts["on_train_batch_end"] == counts["on_train_batch_begin"]
    assert sizes == ([2, 2, 3] if "finetune" in recipe else [2, 2])
    perplexities = [row["val_perplexity"] for row in run.history]
    np.testing.assert_allclose(losses, perplexities[: len(losses)], rtol=1e-6)
    saved = dualnet.load(path)
    assert_same(saved.core.trainable_variables, run.model.core.trainable_variables)
    logs = next(call[-1] for call in calls if call[0] == "on_epoch_end")
    more = {key for key in run.history[0] if key.startswith("val_perplexity_")}
    assert {*logs} == {*LOGGED} | more


@once
@pytest.mark.slow
def test_a_translator_tells_its_callbacks_of_bleu(pairs_folder, tmp_path):
    pairs = corpora.load_pairs(pairs_folder, source="digits", target="words", tokenizer="words")
    calls = []
    stopping = keras.callbacks.EarlyStopping("val_bleu", patience=1, min_delta=1e9)
    recipe = {"name": "attention_gru", "depth": 1, "watch": "bleu", "batch_size": 12, "epochs": 4}
    run = dualnet.train(
        corpus=pairs, output=tmp_path / "RUN", callbacks=[Spy(calls), stopping],
        units=4, evaluate=False, progress=False, **recipe,
    )  # fmt: skip
    assert len(run.history) == 2 and names(calls)["on_epoch_end"] == 2
    assert calls[-1][-1] == {key: run.history[-1][key] for key in [*LOGGED, "val_bleu"]}


@pytest.mark.slow
def test_a_restart_sets_the_callbacks_back_to_the_best_epoch(corpus, tmp_path, monkeypatch):
    def diverges(row, history):
        return row["epoch"] == 2 and row["learning_rate"] > 0.049

    class Total(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.losses, self.batches = [], 0

        def on_train_batch_end(self, batch, logs=None):
            self.batches += 1

        def on_epoch_end(self, epoch, logs=None):
            self.losses.append(logs["val_loss"])

    monkeypatch.setattr(fitting, "has_diverged", diverges)
    calls, total = [], Total()
    run = train(corpus, tmp_path / "RUN", total, Spy(calls), on_divergence="restart")
    assert total.losses == [row["val_loss"] for row in run.history]
    assert total.batches == 2 * STEPS and names(calls)["on_train_batch_end"] == 3 * STEPS
    assert [call[1] for call in calls if call[0] == "on_epoch_begin"] == [0, 1, 1]
    assert [call[1] for call in calls if call[0] == "on_epoch_end"] == [0, 1]


# --- bad input


@once
@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ([keras.callbacks.History], "`callbacks` must hold Keras callbacks, not classes"),
        ([keras.callbacks.ReduceLROnPlateau()], "ReduceLROnPlateau. Set `plateau_decay` of"),
        ([keras.callbacks.BackupAndRestore("x")], "must not hold a BackupAndRestore.*resume=True"),
    ],
)
def test_what_cannot_be_a_callback_is_refused_and_nothing_is_written(
    corpus, tmp_path, callbacks, message
):
    with pytest.raises(ValueError, match=message):
        dualnet.train("dual_lstm", corpus, output=tmp_path / "RUN", **SETTINGS, callbacks=callbacks)
    assert not (tmp_path / "RUN").exists()


@once
@pytest.mark.slow
@pytest.mark.parametrize("hook", ["on_epoch_end", "on_train_end"])
def test_after_a_callback_has_failed_the_run_goes_on_from_its_checkpoint(
    told, corpus, tmp_path, hook
):
    def fail(spy, name):
        if name == hook:
            raise RuntimeError("no connection")

    with pytest.raises(RuntimeError, match="no connection"):
        train(corpus, tmp_path / "RUN", Spy([], fail), checkpoint_steps=2)
    run = train(corpus, tmp_path / "RUN", Spy([]), resume=True)
    assert_same(run.model.weights, told[0].model.weights)
