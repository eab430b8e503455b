"""Builders of whole models, and the model that they return."""

# With `as`: what other rooms use, beside the public names.
from dualnet.builders.bucketing import bucket_length as bucket_length
from dualnet.builders.cells import CELLS
from dualnet.builders.encoder_decoder import encoder_decoder
from dualnet.builders.functional import language_model
from dualnet.builders.graph import Graph as Graph
from dualnet.builders.graph import token_losses
from dualnet.builders.model import BUILDERS, LanguageModel
from dualnet.builders.own_core import core_model
from dualnet.builders.reader import Question as Question
from dualnet.builders.reader import Reader as Reader
from dualnet.builders.reader import reader_of as reader_of
from dualnet.builders.translation_model import TranslationModel
from dualnet.builders.weights import Transfer, assign, transfer, weight_names
from dualnet.builders.weights import check_language_model as check_language_model
from dualnet.builders.weights import check_model as check_model
from dualnet.builders.weights import checksum_of as checksum_of
from dualnet.builders.weights import names_in as names_in
from dualnet.builders.wrapping import cached as cached
from dualnet.builders.wrapping import ensemble, ensemble_model, with_cache, with_gate

__all__ = [
    "BUILDERS", "CELLS", "LanguageModel", "Transfer", "TranslationModel", "assign", "core_model",
    "encoder_decoder", "ensemble", "ensemble_model", "language_model", "token_losses", "transfer",
    "weight_names", "with_cache", "with_gate",
]  # fmt: skip
