"""Programs of examples/ run where neither dualnet nor TensorFlow can be imported."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import dualnet
from tests.checks import needed, once
from tests.test_completion import model_of
from tests.test_serving_completion import TEXTS

pytestmark = once
KNOWN = ["ship", "Ship", "sho", "Sho", "tho", "Tho", "xo", "Xo"]
EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAM = """
import json, sys
sys.modules["dualnet"] = sys.modules["keras"] = sys.modules["tensorflow"] = None
from complete_onnx import Completer
path, words, texts = json.loads(sys.argv[1])
complete = Completer(path, words, end="\\n")
print(json.dumps([complete(text) for text in texts]))
"""


LEARNERS = """
import json, os, random, sys
from concurrent.futures import ThreadPoolExecutor
sys.modules["dualnet"] = sys.modules["keras"] = sys.modules["tensorflow"] = None
from learn_onnx import Readers
path, words, folder, texts, count, prompt = json.loads(sys.argv[1])
readers = Readers(path, words)
work = [(i, text) for i in range(count) for text in texts[i % len(texts)]]
perplexities = [[] for _ in range(count)]

def read(i):
    perplexities[i] += [readers.learn(f"{folder}/{i}.npz", text) for text in texts[i % len(texts)]]

with ThreadPoolExecutor(16) as pool:
    list(pool.map(read, random.Random(0).sample(range(count), count)))
os.remove(f"{folder}/0.npz")
completed = [readers.complete(f"{folder}/{i}.npz", prompt) for i in range(7)]
print(json.dumps([perplexities, completed]))
"""


@pytest.mark.slow
def test_1_000_readers_of_a_client_of_onnx_learn_in_16_threads_as_learners_do(tmp_path):
    needed("onnx", "onnx", "onnxruntime", "tf2onnx")
    model = model_of("bpe")
    settings = {"learning_rate": 0.2, "cache": 30}
    path = dualnet.export(model, tmp_path / "model.onnx", learn="matrix:2", **settings)
    readers = tmp_path / "readers"
    readers.mkdir()
    words = ["the ship", "a shop", "the shop saw", "saw the", "ship a"]
    texts = [[f"{word} {other}", word * 9] for word in words for other in words]
    count, prompt = 1000, "the sh"
    arguments = json.dumps([str(path), KNOWN, str(readers), texts, count, prompt])
    command = [sys.executable, "-c", LEARNERS, arguments]
    run = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=True)
    perplexities, completed = json.loads(run.stdout)
    learners = [dualnet.Learner(model, "matrix:2", rule="sgd", **settings) for _ in texts]
    expected = [[one.read(t).perplexity for t in of] for one, of in zip(learners, texts)]
    for i, found in enumerate(perplexities):
        assert found == pytest.approx(expected[i % len(texts)], rel=1e-5)
    assert len({round(value, 4) for _, value in expected}) == len(texts)  # none is like another
    learners[0].reset()  # which was forgotten
    assert len([*readers.iterdir()]) == count - 1
    for i, (learner, found) in enumerate(zip(learners, completed)):
        if i:
            loaded = dualnet.Learner.load(readers / f"{i}.npz", model)
            assert loaded._state.memory == pytest.approx(learner._state.memory, abs=1e-5)
            assert loaded._state.states[-1].tolist() == learner._state.states[-1].tolist()
        known = dualnet.complete(learner, prompt, words=KNOWN)
        assert [word for word, _ in found] == [word for word, _ in known]
        assert [p for _, p in found] == pytest.approx([p for _, p in known], rel=1e-3)


def test_a_client_of_onnx_completes_words_as_python_does(tmp_path):
    needed("onnx", "onnx", "onnxruntime", "tf2onnx")
    model = model_of("bpe")
    path = dualnet.export(model, tmp_path / "model.onnx")
    assert len(TEXTS) == 20
    command = [sys.executable, "-c", PROGRAM, json.dumps([str(path), KNOWN, TEXTS])]
    run = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=True)
    for text, found in zip(TEXTS, json.loads(run.stdout), strict=True):
        expected = dualnet.complete(model, text, words=KNOWN)
        assert [word for word, _ in found] == [word for word, _ in expected]
        assert [p for _, p in found] == pytest.approx([p for _, p in expected], rel=1e-4)


CLIENT = """
import json, sys
sys.modules["dualnet"] = sys.modules["keras"] = sys.modules["tensorflow"] = None
from learn_onnx import Readers
path, file, texts, prompts = json.loads(sys.argv[1])
readers = Readers(path, [])
perplexities = [readers.learn(file, text) for text in texts]
completed = [readers.complete(file, prompt) for prompt in prompts]
readers.about["checksum"] = "of another model"
try:
    readers.learn(file, texts[0])
