"""The base class of our layers: configuration and weights."""

import enum
import inspect

import keras

from dualnet import _backend


class Role(enum.Flag):
    """What a weight is, for the rules of `dualnet.builders.initializers`."""

    MATRIX = 0  # or a vector: whatever is none of the others
    BIAS = enum.auto()
    SCALE = enum.auto()  # gain, shift, stabiliser or first state: starts alike under every rule
    EXPERT = enum.auto()  # makes the latent vectors or the priors of experts
    ROUND = enum.auto()  # of a Mogrifier, and so of no gate


class ConfiguredLayer(keras.layers.Layer):
    """A layer that keeps each argument of its constructor in an attribute of the same name.

    Its configuration follows from the signatures of `__init__` in the class and its bases.
    """

    masked_input: int | None = None  # of several inputs, the one whose mask is passed on

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_mask(self, inputs, mask=None):
        return mask if mask is None or self.masked_input is None else mask[self.masked_input]

    # --- configuration

    def get_config(self):
        config = super().get_config()
        bases = type(self).__mro__
        for base in reversed(bases[: bases.index(ConfiguredLayer)]):
            parameters = inspect.signature(base.__init__).parameters  # type: ignore[misc]
            for name, parameter in list(parameters.items())[1:]:  # without `self`
                # A subclass outside of this package may add arguments in its own `get_config`.
                if parameter.kind is not parameter.VAR_KEYWORD and hasattr(self, name):
                    config.setdefault(name, _serialized(getattr(self, name)))
        return config

    @classmethod
    def from_config(cls, config):
        return super().from_config({name: _deserialized(value) for name, value in config.items()})

    # --- weights

    def add_matrix(self, name, shape, initializer="glorot_uniform", l2=0.0, role=Role.MATRIX):
        penalty = l2_regularizer(l2)
        weight = self.add_weight(shape, initializer, name=name, regularizer=penalty)
        weight.role = role
        return weight

    def add_zeros(self, name, *shape, role=Role.MATRIX):
        return self.add_matrix(name, shape, "zeros", role=role)


def l2_regularizer(l2):
    """Return the regularizer of strength `l2`, or None, which adds no loss, if that is 0."""
    return L2(l2) if l2 > 0 else None


@keras.saving.register_keras_serializable("dualnet")
class L2(keras.regularizers.L2):
    """`keras.regularizers.L2`, which on TensorFlow passes over the weights fewer times."""

    def __call__(self, x):
        return self.l2 * _backend.sum_of_squares(x)


def _serialized(value):
    if isinstance(value, keras.layers.Layer):
        return keras.saving.serialize_keras_object(value)
    return list(map(_serialized, value)) if isinstance(value, (tuple, list)) else value


def _deserialized(value):
    if isinstance(value, list):
        return list(map(_deserialized, value))
    if isinstance(value, dict) and "class_name" in value:
        return keras.saving.deserialize_keras_object(value)
    return value
