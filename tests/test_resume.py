"""A run that was stopped, killed or damaged ends as an undisturbed one, bit for bit."""

import concurrent.futures
import csv
import dataclasses
import functools
import json
import os
import shutil
import signal
import sys

import filelock
import keras
import numpy as np
import pytest

import dualnet
from dualnet import runs
from dualnet.runs import Run
from dualnet.training import Recipe, checkpoints, fitting, start
from dualnet.training.interrupts import Stopped
from tests.checks import UNTRACED, assert_same, few_elsewhere, limited_files, once

pytestmark = [*UNTRACED, pytest.mark.slow]

SETTINGS = {
    "units": 8, "batch_size": 20, "sequence_length": 3, "epochs": 3, "learning_rate": 0.01,
    "input_dropout": 0.3, "recurrent_dropout": 0.2, "dual_output_dropout": 0.2, "clipnorm": 1.0,
}  # fmt: skip
STEPS = 6  # of an epoch


def train(corpus, output, settings=SETTINGS, **changes):
    """Train, or resume with the settings of the run if `changes` say so."""
    arguments = {**({} if changes.get("resume") else settings), "checkpoint_steps": 2, **changes}
    return dualnet.train("dual_lstm", corpus, output=output, progress=False, **arguments)


def ends(folder):
    """Return all that a run ends with: every variable, the best weights, metrics, results."""
    newest = max((folder / "checkpoints").iterdir())
    with np.load(newest / "state.npz") as stored:
        end = {name: stored[name] for name in stored.files}
    best = dualnet.load(folder)
    end |= {f"best {i}": np.asarray(w) for i, w in enumerate(best.get_weights())}
    with (folder / "metrics.csv").open() as file:
        end["metrics"] = [
            {key: row[key] for key in row if key not in ("seconds", "tokens_per_second")}
            for row in csv.DictReader(file)
        ]
    results = json.loads((folder / "results.json").read_text())
    end["results"] = {key: results[key] for key in results if key != "tokens_per_second"}
    return end


def assert_equal(one, two):
    assert one.keys() == two.keys()
    for key, value in one.items():
        np.testing.assert_array_equal(value, two[key], err_msg=key)


def on_call(patch, owner, name, count, act, *, before=False):
    """Do `act` after, or before, the call number `count` of `owner.name`."""
    whole = getattr(owner, name)
    calls = []

    def counted(*arguments, **keywords):
        calls.append(name)
        due = len(calls) == count
        if due and before:
            act()
        result = whole(*arguments, **keywords)
        if due and not before:
            act()
        return result

    patch.setattr(owner, name, counted)


def train_undisturbed(corpus, folder, settings, moments):
    """Train into `folder`; return what the run ends with, and a function.

    The function copies the folder as it was at a moment, one of `moments`: what a kill at
    that moment would have left.
    """
    copies = {moment: folder.with_name(f"moment-{i}") for i, moment in enumerate(moments)}
    with pytest.MonkeyPatch.context() as patch:
        for (owner, name, count), copy in copies.items():
            act = functools.partial(shutil.copytree, folder, copy)
            on_call(patch, owner, name, count, act)
        train(corpus, folder, settings, seed=5)

    def killed(moment, folder):
        shutil.copytree(copies[moment], folder)

    return ends(folder), killed


IN_THE_SECOND_EPOCH = (fitting.Checkpoint, "end_step", STEPS + 5)


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "RUN"
    return train_undisturbed(corpus, folder, SETTINGS, [IN_THE_SECOND_EPOCH])


@pytest.fixture
def undisturbed(trained):
    return trained[0]


@pytest.fixture
def stopped(trained, tmp_path):
    """The two checkpoints of a run, RUN, that was killed in its second epoch."""
    trained[1](IN_THE_SECOND_EPOCH, tmp_path / "RUN")
    before, newest = sorted((tmp_path / "RUN" / "checkpoints").iterdir())
    return before, newest


