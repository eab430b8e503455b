"""N-best lists rescored: read, scored by models, combined by weights that a metric chose."""

# The name that users, and exported folders, import.
from dualnet.extras.rescoring import *  # noqa: F403
from dualnet.extras.rescoring import __all__ as __all__
