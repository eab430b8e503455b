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
    code = "import dualnet, keras; keras.ops.ones(1); import sys; print('mine', file=sys.stderr)"
    assert standard_error_of(code) == "mine\n"
    assert "oneDNN" in standard_error_of(code, TF_CPP_MIN_LOG_LEVEL="0")


@pytest.mark.slow
def test_an_import_that_fails_shows_what_was_written():
    code = (
        "import dualnet, os, sys, types\n"
        "from importlib.machinery import ModuleSpec\n"
        "class Loader:\n"
        "    def create_module(self, spec): return None\n"
        "    def exec_module(self, module): os.write(2, b'cause'); raise ImportError('no')\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        return ModuleSpec(name, Loader()) if name == 'tensorflow' else None\n"
        "sys.meta_path.insert(1, Finder())\n"
        "try: import tensorflow\n"
        "except ImportError: pass\n"
    )
    assert standard_error_of(code) == "cause"


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
