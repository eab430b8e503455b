"""Silences what TensorFlow writes to standard error that tells users nothing."""

import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

LEVEL = "TF_CPP_MIN_LOG_LEVEL"


class _Finder(MetaPathFinder):
    """Hides standard error while TensorFlow is imported, which no setting of its own does."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                from dualnet._contexts import hidden_stderr

                with hidden_stderr(bool):
                    execute(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _is_no_retracing(record: logging.LogRecord) -> bool:
    # TensorFlow counts the tracings of all models and readers of Keras as those of one function.
    return "triggered tf.function retracing" not in record.getMessage()


def quiet() -> None:
    """Hide the start-up messages of TensorFlow, and its warnings about retracing.

    What fails raises an exception, so that even errors may be hidden. If the environment sets
    TF_CPP_MIN_LOG_LEVEL, that decides what is shown.
    """
    logging.getLogger("tensorflow").addFilter(_is_no_retracing)
    if LEVEL not in os.environ:
        os.environ[LEVEL] = "3"
        if "tensorflow" not in sys.modules:
            sys.meta_path.insert(0, _Finder())
