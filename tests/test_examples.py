"""Programs of examples/ run where neither dualnet nor TensorFlow can be imported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dualnet
from tests.checks import needed, once
from tests.test_completion import model_of

pytestmark = once
EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAM = """
import json, sys
sys.modules["dualnet"] = sys.modules["keras"] = sys.modules["tensorflow"] = None
from complete_onnx import Completer
path, words, texts = json.loads(sys.argv[1])
complete = Completer(path, words)
print(json.dumps([complete(text) for text in texts]))
"""


def test_a_client_of_onnx_completes_words_as_python_does(tmp_path):
    needed("onnx", "onnx", "onnxruntime", "tf2onnx")
    model = model_of("bpe")
    path = dualnet.export(model, tmp_path / "model.onnx")
    texts = [
        "the sh",
        "the ",
        "a (sh",
        "ship,",
        "",
        "the shop saw sho",
        "'t",
        "don'",
        "naïv",
        "x  t",
    ]
    words = ["ship", "Ship", "sho", "Sho", "tho", "Tho", "xo", "Xo"]
    command = [sys.executable, "-c", PROGRAM, json.dumps([str(path), words, texts])]
    run = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=True)
    for text, found in zip(texts, json.loads(run.stdout), strict=True):
        expected = dualnet.complete(model, text, words=words)
        assert [word for word, _ in found] == [word for word, _ in expected]
        assert [p for _, p in found] == pytest.approx([p for _, p in expected], rel=1e-4)
