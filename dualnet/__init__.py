"""dualnet: recurrent language models in Keras 3. Modules are loaded when they are used."""

import importlib.util
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualnet import extras as extras  # adds its formats to `export`

# TensorFlow reads this when it is imported. By default it leaves oneDNN's matrix products off on
# processors without AVX-512, where they are faster, too.
_processor = Path("/proc/cpuinfo")
_is_late = "tensorflow" in sys.modules and "TF_ENABLE_ONEDNN_OPTS" not in os.environ
if _is_late and _processor.is_file() and "avx512f" not in _processor.read_text("utf-8"):
    warnings.warn("TensorFlow is slower here if dualnet is imported after it.", stacklevel=2)
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# What fails raises an exception, so that even its errors may be hidden.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# It counts the tracings of all models and readers of Keras as those of one function.
logging.getLogger("tensorflow").addFilter(
    lambda record: "triggered tf.function retracing" not in record.getMessage()
)

if TYPE_CHECKING:
    from dualnet import adaptation as adaptation
    from dualnet import analysis as analysis
    from dualnet import corpora as corpora
    from dualnet import evaluation as evaluation
    from dualnet import generation as generation
    from dualnet import layers as layers
    from dualnet import lm_eval as lm_eval
    from dualnet import ray as ray
    from dualnet import runs as runs
    from dualnet import serving as serving
    from dualnet import text as text
    from dualnet import training as training
    from dualnet import tuning as tuning
    from dualnet import zoo as zoo
    from dualnet._checks import ArgumentError as ArgumentError
    from dualnet.adaptation import dynamic_evaluation as dynamic_evaluation
    from dualnet.adaptation import gradient_statistics as gradient_statistics
    from dualnet.adaptation import surprisal as surprisal
    from dualnet.allocator import keep_freed_memory as keep_freed_memory
    from dualnet.builders import LanguageModel as LanguageModel
    from dualnet.builders import assign as assign
    from dualnet.builders import ensemble as ensemble
    from dualnet.builders import transfer as transfer
    from dualnet.builders import weight_names as weight_names
    from dualnet.builders import with_cache as with_cache
    from dualnet.builders import with_gate as with_gate
    from dualnet.devices import data_parallel as data_parallel
    from dualnet.evaluation import best_temperature as best_temperature
    from dualnet.evaluation import check_causal as check_causal
    from dualnet.evaluation import compare as compare
    from dualnet.evaluation import evaluate as evaluate
    from dualnet.evaluation import minimal_pairs as minimal_pairs
    from dualnet.evaluation import perplexity as perplexity
    from dualnet.evaluation import score as score
    from dualnet.generation import Completer as Completer
    from dualnet.generation import complete as complete
    from dualnet.generation import generate as generate
    from dualnet.generation import keystrokes as keystrokes
    from dualnet.generation import translate as translate
    from dualnet.learners import Learner as Learner
    from dualnet.learners import read_many as read_many
    from dualnet.looking import look as look
    from dualnet.rescoring import rescore as rescore
    from dualnet.runs import load as load
    from dualnet.serving import export as export
    from dualnet.training import train as train

_MODULES = ("analysis", "builders", "corpora", "layers", "tuning", "zoo")
_NAMES = {  # of each module
    "_checks": "ArgumentError",
    "adaptation": "dynamic_evaluation gradient_statistics surprisal",
    "allocator": "keep_freed_memory",
    "builders": "LanguageModel assign ensemble transfer weight_names with_cache with_gate",
    "devices": "data_parallel",
    "evaluation": "best_temperature check_causal compare evaluate minimal_pairs perplexity score",
    "generation": "Completer complete generate keystrokes translate",
    "learners": "Learner read_many",
    "looking": "look",
    "rescoring": "rescore",
    "runs": "load",
    "serving": "export",
    "training": "train",
}
_FUNCTIONS = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [*_MODULES, *_FUNCTIONS]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"dualnet.{_FUNCTIONS[name]}"), name)
    if not name.startswith("_") and importlib.util.find_spec(f"dualnet.{name}"):
        return importlib.import_module(f"dualnet.{name}")
    raise AttributeError(f"module 'dualnet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
