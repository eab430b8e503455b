"""The stations of a model: each owns its arguments, their documentation and checks.

embedding -> recurrent layers -> connection -> output, and over a whole model a gate or a cache;
in a translator an encoder and an attention. A rule that concerns two stations stands in `Stations`,
those of a translator in `builders.encoder_decoder`.
"""

import dataclasses
import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self, get_type_hints

import keras
from keras import ops

from dualnet import layers
from dualnet._checks import ArgumentError, check_choice, check_count, check_fraction
from dualnet._fields import Settings, choice, field
from dualnet.builders import parts
from dualnet.builders.cells import COMMON, arguments_of
from dualnet.builders.initializers import INITIALIZERS, NEEDS_RANGE, initialise
from dualnet.cards import with_members
from dualnet.layers._configured import l2_regularizer
from dualnet.layers._keras_cell import KerasCell
from dualnet.layers.doc_output import ACTIVATIONS, BALANCE_FORMS
from dualnet.layers.neural_cache import SCALE, STARTS, WEIGHT


class Station(Settings):
    """One choice in the making of a model. A subclass owns its fields, which are builder arguments.

    A field `x` is the argument `x` of the builders; `help` of a builder is made from its
    documentation.
    """


class PartStation(Station):
    """A station whose part may be one of your own; `options` are the arguments of it alone."""

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def names(cls) -> list[str]:
        return [name for name in super().names() if name != "options"]

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), **self.options}


