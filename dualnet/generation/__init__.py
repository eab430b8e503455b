"""Text generation: prompts continued, texts translated, and beam search for any model."""

from dualnet.generation.beam import Hypothesis, beam_search, ensemble_step
from dualnet.generation.sampling import continuations as continuations
from dualnet.generation.sampling import draw as draw
from dualnet.generation.texts import generate
from dualnet.generation.translating import Translation, translate, translations

__all__ = [
    "Hypothesis",
    "Translation",
    "beam_search",
    "ensemble_step",
    "generate",
    "translate",
    "translations",
]
