"""Loading whole models after `import dualnet.layers` alone: deprecated."""

import importlib
import itertools
import sys
import warnings

import keras


class LazyLanguageModel:
    """Stands in for `dualnet.builders.LanguageModel` until the builders are imported.

    Importing `dualnet.builders` registers the real class under the same name.
    """

    @classmethod
    def from_config(cls, config):
        warnings.warn(
            "Loading a whole model after `import dualnet.layers` alone is deprecated. Import "
            "`dualnet.builders` first, or load the file with `dualnet.load`.",
            DeprecationWarning,
            stacklevel=_stacklevel_of_the_caller_of_keras(),
        )
        return importlib.import_module("dualnet.builders").LanguageModel.from_config(config)


def register_lazy_language_model():
    """Register `LazyLanguageModel`, unless the real class is registered already."""
    keras.saving.get_custom_objects().setdefault("dualnet>LanguageModel", LazyLanguageModel)


def _stacklevel_of_the_caller_of_keras():
    # The default filter shows a DeprecationWarning only where it points at the user's script.
    frame = sys._getframe(2)
    for stacklevel in itertools.count(2):
        if frame.f_back is None or not frame.f_globals["__name__"].startswith("keras."):
            return stacklevel
        frame = frame.f_back
