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
KNOWN = ["ship", "Ship", "sho", "Sho", "tho", "Tho", "xo", "Xo"]
EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAM = """
import json, sys
sys.modules["dualnet"] = sys.modules["keras"] = sys.modules["tensorflow"] = None
from complete_onnx import Completer
path, words, texts = json.loads(sys.argv[1])
complete = Completer(path, words)
print(json.dumps([complete(text) for text in texts]))
"""


LEARNERS = """
import json, random, sys
from concurrent.futures import ThreadPoolExecutor
sys.modules["dualnet"] = sys.modules["keras"] = sys.modules["tensorflow"] = None
from learn_onnx import Readers
path, words, database, texts, count, prompt = json.loads(sys.argv[1])
readers = Readers(path, words, database)
work = [(f"reader {i}", text) for i in range(count) for text in texts[i % len(texts)]]
perplexities = {}

def read(reader):
    for name, text in work:
        if name == reader:
            perplexities.setdefault(name, []).append(readers.learn(name, text))

names = [f"reader {i}" for i in range(count)]
with ThreadPoolExecutor(16) as pool:
    list(pool.map(read, random.Random(0).sample(names, count)))
readers.forget(names[0])
with readers.opened() as kept:
    memories = [readers.load(kept, name)[0]["memory"][0].tolist() for name in names[:7]]
    assert kept.execute("select count(*) from readers").fetchone() == (count - 1,)
completed = [readers.complete(name, prompt) for name in names[:7]]
print(json.dumps([[perplexities[name] for name in names], memories, completed]))
"""


@pytest.mark.slow
def test_1_000_readers_of_a_client_of_onnx_learn_in_16_threads_as_learners_do(tmp_path):
    needed("onnx", "onnx", "onnxruntime", "tf2onnx")
    model = model_of("bpe")
    path = dualnet.export(model, tmp_path / "model.onnx", learn="matrix:2", learning_rate=0.2)
    words = ["the ship", "a shop", "the shop saw", "saw the", "ship a"]
    texts = [[f"{word} {other}", word * 9] for word in words for other in words]
    count, prompt = 1000, "the sh"
    arguments = json.dumps([str(path), KNOWN, str(tmp_path / "readers.db"), texts, count, prompt])
    command = [sys.executable, "-c", LEARNERS, arguments]
    run = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=True)
    perplexities, memories, completed = json.loads(run.stdout)
    learners = [dualnet.Learner(model, "matrix:2", rule="sgd", learning_rate=0.2) for _ in texts]
    expected = [[one.read(t).perplexity for t in of] for one, of in zip(learners, texts)]
    for i, found in enumerate(perplexities):
        assert found == pytest.approx(expected[i % len(texts)], rel=1e-4)
    assert len({round(value, 4) for _, value in expected}) == len(texts)  # none is like another
    learners[0].reset()  # which was forgotten
    for learner, memory, found in zip(learners, memories, completed):
        assert memory == pytest.approx(learner._state.memory.tolist(), abs=1e-5)
        with learner.taught() as taught:
            known = dualnet.complete(taught, prompt, words=KNOWN)
        assert [word for word, _ in found] == [word for word, _ in known]
        assert [p for _, p in found] == pytest.approx([p for _, p in known], rel=1e-3)


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
    command = [sys.executable, "-c", PROGRAM, json.dumps([str(path), KNOWN, texts])]
    run = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=True)
    for text, found in zip(texts, json.loads(run.stdout), strict=True):
        expected = dualnet.complete(model, text, words=KNOWN)
        assert [word for word, _ in found] == [word for word, _ in expected]
        assert [p for _, p in found] == pytest.approx([p for _, p in expected], rel=1e-4)
