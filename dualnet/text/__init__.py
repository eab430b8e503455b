"""Text as the integers that a model reads, and back: words and vocabularies."""

from dualnet.text.plain_text import EOS, UNK
from dualnet.text.vocabulary import Vocabulary

__all__ = ["EOS", "UNK", "Vocabulary"]
