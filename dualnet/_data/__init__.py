"""The data folders `zoo/` and `tuning/`, in a wheel or in a checkout."""

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path


def folder(name: str) -> Traversable:
    """Return the data folder `name`, e.g. "zoo", of the wheel, or else of the checkout."""
    packaged = resources.files(__name__) / name
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / name
