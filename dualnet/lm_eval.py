"""`dualnet.extras.lm_eval`, under the name that users import."""

from dualnet.extras.lm_eval import *  # noqa: F403
from dualnet.extras.lm_eval import __all__ as __all__
