"""The types of the arguments of the builders, for type checkers.

`tests/test_zoo.py` compares the names with the fields of the stations and the options of the cells.
"""

from collections.abc import Sequence
from typing import Any, TypedDict

import keras

Class = type[keras.layers.Layer]


class ModelSettings(TypedDict, total=False):
    """`ModelArguments` but `output`, which for `train` is a folder."""

    units: int | None
    embedding_units: int | None
    recurrent_units: int | Sequence[int] | None
    recurrent_layers: int
    dual_units: int | None
    latent_units: int | None
    padded: bool
    embedding_dropout: float
    embedding_dropout_per_row: bool
    embedding_l2: float
    cell: str | Class
    use_bias: bool
    skip_connections: bool
    residual: bool
    input_dropout: float
    recurrent_dropout: float
    weight_dropout: float
    internal_dropout: float
    cell_dropout: float
    output_dropout: float
    mogrifier_dropout: float
    mask_per_gate: bool
    input_l2: float
    recurrent_l2: float
    mogrifier_l2: float
    activation_l2: float
    activation_regularization: float
    temporal_activation_regularization: float
    connection: str | Class
    dual_input_dropout: float
    dual_output_dropout: float
    dual_l2: float
    tied: bool
    output_bias: bool
    experts: int | Sequence[int]
    latent_activation: str
    latent_dropout: float
    latent_dropout_per_expert: bool
    balance_regularization: float
    balance_form: str
    past_decode_regularization: float
    locked_dropouts: Sequence[str]
    weight_l2: float
    fraternal_regularization: float
    initializer: str
    initializer_range: float
    gate: str
    gate_units: int
    gate_dropout: float
    gate_initializer_range: float
    cache_size: int
    cache_kind: str
    cache_weight: float
    cache_scale: float
    cache_start: str
    encoder: str
    encoder_merge: str
    first_state: str
    attention: str
    attention_units: int | None
    alignment_units: int
    # Of some cells.
    affine: bool
    capped_input_gate: bool
    coupled: bool
    depth: int
    depth_gated: bool
    epsilon: float
    first_gate: str
    forget_bias: float | str
    gate_reads: str
    lower_units: Sequence[int] | None
    peepholes: str
    placement: str
    rank: int | None
    rounds: int
    stabilised: bool
    transform_bias: float


class ModelArguments(ModelSettings, total=False):
    """The arguments of stations and of the cells of this package, which the stations document."""

    output: str | Class | None


class Overrides(ModelArguments, total=False):
    """What `zoo.build` takes: the arguments of every builder."""

    vocabulary_size: int | None
    source_vocabulary_size: int | None
    share_embeddings: bool
    members: Sequence[Any]
    core: str
