"""What the papers examine besides perplexity: gates, experts, rank and learning curves.

Beside them the hidden states of all layers for the words of a text. Numbers are NumPy float64 on
the host, vectors float32; figures are PNG files.
"""

from dualnet.extras.analysis.curves import learning_curves, plot_learning_curves
from dualnet.extras.analysis.experts import Shares, expert_shares, plot_expert_shares
from dualnet.extras.analysis.gates import favoured_words, plot_favoured_words
from dualnet.extras.analysis.ranks import Rank, plot_singular_values, rank
from dualnet.extras.analysis.vectors import HiddenStates, hidden_states

__all__ = [
    "HiddenStates", "Rank", "Shares", "expert_shares", "favoured_words", "hidden_states",
    "learning_curves", "plot_expert_shares", "plot_favoured_words", "plot_learning_curves",
    "plot_singular_values", "rank",
]  # fmt: skip