def state_inputs(sizes: Sequence[int], *, after: int) -> list[Any]:
    """Return a symbolic input per state, `(batch, size)`, numbered from `after` + 1."""
    named = {f"state_{number}": size for number, size in enumerate(sizes, start=after + 1)}
    return [keras.Input((size,), dtype="float32", name=name) for name, size in named.items()]


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
    """int. Size of every layer whose own size is not given."""

    embedding_units: int | None = None
    """int. Size of the embedding."""

    recurrent_units: int | Sequence[int] | None = None
    """int, the size of every recurrent layer; or one for each layer, those of a depth-gated stack
    included. A plain connection into a tied output sets the last one to `embedding_units`."""

    recurrent_layers: int = 1
    """int, at least 1."""

    dual_units: int | None = field(None, unless={"connection": "plain", "tied": True})
    """int. Size of the dual layer; `embedding_units` by default, and always where the output is
    tied."""

    latent_units: int | None = field(None, unless={"experts": 0, "tied": True})
    """int. Size of the experts' latent vectors; `embedding_units` by default, and always where the
    output is tied."""

    def check(self) -> None:
        units = self.recurrent_units
        for size in units if isinstance(units, Sequence) else [1 if units is None else units]:
            check_count("recurrent_units", size, least=1)

    def resolve(self, *, last: int | None = None) -> LayerSizes:
        """Return the size of each layer; that of the last recurrent one must be `last`, if any."""
        embedding = self.embedding_units or self.units
        if embedding is None:
            required = "or `embedding_units` must be given. Received: None for both."
            raise ArgumentError("units", required)
        recurrent = self.recurrent_units or self.units or embedding
        if isinstance(recurrent, Sequence):
            sizes = list(recurrent)
            if len(sizes) != self.recurrent_layers:
                several = f"one for each of the {self.recurrent_layers} `recurrent_layers`"
                self.refuse("recurrent_units", f"must be one size, or {several}.")
            if last not in (None, sizes[-1]):
                reason = "since the output is tied to the embedding."
                self.refuse("recurrent_units", f"must end with `embedding_units`, {last}, {reason}")
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
        self, tokens: Any, vocabulary_size: int, units: int, *, name: str = "embedding"
    ) -> tuple[Any, Any]:
        """Return the embedding layer, and its vectors `(batch, time, units)`."""
        # The logits of a fresh tied model then vary by about 1 per unit of its input, as in the
        # reference code of Melis et al. Keras's default, a third of that, starts far slower.
        start = keras.initializers.RandomNormal(stddev=units**-0.5)
        penalty = l2_regularizer(self.embedding_l2)
        settings = {"embeddings_initializer": start, "embeddings_regularizer": penalty}
        layer = keras.layers.Embedding(vocabulary_size, units, **settings, name=name)
        return layer, self.vectors(tokens, layer, name=name)

    def vectors(
        self, tokens: Any, layer: keras.layers.Embedding, *, name: str = "embedding"
    ) -> Any:
        """Return the vectors of `tokens`, `(batch, time, units)`, with dropout."""
        embedded = layer(ops.maximum(tokens, 0) if self.padded else tokens)
        if self.embedding_dropout > 0:
            settings = {"per_row": self.embedding_dropout_per_row, "name": f"{name}_dropout"}
            settings["vocabulary_size"] = layer.input_dim
            dropout = layers.EmbeddingDropout(self.embedding_dropout, **settings)
            embedded = dropout([tokens, embedded])
        return embedded

    def mask(self, tokens: Any) -> Any:
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
        if not isinstance(self.locked_dropouts, (list, tuple)):
            self.refuse("locked_dropouts", f"must be a list of some of {list(PLACES)}.")
        for place in self.locked_dropouts:
            check_choice("locked_dropouts", place, PLACES)

    def drop(self, place: str, rate: float, tensor: Any, *, name: str | None = None) -> Any:
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

    skip_connections: bool = field(False, unless={"recurrent_layers": 1})
    """bool. Whether the output is the sum of the outputs of all recurrent layers, which must then
    be of one size (Melis et al., 2020)."""

    residual: bool = field(False, unless={"recurrent_layers": 1})
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

    internal_dropout: float = field(0.0, unless={"recurrent_layers": 1})
    """Between recurrent layers."""

    cell_dropout: float = 0.0
    """On the output of each recurrent layer, wherever it is read."""

    output_dropout: float = 0.0
    """On the output of the last recurrent layer, or on the sum of all."""

    mogrifier_dropout: float = field(0.0, unless={"rounds": 0})
    """Between the factors of the Mogrifier's matrices."""

    mask_per_gate: bool = False
    """bool. Whether the masks of "input", "internal" (as the inputs of cells) and "recurrent"
    differ by gate (Gal and Ghahramani)."""

    input_l2: float = 0.0
    """Penalty: times the sum of squares of every layer's input matrix."""

    recurrent_l2: float = 0.0
    """The same for the recurrent matrices."""

    mogrifier_l2: float = field(0.0, unless={"rounds": 0})
    """The same for all matrices of the Mogrifier."""

    activation_l2: float = 0.0
    """Times the sum over time and units, and the mean over the batch, of the squared outputs of
    each recurrent layer (as Keras's `activity_regularizer`; the paper is silent)."""

    activation_regularization: float = 0.0
    """AR of AWD-LSTM, its alpha; in training only, as everything named `_regularization`."""

    temporal_activation_regularization: float = 0.0
    """TAR of AWD-LSTM, its beta."""

    @classmethod
    def idle(cls, settings: Mapping[str, Any]) -> set[str]:
        names = super().idle(settings)
        if settings.get("rounds") == 0:
            names.add("rank")  # of the Mogrifier
        if "internal_dropout" in parts.options_of("cell", settings.get("cell", cls.cell)):
            names.discard("internal_dropout")  # of a stack inside one cell
        return names

    def check(self) -> None:
        parts.check_options(self.cell, self.options)
        if self.residual and self.skip_connections:
            self.refuse("residual", "must be False with skip_connections=True.", "skip_connections")

    def run(
        self, embedded: Any, layer_units: Sequence[int], dropouts: Dropouts, mask: Any
    ) -> tuple[list[Any], Any, list[Any], list[Any]]:
        """Run the layers over `embedded`; `mask` is False where a step is padding, or None.

        Returns:
            What enters each layer, and what leaves the last one, each with its dropout; then
            `hidden`, the states, and the new states, as those of `Graph`.
        """
        if (self.skip_connections or self.residual) and len(set(layer_units)) > 1:
            received = f"Received: {list(layer_units)}. Set recurrent_units to embedding_units."
            joined = "residual" if self.residual else "skip_connections"
            raise ArgumentError(joined, f"needs recurrent layers of one size. {received}")
        x = embedded
        if not self.mask_per_gate:  # else the cells drop their inputs themselves
            x = dropouts.drop("input", self.input_dropout, x)
        levels, outputs = [], []
        below: Any = None  # the sum of the outputs so far, with `residual`
        states: list[Any] = []
        new_states: list[Any] = []
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
            states, new_states = states + inputs, new_states + final
            if self.activation_l2 > 0:
                name = f"activation_{number}"
                x = keras.layers.ActivityRegularization(l2=self.activation_l2, name=name)(x)
            x = dropouts.drop("cell", self.cell_dropout, x, name=f"cell_dropout_{number}")
            outputs.append(x)
            if self.residual and number > 1:
                x = keras.layers.Add(name=f"residual_{number}")([below, x])
            below = x
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
        kind = parts.class_of("cell", self.cell)
        # The dropout before this layer, whose masks the cell draws with `mask_per_gate`.
        place = "input" if number == 1 else "internal"
        rate = self.input_dropout if number == 1 else self.internal_dropout
        places = {"input": place}  # of the cell's own dropouts, by the names here
        of_cell = getattr(kind, "dropouts", ())
        taken = arguments_of(kind)
        names = [*COMMON, *(name for name in parts.FOR_SOME_CELLS if name in taken)]
        settings = {name: getattr(self, name) for name in names if name in self.names()}
        settings |= {
            "input_dropout": rate if self.mask_per_gate else 0.0,
            "locked": [p for p in of_cell if places.get(p, p) in dropouts.locked_dropouts],
            **({"rounds": 0} if "rounds" in taken else {}),  # the options may have another number
            **self.options,
        }
        name = f"cell_{number}"
        in_use = {n: n for n, v in settings.items() if v != getattr(type(self), n, v)}
        if hasattr(kind, "mask_specs"):
            return parts.make_part("cell", self.cell, units, settings, in_use, name=name)
        for n in ("dropout", "recurrent_dropout"):
            if settings.get(n):
                reason = "which would draw its masks inside the loop."
                way_out = " Set it to 0, or derive the cell from dualnet.layers.RecurrentCell."
                required = f"must be 0 for the cell {self.cell!r}, {reason}"
                raise ArgumentError(n, required, way_out, **{n: settings[n]})
        return KerasCell(parts.make_part("cell", self.cell, units, settings, in_use), name=name)


