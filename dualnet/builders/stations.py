"""The stations of a model: each owns its arguments, their documentation and checks.

embedding -> recurrent layers -> connection -> output. A rule that concerns two stations stands in
`builders.composing`; what stands over a whole model in `builders.wrapping_stations`, and what only
a translator has in `builders.translation_stations`.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
from keras import ops

from dualnet import layers
from dualnet._checks import ArgumentError, check_choice, check_count
from dualnet._fields import Settings, choice, field
from dualnet._types import Tensor
from dualnet.builders import parts
from dualnet.builders.cells import COMMON, arguments_of
from dualnet.builders.initializers import INITIALIZERS, NEEDS_RANGE, initialise
from dualnet.cards import Arguments
from dualnet.layers._configured import l2_regularizer
from dualnet.layers._keras_cell import KerasCell
from dualnet.layers.doc_output import ACTIVATIONS, BALANCE_FORMS


class Station(Settings):
    """One choice in the making of a model. A subclass owns its fields, which are builder arguments.

    A field `x` is the argument `x` of the builders; `help` of a builder is made from its
    documentation.
    """


class PartStation(Station):
    """A station whose part may be one of your own; `options` are the arguments of it alone."""

    options: Arguments = dataclasses.field(default_factory=dict)

    @classmethod
    def names(cls) -> list[str]:
        return [name for name in super().names() if name != "options"]

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), **self.options}


def state_inputs(sizes: Sequence[int], *, after: int) -> list[Tensor]:
    """Return a symbolic input per state, `(batch, size)`, numbered from `after` + 1."""
    return [
        keras.Input((size,), dtype="float32", name=f"state_{number}")
        for number, size in enumerate(sizes, start=after + 1)
    ]


@dataclasses.dataclass(frozen=True)
class LayerSizes:
    """The size of each layer of one model, whether it has a dual layer and experts or not."""

    embedding: int
    recurrent: tuple[int, ...]  # the lowest layer first
    dual: int
    latent: int  # of the experts' latent vectors
    attentional: int = 0  # of the attentional vector of a translator


class Sizes(Station):
    """The sizes of the layers, under the names of Table 1 of Oliva and Lago-Fernandez."""

    units: int | None = None
    """int. Size of the embedding and of every recurrent layer, unless their own is given."""

    embedding_units: int | None = None
    """int. Size of the embedding."""

    recurrent_units: int | Sequence[int] | None = None
    """int, the size of every recurrent layer; or one for each layer, those of a depth-gated stack
    included. A plain connection into a tied output sets the last one to `embedding_units`."""

    recurrent_layers: int = 1
    """int, at least 1."""

    dual_units: int | None = None
    """int. Size of the dual layer; `embedding_units` by default, and always where the output is
    tied."""

    latent_units: int | None = None
    """int. Size of the experts' latent vectors; `embedding_units` by default, and always where the
    output is tied."""

    def check(self) -> None:
        for size in keras.tree.flatten(self.recurrent_units):
            if size is not None:
                check_count("recurrent_units", size)

    def resolve(self, *, last: int | None = None) -> LayerSizes:
        """Return the size of each layer; that of the last recurrent one must be `last`, if any."""
        embedding = self.embedding_units or self.units
        if embedding is None:
            raise ArgumentError("units", "or `embedding_units` must be given.")
        recurrent = self.recurrent_units or self.units or embedding
        if isinstance(recurrent, Sequence):
            sizes = list(recurrent)
            if len(sizes) != self.recurrent_layers:
                required = "must be one size, or one for each of the recurrent layers."
                self.refuse("recurrent_units", required, "recurrent_layers")
            if last not in (None, sizes[-1]):
                required = f"must end with `embedding_units`, {last}, since the output is tied."
                self.refuse("recurrent_units", required)
        else:
            sizes = [recurrent] * self.recurrent_layers
            sizes[-1] = last or recurrent
        dual, latent = self.dual_units or embedding, self.latent_units or embedding
        return LayerSizes(embedding, tuple(sizes), dual, latent)


class Embedding(Station):
    """Word vectors."""

    padded: bool = False
    """bool. Whether tokens below 0 are padding, which changes no state and counts for nothing.
    Batches of sentences need it; it costs some speed."""

    embedding_dropout: float = 0.0
    """Rate at which whole words are dropped, at every place in the segment where they stand."""

    embedding_dropout_per_row: bool = False
    """bool. Whether each row draws its own words (variational LSTM); else all rows share one draw
    (AWD-LSTM)."""

    embedding_l2: float = 0.0
    """Penalty: times the sum of squares of the embedding (and output) matrix."""

    def embed(
        self, tokens: Tensor, vocabulary_size: int, units: int, *, name: str = "embedding"
    ) -> tuple[keras.layers.Embedding, Tensor]:
        """Return the embedding layer, and its vectors `(batch, time, units)`."""
        # The logits of a fresh tied model then vary by about 1 per unit of its input, as in the
        # reference code of Melis et al. Keras's default, a third of that, starts far slower.
        start = keras.initializers.RandomNormal(stddev=units**-0.5)
        layer = keras.layers.Embedding(
            vocabulary_size,
            units,
            embeddings_initializer=start,
            embeddings_regularizer=l2_regularizer(self.embedding_l2),
            name=name,
        )
        return layer, self.vectors(tokens, layer, name=name)

    def vectors(
        self, tokens: Tensor, layer: keras.layers.Embedding, *, name: str = "embedding"
    ) -> Tensor:
        """Return the vectors of `tokens`, `(batch, time, units)`, with dropout."""
        embedded = layer(ops.maximum(tokens, 0) if self.padded else tokens)
        if self.embedding_dropout > 0:
            dropout = layers.EmbeddingDropout(
                self.embedding_dropout,
                vocabulary_size=layer.input_dim,
                per_row=self.embedding_dropout_per_row,
                name=f"{name}_dropout",
            )
            embedded = dropout([tokens, embedded])
        return embedded

    def mask(self, tokens: Tensor) -> Tensor | None:
        """Return the mask of `tokens`, bool `(batch, time)`, or None without padding."""
        return tokens >= 0 if self.padded else None


# The places of dropouts that may be locked: `input` is the argument `input_dropout`.
PLACES = (
    "input", "recurrent", "internal", "cell", "output", "dual_input", "dual_output", "mogrifier",
    "latent",
)  # fmt: skip


class Dropouts(Station):
    """How long a dropout keeps its mask. The rates belong to the stations where they act."""

    locked_dropouts: Sequence[str] = ("input", "recurrent", "mogrifier", "latent")
    """The dropouts that keep one mask for a whole segment, by name without `_dropout`; the others
    draw a fresh mask at each step. Default (our choice, the paper is silent): what the arguments of
    a Keras recurrent layer do, and fresh masks elsewhere."""

    def check(self) -> None:
        for place in self.locked_dropouts:
            check_choice("locked_dropouts", place, PLACES)

    def drop(self, place: str, rate: float, tensor: Tensor, *, name: str | None = None) -> Tensor:
        """Return `tensor` with dropout at `rate`, locked or fresh as `place` says."""
        if rate == 0:
            return tensor
        layer = layers.LockedDropout if place in self.locked_dropouts else layers.StepDropout
        return layer(rate, name=name or f"{place}_dropout")(tensor)


SLOW = (
    "The cell {!r} runs whole at each step, which adds to the gradients of all its weights: "
    "training takes longer than with a cell derived from dualnet.layers.RecurrentCell."
)


class Recurrent(PartStation):
    """The recurrent layers: their cells, dropouts and penalties."""

    cell: str = field("lstm", parts.class_of)
    """Name of a recurrent cell, one of `dualnet.builders.CELLS`; or a class of your own, a subclass
    of `dualnet.layers.RecurrentCell` or any Keras cell, or its registered name."""

    use_bias: bool = True
    """bool. Whether the cells have biases."""

    skip_connections: bool = False
    """bool. Whether the output is the sum of the outputs of all recurrent layers, which must then
    be of one size (Melis et al., 2020)."""

    residual: bool = False
    """bool. Whether each recurrent layer but the first reads the sum of the outputs of all below
    it, and the output that of all (Melis, 2022). With two layers and no dropout, the same as
    `skip_connections`. The layers must be of one size."""

    input_dropout: float = 0.0
    """On the embedding where it enters the recurrence."""

    recurrent_dropout: float = 0.0
    """On each layer's incoming h, in the Mogrifier before its rounds."""

    weight_dropout: float = 0.0
    """On single weights of the recurrent matrices, one draw for all rows of a segment (AWD-LSTM).
    """

    internal_dropout: float = 0.0
    """Between recurrent layers."""

    cell_dropout: float = 0.0
    """On the output of each recurrent layer, wherever it is read."""

    output_dropout: float = 0.0
    """On the output of the last recurrent layer, or on the sum of all."""

    mogrifier_dropout: float = 0.0
    """Between the factors of the Mogrifier's matrices."""

    mask_per_gate: bool = False
    """bool. Whether the masks of "input", "internal" (as the inputs of cells) and "recurrent"
    differ by gate (Gal and Ghahramani)."""

    input_l2: float = 0.0
    """Penalty: times the sum of squares of every layer's input matrix."""

    recurrent_l2: float = 0.0
    """The same for the recurrent matrices."""

    mogrifier_l2: float = 0.0
    """The same for all matrices of the Mogrifier."""

    activation_l2: float = 0.0
    """Times the sum over time and units, and the mean over the batch, of the squared outputs of
    each recurrent layer (as Keras's `activity_regularizer`; the paper is silent)."""

    activation_regularization: float = 0.0
    """AR of AWD-LSTM, its alpha; in training only, as everything named `_regularization`."""

    temporal_activation_regularization: float = 0.0
    """TAR of AWD-LSTM, its beta."""

    excludes: ClassVar = {"skip_connections": ["residual"]}

    def run(
        self, embedded: Tensor, layer_units: Sequence[int], dropouts: Dropouts, mask: Tensor | None
    ) -> tuple[list[Tensor], Tensor, list[Tensor], list[Tensor]]:
        """Run the layers over `embedded`; `mask` is False where a step is padding, or None.

        Returns:
            What enters each layer, and what leaves the last one, each with its dropout; then
            `hidden`, the states, and the new states, as those of `Graph`.
        """
        x = embedded
        if not self.mask_per_gate:  # else the cells drop their inputs themselves
            x = dropouts.drop("input", self.input_dropout, x)
        levels = []
        outputs: list[Tensor] = []
        states: list[Tensor] = []
        new_states = []
        for number, units in enumerate(layer_units, start=1):
            if number > 1 and not self.mask_per_gate:
                name = f"internal_dropout_{number}" if number > 2 else None
                x = dropouts.drop("internal", self.internal_dropout, x, name=name)
            levels.append(x)
            cell = self.make_cell(number, units, dropouts)
            if isinstance(cell, KerasCell) and number == 1:
                warnings.warn(SLOW.format(self.cell), RuntimeWarning, stacklevel=2)
            inputs = state_inputs(cell.state_size, after=len(states))
            recurrence = layers.Recurrence(cell, name=f"recurrence_{number}")
            x, *final = recurrence(x, initial_state=inputs, mask=mask)
            states += inputs
            new_states += final
            if self.activation_l2 > 0:
                name = f"activation_{number}"
                x = keras.layers.ActivityRegularization(l2=self.activation_l2, name=name)(x)
            x = dropouts.drop("cell", self.cell_dropout, x, name=f"cell_dropout_{number}")
            if self.residual and number > 1:
                x = keras.layers.Add(name=f"residual_{number}")([outputs[-1], x])
            outputs.append(x)
        if self.skip_connections and len(outputs) > 1:
            x = keras.layers.Add(name="skip_connections")(outputs)
        hidden, x = x, dropouts.drop("output", self.output_dropout, x)
        ar, tar = self.activation_regularization, self.temporal_activation_regularization
        if ar or tar:
            name = "activation_regularization"
            x = layers.ActivationRegularization(activation=ar, temporal=tar, name=name)([x, hidden])
        return [*levels, x], hidden, states, new_states

    def make_cell(self, number: int, units: int, dropouts: Dropouts) -> keras.layers.Layer:
        """Return the cell of layer `number`, from 1, of size `units`."""
        cell_class = parts.class_of("cell", self.cell)
        taken = arguments_of(cell_class)
        names = [*COMMON, *(name for name in parts.FOR_SOME_CELLS if name in taken)]
        settings = {name: getattr(self, name) for name in names if name in self.names()}
        # The dropout before this layer, whose masks the cell draws with `mask_per_gate`.
        place = "input" if number == 1 else "internal"
        settings["input_dropout"] = getattr(self, f"{place}_dropout") if self.mask_per_gate else 0.0
        settings["locked"] = [
            dropout
            for dropout in getattr(cell_class, "dropouts", ())
            if (place if dropout == "input" else dropout) in dropouts.locked_dropouts
        ]
        if "rounds" in taken:
            settings["rounds"] = 0
        settings |= self.options
        name = f"cell_{number}"
        in_use = {n: n for n, v in settings.items() if v != getattr(type(self), n, v)}
        if hasattr(cell_class, "mask_specs"):
            return parts.make_part("cell", self.cell, units, settings, in_use, name=name)
        for n in ("dropout", "recurrent_dropout"):
            if settings.get(n):
                raise ArgumentError(
                    n,
                    f"must be 0 for the cell {self.cell!r}, which draws masks in the loop.",
                    " Derive the cell from dualnet.layers.RecurrentCell.",
                    **{n: settings[n]},
                )
        return KerasCell(parts.make_part("cell", self.cell, units, settings, in_use), name=name)