@once
def test_a_run_whose_text_has_moved_knows_its_new_place_after_resuming(folder, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(folder, old)
    run = train(str(old), tmp_path / "RUN", epochs=1, evaluate=False)
    old.rename(new)
    with pytest.raises(FileNotFoundError, match="may have moved"):
        runs.corpus_of_run(run.folder)
    train(str(new), run.folder, resume=True, epochs=2, evaluate=False)
    assert runs.corpus_of_run(run.folder).source == str(new)


@once
def test_a_run_that_was_killed_before_its_card_was_written_begins_on_resuming(corpus, tmp_path):
    (tmp_path / "RUN").mkdir()
    (tmp_path / "RUN" / "vocabulary.txt").write_text("the\n")
    settings = {**SETTINGS, "epochs": 1}
    run = dualnet.train(
        "dual_lstm", corpus, output=tmp_path / "RUN", resume=True, progress=False, **settings
    )
    assert len(run.history) == 1 and dualnet.load(run.folder).vocabulary == corpus.vocabulary
    for other in (tmp_path, tmp_path / "none"):  # holds other files; does not exist
        with pytest.raises(FileNotFoundError, match="--resume needs a RUN folder"):
            dualnet.train("dual_lstm", corpus, output=other, resume=True, progress=False)


def test_a_run_that_stop_ended_without_its_evaluation_is_resumed_to_the_same_end(
    corpus, tmp_path, undisturbed, stopped
):
    folder, results = tmp_path / "RUN", tmp_path / "RUN" / "results.json"
    lengths = []

    def stop(history):
        lengths.append(len(history))
        return True

    short = train(corpus, folder, resume=True, stop=stop, evaluate=False)
    assert lengths == [2]  # not called in the middle of the second epoch
    assert short.results == {} and not results.exists()
    evaluated = train(corpus, folder, resume=True, stop=stop)
    assert lengths == [2, 2] and evaluated.history == short.history
    assert evaluated.results["epochs"] == 2
    assert_same(evaluated.model.weights, short.model.weights)
    train(corpus, folder, resume=True, stop=stop, evaluate=False)
    assert json.loads(results.read_text()) == evaluated.results
    train(corpus, folder, resume=True, evaluate=False)
    assert not results.exists()  # it was of two epochs
    train(corpus, folder, resume=True)
    assert_equal(ends(folder), undisturbed)


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def replace_by_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


DAMAGES = [
    ("state.npz", flip_a_byte),
    ("progress.json", lambda path: path.write_bytes(path.read_bytes()[:40])),
    ("progress.json", replace_by_a_pipe),  # which nobody writes to
    ("model.weights.h5", lambda path: path.unlink()),
]


@once
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    corpus, tmp_path, stopped, capsys
):
    before, newest = stopped
    card = runs.read_card(tmp_path / "RUN")
    model = start.ready(newest, card, Recipe(**card.recipe), corpus).model
    for i, (file, damage) in enumerate(DAMAGES):
        copy = shutil.copytree(tmp_path / "RUN", tmp_path / f"copy-{i}")
        damage(copy / "checkpoints" / newest.name / file)
        assert checkpoints.restore(copy, model).step == int(before.name[-8:])
        errors = capsys.readouterr().err
        assert newest.name in errors and file in errors and before.name not in errors
    flip_a_byte(newest / "state.npz")
    both = shutil.copytree(tmp_path / "RUN", tmp_path / "both")
    flip_a_byte(both / "checkpoints" / before.name / "state.npz")
    with pytest.raises(ValueError, match="must hold an intact checkpoint.*2 checkpoints"):
        checkpoints.restore(both, model)


@once
def test_a_tuple_is_the_list_that_a_run_started_with(corpus, tmp_path):
    sizes = {"recurrent_layers": 2, "recurrent_units": [8, 8], "epochs": 1}
    train(corpus, tmp_path / "RUN", {**SETTINGS, **sizes})
    sizes = {"recurrent_units": (8, 8), "epochs": 2}
    assert len(train(corpus, tmp_path / "RUN", resume=True, **sizes).history) == 2
    with pytest.raises(ValueError, match=r"`recurrent_units` must stay \[8, 8\]"):
        train(corpus, tmp_path / "RUN", resume=True, recurrent_units=(8, 9))


@once
def test_control_c_finishes_the_step_saves_and_says_how_to_resume(corpus, tmp_path, capsys):
    handler = signal.getsignal(signal.SIGINT)
    with pytest.MonkeyPatch.context() as patch:
        interrupt = functools.partial(signal.raise_signal, signal.SIGINT)
        on_call(patch, fitting.Checkpoint, "end_step", 5, interrupt, before=True)
        with pytest.raises(Stopped, match="after step 5 of 6 of epoch 1.*--resume"):
            train(corpus, tmp_path / "RUN", checkpoint_steps=1000)
    assert "Stopping after the current step" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is handler
    (checkpoint,) = (tmp_path / "RUN" / "checkpoints").iterdir()
    assert checkpoint.name == "epoch-00000-step-00000005"


@once
def test_a_new_learning_rate_holds_after_a_second_kill(corpus, tmp_path, stopped):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):  # as good as a kill
        on_call(patch, fitting.Checkpoint, "end_step", 1, sys.exit)  # no checkpoint yet
        train(corpus, tmp_path / "RUN", resume=True, learning_rate=0.002)
    assert runs.read_card(tmp_path / "RUN").recipe["learning_rate"] == 0.002
    run = train(corpus, tmp_path / "RUN", resume=True, evaluate=False)
    assert [row["learning_rate"] for row in run.history] == [0.01, 0.002, 0.002]


