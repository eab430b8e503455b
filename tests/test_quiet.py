"""What TensorFlow writes to standard error."""

import logging
import os
import subprocess
import sys

import pytest

import dualnet  # noqa: F401  # which adds the filter


def standard_error_of(code, **environment):
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TF_")}
    kept |= {"KERAS_BACKEND": "tensorflow", **environment}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=kept).stderr


@pytest.mark.slow
def test_tensorflow_starts_in_silence_after_dualnet_unless_the_environment_wants_it_to_speak():
    code = "import dualnet, keras; keras.ops.ones(1)"
    assert "oneDNN" not in standard_error_of(code)
    assert "oneDNN" in standard_error_of(code, TF_CPP_MIN_LOG_LEVEL="0")


@pytest.mark.parametrize(
    ("message", "is_shown"),
    [
        ("5 out of the last 5 calls to <f> triggered tf.function retracing. Tracing is", False),
        ("Another warning.", True),
    ],
)
def test_of_the_warnings_those_about_retracing_are_hidden(message, is_shown):
    logger = logging.getLogger("tensorflow")
    record = logger.makeRecord(logger.name, logging.WARNING, "file", 1, message, (), None)
    assert bool(logger.filter(record)) == is_shown
