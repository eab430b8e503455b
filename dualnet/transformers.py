"""Models as Hugging Face's library `transformers` takes them, on the PyTorch backend."""

# The name that users, and exported folders, import.
from dualnet.extras.transformers import *  # noqa: F403
from dualnet.extras.transformers import __all__ as __all__
