"""Freed memory stays in the process, where one asks for it."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import dualnet, numpy
changed = dualnet.keep_freed_memory()
arrays = [numpy.ones(2**23) for _ in range(4)]  # 64 MiB each
del arrays
with open("/proc/self/statm") as file:
    print(changed, int(file.read().split()[1]) * 4096 > 2**28)
"""


def told(**environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True, text=True, check=True, env={**kept, **environment},
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
class TestKeepFreedMemory:
    def test_it_keeps_large_arrays_that_are_freed(self):
        assert told() == ["True", "True"]

    def test_an_allocator_that_the_environment_sets_up_is_left_alone(self):
        assert told(MALLOC_ARENA_MAX="2") == ["False", "False"]
