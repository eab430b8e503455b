import json
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

import dualnet

# A process in which neither dualnet nor Keras can be imported.
CLIENT = """
import json, sys
sys.modules["dualnet"] = sys.modules["keras"] = None
import tensorflow as tf
served = tf.saved_model.load(sys.argv[1]).signatures
answers = []
for request in json.loads(sys.stdin.read()):
    endpoint = served[request.pop("endpoint")]
    types = {"ids": tf.int32, "lengths": tf.int32}
    inputs = {key: tf.constant(value, types.get(key, tf.float32)) for key, value in request.items()}
    answers.append({key: value.numpy().tolist() for key, value in endpoint(**inputs).items()})
print(json.dumps({"signatures": sorted(served), "answers": answers}))
"""

tensorflow_only = pytest.mark.skipif(
    keras.config.backend() != "tensorflow", reason="a SavedModel is a TensorFlow format"
)


@tensorflow_only
def test_a_process_without_dualnet_and_keras_gets_the_models_numbers(build, corpus, tmp_path):
    model = build("dual_mdlstm")
    directory = dualnet.export(model, tmp_path / "saved_model")
    ids = [
        corpus.test[:length][None].repeat(batch, 0) for batch, length in [(1, 1), (1, 9), (3, 5)]
    ]
    ids[2][1:] = corpus.test[5:15].reshape(2, 5)
    lengths = [[1], [7], [5, 3, 0]]
    requests = [
        {"endpoint": "score", "ids": i.tolist(), "lengths": n} for i, n in zip(ids, lengths)
    ]
    random = np.random.default_rng(0)
    states = [
        {f"state_{k}": random.normal(size=(len(i), size)).astype("float32").tolist()
         for k, size in enumerate(model.state_size, start=1)}
        for i in ids
    ]  # fmt: skip
    requests += [{"endpoint": "step", "ids": i.tolist(), **s} for i, s in zip(ids, states)]
    client = subprocess.run(
        [sys.executable, "-c", CLIENT, str(directory)],
        input=json.dumps(requests), capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(client.stdout.splitlines()[-1])
    assert found["signatures"] == ["score", "serving_default", "step"]
    for i, n, answer in zip(ids, lengths, found["answers"]):
        logits = ops.convert_to_numpy(model(i)).astype("float64")
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        expected = np.zeros(i.shape)
        for row, length in enumerate(n):
            for t in range(1, length):
                expected[row, t] = log_p[row, t - 1, i[row, t]]
        np.testing.assert_allclose(answer["log_probabilities"], expected, rtol=1e-5, atol=1e-5)
    for i, state, answer in zip(ids, states, found["answers"][3:]):
        logits, new = model.advance(i, list(state.values()))
        np.testing.assert_allclose(
            answer["logits"], ops.convert_to_numpy(logits), rtol=1e-5, atol=1e-5
        )
        for k, one in enumerate(new, start=1):
            np.testing.assert_allclose(
                answer[f"state_{k}"], ops.convert_to_numpy(one), rtol=1e-5, atol=1e-5
            )


@tensorflow_only
def test_an_export_leaves_nothing_else_and_refuses_a_folder_with_files(build, tmp_path):
    model = build()
    dualnet.export(model, tmp_path / "deep" / "saved_model")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["saved_model"]
    with pytest.raises(FileExistsError, match="`directory` must be new or empty"):
        dualnet.export(model, tmp_path / "deep" / "saved_model")


@pytest.mark.skipif(keras.config.backend() == "tensorflow", reason="TensorFlow can export")
def test_another_backend_says_how_to_export(build, tmp_path):
    with pytest.raises(ImportError, match="needs the TensorFlow backend.*KERAS_BACKEND=tensorflow"):
        dualnet.export(build(), tmp_path / "saved_model")
