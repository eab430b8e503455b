"""`dualnet.extras.transformers`, under the name that users import."""

from dualnet.extras.transformers import *  # noqa: F403
from dualnet.extras.transformers import __all__ as __all__
