"""Runs a cell over time, with state in and state out."""

from dualnet.recurrence.layer import Recurrence
from dualnet.recurrence.segment import without_gradients

__all__ = ["Recurrence", "without_gradients"]
