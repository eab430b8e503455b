import keras
from keras import ops

from dualnet._checks import ArgumentError, check_count, check_penalty, check_rate
from dualnet.layers._configured import Role
from dualnet.layers._products import sum_of_products
from dualnet.layers._records import record
from dualnet.layers._recurrent_cell import product
from dualnet.layers.lstm_cell import LSTMCell


@keras.saving.register_keras_serializable("dualnet")
class MogrifierLSTMCell(LSTMCell):
    """One step of the Mogrifier LSTM: input and state gate each other, then an LSTM step.

    With x^-1 = x and h^0 = h, for i = 1 .. rounds:

    Eq. 1, odd i:   x^i = 2 sigmoid(h^(i-1) Q^i + b^i) * x^(i-2)
    Eq. 2, even i:  h^i = 2 sigmoid(x^(i-1) R^i + b^i) * h^(i-2)

    The last x and h enter `LSTMCell`. With `rank` k, every Q and R is the product of a left
    factor (size in, k) and a right factor (k, size out). The input and the incoming h are
    dropped out before the rounds.

    Differs from the paper (Melis et al.): each round adds a bias of the gated
    vector's size, as its reference code does. The input gate is capped at 1 - f, as
    in its published runs, only with `capped_input_gate`: the simplified Mogrifier of
    Oliva and Lago-Fernandez has no cap. `mogrifier_dropout` follows the latter's words,
    "between the weights": it acts on the vector between the two factors. With full rank, on
    which they are silent, it acts on the vector that enters the matrix. Their recurrent dropout
    acts "on the linear transformation of the recurrent state", which may mean the h of the
    products alone, or that of the rounds too; here it is both.

    Args:
        units: int, at least 1. Size of h and c.
        rounds: int, at least 0. 0 gives a plain LSTM step.
        rank: int, at least 1, or None (or 0) for full rank.
        mogrifier_dropout: float, at least 0 and below 1. Dropout between the factors.
        mogrifier_l2: float, at least 0. L2 penalty of all matrices of the rounds.
        locked: list of the dropouts that keep their mask for a whole segment, some of
            "input", "recurrent" and "mogrifier". The others draw a fresh mask at each step.
        **kwargs: Passed to `LSTMCell`, except `mask_per_gate`: masks are applied before the
            rounds, which all gates share.

    Call arguments, returns: as `LSTMCell`.

    Weights, in addition to those of `LSTMCell`, for each round i: `mogrifier_i_kernel`
    (size in, size out), or `mogrifier_i_left` and `mogrifier_i_right`; and
    `mogrifier_i_bias` (size out).

    Reference: Melis et al., 2020, https://arxiv.org/abs/1909.01792, section 2;
    Oliva and Lago-Fernandez, 2021, https://arxiv.org/abs/2112.11776

    Example:

    >>> import numpy as np
    >>> from dualnet.layers import MogrifierLSTMCell, Recurrence
    >>> recurrence = Recurrence(MogrifierLSTMCell(4, rounds=2, rank=1))
    >>> outputs, h, c = recurrence(np.ones((2, 5, 3), "float32"))
    >>> [weight.name for weight in recurrence.weights[3:6]]
    ['mogrifier_1_left', 'mogrifier_1_right', 'mogrifier_1_bias']
    """

    dropouts = ("input", "recurrent", "mogrifier")

    def __init__(
        self, units, *, rounds=5, rank=None, mogrifier_dropout=0.0, mogrifier_l2=0.0, **kwargs
    ):
        if kwargs.get("mask_per_gate"):
            raise ArgumentError(
                "mask_per_gate",
                "must be False for the Mogrifier, whose masks are applied before the rounds, "
                "which all gates share. Received: mask_per_gate=True. Use `LSTMCell`, or one mask "
                "for all gates.",
            )
        super().__init__(units, **kwargs)
        self.rounds = check_count("rounds", rounds, least=0)
        self.rank = rank if rank is None else check_count("rank", rank, least=0)
        self.mogrifier_dropout = check_rate("mogrifier_dropout", mogrifier_dropout)
        self.mogrifier_l2 = check_penalty("mogrifier_l2", mogrifier_l2)

    def build(self, input_shape):
        super().build(input_shape)
        self.mogrifiers = []  # per round: its factors, one or two, and its bias
        for i in range(1, self.rounds + 1):
            size_in, size_out = self._sizes(i)
            if self.rank:
                # As in the reference code of Melis et al., both factors have the same spread:
                # that of their product is then about 1 / sqrt(size in), as of a single matrix.
                stddev = (size_in * self.rank) ** -0.25
                shapes = {"left": (size_in, self.rank), "right": (self.rank, size_out)}
            else:
                stddev = size_in**-0.5
                shapes = {"kernel": (size_in, size_out)}
            factors = [self._add_factor(f"mogrifier_{i}_{n}", shapes[n], stddev) for n in shapes]
            bias = self.add_zeros(f"mogrifier_{i}_bias", size_out, role=Role.ROUND | Role.BIAS)
            self.mogrifiers.append((factors, bias))

    def mask_specs(self):
        rounds = range(1, self.rounds + 1)
        sizes = {f"mogrifier_{i}": self.rank or self._sizes(i)[0] for i in rounds}
        return super().mask_specs() + self.specs_of(sizes)

    def input_projection(self, inputs, masks):
        # No product yet: the rounds come first, and they read h.
        return inputs * masks["input"] if "input" in masks else inputs

    def step(self, projection, states, masks):
        x, (h, c) = projection, states
        if "recurrent" in masks:
            h = h * masks["recurrent"]
        for i, (factors, bias) in enumerate(self.mogrifiers, start=1):
            mask = masks.get(f"mogrifier_{i}")
            # The factor 2 keeps a freshly initialised round close to identity.
            if i % 2:
                x = 2.0 * ops.sigmoid(_transform(h, factors, mask) + bias) * x  # Eq. 1
            else:
                h = 2.0 * ops.sigmoid(_transform(x, factors, mask) + bias) * h  # Eq. 2
        record(self, modulated_x=x, modulated_h=h)
        return self.gated_step(x, h, c, masks)

    def gated_step(self, x, h, c, masks):
        """Return output and states of the step after the rounds, which have applied the masks."""
        return super().step(x, [h, c], masks)

    def gate_sums(self, x, h, masks):
        kernels = [self.kernel, masks.get("recurrent_kernel", self.recurrent_kernel)]
        z = sum_of_products([x, h], kernels)
        return ops.split(z + self.bias if self.use_bias else z, 4, axis=-1)

    def _sizes(self, i):
        """Return the sizes of the vector that round `i` reads and of the one that it gates."""
        return (self.units, self.input_size) if i % 2 else (self.input_size, self.units)

    def _add_factor(self, name, shape, stddev):
        normal = keras.initializers.TruncatedNormal(stddev=stddev)
        return self.add_matrix(name, shape, normal, self.mogrifier_l2, Role.ROUND)


def _transform(vector, factors, mask):
    """Return `vector` times the matrix of a round, or times its two factors."""
    if len(factors) == 2:
        vector = product(vector, factors[0])
    return product(vector, factors[-1], mask)
