from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from dualnet._checks import ArgumentError, check_count
from dualnet._fields import choice, field
from dualnet.builders.stations.dropouts import Dropouts
from dualnet.builders.stations.station import Station
from dualnet.layers import DOCOutput, MixtureSoftmax, OutputProjection, PastDecode
from dualnet.layers.doc_output import ACTIVATIONS, BALANCE_FORMS


class Output(Station):
    """Logits of all words: tied or free, one softmax or a mixture of several.

    Args:
        tied: bool. Whether the output takes the embedding matrix; else it has its own.
        output_bias: bool. Whether it has a bias.
        experts: int or list of int. 0: one softmax. A number: a mixture of so many, fed by
            what enters the output (`MixtureSoftmax`). A list: one number for each layer, the
            embedding first, then the recurrent layers, then the attentional vector of an
            encoder-decoder, then the dual layer if there is one (`DOCOutput`).
        latent_activation: "tanh" (with bias, as released), or "linear" (without, as the DOC
            paper prints it).
        latent_dropout: On the latent vectors of the experts.
        latent_dropout_per_expert: bool. Whether each expert has its own mask (MoS); else all
            share one (DOC).
        balance_regularization: Weight of the penalty on unbalanced experts, lambda of the DOC
            paper.
        balance_form: "code" (as released, to which the paper's lambda of 0.001 belongs), or
            "paper"; see `DOCOutput`.
        past_decode_regularization: lambda of Brahma, 2019; see `PastDecode`. Needs a tied
            output.
    """

    tied: bool = True
    output_bias: bool = False
    experts: int | Sequence[int] = 0
    latent_activation: str = choice("tanh", ACTIVATIONS, unless={"experts": 0})
    latent_dropout: float = field(0.0, unless={"experts": 0})
    latent_dropout_per_expert: bool = field(False, unless={"experts": 0})
    balance_regularization: float = field(0.0, unless={"experts": 0})
    balance_form: str = choice("code", BALANCE_FORMS, unless={"experts": 0})
    past_decode_regularization: float = 0.0

    def check(self) -> None:
        counts = self.experts if isinstance(self.experts, (list, tuple)) else [self.experts]
        total = sum(check_count("experts", count, least=0) for count in counts)
        if isinstance(self.experts, (list, tuple)) and total == 0:
            way_out = " For one softmax give 0."
            self.refuse("experts", "must have at least one that is not 0.", way_out=way_out)
        if total == 0:
            for name in ("latent_dropout", "balance_regularization"):
                self.check_mixture(name, getattr(self, name))
        if total == 1 and self.balance_regularization:
            message = "needs more than one expert to balance."
            self.refuse("balance_regularization", message, "experts")
        if self.past_decode_regularization and not self.tied:
            message = "needs a tied output. Received: tied=False. Set it to 0."
            raise ArgumentError("past_decode_regularization", message)

    def check_mixture(self, name: str, value: Any) -> None:
        """Raise `ArgumentError` if `value` is set though there are no experts."""
        if value and not self.experts:
            raise ArgumentError(name, f"needs experts. Received: {name}={value!r}, experts=0.")

    def features(self, levels: Sequence[Any], *, dual: bool, attentional: bool = False) -> Any:
        """Return the input of the output layer: the last of `levels`, or the list of all.

        These are the outputs of all layers, the embedding first, and last an `attentional` vector
        and a `dual` layer.
        """
        if not isinstance(self.experts, Sequence):
            return levels[-1]
        if len(self.experts) != len(levels):
            count = len(levels) - 1 - attentional - dual
            names = ["the embedding", *(f"recurrent layer {i + 1}" for i in range(count))]
            names += ["the attentional vector"] * attentional + ["the dual connection"] * dual
            raise ArgumentError(
                "experts",
                f"must have {len(levels)} numbers, one for each layer: {', '.join(names)}. "
                f"Received: experts={list(self.experts)}.",
            )
        return list(levels)

    def layer(
        self,
        vocabulary_size: int,
        latent_units: int,
        embedding: keras.layers.Embedding,
        dropouts: Dropouts,
    ) -> OutputProjection | DOCOutput:
        """Return the output layer, which reads the `features`."""
        tied_to = embedding if self.tied else None
        if not self.experts:
            return OutputProjection(
                None if self.tied else vocabulary_size,
                tied_to=tied_to,
                use_bias=self.output_bias,
                name="output",
            )
        mixture = DOCOutput if isinstance(self.experts, Sequence) else MixtureSoftmax
        return mixture(
            vocabulary_size,
            self.experts,
            latent_units,
            tied_to=tied_to,
            use_bias=self.output_bias,
            latent_activation=self.latent_activation,
            latent_dropout=self.latent_dropout,
            latent_dropout_per_expert=self.latent_dropout_per_expert,
            latent_dropout_locked="latent" in dropouts.locked_dropouts,
            balance=self.balance_regularization,
            balance_form=self.balance_form,
            name="output",
        )

    def past_decode(self, embedding: keras.layers.Embedding) -> PastDecode | None:
        """Return the layer that adds the penalty of past decoding, or None."""
        factor = self.past_decode_regularization
        return PastDecode(factor, tied_to=embedding, name="past_decode") if factor else None
