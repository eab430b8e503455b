"""What the papers examine besides perplexity: gates, experts, rank and learning curves.

Beside them the hidden states of all layers for the words of a text. Numbers are NumPy float64 on
the host, vectors float32; figures are PNG files.
"""

# The name that users, and exported folders, import.
from dualnet.extras.analysis import *  # noqa: F403
from dualnet.extras.analysis import __all__ as __all__
