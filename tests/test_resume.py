"""A run that was stopped, killed or damaged ends as an undisturbed one, bit for bit."""

import csv
import functools
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import threading
import time

import filelock
import keras
import numpy as np
import pytest

import dualnet
from dualnet.cli import main
from dualnet.training import checkpoints, recorder
from dualnet.training.interrupts import Stopped

SETTINGS = {
    "units": 8, "batch_size": 4, "sequence_length": 9, "epochs": 3, "learning_rate": 0.01,
    "input_dropout": 0.3, "recurrent_dropout": 0.2, "dual_output_dropout": 0.2, "clipnorm": 1.0,
}  # fmt: skip
STEPS = 10  # of an epoch
AVERAGED = {  # in epoch 2; epoch 3 is one of fine-tuning
    "units": 8, "batch_size": 4, "sequence_length": 9, "epochs": 2, "learning_rate": 2.0,
    "optimizer": "sgd", "global_clipnorm": 1.0, "weight_decay": 1e-4, "input_dropout": 0.3,
    "recurrent_dropout": 0.2, "dual_output_dropout": 0.2, "partial_shuffle": True,
    "averaging": "asgd", "average_from": 2, "finetune": "once", "finetune_epochs": 1,
}  # fmt: skip


def train(corpus, output, begin=SETTINGS, **settings):
    """Train, or go on as the run began if `settings` say so."""
    arguments = {**({} if settings.get("resume") else begin), "checkpoint_steps": 3, **settings}
    return dualnet.train("dual_lstm", corpus, output=output, progress=False, **arguments)


def ends(folder):
    """Return all that a run ends with: every variable, the best weights, what was measured."""
    newest = max((folder / "checkpoints").glob("epoch-*"))
    with np.load(newest / "state.npz") as stored:
        found = {name: stored[name] for name in stored.files}
    best = dualnet.load(folder)
    found |= {f"best {i}": np.asarray(w) for i, w in enumerate(best.get_weights())}
    with (folder / "metrics.csv").open() as file:
        found["metrics"] = [
            {key: row[key] for key in row if key not in ("seconds", "tokens_per_second")}
            for row in csv.DictReader(file)
        ]
    results = json.loads((folder / "results.json").read_text())
    found["results"] = {key: results[key] for key in results if key != "tokens_per_second"}
    return found


def assert_equal(one, two):
    assert one.keys() == two.keys()
    for key, value in one.items():
        np.testing.assert_array_equal(value, two[key], err_msg=key)


class KilledError(BaseException):
    """Stands for a kill: nothing in the package catches it."""


def after_call(patch, owner, name, count, act):
    """Do `act` after the call number `count` of `owner.name`."""
    whole = getattr(owner, name)
    calls = []

    def counted(*arguments, **keywords):
        found = whole(*arguments, **keywords)
        calls.append(name)
        if len(calls) == count:
            act()
        return found

    patch.setattr(owner, name, counted)


def train_undisturbed(corpus, folder, begin, moments):
    """Train into `folder`; return what the run ends with, and a function.

    The function leaves a run that was killed at a moment, one of `moments`: the
    files as they were then.
    """
    kept = {moment: folder.with_name(f"moment-{i}") for i, moment in enumerate(moments)}
    with pytest.MonkeyPatch.context() as patch:
        for (owner, name, count), copy in kept.items():
            act = functools.partial(shutil.copytree, folder, copy)
            after_call(patch, owner, name, count, act)
        train(corpus, folder, begin, seed=5)

    def killed(moment, folder):
        shutil.copytree(kept[moment], folder)

    return ends(folder), killed


MOMENTS = [
    (recorder.Recorder, "on_train_batch_end", 1),  # before any checkpoint
    (recorder.Recorder, "on_train_batch_end", STEPS + 8),
    (recorder.Recorder, "on_train_batch_end", STEPS),  # before the validation
    (recorder, "put_weights", 2),  # the best weights are those of an epoch not yet kept
    (checkpoints, "sha256_of", 9),  # within a checkpoint
    (recorder.Recorder, "write_tables", 3),  # all but the last evaluation is done
]
if keras.config.backend() == "torch":
    del MOMENTS[2:]  # slow at loops, and promised for TensorFlow and JAX alone
IN_THE_SECOND_EPOCH = (recorder.Recorder, "on_train_batch_end", STEPS + 7)


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "RUN"
    return train_undisturbed(corpus, folder, SETTINGS, [*MOMENTS, IN_THE_SECOND_EPOCH])


