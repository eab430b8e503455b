"""Export for other programs: a SavedModel with text endpoints, ONNX and LiteRT files."""

from dualnet.serving.exporting import FORMATS, endpoints, export, format_of, why_no_text

__all__ = ["FORMATS", "endpoints", "export", "format_of", "why_no_text"]
