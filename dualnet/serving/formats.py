"""The formats of `export` and the endpoints of each."""

from __future__ import annotations

from dualnet.builders import LanguageModel

SUFFIXES = {"onnx": ".onnx", "litert": ".tflite"}  # of the single-file formats
FORMATS = ("saved_model", *SUFFIXES)


def endpoints(model: LanguageModel, *, format: str = "saved_model") -> list[str]:
    """Return the names of the endpoints that `export` writes for `model`.

    Example:
        >>> from dualnet import serving, zoo
        >>> from dualnet.text import Vocabulary
        >>> model = zoo.build("lstm", vocabulary_size=3, units=4)
        >>> serving.endpoints(model)
        ['score', 'step']
        >>> model.vocabulary = Vocabulary(("<eos>", "the", "cat"))
        >>> serving.endpoints(model)
        ['score', 'step', 'score_text', 'generate_text']
        >>> serving.endpoints(model, format="onnx")
        ['step']
    """
    if format != "saved_model":
        return ["step"]
    reads_text = model.vocabulary is not None and model.vocabulary.eos_id is not None
    return ["score", "step", *(["score_text", "generate_text"] if reads_text else [])]
