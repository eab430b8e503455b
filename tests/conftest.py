"""The environment of all tests, whose fixtures are in `tests/fixtures.py`."""

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")  # sums in one order, as the command line does
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as `import dualnet` does
# No test may read or write what the user keeps there; each process has its own, and removes it.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="dualnet-tests-")
# Read at import: `datasets`, which lm_eval uses, reports the use of local files to a server, too.
os.environ["HF_HUB_OFFLINE"] = "1"
# JAX compiles a loop anew at every eager call; the cache knows it by its content.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{os.environ['XDG_CACHE_HOME']}/jax")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # tests compile much and run little
if os.environ.get("KERAS_BACKEND") == "jax":  # whose emitters of fused loops take half of that
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)


def pytest_configure(config):
    # The controller of pytest-xdist runs no test: it need not load a backend, which takes seconds.
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("tests.fixtures")
