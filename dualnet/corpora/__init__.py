"""Corpora: text as int32 ids in reading order, and the vocabulary between them."""

from dualnet.corpora.corpus import NAMES, Corpus, load, streams
from dualnet.corpora.sources import EOS, SPLITS, UNK
from dualnet.corpora.vocabulary import Vocabulary

__all__ = ["EOS", "NAMES", "SPLITS", "UNK", "Corpus", "Vocabulary", "load", "streams"]
