"""What one backend alone can do: divide batches among devices (JAX), export (TensorFlow).

A subprocess has two logical devices on this machine.
"""

import json
import os
import subprocess
import sys

import keras
import pytest

import dualnet
from dualnet import training

SCRIPT = """
import contextlib, json, sys
import keras, numpy as np
import dualnet
from dualnet import corpora, training
from dualnet.builders import language_model
from dualnet.training import checkpoints

text, output = sys.argv[1:]
corpus = corpora.load(text)
words, tokens = len(corpus.vocabulary), corpus.split("valid")

def fitted(distribution):
    with distribution:
        keras.utils.set_random_seed(1)
        model = language_model(
            words, units=8, cell="elman", input_dropout=0.3, recurrent_dropout=0.3,
            output_dropout=0.3,
        )
        model.compile(optimizer=keras.optimizers.SGD(0.1))
        batches = corpus.batches("train", batch_size=4, sequence_length=9)
        history = model.fit(batches, epochs=2, verbose=0, validation_data=batches).history
        history["dynamic"] = [dualnet.dynamic_evaluation(model, tokens[:60], rule="sgd").perplexity]
        history["static"] = [dualnet.perplexity(model, tokens)]
        variables = [np.array(keras.ops.convert_to_numpy(v)) for v in model.variables]
        rows = model.training_rows.variables[0]
        try:
            model.fit(corpus.batches("train", batch_size=3, sequence_length=9), verbose=0)
            error = ""
        except ValueError as refusal:
            error = str(refusal)
    return history, variables, len(rows.value.sharding.device_set), error

def close(one, two):
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

one, two = fitted(contextlib.nullcontext()), fitted(dualnet.data_parallel(2).scope())
for name in one[0]:
    close(one[0][name], two[0][name])
close(one[1], two[1])
assert (one[2], two[2]) == (1, 2), (one[2], two[2])
assert one[3] == "" and two[3].startswith("`batch_size` must be a multiple of 2"), two[3]

# Sentences, whose last batch has an odd number of rows; interrupted and resumed.
settings = dict(cell="elman", units=8, batching="sentences", batch_size=8, sequence_length=9,
                output_dropout=0.2, seed=3, progress=False)
runs = {
    name: training.train("lstm", corpus, output=f"{output}/{name}", devices=devices, **epochs,
                         **settings)
    for name, devices, epochs in (
        ("one", None, {"epochs": 2}), ("stopped", 2, {"epochs": 2, "stop": lambda history: True})
    )
}
runs["two"] = training.train("lstm", corpus, output=f"{output}/stopped", devices="all", resume=True)
for key in ("loss", "val_perplexity"):
    close(*([row[key] for row in runs[name].history] for name in ("one", "two")))
assert len(runs["two"].history) == 2 and len(runs["stopped"].history) == 1
close(*([runs[name].results["test_perplexity"]] for name in ("one", "two")))
assert keras.distribution.distribution() is None
print(json.dumps(two[0]))
"""


TWO_DEVICES = "--xla_force_host_platform_device_count=2"
on_jax = pytest.mark.skipif(
    keras.config.backend() != "jax", reason="Keras divides batches on JAX only"
)


@on_jax
def test_two_devices_compute_what_one_computes(folder, tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), str(tmp_path)],
        capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {TWO_DEVICES}"},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout.splitlines()[-1])["perplexity"]


@pytest.mark.skipif(keras.config.backend() == "jax", reason="JAX takes devices")
def test_devices_are_for_jax_alone(tmp_path):
    with pytest.raises(ValueError, match="`devices` needs the JAX backend. Received: devices=2"):
        training.train("lstm", "python-reference", output=tmp_path / "run", devices=2)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(keras.config.backend() == "tensorflow", reason="TensorFlow exports")
def test_another_backend_than_tensorflow_says_how_to_export(build, tmp_path):
    with pytest.raises(ImportError, match="needs the TensorFlow backend.*KERAS_BACKEND=tensorflow"):
        dualnet.export(build(), tmp_path / "saved_model")


@on_jax
@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (0, "`devices` must be an integer of at least 1"),
        (99, "`devices` must be at most [0-9]+, the number of devices that JAX sees"),
    ],
)
def test_there_are_from_1_to_as_many_devices_as_jax_sees(devices, message):
    with pytest.raises(ValueError, match=message):
        dualnet.data_parallel(devices)
