"""Text generation: prompts continued, texts translated, and beam search for any model."""

from dualnet.generation.aligning import Alignment, alignments
from dualnet.generation.beam import Hypothesis, beam_search, ensemble_step
from dualnet.generation.completion import Completer, Completion, complete
from dualnet.generation.sampling import continuations as continuations
from dualnet.generation.sampling import generate
from dualnet.generation.translation import Translation, translate, translations
from dualnet.generation.typing_effort import Keystrokes, keystrokes

__all__ = [
    "Alignment", "Completer", "Completion", "Hypothesis", "Keystrokes", "Translation",
    "alignments", "beam_search", "complete", "ensemble_step", "generate", "keystrokes",
    "translate", "translations",
]  # fmt: skip
