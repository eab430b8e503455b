"""Corpora: text as int32 ids in reading order, with its vocabulary."""

from dualnet.corpora.corpus import NAMES, Corpus, load
from dualnet.corpora.sources import SPLITS
from dualnet.corpora.streams import streams
from dualnet.text import EOS, UNK, Vocabulary

__all__ = ["EOS", "NAMES", "SPLITS", "UNK", "Corpus", "Vocabulary", "load", "streams"]