@pytest.fixture
def undisturbed(trained):
    return trained[0]


@pytest.fixture
def killed(trained):
    return trained[1]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_ends_as_an_undisturbed_one(corpus, tmp_path, undisturbed, killed, moment):
    killed(moment, tmp_path / "RUN")
    keras.utils.set_random_seed(99)
    train(corpus, tmp_path / "RUN", resume=True)
    assert_equal(ends(tmp_path / "RUN"), undisturbed)
    left = [path.name for path in (tmp_path / "RUN").rglob(".unfinished*")]
    assert left == []


AVERAGED_MOMENTS = [
    (recorder.Recorder, "on_train_batch_end", STEPS + 8),
    (recorder, "put_weights", 2),  # the averages are in the place of the weights
    (recorder.Recorder, "_begin_round", 1),  # the best weights are, and no checkpoint has them
]
if keras.config.backend() == "torch":
    del AVERAGED_MOMENTS[1:]


@pytest.fixture(scope="module")
def trained_with_averages(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "RUN"
    found, killed = train_undisturbed(corpus, folder, AVERAGED, AVERAGED_MOMENTS)
    assert [row["phase"] for row in found["metrics"]] == ["train", "averaged", "finetune-1"]
    return found, killed


@pytest.mark.parametrize("moment", AVERAGED_MOMENTS)
def test_a_run_killed_while_it_averages_ends_as_an_undisturbed_one(
    corpus, tmp_path, trained_with_averages, moment
):
    undisturbed, killed = trained_with_averages
    killed(moment, tmp_path / "RUN")
    keras.utils.set_random_seed(99)
    train(corpus, tmp_path / "RUN", resume=True)
    assert_equal(ends(tmp_path / "RUN"), undisturbed)


def test_a_run_stopped_in_the_validation_of_averages_has_saved_its_weights(
    corpus, tmp_path, trained_with_averages
):
    validate, whole = recorder.Recorder.validate, recorder.Recorder.on_test_batch_end
    weights = {}

    def noted(self, model, batches, plan):
        if plan.averaged and not weights:
            trained = {id(weight) for weight in model.trainable_variables}
            for i, variable in enumerate(checkpoints._variables(model)):
                if id(variable) in trained:
                    weights[f"{i:05}"] = np.array(keras.ops.convert_to_numpy(variable))
        return validate(self, model, batches, plan)

    def interrupted(self, batch, logs=None):
        if self.plan.averaged:
            signal.raise_signal(signal.SIGINT)
        return whole(self, batch, logs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder.Recorder, "validate", noted)
        patch.setattr(recorder.Recorder, "on_test_batch_end", interrupted)
        with pytest.raises(Stopped, match=r"saved after step 10 of 10 of epoch 2"):
            train(corpus, tmp_path / "RUN", AVERAGED, seed=5)
    with np.load(max((tmp_path / "RUN" / "checkpoints").iterdir()) / "state.npz") as stored:
        assert weights
        for name, weight in weights.items():
            np.testing.assert_array_equal(stored[name], weight)
    train(corpus, tmp_path / "RUN", resume=True)
    assert_equal(ends(tmp_path / "RUN"), trained_with_averages[0])


def test_a_run_by_sentence_of_less_than_one_batch_is_resumed(corpus, tmp_path):
    begin = {"units": 4, "batching": "sentences", "batch_size": 999, "loss_reduction": "sum"}
    train(corpus, tmp_path / "run", begin, epochs=1)
    run = train(corpus, tmp_path / "run", resume=True, epochs=2)
    assert [row["epoch"] for row in run.history] == [1, 2]
    assert dualnet.load(tmp_path / "run").loss_reduction == "sum"
    with pytest.raises(ValueError, match="`loss_reduction` must be one of.*mean 'sum'"):
        run.model.loss_reduction = "summ"


def test_the_interval_of_checkpoints_changes_nothing_and_two_are_kept(
    corpus, tmp_path, undisturbed
):
    train(corpus, tmp_path / "RUN", seed=5, checkpoint_steps=1)
    assert_equal(ends(tmp_path / "RUN"), undisturbed)
    kept = sorted(path.name for path in (tmp_path / "RUN" / "checkpoints").iterdir())
    assert kept == ["epoch-00002-step-00000009", "epoch-00003-step-00000000"]


def test_a_run_that_stop_ends_is_one_of_fewer_epochs_and_goes_on_without_it(
    corpus, tmp_path, undisturbed
):
    asked = []

    def after_two(history):
        asked.append(len(history))
        return len(history) == 2

    train(corpus, tmp_path / "RUN", seed=5, stop=after_two)
    assert asked == [1, 2]
    train(corpus, tmp_path / "short", seed=5, epochs=2)
    assert_equal(ends(tmp_path / "RUN"), ends(tmp_path / "short"))
    again = train(corpus, tmp_path / "RUN", resume=True, stop=after_two)
    assert asked == [1, 2, 2] and again.results["epochs"] == len(again.history) == 2
    train(corpus, tmp_path / "RUN", resume=True, stop=lambda history: False)
    assert_equal(ends(tmp_path / "RUN"), undisturbed)


def test_stop_is_not_asked_within_an_epoch(corpus, tmp_path, stopped):  # in its second epoch
    found = train(corpus, tmp_path / "RUN", resume=True, stop=lambda history: True)
    assert [row["epoch"] for row in found.history] == [1, 2]


def test_an_evaluation_that_was_left_out_is_made_with_resume(corpus, tmp_path, undisturbed):
    folder = tmp_path / "RUN"
    short = train(corpus, folder, seed=5, epochs=2, evaluate=False)
    assert short.results == {} and not (folder / "results.json").exists()
    again = train(corpus, folder, resume=True, evaluate=False)
    assert again.results == {} and again.history == short.history
    for one, two in zip(again.model.get_weights(), short.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    evaluated = train(corpus, folder, resume=True)
    assert evaluated.history == short.history and evaluated.results["epochs"] == 2
    train(corpus, folder, resume=True, evaluate=False)
    assert json.loads((folder / "results.json").read_text()) == evaluated.results
    train(corpus, folder, resume=True, epochs=3, evaluate=False)
    assert not (folder / "results.json").exists()  # else it told of two epochs
    train(corpus, folder, resume=True)
    assert_equal(ends(folder), undisturbed)


@pytest.fixture
def stopped(killed, tmp_path):
    """The two checkpoints of a run, RUN, that was killed in its second epoch."""
    killed(IN_THE_SECOND_EPOCH, tmp_path / "RUN")
    before, newest = sorted((tmp_path / "RUN" / "checkpoints").iterdir())
    return before, newest


@pytest.mark.parametrize(
    ("file", "damage"),
    [("state.npz", "a byte"), ("progress.json", "cut"), ("model.weights.h5", "removed")],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    corpus, tmp_path, undisturbed, stopped, capsys, file, damage
):
    before, newest = stopped
    harm(newest / file, damage)
    train(corpus, tmp_path / "RUN", resume=True)
    told = capsys.readouterr().err
    assert newest.name in told and file in told and before.name not in told
    assert_equal(ends(tmp_path / "RUN"), undisturbed)


def harm(path, damage):
    data = bytearray(path.read_bytes())
    if damage == "a byte":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        path.unlink()


def test_a_run_whose_checkpoints_are_all_damaged_is_refused(corpus, tmp_path, stopped):
    for path in stopped:
        harm(path / "state.npz", "a byte")
    with pytest.raises(ValueError, match="must hold a whole checkpoint.*2 checkpoints"):
        train(corpus, tmp_path / "RUN", resume=True)


@pytest.mark.parametrize("moment", ["training", "validation"])
def test_control_c_finishes_the_step_saves_and_says_how_to_go_on(
    corpus, tmp_path, undisturbed, capsys, moment
):
    place, count = ("on_train_batch_end", 5) if moment == "training" else ("on_test_batch_end", 1)
    whole = getattr(recorder.Recorder, place)
    calls = []

    def interrupted(self, batch, logs=None):
        calls.append(batch)
        if len(calls) == count:
            signal.raise_signal(signal.SIGINT)
        return whole(self, batch, logs)

    before = signal.getsignal(signal.SIGINT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder.Recorder, place, interrupted)
        with pytest.raises(Stopped, match=r"saved after step \d+ of 10 of epoch 1.*--resume"):
            train(corpus, tmp_path / "RUN", seed=5, checkpoint_steps=1000)
    assert "finishing the step and saving" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before
    step = 5 if moment == "training" else STEPS
    (kept,) = (tmp_path / "RUN" / "checkpoints").iterdir()
    assert kept.name == f"epoch-00000-step-{step:08}"
    train(corpus, tmp_path / "RUN", resume=True)
    assert_equal(ends(tmp_path / "RUN"), undisturbed)


def kill():
    raise KilledError


def test_a_learning_rate_given_anew_holds_after_a_second_kill(corpus, tmp_path, stopped):
    shutil.copytree(tmp_path / "RUN", tmp_path / "twice")
    train(corpus, tmp_path / "RUN", resume=True, learning_rate=0.002)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KilledError):
        after_call(patch, recorder.Recorder, "on_train_batch_end", 1, kill)  # before a checkpoint
        train(corpus, tmp_path / "twice", resume=True, learning_rate=0.002)
    train(corpus, tmp_path / "twice", resume=True)
    assert_equal(ends(tmp_path / "twice"), ends(tmp_path / "RUN"))
    assert float(ends(tmp_path / "RUN")["metrics"][-1]["learning_rate"]) == pytest.approx(0.002)


def test_a_run_folder_in_use_is_refused(corpus, tmp_path, stopped):
    with filelock.FileLock(tmp_path / "RUN" / ".lock"):
        found = []

        def other():
            try:
                train(corpus, tmp_path / "RUN", resume=True)
            except ValueError as error:
                found.append(str(error))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert "`output` must be a folder that no other process trains into" in found[0]


@pytest.mark.parametrize("file", ["checkpoint", "weights"])
def test_a_full_disk_while_saving_leaves_what_was_before(
    corpus, tmp_path, undisturbed, stopped, file
):
    *_, newest = kept = list(stopped)
    state = (newest / "state.npz").stat().st_size
    weights = (newest / "model.weights.h5").stat().st_size
    if file == "weights":  # the next file to write, if no checkpoint comes before
        limit, interval, message = weights // 2, 1000, "could not be written"
    else:
        limit, interval, message = state - 1, 1, r"checkpoint could not be written.*--resume"
    best = (tmp_path / "RUN" / "model.weights.h5").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))  # bytes; writing more fails
    try:
        with pytest.raises(OSError, match=message):
            train(corpus, tmp_path / "RUN", resume=True, checkpoint_steps=interval)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted((tmp_path / "RUN" / "checkpoints").iterdir()) == kept
    assert (tmp_path / "RUN" / "model.weights.h5").read_bytes() == best
    train(corpus, tmp_path / "RUN", resume=True)
    assert_equal(ends(tmp_path / "RUN"), undisturbed)


