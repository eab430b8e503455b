"""`dualnet.extras.ray`, under the name that users import."""

from dualnet.extras.ray import *  # noqa: F403
from dualnet.extras.ray import __all__ as __all__
