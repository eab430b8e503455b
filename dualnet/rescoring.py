"""`dualnet.extras.rescoring`, under the name that users import."""

from dualnet.extras.rescoring import *  # noqa: F403
from dualnet.extras.rescoring import __all__ as __all__
