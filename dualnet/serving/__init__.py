"""Export for other programs: a SavedModel with text endpoints, ONNX and LiteRT files."""

from dualnet.requests import FORMATS, format_of
from dualnet.serving.exporting import endpoints, export, why_no_text
from dualnet.serving.sherpa import TokenMap, token_map

__all__ = ["FORMATS", "TokenMap", "endpoints", "export", "format_of", "token_map", "why_no_text"]