class Connection(PartStation):
    """What joins the recurrent output to the output layer: nothing, or the current word."""

    connection: str = field("plain", parts.class_of)
    """"plain"; "dual", a dual layer on the embedding and the recurrent output; or
    "dual_without_input", that layer without the embedding (the paper's mdLSTM+). Or a class of your
    own, or its registered name."""

    dual_input_dropout: float = field(0.0, unless={"connection": "plain"})
    """On the embedding where it enters the dual layer (our reading of the paper's "before the dual
    layer", which may include the recurrent output)."""

    dual_output_dropout: float = field(0.0, unless={"connection": "plain"})
    """On the output of the dual layer."""

    dual_l2: float = field(0.0, unless={"connection": "plain"})
    """Penalty: times the sum of squares of both matrices of the dual layer."""

    @property
    def is_dual(self) -> bool:
        """Whether there is a dual layer, or one of your own in its place."""
        return self.connection != "plain"

    def connect(self, embedded: Any, recurrent_output: Any, units: int, dropouts: Dropouts) -> Any:
        """Return the output of the dual layer, `(batch, time, units)`; only if there is one."""
        embedded = dropouts.drop("dual_input", self.dual_input_dropout, embedded)
        settings = {"dual_l2": self.dual_l2}
        if self.connection in parts.CONNECTIONS:
            use_input = self.connection == "dual"
            layer = layers.DualConnection(units, use_input=use_input, **settings, name="connection")
        else:
            in_use = {"dual_l2": "dual_l2"} if self.dual_l2 else {}
            settings |= self.options
            layer = parts.make_part("connection", self.connection, units, settings, in_use)
        x = layer([embedded, recurrent_output])
        check_last_axis("connection", self.connection, x, units)
        return dropouts.drop("dual_output", self.dual_output_dropout, x)


