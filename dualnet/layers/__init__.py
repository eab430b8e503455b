"""Cells, connections, outputs, dropouts and penalties for any Keras model."""

from dualnet.layers._records import record
from dualnet.layers._recurrent_cell import FusedCell, RecurrentCell, product
from dualnet.layers._segment import without_gradients
from dualnet.layers.activation_regularization import ActivationRegularization
from dualnet.layers.adaptation_matrix import AdaptationMatrix
from dualnet.layers.additive_attention_cell import AdditiveAttentionCell
from dualnet.layers.depth_gated_lstm_cell import DepthGatedLSTMCell
from dualnet.layers.doc_output import DOCOutput
from dualnet.layers.dual_connection import DualConnection
from dualnet.layers.elman_cell import ElmanCell
from dualnet.layers.embedding_dropout import EmbeddingDropout
from dualnet.layers.feature_gate import FeatureGate
from dualnet.layers.first_state import FirstState
from dualnet.layers.general_attention_cell import GeneralAttentionCell
from dualnet.layers.gru_cell import GRUCell
from dualnet.layers.io_gate import IOGate
from dualnet.layers.layer_norm_gru_cell import LayerNormGRUCell
from dualnet.layers.layer_norm_lstm_cell import LayerNormLSTMCell
from dualnet.layers.locked_dropout import LockedDropout
from dualnet.layers.lstm_cell import LSTMCell
from dualnet.layers.mean_of_probabilities import MeanOfProbabilities
from dualnet.layers.mixture_softmax import MixtureSoftmax
from dualnet.layers.mogrifier_lstm_cell import MogrifierLSTMCell
from dualnet.layers.neural_cache import NeuralCache
from dualnet.layers.ngram_cache import NGramCache
from dualnet.layers.output_projection import OutputProjection
from dualnet.layers.past_decode import PastDecode
from dualnet.layers.per_gate_lstm_cell import PerGateLSTMCell
from dualnet.layers.recurrence import Recurrence
from dualnet.layers.recurrent_highway_cell import RecurrentHighwayCell
from dualnet.layers.rewired_lstm_cell import RewiredLSTMCell
from dualnet.layers.step_dropout import StepDropout

__all__ = [
    "ActivationRegularization", "AdaptationMatrix", "AdditiveAttentionCell", "DOCOutput",
    "DepthGatedLSTMCell", "DualConnection", "ElmanCell", "EmbeddingDropout", "FeatureGate",
    "FirstState", "FusedCell", "GRUCell", "GeneralAttentionCell", "IOGate", "LSTMCell",
    "LayerNormGRUCell", "LayerNormLSTMCell", "LockedDropout", "MeanOfProbabilities",
    "MixtureSoftmax", "MogrifierLSTMCell", "NGramCache", "NeuralCache", "OutputProjection",
    "PastDecode", "PerGateLSTMCell", "Recurrence", "RecurrentCell", "RecurrentHighwayCell",
    "RewiredLSTMCell", "StepDropout", "product", "record", "without_gradients",
]  # fmt: skip
