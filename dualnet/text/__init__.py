"""Words and ids: what turns text into the integers that a model reads, and back."""

from dualnet.text.plain_text import EOS, UNK
from dualnet.text.vocabulary import Vocabulary

__all__ = ["EOS", "UNK", "Vocabulary"]
