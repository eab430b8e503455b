"""Export for other programs: a SavedModel with text endpoints, ONNX and LiteRT files."""

from dualnet.serving.exporting import export
from dualnet.serving.formats import FORMATS, endpoints

__all__ = ["FORMATS", "endpoints", "export"]
