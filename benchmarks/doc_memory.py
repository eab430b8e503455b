"""How much memory and time does a training step through a mixture of softmaxes take?

Usage: python benchmarks/doc_memory.py [--experts 5 10 20] [--policy float32] [--model]
Each row is a process of its own and prints its peak memory and the median seconds of a
training step with their interquartile range: batch 12 x 70, latents of 280 units, 10,000
words, experts on layers of 960 and 620 units as in AWD-LSTM-DOC. `DOCOutput` computes the
logits of the experts again in the backward pass; "keeps all logits" are the same equations
by automatic differentiation; "imports" is the memory of the backend alone. --model adds the
whole model of the zoo. The backend is the active one of Keras, on whichever device it takes;
the memory is that of the host.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import numpy as np

BATCH, TIME, LATENT_UNITS, WORDS = 12, 70, 280, 10_000
LOWER_UNITS, UPPER_UNITS = 960, 620
LEAST_REPEATS = 3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experts", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--policy", default="float32")
    parser.add_argument("--repeats", type=int, default=5, help="at least 3")
    parser.add_argument("--model", action="store_true", help="add the whole model of the zoo")
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.repeats < LEAST_REPEATS:
        parser.error(f"--repeats must be at least {LEAST_REPEATS}")
    if options.row:
        print(json.dumps(measure(*options.row, options)))
        return
    kinds = ["DOCOutput", "keeps all logits"] + ["whole model"] * options.model
    rows = [("imports", 0)] + [(kind, count) for count in options.experts for kind in kinds]
    for number, (kind, experts) in enumerate(rows):
        found = in_a_process(kind, experts)
        if number == 0:
            print(" ".join(f"{name} {version}" for name, version in found["versions"].items()))
            print(
                f"batch {BATCH}, time {TIME}, latents {LATENT_UNITS}, {WORDS} words, "
                f"{options.policy}; s, median (IQR) of {options.repeats} after 1 warm-up"
            )
            print(f"{'row':18}{'experts':>8}{'peak MB':>9}{'step s':>16}{'loss':>9}")
        step = f"{found['median']:.2f} ({found['spread']:.2f})" if "median" in found else ""
        loss = f"{found['loss']:.4f}" if "loss" in found else ""
        shown = experts or ""
        print(f"{kind:18}{shown:>8}{found['peak_mb']:>9.0f}{step:>16}{loss:>9}", flush=True)


def in_a_process(kind, experts):
    """Return what `measure` returns in a process of its own, with the same options."""
    command = [sys.executable, *sys.argv, "--row", kind, str(experts)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{kind} with {experts} experts failed ({done.returncode}), see above")
    return json.loads(done.stdout.splitlines()[-1])


def measure(kind, experts, options):
    import keras

    from dualnet.training import versions

    keras.config.set_dtype_policy(options.policy)
    keras.utils.set_random_seed(0)
    if kind == "imports":
        keras.ops.convert_to_numpy(keras.ops.matmul(np.ones((2, 2)), np.ones((2, 2))))
        return {"versions": versions(), "peak_mb": peak_mb()}
    step = (whole_model if kind == "whole model" else head)(kind, int(experts))
    seconds, loss = [], float(np.ravel(step())[0])  # the first loss: of the same weights
    for _ in range(options.repeats):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    low, median, high = np.percentile(seconds, [25, 50, 75])
    return {"median": median, "spread": high - low, "loss": loss, "peak_mb": peak_mb()}


def head(kind, experts):
    """Return a function that trains the output alone for one step and returns the loss."""
    import keras
    from keras import ops

    from dualnet.layers import DOCOutput

    class KeepsAllLogits(DOCOutput):
        """The equations of `DOCOutput`, as one writes them down."""

        def call(self, inputs, targets=None, mask=None, training=False):
            embeddings = ops.cast(self.tied_to.embeddings, self.compute_dtype)
            s = ops.matmul(self._latents(inputs, training), ops.transpose(embeddings))
            s = ops.cast(s, "float32") + ops.cast(self.bias, "float32")
            log_p = ops.log_softmax(s, axis=-1) + self._log_priors(inputs)[..., None]
            log_p = ops.logsumexp(log_p, axis=-2)
            return -ops.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]

    features = keras.Input((TIME, 8))
    targets = keras.Input((TIME,), dtype="int32")
    layers = [keras.layers.Dense(units)(features) for units in (LOWER_UNITS, UPPER_UNITS)]
    output = (DOCOutput if kind == "DOCOutput" else KeepsAllLogits)(
        WORDS,
        [experts // 4, experts - experts // 4],
        LATENT_UNITS,
        tied_to=keras.layers.Embedding(WORDS, LATENT_UNITS),
    )
    model = keras.Model([features, targets], output(layers, targets))
    model.compile(
        keras.optimizers.SGD(0.1),
        lambda _, losses: ops.mean(losses),
        jit_compile=keras.backend.backend() == "jax",
    )
    rng = np.random.default_rng(0)
    data = [
        rng.normal(size=(BATCH, TIME, 8)).astype("float32"),
        rng.integers(0, WORDS, (BATCH, TIME)).astype("int32"),
    ]
    return lambda: model.train_on_batch(data, np.zeros((BATCH, TIME), "float32"))


def whole_model(kind, experts):
    """Return a function that trains the model of the zoo for one step and returns the loss."""
    import keras

    from dualnet import zoo

    model = zoo.build("awd_lstm_doc", experts=[0, 0, experts // 4, experts - experts // 4])
    model.compile(keras.optimizers.SGD(0.1), jit_compile=keras.backend.backend() == "jax")
    words = np.random.default_rng(0).integers(0, WORDS, (BATCH, TIME + 1)).astype("int32")
    return lambda: model.train_on_batch(words[:, :-1], words[:, 1:])


def peak_mb():
    """Return the greatest resident size of this process in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