class Connection(PartStation):
    """Joins the current word to the recurrent output, or passes the latter on."""

    connection: str = field("plain", parts.class_of)
    """"plain"; "dual", a dual layer on the embedding and the recurrent output; or
    "dual_without_input", that layer without the embedding (the paper's mdLSTM+). Or a class of your
    own, or its registered name."""

    dual_input_dropout: float = 0.0
    """On the embedding where it enters the dual layer (our reading of the paper's "before the dual
    layer", which may include the recurrent output)."""

    dual_output_dropout: float = 0.0
    """On the output of the dual layer."""

    dual_l2: float = 0.0
    """Penalty: times the sum of squares of both matrices of the dual layer."""

    @property
    def is_dual(self) -> bool:
        """Whether there is a dual layer, or one of your own in its place."""
        return self.connection != "plain"

    def connect(
        self, embedded: Tensor, recurrent_output: Tensor, units: int, dropouts: Dropouts
    ) -> Tensor:
        """Return the output of the dual layer, `(batch, time, units)`; only if there is one."""
        embedded = dropouts.drop("dual_input", self.dual_input_dropout, embedded)
        if self.connection in parts.CONNECTIONS:
            layer = layers.DualConnection(
                units,
                use_input=self.connection == "dual",
                dual_l2=self.dual_l2,
                name="connection",
            )
        else:
            in_use = {"dual_l2": "dual_l2"} if self.dual_l2 else {}
            settings = {"dual_l2": self.dual_l2, **self.options}
            layer = parts.make_part("connection", self.connection, units, settings, in_use)
        x = layer([embedded, recurrent_output])
        check_last_axis("connection", self.connection, x, units)
        return dropouts.drop("dual_output", self.dual_output_dropout, x)


