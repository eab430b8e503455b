"""ONNX and LiteRT files that learn equal `dualnet.Learner`, and hold each weight once."""

import numpy as np
import pytest

import dualnet
from dualnet import zoo
from dualnet.text import Vocabulary
from tests.checks import needed, once, strong

pytestmark = [once, pytest.mark.slow]

WORDS = Vocabulary(("<eos>", "a", "b", "<unk>", "c", "d"))
LENGTH, SEGMENTS = 4, 50
SETTINGS = {"learning_rate": 0.3, "decay": 0.05, "clipnorm": 2.0, "sequence_length": LENGTH}
DEFAULT = -1.0  # of a setting: that of the export
CASES = [
    ("dual_lstm", ["output_bias"]),
    ("dual_lstm", ["matrix:2"]),
    ("dual_lstm", ["connection"]),
    ("dual_lstm", ["connection", "matrix", "output_matrix:2", "output_bias"]),
    ("awd_lstm_mos", ["matrix:2"]),  # a mixture of softmaxes
    ("lstm", ["matrix:2"]),
    ("dual_mdlstm_iog", ["output_bias"]),  # a gate
]


def a_model(name, **arguments):
    model = zoo.build(name, vocabulary_size=len(WORDS), units=3, **arguments)
    return strong(model, WORDS, scale=0.5)


def opened(path):
    """Return the functions `step` and `learn` of a file, of arrays by their names."""
    if path.suffix == ".tflite":
        (litert,) = needed("litert", "ai_edge_litert.interpreter")
        interpreter = litert.Interpreter(model_path=str(path))
        operators = {operator["op_name"] for operator in interpreter._get_ops_details()}
        assert not operators & {"WHILE", "IF"}
        assert not any(name.startswith("Flex") for name in operators)
        return [interpreter.get_signature_runner(name) for name in ("step", "learn")]
    onnx, onnxruntime, _ = needed("onnx", "onnx", "onnxruntime", "tf2onnx")

    def function(path):
        session = onnxruntime.InferenceSession(path)
        types = {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}
        assert not types & {"Loop", "Scan", "If"}
        names = [output.name.removeprefix("new_") for output in session.get_outputs()]
        return lambda **inputs: dict(zip(names, session.run(None, inputs)))

    return function(path), function(f"{path}.learn.onnx")


def read(functions, model, stream, weights, rates, size):
    """Return the losses of the segments of `stream`, and the memory after them."""
    step, learn = functions
    rows = len(stream)
    states = {
        f"state_{i}": np.zeros((rows, n), "float32") for i, n in enumerate(model.state_size, 1)
    }
    memory, losses = np.zeros((rows, size), "float32"), []
    default = np.full(rows, DEFAULT, "float32")
    for i in range(0, stream.shape[1] - 1, LENGTH):
        steps = []
        for token in stream[:, i : i + LENGTH].T:
            answer = step(ids=token[:, None], memory=memory, **states)
            states = {name: answer[name] for name in states}
            steps.append({name: answer[name] for name in answer if name.startswith("read_")})
        answer = learn(
            targets=stream[:, i + 1 : i + LENGTH + 1],
            weights=weights[:, i : i + LENGTH],
            memory=memory,
            **{"learning_rate": rates, "decay": default, "clipnorm": default},
            **{name: np.concatenate([one[name] for one in steps], axis=1) for name in steps[0]},
        )
        assert answer["applied"].all()
        memory = answer["memory"]
        losses.append(answer["losses"])
    return np.concatenate(losses, axis=1), memory