@once
def test_a_run_folder_in_use_is_refused(corpus, tmp_path, stopped):
    with (
        filelock.FileLock(tmp_path / "RUN" / ".lock"),
        concurrent.futures.ThreadPoolExecutor() as threads,
    ):
        error = threads.submit(train, corpus, tmp_path / "RUN", resume=True).exception()
    assert "`output` must be a folder that no other process uses" in str(error)


@once
def test_a_full_disk_while_saving_leaves_earlier_files_untouched(corpus, tmp_path, stopped):
    def saved():
        files = [*tmp_path.glob("RUN/checkpoints/*/*"), tmp_path / "RUN" / "model.weights.h5"]
        return {file: file.read_bytes() for file in files}

    state, weights = (stopped[1] / name for name in ("state.npz", "model.weights.h5"))
    before = saved()
    for limit, interval, message in (
        (state.stat().st_size - 1, 1, r"checkpoint could not be written.*--resume"),
        (weights.stat().st_size // 2, 1000, "could not be written"),  # no checkpoint comes before
    ):
        with limited_files(limit), pytest.raises(OSError, match=message):
            train(corpus, tmp_path / "RUN", resume=True, checkpoint_steps=interval)
        assert saved() == before


@pytest.mark.parametrize("changes", few_elsewhere([
    {"dtype_policy": "mixed_float16", "optimizer": "nadam"},
    {"optimizer": "rectified_adam", "dropout_samples": 3, "averaging": "two_tailed"},
    {"dtype_policy": "mixed_float16", "optimizer": "sgd"},
    {"dtype_policy": "mixed_bfloat16", "optimizer": "adam"},
], 1))  # fmt: skip
def test_a_run_of_any_precision_and_optimizer_resumes_bit_for_bit(corpus, tmp_path, changes):
    settings = {**SETTINGS, "epochs": 2, **changes}
    whole = train(corpus, tmp_path / "whole", settings)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        on_call(patch, fitting.Checkpoint, "end_step", 5, lambda: os.kill(os.getpid(), 15))
        train(corpus, tmp_path / "stopped", settings)
    train(corpus, tmp_path / "stopped", resume=True)
    assert_equal(ends(whole.folder), ends(tmp_path / "stopped"))


@once
def test_weights_that_are_no_longer_finite_are_not_saved_and_a_smaller_rate_goes_on(
    corpus, tmp_path
):
    sizes = {"batch_size": 4, "sequence_length": 9}  # the first step at that rate is ruinous
    train(corpus, tmp_path / "RUN", {**SETTINGS, **sizes}, epochs=1)
    ruinous = {"epochs": 2, "resume": True, "learning_rate": 3e38, "clipnorm": 0.0}
    for _ in range(2):
        with pytest.raises(ValueError, match=r"no longer a number, in epoch 2.*is intact"):
            train(corpus, tmp_path / "RUN", checkpoint_steps=1, **ruinous)
    mended = train(
        corpus, tmp_path / "RUN", epochs=2, resume=True, learning_rate=0.01, clipnorm=1.0
    )
    assert mended.results["epochs"] == 2


@once
def test_ruined_weights_that_are_still_numbers_are_not_what_a_run_resumes_from(corpus, tmp_path):
    mended = {"resume": True, "learning_rate": 0.01, "clipnorm": 1.0}
    for name, at_first, rate in (("anew", 0, 1e30), ("after an epoch", 1, 1e10)):
        folder = tmp_path / name
        settings = {**SETTINGS, "optimizer": "sgd", "clipnorm": 0.0}
        if at_first:
            train(corpus, folder, settings, epochs=at_first, learning_rate=0.1)
            settings = {"resume": True}
        with pytest.raises(ValueError, match="no longer a number"):
            ruinous = {**settings, "epochs": at_first + 1, "learning_rate": rate}
            train(corpus, folder, checkpoint_steps=1, **ruinous)
        found = checkpoints.peek(folder)
        assert found is None if not at_first else (len(found.history), found.step) == (1, 0)
        assert train(corpus, folder, **mended).results["epochs"] == at_first + 1


@once
def test_a_checkpoint_from_before_the_weights_were_ruined_stays(corpus, tmp_path, monkeypatch):
    def ruin(batch, logs):
        if batch == 1:  # the checkpoint after this step is good; the next step ruins the weights
            callback.model.optimizer.learning_rate = 1e30

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=ruin)
    settings = {**SETTINGS, "optimizer": "sgd", "clipnorm": 0.0}
    with pytest.raises(ValueError, match="no longer a number"):
        train(corpus, tmp_path / "RUN", settings, epochs=1, callbacks=[callback])
    assert checkpoints.peek(tmp_path / "RUN").step == 2


