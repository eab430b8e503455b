"""Scores of texts in Ray Data, on as many machines as there are."""

# The name that users, and exported folders, import.
from dualnet.extras.ray import *  # noqa: F403
from dualnet.extras.ray import __all__ as __all__