def check_last_axis(argument: str, part: str | None, tensor: Any, size: int) -> None:
    """Raise `ArgumentError` unless what a part of your own returns is `(batch, time, size)`."""
    shape = getattr(tensor, "shape", None)
    if shape is None or len(shape) != 3 or shape[-1] != size:
        required = f"must return one tensor of the shape (batch, time, {size})."
        returned = type(tensor).__name__ if shape is None else shape
        raise ArgumentError(argument, f"{required} Received: {part!r}, which returns {returned}.")


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

    latent_activation: str = choice("tanh", ACTIVATIONS, unless={"experts": 0})
    """"tanh" (with bias, as released), or "linear" (without, as the DOC paper prints it)."""

    latent_dropout: float = field(0.0, unless={"experts": 0})
    """On the latent vectors of the experts."""

    latent_dropout_per_expert: bool = field(False, unless={"experts": 0})
    """bool. Whether each expert has its own mask (MoS); else all share one (DOC)."""

    balance_regularization: float = field(0.0, unless={"experts": 0})
    """Weight of the penalty on unbalanced experts, lambda of the DOC paper."""

    balance_form: str = choice("code", BALANCE_FORMS, unless={"experts": 0})
    """"code" (as released, to which the paper's lambda of 0.001 belongs), or "paper"; see
    `DOCOutput`."""

    past_decode_regularization: float = 0.0
    """lambda of Brahma, 2019; see `PastDecode`. Needs a tied output."""

    def check(self) -> None:
        counts = self.experts if isinstance(self.experts, (list, tuple)) else [self.experts]
        total = sum(check_count("experts", count, least=0) for count in counts)
        if isinstance(self.experts, (list, tuple)) and total == 0:
            way_out = " For one softmax give 0."
            self.refuse("experts", "must have at least one that is not 0.", way_out=way_out)
        if total and self.output is not None:
            self.refuse("experts", "must be 0 beside an output of your own.", "output")
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
            required = f"must have {len(levels)} numbers, one for each layer: {', '.join(names)}."
            raise ArgumentError("experts", f"{required} Received: experts={list(self.experts)}.")
        return list(levels)

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
        common: Any = {"tied_to": tied_to, "use_bias": self.output_bias, "name": "output"}
        if not self.experts:
            return layers.OutputProjection(None if self.tied else vocabulary_size, **common)
        mixture = layers.DOCOutput if isinstance(self.experts, Sequence) else layers.MixtureSoftmax
        names = [n for n in self.names() if n.startswith("latent_") or n == "balance_form"]
        common |= {name: getattr(self, name) for name in names}
        common |= {"latent_dropout_locked": "latent" in dropouts.locked_dropouts}
        common |= {"balance": self.balance_regularization}
        return mixture(vocabulary_size, self.experts, latent_units, **common)

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
                what = "regularizers of your own, other than keras.regularizers.L2."
                received = f"and {weight.path} with {type(present).__name__}"
                received = f"Received: weight_l2={self.weight_l2!r}, {received}."
                raise ArgumentError("weight_l2", f"must be 0 beside {what} {received}")
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
            message = f"must be {wanted} for initializer={self.initializer!r}."
            self.refuse("initializer_range", message)

    def initialize(self, core: keras.Model) -> None:
        """Draw new initial weights for `core`."""
        initialise(core, self.initializer, self.initializer_range)


