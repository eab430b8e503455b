"""A training process killed at any moment is resumed to the same bits."""

import json
import multiprocessing
import os
import signal
import sys
import time

import keras
import pytest

from dualnet.cli import main
from tests.test_resume import AVERAGED, SETTINGS, assert_equal, ends


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
