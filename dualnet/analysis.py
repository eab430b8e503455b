"""`dualnet.extras.analysis`, under the name that users import."""

from dualnet.extras.analysis import *  # noqa: F403
from dualnet.extras.analysis import __all__ as __all__
