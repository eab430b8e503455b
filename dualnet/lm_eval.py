"""Models as EleutherAI's lm-evaluation-harness, the package `lm_eval`, takes them."""

# The name that users, and exported folders, import.
from dualnet.extras.lm_eval import *  # noqa: F403
from dualnet.extras.lm_eval import __all__ as __all__