class Encoder(Station):
    """What reads the source: the memory that the decoder attends to, and its first state."""

    encoder: str = choice("bidirectional", ("bidirectional", "embeddings"))
    """"bidirectional": recurrent layers like the decoder's that read the source from its start, and
    others that read it from its end; or "embeddings", the vectors of the source words alone
    (depth-gated LSTM)."""

    encoder_merge: str = choice("sum", ("sum", "concatenate"))
    """How both directions become one vector for each position, and one first state: "sum" (DOC); or
    "concatenate", with half of the units in each direction."""

    first_state: str = choice("encoder", ("encoder", "learned", "zeros"))
    """Where the decoder starts: "encoder", layer by layer from the states after the last step of
    both directions; "learned", one state for all sentences, which starts as zero; or "zeros"."""

    def check(self) -> None:
        if self.encoder == "embeddings" and self.first_state == "encoder":
            what = "must be 'learned' or 'zeros' with encoder='embeddings', which has no states."
            self.refuse("first_state", what)

    def sizes(self, layer_units: Sequence[int]) -> list[int]:
        """Return the units of each layer in each direction, for a decoder of `layer_units`."""
        if self.encoder_merge == "sum":
            return list(layer_units)
        odd = [units for units in layer_units if units % 2]
        if odd and self.encoder == "bidirectional":
            required = "must be even with encoder_merge='concatenate',"
            reason = f"where each direction has half of them. Received: {odd[0]}."
            raise ArgumentError("recurrent_units", f"{required} {reason}")
        return [units // 2 for units in layer_units]

    def read(
        self, embedded: Any, mask: Any, layer_units: Sequence[int], stations: "CommonStations"
    ) -> tuple[Any, list[Any]]:
        """Return the memory `(batch, source, size)`, and the states after both directions.

        Args:
            embedded: the vectors of the source words, `(batch, source, units)`.
            mask: bool `(batch, source)`, False at padding.
            layer_units: of the decoder.
            stations: those of the decoder, whose cells and dropouts the encoder has.
        """
        recurrent, dropouts = stations.recurrent, stations.dropouts
        per_gate = recurrent.mask_per_gate
        if not per_gate or self.encoder == "embeddings":
            rate = recurrent.input_dropout
            embedded = dropouts.drop("input", rate, embedded, name="source_dropout")
        if self.encoder == "embeddings":
            return embedded, []

        def stack(direction: str, x: Any, mask: Any) -> list[Any]:
            """Return the output of the layers of one direction, and their states."""
            states: list[Any] = []
            for number, units in enumerate(self.sizes(layer_units), start=1):
                name = f"encoder_{direction}_{number}"
                if number > 1 and not per_gate:
                    rate = recurrent.internal_dropout
                    x = dropouts.drop("internal", rate, x, name=f"{name}_dropout")
                cell = recurrent.make_cell(number, units, dropouts)
                x, *final = layers.Recurrence(cell, name=name)(x, mask=mask)
                states += final
            return [x, *states]

        forward = stack("forward", embedded, mask)
        backward = stack("backward", ops.flip(embedded, 1), ops.flip(mask, 1))
        backward[0] = ops.flip(backward[0], 1)  # in the order of the source
        merges = {"sum": ops.add, "concatenate": lambda *pair: ops.concatenate(pair, axis=-1)}
        memory, *states = map(merges[self.encoder_merge], forward, backward)
        return memory, states


@dataclasses.dataclass(frozen=True)
class Decoder:
    """The recurrence of the decoder, and the layers of its readout."""

    recurrence: layers.Recurrence
    readout: Sequence[keras.layers.Dense] | None

    def run(
        self, embedded: Any, constants: Sequence[Any], states: Sequence[Any]
    ) -> tuple[list[Any], Any, list[Any]]:
        """Return the outputs of all cells, the attentional vector, and the new states."""
        inputs = {"initial_state": list(states), "constants": list(constants)}
        outputs, *new_states = self.recurrence(embedded, **inputs)
        sizes = self.recurrence.cell.level_sizes
        ends = [sum(sizes[:number]) for number in range(1, len(sizes))]
        *levels, last = ops.split(outputs, ends, axis=-1)
        if self.readout is None:
            return levels, last, new_states
        context, word = self.readout
        return levels, ops.tanh(levels[-1] + context(last) + word(embedded)), new_states


class Attention(Station):
    """How the decoder looks at the source, and what it hands to the output."""

    attention: str = choice("general", ("general", "additive"))
    """"general" (Luong): the attentional vector a = tanh(W [h; c]) of the highest output h and the
    context c enters the output, and the next step (input feeding); or "additive" (Bahdanau): the
    context of the step before enters the recurrence, and the output reads a = tanh(h + Q c + P e),
    e the current word (depth-gated LSTM)."""

    attention_units: int | None = None
    """int. Size of a; `embedding_units` by default, and always where the output is tied. With
    "additive", a is as wide as h."""

    alignment_units: int = 32
    """int. Size of the hidden layer that scores a position, for "additive"."""

    def keys(self, memory: Any, layer_units: Sequence[int]) -> Any:
        """Return a key for each vector of the memory, which the steps compare with a query."""
        units = layer_units[-1] if self.attention == "general" else self.alignment_units
        return keras.layers.Dense(units, use_bias=False, name="keys")(memory)

    def decoder(self, layer_units: Sequence[int], size: int, stations: "CommonStations") -> Decoder:
        """Return the decoder, whose attentional vector has the `size`."""
        recurrent, dropouts = stations.recurrent, stations.dropouts
        cells = [recurrent.make_cell(n, u, dropouts) for n, u in enumerate(layer_units, start=1)]
        settings: dict[str, Any] = {
            "internal_dropout": 0.0 if recurrent.mask_per_gate else recurrent.internal_dropout,
            "internal_locked": "internal" in dropouts.locked_dropouts,
            "name": "attention",
        }
        if self.attention == "general":
            cell = layers.GeneralAttentionCell(cells, size, **settings)
            return Decoder(layers.Recurrence(cell, name="decoder"), None)
        units, names = layer_units[-1], ("readout_context", "readout_embedding")
        readout = [keras.layers.Dense(units, use_bias=False, name=name) for name in names]
        cell = layers.AdditiveAttentionCell(cells, self.alignment_units, **settings)
        return Decoder(layers.Recurrence(cell, name="decoder"), readout)


GATES = ("none", "input", "input_and_hidden", "lstm")


class Gate(Station):
    """The input-to-output gate on the logits of a trained, frozen model."""

    gate: str = choice("none", GATES)
    """"none"; "input" (`IOGate`); or its variants "input_and_hidden" and "lstm" (an LSTM over the
    gate's own embedding; the paper is silent on its forget bias, here 1, and its initial weights,
    those of `LSTMCell`). The model below is frozen, its dropouts and penalties are off. See
    `dualnet.with_gate`."""

    gate_units: int = field(300, unless={"gate": "none"})
    """int. Size of the gate's embedding (and LSTM)."""

    gate_dropout: float = field(0.0, unless={"gate": "none"})
    """On the gate's embedding, a fresh mask at each step."""

    gate_initializer_range: float = field(0.05, unless={"gate": "none"})
    """The gate's matrices start uniform within it."""

    @property
    def is_used(self) -> bool:
        """Whether there is a gate."""
        return self.gate != "none"

    def apply(
        self,
        tokens: Any,
        logits: Sequence[Any],
        hidden: Sequence[Any],
        *,
        padded: bool,
        states: int,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the gated logits of each model, and the gate's states before and after.

        `logits` and `hidden` are those of each model; the gate's states are numbered behind the
        `states` of the models.
        """
        words = logits[0].shape[-1]
        if self.gate != "lstm":
            use_hidden = self.gate == "input_and_hidden"
            settings: Any = {"dropout": self.gate_dropout, "use_hidden": use_hidden}
            settings["initializer_range"] = self.gate_initializer_range
            gate = layers.IOGate(words, self.gate_units, **settings, name="gate")
            read = hidden if use_hidden else ()
            return keras.tree.flatten(gate([tokens, *read, *logits])), [], []
        scale = self.gate_initializer_range
        start = keras.initializers.RandomUniform(-scale, scale)
        settings = {"embeddings_initializer": start, "name": "gate_embedding"}
        embedding = keras.layers.Embedding(words, self.gate_units, **settings)
        embedded = embedding(ops.maximum(tokens, 0) if padded else tokens)
        embedded = layers.StepDropout(self.gate_dropout, name="gate_dropout")(embedded)
        cell = layers.LSTMCell(self.gate_units, name="gate_cell")
        before = state_inputs(cell.state_size, after=states)
        recurrence = layers.Recurrence(cell, name="gate_recurrence")
        mask = tokens >= 0 if padded else None
        features, *after = recurrence(embedded, initial_state=before, mask=mask)
        gated = layers.FeatureGate(words, initializer_range=scale, name="gate")([features, *logits])
        return keras.tree.flatten(gated), before, after


class Cache(Station):
    """The neural cache on top of everything else. It has no weights."""

    cache_size: int = 0
    """int. Words that the neural cache remembers (`NeuralCache`), 0 for none. See
    `dualnet.with_cache`. Past decoding is left out beside it."""

    cache_weight: float = field(WEIGHT, check_fraction, unless={"cache_size": 0})
    """Of the cache's probabilities, at least 0 and below 1 (lambda)."""

    cache_scale: float = field(SCALE, unless={"cache_size": 0})
    """Of the products of hidden vectors in the cache (theta)."""

    cache_start: str = choice(STARTS[0], STARTS, unless={"cache_size": 0})
    """"at_once" or "when_full"."""

    @property
    def is_used(self) -> bool:
        """Whether there is a cache."""
        return self.cache_size > 0

    def check_padding(self, padded: bool) -> None:
        """Raise `ArgumentError` for a cache over a model of padded sentences."""
        if self.is_used and padded:
            what = "must be 0 for a model of padded sentences, which a cache would reach across."
            raise ArgumentError("cache_size", what, cache_size=self.cache_size, padded=True)

    def apply(
        self, tokens: Any, hidden: Any, logits: Any, *, states: int
    ) -> tuple[Any, list[Any], list[Any]]:
        """Return the log-probabilities with the cache, and its states before and after.

        The cache's keys are `hidden`; its states are numbered behind the model's `states`.
        """
        settings = {name: getattr(self, f"cache_{name}") for name in ("weight", "scale", "start")}
        cache = layers.NeuralCache(self.cache_size, **settings, name="cache")
        before = state_inputs(cache.state_sizes(hidden.shape[-1]), after=states)
        log_probabilities, *after = cache([tokens, hidden, logits], initial_state=before)
        return log_probabilities, before, after


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommonStations:
    """The stations of every kind of model."""

    sizes: Sizes
    embedding: Embedding
    recurrent: Recurrent
    connection: Connection
    output: Output
    dropouts: Dropouts
    regularization: Regularization
    initialization: Initialization

    @classmethod
    def classes(cls) -> dict[str, type[Station]]:
        """Return the class of each station by its name here."""
        return get_type_hints(cls)

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """Return the stations that flat builder `arguments` describe.

        What no station knows is an argument of the cell, or of a connection or output of your own.
        `rounds` of 0, and then any `rank`, may be given for every cell, as they are in files of
        0.2.0.

        Raises:
            ArgumentError: if a value is out of range, or values contradict each other.
        """
        arguments = parts.with_names(arguments)
        sizes = arguments.get("recurrent_units")
        if (
            isinstance(sizes, Sequence)
            and len(sizes) > 1
            and arguments.get("cell") == "depth_gated_lstm"
            and arguments.get("recurrent_layers", 1) == 1
        ):  # one cell is the whole stack
            if len(sizes) != (depth := arguments.get("depth", 1)):
                required = f"must be one size, or one for each of the {depth} layers of `depth`."
                raise ArgumentError("recurrent_units", required, recurrent_units=sizes, depth=depth)
            arguments = {**arguments, "recurrent_units": sizes[-1], "lower_units": sizes[:-1]}
        fields = {name: s.fields_of(arguments) for name, s in cls.classes().items()}
        known = {name for station in cls.classes().values() for name in station.names()}
        options = parts.options_by_part(arguments, known)
        known |= set() if arguments.get("rounds", 0) else {"rounds", "rank"}
        others = {key: value for key, value in arguments.items() if key not in known}
        for part in ("connection", "output"):
            own = [key for key in options[part] if key in others]
            fields[part]["options"] = {key: others.pop(key) for key in own}
        fields["recurrent"]["options"] = others
        kinds: Any = cls.classes().items()  # of stations of any class
        return cls(**{name: kind(**fields[name]) for name, kind in kinds})

    def arguments(self) -> dict[str, Any]:
        """Return the flat builder arguments of all stations."""
        stations = [getattr(self, name).arguments().items() for name in self.classes()]
        return dict(itertools.chain(*stations))

    def top(
        self,
        embedding: keras.layers.Embedding,
        embedded: Any,
        levels: list[Any],
        sizes: LayerSizes,
        vocabulary_size: int,
        *,
        attentional: bool = False,
    ) -> dict[str, Any]:
        """Put connection and output on the `levels` below; return their fields of the `Graph`."""
        dual, dropouts = self.connection.is_dual, self.dropouts
        if dual:
            levels = [*levels, self.connection.connect(embedded, levels[-1], sizes.dual, dropouts)]
        features = self.output.features(levels, dual=dual, attentional=attentional)
        head = self.output.layer(vocabulary_size, sizes.latent, embedding, dropouts)
        logits = head(features)
        check_last_axis("output", self.output.output, logits, vocabulary_size)
        logits = logits if logits.dtype == "float32" else ops.cast(logits, "float32")
        return {"word_logits": logits, "features": features, "head": head}

    def start(self, core: keras.Model) -> None:
        """Draw the initial weights of `core`, and add the penalties on all of them."""
        self.initialization.initialize(core)
        self.regularization.regularize(core)

    def check_tied(self, sizes: LayerSizes, name: str, size: int) -> None:
        """Raise `ArgumentError` unless what enters a tied output is as wide as the embedding.

        These are the latent vectors of experts, else the dual layer, else a layer whose `size` is
        the argument `name`.
        """
        if self.output.experts:
            name, size = "latent_units", sizes.latent
        elif self.connection.is_dual:
            name, size = "dual_units", sizes.dual
        if self.output.tied and size != sizes.embedding:
            reason = f"since the output is tied to the embedding. Received: {name}={size}."
            raise ArgumentError(name, f"must equal `embedding_units`, {sizes.embedding}, {reason}")

    def layer_sizes(self) -> LayerSizes:
        """Return the size of each layer; raise `ArgumentError` where two do not fit together."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stations(CommonStations):
    """All stations of one language model, and the rules that concern two of them."""

    gate: Gate
    cache: Cache

    def __post_init__(self) -> None:
        self.layer_sizes()
        self.cache.check_padding(self.embedding.padded)
        self.output.check_mixture("latent_units", self.sizes.latent_units)
        if (dual := self.sizes.dual_units) is not None and not self.connection.is_dual:
            required = "needs connection='dual'."
            raise ArgumentError("dual_units", required, dual_units=dual, connection="plain")
        self.recurrent.make_cell(1, 2, self.dropouts)  # checks the options of the cell

    def layer_sizes(self) -> LayerSizes:
        embedding = self.sizes.embedding_units or self.sizes.units
        enters_output = not self.output.experts and not self.connection.is_dual
        # A last recurrent layer is then as wide as the embedding, whatever `units`.
        is_tied = self.output.tied and enters_output
        sizes = self.sizes.resolve(last=embedding if is_tied else None)
        self.check_tied(sizes, "recurrent_units", sizes.embedding)
        return sizes


STATIONS = Stations.classes()
# Arguments of the stations over a whole model, and the values that leave these out.
WRAPPERS: dict[str, Any] = {**Gate().arguments(), **Cache().arguments()}


def without_regularization(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return builder `arguments` with all dropouts and penalties at 0, those of members too."""
    off = ("_dropout", "_l2", "_regularization")
    without = {name: 0.0 if name.endswith(off) else value for name, value in arguments.items()}
    return with_members(without, without_regularization)
