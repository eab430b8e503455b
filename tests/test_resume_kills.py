"""A training stopped or killed at any moment is resumed to the same bits."""

import functools
import json
import multiprocessing
import os
import signal
import sys
import time

import keras
import numpy as np
import pytest

import dualnet
from dualnet import _files, runs
from dualnet.cli import main
from dualnet.training import checkpoints, fitting, reporting
from dualnet.training.interrupts import Stopped
from tests.checks import UNTRACED, once
from tests.test_resume import (
    IN_THE_SECOND_EPOCH,
    SETTINGS,
    STEPS,
    assert_equal,
    ends,
    replace_by_a_pipe,
    train,
    train_undisturbed,
)

pytestmark = [*UNTRACED, once, pytest.mark.slow]

AVERAGED = {  # in epoch 2; epoch 3 is one of fine-tuning
    "units": 8, "batch_size": 20, "sequence_length": 3, "epochs": 2, "learning_rate": 2.0,
    "optimizer": "sgd", "global_clipnorm": 1.0, "weight_decay": 1e-4, "input_dropout": 0.3,
    "recurrent_dropout": 0.2, "dual_output_dropout": 0.2, "partial_shuffle": True,
    "averaging": "asgd", "average_from": 2, "finetune": "once", "finetune_epochs": 1,
}  # fmt: skip


def command_line(arguments, errors):
    """Run one command in this process, its messages into the file `errors`."""
    with errors.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(main(arguments))


# Forked from a process that has imported everything and done nothing, as imports take longest.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["dualnet.training", __name__])
IN_AVERAGES = {  # of more steps, in which it can be killed
    **AVERAGED, "batch_size": 4, "sequence_length": 9, "length_deviation": 0.4,
    "longest_length": 10, "finetune_epochs": 2,
}  # fmt: skip


DEATHS = ["step-00000004", "epoch-00003-step-00000002"]  # two checkpoints


def test_a_process_killed_at_any_moment_is_resumed_to_the_same_bits(folder, tmp_path):
    settings = {key: value for key, value in IN_AVERAGES.items() if key != "epochs"}
    settings = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    begin = ["--seed", 5, "--epochs", IN_AVERAGES["epochs"], "--set", *settings]

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

    for i, moment in enumerate([*DEATHS, None]):
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


# --- copies of the folder, as a kill at a moment would have left it

MOMENTS = [
    (SETTINGS, fitting.Checkpoint, "end_step", 1),  # before any checkpoint
    (SETTINGS, fitting.Checkpoint, "end_step", STEPS),  # before the validation
    (SETTINGS, *IN_THE_SECOND_EPOCH),
    (SETTINGS, fitting, "write_weights", 2),  # the best weights are in no checkpoint yet
    (SETTINGS, _files, "sha256_of", 9),  # within a checkpoint
    (SETTINGS, reporting.Tables, "write", 3),  # all but the last evaluation is done
    (AVERAGED, fitting.Checkpoint, "end_step", STEPS + 5),
    (AVERAGED, fitting, "write_weights", 2),  # the averages replace the weights
    (AVERAGED, fitting.FollowPlan, "begin_round", 1),  # the best weights are in no checkpoint
]


@pytest.fixture(scope="module")
def undisturbed(corpus, tmp_path_factory):
    """Return a function: what a run with some settings ends with, and its copier of folders."""

    @functools.cache
    def run(averaged):
        settings = AVERAGED if averaged else SETTINGS
        folder = tmp_path_factory.mktemp("undisturbed") / "RUN"
        moments = [moment for of, *moment in MOMENTS if of is settings]
        return train_undisturbed(corpus, folder, settings, map(tuple, moments))

    return run


@pytest.mark.parametrize(("settings", "moment"), [(of, tuple(at)) for of, *at in MOMENTS])
def test_a_killed_run_ends_as_an_undisturbed_one(corpus, tmp_path, undisturbed, settings, moment):
    end, killed = undisturbed(settings is AVERAGED)
    killed(moment, tmp_path / "RUN")
    if moment == IN_THE_SECOND_EPOCH:
        replace_by_a_pipe(tmp_path / "RUN" / "tensorboard" / reporting.EVENTS)  # nobody reads it
    keras.utils.set_random_seed(99)
    train(corpus, tmp_path / "RUN", resume=True)
    assert_equal(ends(tmp_path / "RUN"), end)
    assert not list((tmp_path / "RUN").rglob(".unfinished*"))


def test_a_run_stopped_in_the_validation_of_averages_has_saved_its_weights(
    corpus, tmp_path, undisturbed
):
    validate = fitting.Callbacks.on_epoch_end
    whole = fitting.Callbacks.on_test_batch_end
    weights = {}

    def noted(self, epoch, logs):
        model = self.model
        if self.training.plan.averaged and not weights:
            trained = {id(weight) for weight in model.trainable_variables}
            for i, variable in enumerate(checkpoints._variables(model)):
                if id(variable) in trained:
                    weights[f"{i:05}"] = np.array(keras.ops.convert_to_numpy(variable))
        return validate(self, epoch, logs)

    def interrupted(self, batch, logs=None):
        if self.training.plan.averaged:
            signal.raise_signal(signal.SIGINT)
        return whole(self, batch, logs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting.Callbacks, "on_epoch_end", noted)
        patch.setattr(fitting.Callbacks, "on_test_batch_end", interrupted)
        with pytest.raises(Stopped, match=r"saved after step 6 of 6 of epoch 2"):
            train(corpus, tmp_path / "RUN", AVERAGED, seed=5)
    with np.load(max((tmp_path / "RUN" / "checkpoints").iterdir()) / "state.npz") as stored:
        assert weights
        for name, weight in weights.items():
            np.testing.assert_array_equal(stored[name], weight)
    train(corpus, tmp_path / "RUN", resume=True)
    end, _ = undisturbed(True)
    assert_equal(ends(tmp_path / "RUN"), end)
    assert [row["phase"] for row in end["metrics"]] == ["train", "averaged", "finetune-1"]


def test_a_killed_run_by_sentence_ends_as_an_undisturbed_one(corpus, tmp_path):
    settings = {
        "units": 4, "batching": "sentences", "group_by_length": True, "batch_size": 40,
        "loss_reduction": "sum", "epochs": 2,
    }  # fmt: skip
    moment = (reporting.Tables, "write", 1)
    end, killed = train_undisturbed(corpus, tmp_path / "whole", settings, [moment])
    assert end["results"]["by_sentence"]
    assert runs.read_card(tmp_path / "whole").config["padded"] is True
    killed(moment, tmp_path / "RUN")
    run = train(corpus, tmp_path / "RUN", resume=True)
    assert_equal(ends(tmp_path / "RUN"), end)
    assert run.results["test_perplexity"] == pytest.approx(
        dualnet.perplexity(run.model, corpus.test, by_sentence=True), rel=1e-6
    )
    assert dualnet.load(tmp_path / "RUN").loss_reduction == "sum"


def test_the_interval_of_checkpoints_changes_nothing_and_two_are_kept(
    corpus, tmp_path, undisturbed
):
    train(corpus, tmp_path / "RUN", seed=5, checkpoint_steps=1)
    assert_equal(ends(tmp_path / "RUN"), undisturbed(False)[0])
    kept = sorted(path.name for path in (tmp_path / "RUN" / "checkpoints").iterdir())
    assert kept == ["epoch-00002-step-00000005", "epoch-00003-step-00000000"]