def check_last_axis(argument: str, part: str | None, tensor: Tensor, size: int) -> None:
    """Raise `ArgumentError` unless what a part of your own returns is `(batch, time, size)`."""
    if len(tensor.shape) != 3 or tensor.shape[-1] != size:
        required = f"must return one tensor of the shape (batch, time, {size})."
        raise ArgumentError(argument, f"{required} Received: {part!r} with {tensor.shape}.")


class Output(PartStation):
    """Logits of all words: tied or free, one softmax or a mixture of several."""

    output: str | None = field(None, parts.class_of)
    """A class of your own, or its registered name, in place of all below but `tied` and
    `output_bias`; None for none."""

    tied: bool = True
    """bool. Whether the output takes the embedding matrix; else it has its own."""

    output_bias: bool = False
    """bool. Whether it has a bias."""

    experts: int | Sequence[int] = 0
    """int or list of int. 0: one softmax. A number: a mixture of so many, fed by what enters the
    output (`MixtureSoftmax`). A list: one number for each layer, the embedding first, then the
    recurrent layers, then the attentional vector of an encoder-decoder, then the dual layer if
    there is one (`DOCOutput`)."""

    latent_activation: str = choice("tanh", ACTIVATIONS)
    """"tanh" (with bias, as released), or "linear" (without, as the DOC paper prints it)."""

    latent_dropout: float = 0.0
    """On the latent vectors of the experts."""

    latent_dropout_per_expert: bool = False
    """bool. Whether each expert has its own mask (MoS); else all share one (DOC)."""

    balance_regularization: float = 0.0
    """Weight of the penalty on unbalanced experts, lambda of the DOC paper."""

    balance_form: str = choice("code", BALANCE_FORMS)
    """"code" (as released, to which the paper's lambda of 0.001 belongs), or "paper"; see
    `DOCOutput`."""

    past_decode_regularization: float = 0.0
    """lambda of Brahma, 2019; see `PastDecode`. Needs a tied output."""

    needs: ClassVar = {"experts": ["latent_dropout", "balance_regularization"]}
    excludes: ClassVar = {"output": ["experts"]}

    def check(self) -> None:
        counts = [check_count("experts", n, least=0) for n in keras.tree.flatten(self.experts)]
        if self.balance_regularization and sum(counts) == 1:
            self.refuse("balance_regularization", "needs more than one expert.", "experts")
        if self.past_decode_regularization and not self.tied:
            self.refuse("past_decode_regularization", "needs a tied output.", "tied")

    def features(self, levels: list[Tensor]) -> Tensor | list[Tensor]:
        """Return the input of the output layer: the last of `levels`, or the list of all.

        These are the outputs of all layers, the embedding first.
        """
        if not isinstance(self.experts, Sequence):
            return levels[-1]
        if len(self.experts) != len(levels):
            required = f"must have {len(levels)} numbers, the first for the embedding, and one for"
            self.refuse("experts", f"{required} each layer above it.")
        return levels

    def layer(
        self,
        vocabulary_size: int,
        latent_units: int,
        embedding: keras.layers.Embedding,
        dropouts: Dropouts,
    ) -> keras.layers.Layer:
        """Return the output layer, which reads the `features`."""
        tied_to = embedding if self.tied else None
        if self.output is not None:
            settings = {"tied_to": tied_to, "use_bias": self.output_bias, **self.options}
            in_use = {"tied": "tied_to"} if self.tied else {}
            in_use |= {"output_bias": "use_bias"} if self.output_bias else {}
            return parts.make_part("output", self.output, vocabulary_size, settings, in_use)
        if not self.experts:
            words = None if self.tied else vocabulary_size
            return layers.OutputProjection(
                words, tied_to=tied_to, use_bias=self.output_bias, name="output"
            )
        mixture = layers.DOCOutput if isinstance(self.experts, Sequence) else layers.MixtureSoftmax
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

    def past_decode(self, embedding: keras.layers.Embedding) -> layers.PastDecode | None:
        """Return the layer that adds the penalty of past decoding, or None."""
        factor = self.past_decode_regularization
        return layers.PastDecode(factor, tied_to=embedding, name="past_decode") if factor else None


