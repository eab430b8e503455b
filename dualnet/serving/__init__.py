"""Export for other programs: a SavedModel with text endpoints, ONNX and LiteRT files."""

import importlib
from typing import Any

from dualnet._formats import NAMES
from dualnet.requests import FORMATS, format_of
from dualnet.serving.exporting import endpoints, export, why_no_text

__all__ = ["FORMATS", *NAMES, "endpoints", "export", "format_of", "why_no_text"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in NAMES:
        return getattr(importlib.import_module(NAMES[name]), name)
    raise AttributeError(f"module 'dualnet.serving' has no attribute {name!r}")
