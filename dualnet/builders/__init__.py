"""Builders of whole models, and the model that they return."""

from dualnet.builders.cells import CELLS
from dualnet.builders.encoder_decoder import encoder_decoder
from dualnet.builders.functional import language_model
from dualnet.builders.graph import token_losses
from dualnet.builders.model import BUILDERS, LanguageModel
from dualnet.builders.own_core import core_model
from dualnet.builders.translation_model import TranslationModel
from dualnet.builders.weights import Transfer, assign, transfer, weight_names
from dualnet.builders.wrapping import ensemble, ensemble_model, with_cache, with_gate

__all__ = [
    "BUILDERS", "CELLS", "LanguageModel", "Transfer", "TranslationModel", "assign", "core_model",
    "encoder_decoder", "ensemble", "ensemble_model", "language_model", "token_losses", "transfer",
    "weight_names", "with_cache", "with_gate",
]  # fmt: skip
