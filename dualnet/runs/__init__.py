"""RUN folders: what a training leaves behind, complete in itself, and how it is read."""

from dualnet.runs.folder import read_card
from dualnet.runs.loading import corpus_of_run, load

__all__ = ["corpus_of_run", "load", "read_card"]