@pytest.mark.parametrize("suffix", [".onnx", ".tflite"])
@pytest.mark.parametrize(("name", "adapt"), CASES)
def test_a_file_learns_as_learners_do_over_50_segments(tmp_path, name, adapt, suffix):
    model = a_model(name)
    if (name, suffix) == ("awd_lstm_mos", ".onnx"):
        needed("onnx", "onnx", "onnxruntime", "tf2onnx")
        with pytest.raises(dualnet.ArgumentError, match="must be another for this model, or what"):
            dualnet.export(model, tmp_path / "model.onnx", learn=adapt)
        return
    path = dualnet.export(model, tmp_path / f"model{suffix}", learn=adapt, **SETTINGS)
    rates = [SETTINGS["learning_rate"], 0.1]
    learners = [
        dualnet.Learner(model, adapt, rule="sgd", **{**SETTINGS, "learning_rate": rate})
        for rate in rates
    ]
    rng = np.random.default_rng(0)
    ids = rng.integers(1, len(WORDS), size=(2, SEGMENTS * LENGTH)).astype("int32")
    lengths = [SEGMENTS * LENGTH, SEGMENTS * LENGTH - 1]  # the second row ends with padding
    expected = [one.read(row[:n]).token_losses for one, row, n in zip(learners, ids, lengths)]
    weights = (np.arange(ids.shape[1]) < np.array(lengths)[:, None]).astype("float32")
    stream = np.pad(ids, ((0, 0), (1, 0)))  # after <eos>
    size, functions = len(learners[0]._state.memory), opened(path)
    rates = np.array([DEFAULT, rates[1]], "float32")
    # LiteRT takes one reader at a time.
    batches = [slice(0, 2)] if suffix == ".onnx" else [slice(0, 1), slice(1, 2)]
    for rows in batches:
        inputs = stream[rows], weights[rows], rates[rows]
        losses, memory = read(functions, model, *inputs, size)
        for found, row in zip(losses, range(2)[rows]):
            np.testing.assert_allclose(found[: lengths[row]], expected[row], rtol=2e-4, atol=2e-5)
        known = [one._state.memory for one in learners[rows]]
        assert np.abs(known).max() > 0.01
        np.testing.assert_allclose(memory, known, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("suffix", [".onnx", ".tflite"])
def test_a_file_reads_the_memory_that_a_learner_saved(tmp_path, suffix):
    model = a_model("dual_lstm")
    learner = dualnet.Learner(model, "connection", rule="sgd", **SETTINGS)
    learner.read("a b c d a b")
    learner.save(tmp_path / "reader.npz")
    memory = np.load(tmp_path / "reader.npz")["memory"][None]
    path = dualnet.export(model, tmp_path / f"model{suffix}", learn="connection")
    step, learn = opened(path)
    states = {f"state_{i}": np.ones((1, 3), "float32") for i in (1, 2)}
    answer = step(ids=np.array([[2]], "int32"), memory=memory, **states)
    with learner.taught() as taught:
        logits, _ = taught.advance([[2]], [*states.values()])
    np.testing.assert_allclose(answer["logits"], logits, rtol=1e-5, atol=1e-6)

    # A step that is not finite changes nothing.
    length = 20 if suffix == ".tflite" else 1
    tile = {name: np.repeat(answer[name], length, axis=1) for name in answer if "read" in name}
    rate = np.array([np.inf], "float32")
    ids, weights = np.zeros((1, length), "int32"), np.ones((1, length), "float32")
    settings = {"learning_rate": rate, "decay": 0 * weights[:, 0], "clipnorm": 0 * weights[:, 0]}
    answer = learn(targets=ids, weights=weights, memory=memory, **settings, **tile)
    assert not answer["applied"].any()
    np.testing.assert_array_equal(answer["memory"], memory)

    # Nor does a row without tokens, which does not even decay.
    settings = dict.fromkeys(settings, np.full(1, 0.5, "float32"))
    answer = learn(targets=ids, weights=0 * weights, memory=memory, **settings, **tile)
    assert answer["applied"].all()
    np.testing.assert_array_equal(answer["memory"], memory)


@pytest.mark.parametrize("suffix", [".onnx", ".tflite"])
def test_files_that_learn_hold_each_weight_once(tmp_path, suffix):
    model = zoo.build("dual_lstm", vocabulary_size=2000, units=64)
    path = dualnet.export(model, tmp_path / f"model{suffix}", learn="connection", **SETTINGS)
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert size < 4 * model.core.count_params() + 80_000  # the matrix has 512,000 bytes
    dualnet.export(model, path)  # replaces all of them
    assert [*tmp_path.iterdir()] == [path]


def test_what_a_file_cannot_learn_is_refused(tmp_path):
    needed("onnx", "onnx", "onnxruntime", "tf2onnx")
    path, model = tmp_path / "model.onnx", a_model("dual_lstm")
    with pytest.raises(dualnet.ArgumentError, match="`learn` must name weights that learn for ea"):
        dualnet.export(model, path, learn="recurrence")
    with pytest.raises(dualnet.ArgumentError, match="`learn` cannot be combined with `quantize`"):
        dualnet.export(model, path, learn="connection", quantize="int8")
    assert not [*tmp_path.iterdir()]
