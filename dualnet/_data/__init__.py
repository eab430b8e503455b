"""The data folders `zoo/` and `tuning/`, in a wheel or in a checkout."""

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path


def folder(name: str) -> Traversable:
    """Return the data folder `name`, e.g. "zoo", of the wheel, or else of the checkout."""
    packaged = resources.files(__name__) / name
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / name


def list_tables(name: str) -> list[str]:
    """Return the sorted names of the TOML files in the data folder `name`, without ".toml".

    In "zoo" they are those of all cards; "_" begins the names of cards that are only bases.
    """
    files = (path.name for path in folder(name).iterdir())
    return sorted(file.removesuffix(".toml") for file in files if file.endswith(".toml"))