def command_line(arguments, errors):
    """Run one command in this process, its messages into the file `errors`."""
    with errors.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(main(arguments))


# Forked from a process that has imported everything and done nothing, as imports take longest;
# JAX has threads by then, and must not be forked.
TENSORFLOW = keras.config.backend() == "tensorflow"
PROCESSES = multiprocessing.get_context("forkserver" if TENSORFLOW else "spawn")
PROCESSES.set_forkserver_preload(["dualnet.training", __name__])
IN_AVERAGES = {**AVERAGED, "length_deviation": 0.4, "longest_length": 10, "finetune_epochs": 2}


DEATHS = [  # the second on TensorFlow alone: elsewhere each process compiles for long
    (SETTINGS, ["step-00000004", "epoch-00001-step-00000000"]),
    (IN_AVERAGES, ["epoch-00003-step-00000002"]),
]


@pytest.mark.parametrize(("settings", "moments"), DEATHS if TENSORFLOW else DEATHS[:1])
def test_a_process_killed_at_any_moment_is_resumed_to_the_same_bits(
    folder, tmp_path, settings, moments
):
    epochs = settings["epochs"]
    settings = [f"{key}={json.dumps(value)}" for key, value in settings.items() if key != "epochs"]
    begin = ["--seed", 5, "--epochs", epochs, "--set", *settings]

    def start(name, *more):
        arguments = [
            "train", "dual_lstm", "--corpus", folder, "--output", tmp_path / name,
            "--checkpoint-steps", 1, "--quiet", *more,
        ]  # fmt: skip
        errors = tmp_path / f"{name}.txt"
        process = PROCESSES.Process(
            target=command_line, args=([str(part) for part in arguments], errors)
        )
        process.start()
        return process, errors

    for i, moment in enumerate([*moments, None]):
        process, errors = start("RUN", *(["--resume"] if i else begin))
        while moment and process.is_alive():
            if list((tmp_path / "RUN").glob(f"checkpoints/*{moment}*")):
                process.kill()
                break
            time.sleep(0.0005)
        process.join(timeout=120)
        assert process.exitcode == (-signal.SIGKILL if moment else 0), errors.read_text()
    process, errors = start("undisturbed", *begin)  # too in a process of its own
    process.join(timeout=120)
    assert process.exitcode == 0, errors.read_text()
    assert_equal(ends(tmp_path / "RUN"), ends(tmp_path / "undisturbed"))