class Regularization(Station):
    """Penalties on the model as a whole."""

    weight_l2: float = 0.0
    """Penalty: times the sum of squares of all weights, biases included."""

    fraternal_regularization: float = 0.0
    """kappa of Zolna et al., 2018: a step reads the segment twice, with different masks, from the
    same state; the loss is the mean of both, plus kappa times the mean squared difference of the
    logits. The state of one reading is carried on, and all other penalties count once, for that
    reading. (By default, the released code leaves out the cross-entropy of the other reading.)"""

    def regularize(self, core: keras.Model) -> None:
        """Add the penalty on all weights to the penalties that they have."""
        for weight in core.trainable_variables if self.weight_l2 else ():
            present = weight.regularizer
            if not isinstance(present, (keras.regularizers.L2, type(None))):
                self.refuse(
                    "weight_l2",
                    f"must be 0 beside regularizers of your own, as that of {weight.path}.",
                )
            weight.regularizer = l2_regularizer(getattr(present, "l2", 0.0) + self.weight_l2)


class Initialization(Station):
    """The initial weights."""

    initializer: str = choice("keras", INITIALIZERS)
    """How weights start. "keras": each layer's own; our choice for the embedding, normal with
    standard deviation 1 / sqrt(units). "uniform": all weights, biases included, uniform within
    initializer_range (Zaremba et al.). "uniform_matrices": matrices uniform within
    initializer_range; biases each layer's own (the Chainer models of Takase et al., recurrent
    highway networks). "by_units": all weights of a cell uniform within 1 / sqrt(units), as in
    PyTorch (which has two biases where there is one here); those of the experts within 1 /
    sqrt(size in), other matrices within initializer_range (AWD-LSTM). "by_shape": all weights
    uniform within sqrt(6 / sum of their dimensions), where each gate's part of a matrix or bias and
    each vector of the embedding counts separately (depth-gated LSTM). "by_fan_in": matrices
    truncated normal with standard deviation 1 / sqrt(size in); a cell's biases likewise by its
    units, added to the forget bias; the embedding by its units; the rounds of a Mogrifier the
    layer's own (Melis et al.)."""

    initializer_range: float = 0.0
    """float, for the initializers that need it."""

    def check(self) -> None:
        needs_range = self.initializer in NEEDS_RANGE
        if (self.initializer_range > 0) != needs_range:
            wanted = "above 0" if needs_range else "0"
            self.refuse(
                "initializer_range", f"must be {wanted} for initializer={self.initializer!r}."
            )

    def initialize(self, core: keras.Model) -> None:
        """Draw new initial weights for `core`."""
        initialise(core, self.initializer, self.initializer_range)
