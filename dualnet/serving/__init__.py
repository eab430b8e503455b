"""Export for other programs: a SavedModel with text endpoints, ONNX and LiteRT files."""

from dualnet._settings import FORMATS, format_of
from dualnet.serving.exporting import endpoints, export, why_no_text

__all__ = ["FORMATS", "endpoints", "export", "format_of", "why_no_text"]
