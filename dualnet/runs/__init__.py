"""RUN folders: what a training run leaves behind, and how to read it."""

from dualnet.runs.folder import read_card
from dualnet.runs.loading import corpus_of_run, load

__all__ = ["corpus_of_run", "load", "read_card"]
