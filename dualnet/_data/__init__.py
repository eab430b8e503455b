"""Finds the folders of data, `zoo/` and `tuning/`, in a wheel or in a checkout."""

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path


def folder(name: str) -> Traversable:
    """Return folder `name`, e.g. "zoo", of the wheel, else of the checkout."""
    packaged = resources.files(__name__) / name
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / name
