"""Text as the integers that a model reads, and back: tokenisers."""

from dualnet.text.learning import train_tokenizer
from dualnet.text.library_tokenizer import ByteTokenizer, LibraryTokenizer
from dualnet.text.loading import from_config, load_tokenizer
from dualnet.text.plain_text import DOCUMENTS, EOS, UNK
from dualnet.text.sentencepiece_tokenizer import SentencePieceTokenizer
from dualnet.text.tokenizer import Tokenizer
from dualnet.text.vocabulary import Vocabulary

__all__ = [
    "DOCUMENTS", "EOS", "UNK", "ByteTokenizer", "LibraryTokenizer", "SentencePieceTokenizer",
    "Tokenizer", "Vocabulary", "from_config", "load_tokenizer", "train_tokenizer",
]  # fmt: skip