except ValueError as error:
    print(json.dumps([perplexities, completed, str(error)]))
"""


@pytest.mark.parametrize("cache", [0, 2, 30])
def test_a_client_of_onnx_goes_on_in_the_file_of_a_learner_and_a_learner_in_its_file(
    tmp_path, cache
):
    needed("onnx", "onnx", "onnxruntime", "tf2onnx")
    model, file = model_of("bpe"), tmp_path / "reader.npz"
    settings = {"learning_rate": 0.2, "cache": cache, "sequence_length": 5}
    path = dualnet.export(model, tmp_path / "model.onnx", learn="output_bias", **settings)
    learner = dualnet.Learner(model, "output_bias", rule="sgd", clipnorm=0.5, **settings)
    learner.read("the shop saw a boat. ")
    learner.save(file)
    texts = ["the ship saw the shop, and the boat", " saw the ship. A boot\n", "", "a boat sho"]
    prompts = ["the ", "saw the sh", "", "a bo"]
    arguments = json.dumps([str(path), str(file), texts, prompts])
    command = [sys.executable, "-c", CLIENT, arguments]
    run = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=True)
    perplexities, completed, refused = json.loads(run.stdout)
    assert "reader.npz is of another export: its checksum is" in refused
    expected = [learner.read(text).perplexity for text in texts]
    assert perplexities == pytest.approx(expected, rel=1e-5)
    loaded = dualnet.Learner.load(file, model)
    for name in ("tokens", "skipped", "words", "settings", "cache", "size"):
        assert getattr(loaded, name) == getattr(learner, name)
    assert loaded._state.last == learner._state.last
    for found, own in zip(loaded._state.states, learner._state.states):
        assert found == pytest.approx(own, abs=1e-6)
    for prompt, found in zip(prompts, completed):
        known = dualnet.complete(learner, prompt, words=[])
        assert [word for word, _ in found] == [word for word, _ in known]
        assert [p for _, p in found] == pytest.approx([p for _, p in known], rel=1e-4)


def test_an_export_that_learns_holds_a_new_learner(tmp_path):
    needed("onnx", "onnx", "onnxruntime", "tf2onnx")
    model = model_of("bpe")
    path = dualnet.export(model, tmp_path / "model.tflite", learn="connection", decay=0.01)
    loaded = dualnet.Learner.load(f"{path}.reader.npz", model)
    assert (loaded.cache, loaded.tokens, loaded.settings["decay"]) == (4000, 0, 0.01)


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("complete_onnx", ["x.onnx"]),
        ("learn_onnx", ["x.onnx", "words.txt", "anna.npz", "save", "a text"]),
        ("learn_served", ["model", "readers.db", "anna", "scor", "a text"]),
        ("learn_served", ["model", "readers.db", "anna", "forget", "a text"]),
    ],
)
def test_a_program_that_is_called_wrongly_shows_its_usage_and_forgets_no_reader(
    program, arguments, monkeypatch
):
    if program != "learn_served":
        needed("onnx", "onnxruntime")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", [f"{program}.py", *arguments])
    with pytest.raises(SystemExit, match="Usage: python"):
        runpy.run_path(str(EXAMPLES / f"{program}.py"), run_name="__main__")
