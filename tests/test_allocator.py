"""Freed memory stays in the process: where one asks for it, and with every model on TensorFlow."""

import os
import subprocess
import sys

import keras
import pytest

from tests.checks import once

pytestmark = once

PROGRAM = """
import dualnet, numpy

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

{change}
before = resident()
arrays = [numpy.ones(2**23) for _ in range(4)]  # 64 MiB each
del arrays
print(changed, resident() - before > 2**27)
"""
ASK = "changed = dualnet.keep_freed_memory()"
BUILD = "changed = bool(dualnet.zoo.build('lstm', units=4, vocabulary_size=9))"


def told(change, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(change=change)],
        capture_output=True, text=True, check=True, env={**kept, **environment},
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
class TestKeepFreedMemory:
    def test_it_keeps_large_arrays_that_are_freed(self):
        assert told(ASK) == ["True", "True"]

    def test_an_allocator_that_the_environment_sets_up_is_left_alone(self):
        assert told(ASK, MALLOC_ARENA_MAX="2") == ["False", "False"]

    @pytest.mark.slow
    def test_a_model_does_so_on_tensorflow_unless_the_environment_prevents_it(self):
        kept = str(keras.config.backend() == "tensorflow")
        assert told(BUILD) == ["True", kept]
        assert told(BUILD, MALLOC_ARENA_MAX="2") == ["True", "False"]