@once
def test_within_an_epoch_the_checkpoint_of_the_last_one_is_kept_too(corpus, tmp_path):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        interrupt = functools.partial(os.kill, os.getpid(), 15)
        on_call(patch, fitting.Checkpoint, "end_step", STEPS + 4, interrupt)
        train(corpus, tmp_path / "RUN", SETTINGS, epochs=2, checkpoint_steps=1)
    names = sorted(path.name for path in (tmp_path / "RUN" / "checkpoints").iterdir())
    assert names == [f"epoch-00001-step-0000000{step}" for step in (0, 5)]


def test_a_run_that_diverges_goes_back_to_its_best_epoch_with_a_lower_rate(
    corpus, tmp_path, monkeypatch
):
    def diverges(row, history):
        return row["epoch"] == 3 and row["learning_rate"] > 0.0095

    monkeypatch.setattr(fitting, "has_diverged", diverges)
    settings = {**SETTINGS, "averaging": "two_tailed", "optimizer": "rectified_adam"}
    restart = {**settings, "on_divergence": "restart"}
    after_restoring = (checkpoints, "restore", 1)
    before_a_checkpoint = (fitting.Checkpoint, "end_step", 3 * STEPS + 1)
    moments = [after_restoring, before_a_checkpoint]
    end, killed = train_undisturbed(corpus, tmp_path / "whole", restart, moments)
    for i, moment in enumerate(moments):
        killed(moment, tmp_path / f"{i}")
        train(corpus, tmp_path / f"{i}", resume=True)
        assert_equal(end, ends(tmp_path / f"{i}"))
    assert end["results"].pop("restarts") == {"epochs": [3], "learning_rate_factor": 0.9}
    # As a run that was stopped then, and resumed at that rate.
    train(corpus, tmp_path / "told", {**settings, "epochs": 2}, seed=5, evaluate=False)
    train(corpus, tmp_path / "told", epochs=3, learning_rate=0.01 * 0.9, resume=True)
    assert_equal(end, ends(tmp_path / "told"))


def test_a_run_that_diverges_at_once_begins_anew_at_lower_rates_but_not_for_ever(
    corpus, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(fitting, "MOST_RESTARTS", 3)
    settings = {**SETTINGS, "optimizer": "sgd", "clipnorm": 0.0, "on_divergence": "restart"}
    ruinous = {**settings, "epochs": 1, "learning_rate": 1e38}
    with pytest.raises(
        ValueError, match="in epoch 1 .* a smaller learning_rate .*restarted 3 times"
    ):
        dualnet.train("dual_lstm", corpus, output=tmp_path / "RUN", **ruinous)
    lines = capsys.readouterr().err.splitlines()
    assert sum("goes back to the start, with" in line for line in lines) == 3
    assert not (tmp_path / "RUN" / "metrics.csv").exists()
    mended = train(corpus, tmp_path / "RUN", resume=True, learning_rate=0.1)
    assert mended.history[0]["learning_rate"] == pytest.approx(0.1 * 0.9**3)
    assert mended.results["restarts"]["epochs"] == [1] * 3


@once
def test_a_file_of_another_run_of_the_same_shapes_is_noticed_and_named(corpus, tmp_path, capsys):
    for seed in (1, 2):
        train(corpus, tmp_path / f"{seed}", epochs=1, seed=seed)
    other = dataclasses.replace(corpus, vocabulary=shuffled(corpus.vocabulary))
    other.vocabulary.save(tmp_path / "2" / "vocabulary.txt")
    for name in ("vocabulary.txt", "model.weights.h5", "card.toml", "results.json"):
        copy = shutil.copytree(tmp_path / "1", tmp_path / f"copy-{name}")
        shutil.copyfile(tmp_path / "2" / name, copy / name)
        with pytest.raises(ValueError, match=f"{name} of a RUN folder must be unchanged"):
            Run.open(copy).model()
    copy = shutil.copytree(tmp_path / "1", tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints")
    before = (copy / "model.weights.h5").read_bytes()
    with pytest.raises(FileNotFoundError, match="without any.*Fine-tune it into"):
        train(corpus, copy, resume=True, epochs=2)
    assert (copy / "model.weights.h5").read_bytes() == before
    shutil.copytree(tmp_path / "2" / "checkpoints", copy / "checkpoints")
    with pytest.raises(ValueError, match="must hold an intact checkpoint"):
        train(corpus, copy, resume=True, epochs=2)
    assert "it belongs to another run" in capsys.readouterr().err


def shuffled(vocabulary):
    """Return the same words with other ids."""
    first, second, *rest = vocabulary.words
    return dataclasses.replace(vocabulary, words=(second, first, *rest))
