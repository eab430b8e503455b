"""Corpora: text as int32 ids in reading order, with its vocabulary; pairs of texts."""

from dualnet.corpora.corpus import NAMES, Corpus, load
from dualnet.corpora.pair_corpus import PairCorpus, load_pairs
from dualnet.corpora.pair_split import PairSplit
from dualnet.corpora.sources import SPLITS
from dualnet.corpora.streams import streams
from dualnet.text import EOS, UNK, Vocabulary

__all__ = [
    "EOS", "NAMES", "SPLITS", "UNK", "Corpus", "PairCorpus", "PairSplit", "Vocabulary", "load",
    "load_pairs", "streams",
]  # fmt: skip
