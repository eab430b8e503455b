import keras
from keras import ops

from dualnet._checks import (
    ArgumentError,
    check_choice,
    check_count,
    check_penalty,
    check_rate,
)
from dualnet.layers._configured import Role
from dualnet.layers._mixture import mixture_log_probabilities
from dualnet.layers._seeded import SeededLayer
from dualnet.layers._tied import TiedLayer, check_tied_size

ACTIVATIONS = ("linear", "tanh")
BALANCE_FORMS = ("code", "paper")


@keras.saving.register_keras_serializable("dualnet")
class DOCOutput(TiedLayer, SeededLayer):
    """Direct output connection: a mixture of softmaxes fed by several layers.

    k_j = tanh(W_j h^n + b_j),  pi = softmax(W_pi h^N),  P = sum_j pi_j softmax(E k_j + b)

    Expert j reads the layer n that it is assigned to; the prior pi reads the last layer N. The
    logarithm of P is exact, even if every softmax underflows in float32. Both forms, with and
    without targets, work in chunks of tokens. The backward pass of the form with targets needs
    a number for each token, expert and word: they are stored up to 1 GB, the rest is recomputed.
    That of the form without recomputes all.

    Args:
        vocabulary_size: int, at least 1.
        experts: list of int, at least 0 each and not all 0. The number of experts that read
            each layer, lowest layer first, which is also their order in pi.
        latent_units: int, at least 1. Size of each k_j.
        tied_to: `keras.layers.Embedding` whose matrix (vocabulary, latent_units) is E, or
            None for a separate matrix.
        use_bias: bool. Whether there is b, which all experts share.
        latent_activation: "tanh", with b_j; or "linear", `k_j = W_j h^n`.
        latent_dropout: float, at least 0 and below 1. Dropout of the features of all k_j.
        latent_dropout_per_expert: bool. Whether each expert has its own mask.
        latent_dropout_locked: bool. Whether all steps of a segment share one mask; otherwise
            each step has a fresh one.
        balance: float, at least 0. Adds `balance * cv ** 2` to the training loss, the squared
            coefficient of variation of how much each expert is used.
        balance_form: "code" or "paper". "paper": B is the sum of pi over all tokens of the
            batch, and cv = std(B) / mean(B). "code": S is the sum of pi over time, one
            value per row and expert, and cv ** 2 = (J - 1) var(S) / mean(S) ** 2 with
            J experts and the unbiased variance; differences between rows, in use or in
            length, count as well. The published factor 0.001 belongs to "code"; about 0.02
            gives "paper" the same strength with 20 experts.
        seed: int or None. The state of the generator is saved with the weights.

    Call arguments:
        inputs: list of `(batch, time, units_n)`, lowest layer first, one per entry of
            `experts`; the last one is h^N.
        targets: int `(batch, time)`, negative at padding; or None.
        mask: list of bool `(batch, time)` or None, one per input. Tokens at which the last one
            is False do not count in the penalty; without it, those with negative targets.
        temperature: float or scalar tensor that log P is divided by, or None for 1.
        inputs_mask: as `mask`; Keras fills it in where `targets` are given, too.

    Returns:
        float32 under every dtype policy; only the products run in the compute dtype. Without
        targets, log P of all words, `(batch, time, vocabulary)`: natural logarithms, which
        are logits too. With targets, their -log P, `(batch, time)`, in nats; a negative
        target gets that of word 0.

    Weights: `prior_kernel` (units_N, experts); for each layer n with experts, from 0,
    `latent_kernel_n` (units_n, experts_n * latent_units) and, with "tanh",
    `latent_bias_n` (experts_n * latent_units); `kernel` (latent_units, vocabulary) unless
    tied; `bias` (vocabulary) if used.

    Masking: passes on the mask of the last input.
    Saving: the tie survives as that of `OutputProjection` does.
    Differs from the paper: tanh and b_j are in the released code, not in the paper, whose form
    is "linear". The code adds 1e-8 to P, this layer nothing.
    Reference: Takase et al., 2018, https://arxiv.org/abs/1808.10143

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import DOCOutput
    >>> lower, upper = np.ones((2, 5, 3), "float32"), np.ones((2, 5, 4), "float32")
    >>> log_p = DOCOutput(vocabulary_size=10, experts=[1, 3], latent_units=4)([lower, upper])
    >>> tuple(log_p.shape)
    (2, 5, 10)
    """

    masked_input: int | None = -1

    def __init__(
        self,
        vocabulary_size,
        experts,
        latent_units,
        *,
        tied_to=None,
        use_bias=True,
        latent_activation="tanh",
        latent_dropout=0.0,
        latent_dropout_per_expert=False,
        latent_dropout_locked=True,
        balance=0.0,
        balance_form="code",
        seed=None,
        **kwargs,
    ):
        super().__init__(tied_to=tied_to, seed=seed, **kwargs)
        self.vocabulary_size = check_count("vocabulary_size", vocabulary_size)
        self.experts = check_experts(experts)
        self.latent_units = check_count("latent_units", latent_units)
        if tied_to is not None:
            check_tied_size("vocabulary_size", vocabulary_size, tied_to.input_dim, "rows")
            check_tied_size("latent_units", latent_units, tied_to.output_dim, "units")
        self.use_bias = use_bias
        self.latent_activation = check_choice("latent_activation", latent_activation, ACTIVATIONS)
        self.latent_dropout = check_rate("latent_dropout", latent_dropout)
        self.latent_dropout_per_expert = latent_dropout_per_expert
        self.latent_dropout_locked = latent_dropout_locked
        self.balance = check_penalty("balance", balance)
        self.balance_form = check_choice("balance_form", balance_form, BALANCE_FORMS)
        if self.balance and sum(self.experts) == 1:
            raise ArgumentError(
                "balance",
                "must be 0 with a single expert, which needs no balance.",
                balance=balance,
                experts=experts,
            )

    def _listed(self, of_layers):
        """Return the shapes, tensors or masks of the layers that are read, as a list."""
        return of_layers

    def build(self, inputs_shape):
        inputs_shape = self._listed(inputs_shape)
        if len(inputs_shape) != len(self.experts):
            received = f"Received: experts={self.experts!r} for {len(inputs_shape)} inputs."
            raise ArgumentError("experts", f"must have one count per input. {received}")
        shape = (inputs_shape[-1][-1], sum(self.experts))
        self.prior_kernel = self.add_matrix("prior_kernel", shape, role=Role.EXPERT)
        for n, (count, shape) in enumerate(zip(self.experts, inputs_shape)):
            if count:
                size = count * self.latent_units
                self.add_matrix(f"latent_kernel_{n}", (shape[-1], size), role=Role.EXPERT)
                if self.latent_activation == "tanh":
                    self.add_zeros(f"latent_bias_{n}", size, role=Role.BIAS)
        self.build_output(self.latent_units)

    def call(
        self, inputs, targets=None, mask=None, training=False, temperature=None, inputs_mask=None
    ):
        inputs = self._listed(inputs)
        log_priors = self._log_priors(inputs)
        if training and self.balance:
            mask = inputs_mask if mask is None else mask  # Keras fills in one of the two
            mask = self._listed(mask)[-1] if mask is not None else None
            if mask is None and targets is not None:
                mask = targets >= 0
            self.add_loss(self.balance * self.squared_variation(ops.exp(log_priors), mask))
        latents = self._latents(inputs, training)
        matrix, bias = self.output_weights()
        batch, time, experts, units = ops.shape(latents)
        targets = None if targets is None else ops.maximum(targets, 0)
        # The logits of the mixture are log P: another temperature needs those of all words.
        fused = targets is not None and temperature is None
        rows = ops.reshape(latents, (-1, experts, units)), ops.reshape(log_priors, (-1, experts))
        words = ops.reshape(targets, (-1,)) if fused else None
        words_first = self.tied_to is not None
        log_p = mixture_log_probabilities(*rows, matrix, bias, words, words_first=words_first)
        if fused:
            return -ops.reshape(log_p, (batch, time))
        logits = ops.reshape(log_p, (batch, time, self.vocabulary_size))
        logits = logits if temperature is None else logits / temperature
        if targets is None:
            return logits
        return ops.sparse_categorical_crossentropy(targets, logits, from_logits=True)

    def priors(self, inputs):
        """Return pi, the weights of the experts, float32 `(batch, time, experts)`."""
        return ops.exp(self._log_priors(self._listed(inputs)))

    def squared_variation(self, priors, mask=None):
        """Return cv ** 2 of `priors` `(batch, time, experts)` by `balance_form`, a scalar."""
        if mask is not None:
            priors = priors * ops.cast(mask, "float32")[..., None]
        if self.balance_form == "paper":
            used = ops.sum(priors, axis=(0, 1))
            spread = ops.var(used)
        else:
            used = ops.sum(priors, axis=1)
            values = ops.cast(ops.shape(used)[0] * sum(self.experts), "float32")
            spread = ops.var(used) * values / (values - 1) * (sum(self.experts) - 1)
        # The maximum: a batch of nothing but padding has no variation.
        return spread / ops.square(ops.maximum(ops.mean(used), 1e-6))

    def compute_output_spec(self, inputs, targets=None, **_):
        last = inputs[-1] if isinstance(inputs, list | tuple) else inputs
        words = (self.vocabulary_size,) if targets is None else ()
        return keras.KerasTensor((*last.shape[:-1], *words), "float32")

    def _log_priors(self, inputs):
        kernel = ops.cast(self.prior_kernel, self.compute_dtype)
        logits = ops.matmul(ops.cast(inputs[-1], self.compute_dtype), kernel)
        return ops.log_softmax(ops.cast(logits, "float32"), axis=-1)

    def _latents(self, inputs, training):
        """Return all k_j, `(batch, time, experts, latent_units)`."""
        latents = []
        for n in (n for n, count in enumerate(self.experts) if count):
            k = ops.matmul(inputs[n], getattr(self, f"latent_kernel_{n}"))
            if self.latent_activation == "tanh":
                k = ops.tanh(k + getattr(self, f"latent_bias_{n}"))
            latents.append(k)
        (batch, time, _), experts = ops.shape(latents[-1]), sum(self.experts)
        shape = (batch, time, experts, self.latent_units)
        latents = ops.reshape(ops.concatenate(latents, axis=-1), shape)
        if not training or self.latent_dropout == 0:
            return latents
        steps = 1 if self.latent_dropout_locked else time
        masks = experts if self.latent_dropout_per_expert else 1
        return self.drop(latents, self.latent_dropout, (batch, steps, masks, self.latent_units))


def check_experts(experts):
    """Return `experts`, the number of experts per layer, as a list, else raise `ValueError`."""
    experts = [check_count(f"experts[{n}]", count, least=0) for n, count in enumerate(experts)]
    if not any(experts):
        way_out = " Use `OutputProjection` for a plain softmax."
        raise ArgumentError("experts", "must contain a count above 0.", way_out, experts=experts)
    return experts
