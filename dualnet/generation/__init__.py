"""Text generation: prompts continued by a language model."""

from dualnet.generation.sampling import continuations as continuations
from dualnet.generation.sampling import draw as draw
from dualnet.generation.texts import generate

__all__ = ["generate"]
