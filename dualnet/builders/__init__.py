"""Builders by name, and the model that they return."""

from dualnet.builders.cells import CELLS
from dualnet.builders.functional import language_model
from dualnet.builders.model import LanguageModel, token_losses
from dualnet.builders.weights import Transfer, transfer, weight_names

BUILDERS = {"language_model": language_model}

__all__ = [
    "BUILDERS",
    "CELLS",
    "LanguageModel",
    "Transfer",
    "language_model",
    "token_losses",
    "transfer",
    "weight_names",
]
