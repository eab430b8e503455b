"""Builders by name, and the model that they return."""

from dualnet.builders.cells import CELLS
from dualnet.builders.combining import BUILDERS, ensemble, with_cache, with_gate
from dualnet.builders.ensembles import ensemble_model
from dualnet.builders.functional import language_model
from dualnet.builders.losses import token_losses
from dualnet.builders.model import LanguageModel
from dualnet.builders.weights import Transfer, transfer, weight_names

__all__ = [
    "BUILDERS",
    "CELLS",
    "LanguageModel",
    "Transfer",
    "ensemble",
    "ensemble_model",
    "language_model",
    "token_losses",
    "transfer",
    "weight_names",
    "with_cache",
    "with_gate",
]
