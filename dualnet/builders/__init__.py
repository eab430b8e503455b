"""Builders by name, and the model that they return."""

from dualnet.builders.cells import CELLS
from dualnet.builders.combining import BUILDERS, ensemble, with_cache, with_gate
from dualnet.builders.ensembles import ensemble_model
from dualnet.builders.functional import language_model
from dualnet.builders.model import LanguageModel, token_losses

__all__ = [
    "BUILDERS",
    "CELLS",
    "LanguageModel",
    "ensemble",
    "ensemble_model",
    "language_model",
    "token_losses",
    "with_cache",
    "with_gate",
]
