"""How fast are the losses of given words, and their gradients, against the plain form?

Usage: python benchmarks/outputs.py [--cases tied tied_33k tied_268k mixture] [--repeats 9]
Prints for each case and policy the median of the seconds of a forward and backward pass of the
output alone, with the interquartile range: as one writes it down, and as the layer has it. The
two take turns in one process. Peak memory is that of a process of each form of its own.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import numpy as np

# Tokens, units, words, experts.
CASES = {
    "tied": (800, 850, 10_000, 0),
    "tied_33k": (800, 850, 33_278, 0),
    "tied_268k": (800, 850, 267_735, 0),
    "mixture": (840, 280, 10_000, 20),
}
POLICIES = ("float32", "mixed_bfloat16")
FORMS = ("plain", "fused")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--repeats", type=int, default=9, help="at least 7")
    parser.add_argument("--row", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        case, policy, forms = options.row
        return print(json.dumps(measure(case, policy, forms.split(","), options.repeats)))
    if options.repeats < 7:
        parser.error("--repeats must be at least 7")
    print(f"{'case':11}{'policy':16}{'form':7}{'s (IQR)':>18}{'peak MB':>9}", flush=True)
    for case in options.cases:
        for policy in options.policies:
            seconds = in_a_process(case, policy, FORMS)["seconds"]
            for form in FORMS:
                peak = in_a_process(case, policy, [form])["peak_mb"]
                low, median, high = np.percentile(seconds[form], [25, 50, 75])
                shown = f"{median:.3f} ({high - low:.3f})"
                print(f"{case:11}{policy:16}{form:7}{shown:>18}{peak:>9.0f}", flush=True)


def in_a_process(case, policy, forms):
    """Return what `measure` returns in a process of its own, with the same options."""
    command = [sys.executable, *sys.argv, "--row", case, policy, ",".join(forms)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(case, policy, forms, repeats):
    """Return seconds by form, taken in turns, and the peak memory of this process."""
    import keras

    keras.config.set_dtype_policy(policy)
    steps = {form: step_of(form, *CASES[case]) for form in forms}
    seconds = {form: [] for form in forms}
    for turn in range(repeats + 1 if len(forms) > 1 else 2):
        for form, step in steps.items():
            began = time.perf_counter()
            step()
            if turn:
                seconds[form].append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "peak_mb": peak / 1e6 if sys.platform == "darwin" else peak / 1e3}


def step_of(form, tokens, units, words, experts):
    """Return a function that finds the mean loss and takes a step of a rate of 0."""
    import keras
    from keras import ops

    from dualnet.layers import MixtureSoftmax, OutputProjection

    rng = np.random.default_rng(0)
    embedding = keras.layers.Embedding(words, units)
    hidden = keras.Input((tokens, units))
    targets = keras.Input((tokens,), dtype="int32")
    scaled = keras.layers.Dense(units, use_bias=False)(hidden)  # with a gradient below the output
    if experts:
        output = MixtureSoftmax(words, experts, units, tied_to=embedding)
    else:
        output = OutputProjection(tied_to=embedding)

    class AsWritten(keras.layers.Layer):
        """The equations, with automatic gradients."""

        def build(self, shape):
            output.build(shape)

        def call(self, inputs, targets):
            if not experts:
                return ops.sparse_categorical_crossentropy(targets, output(inputs), True)
            matrix = ops.cast(embedding.embeddings, self.compute_dtype)
            s = ops.matmul(output._latents([inputs], False), ops.transpose(matrix))
            s = ops.cast(s, "float32") + ops.cast(output.bias, "float32")
            log_p = ops.log_softmax(s, axis=-1) + output._log_priors([inputs])[..., None]
            log_p = ops.logsumexp(log_p, axis=-2)
            return -ops.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]

        def compute_output_spec(self, inputs, targets):
            return keras.KerasTensor(targets.shape, "float32")

    layer = output if form == "fused" else AsWritten()
    if form == "plain":
        layer.written = output  # its weights are those of the layer
    model = keras.Model([hidden, targets], layer(scaled, targets))
    model.compile(
        keras.optimizers.SGD(0.0),
        lambda _, losses: ops.mean(losses),
        jit_compile=keras.backend.backend() == "jax",
    )
    data = [
        rng.normal(size=(1, tokens, units)).astype("float32"),
        rng.integers(0, words, (1, tokens)).astype("int32"),
    ]
    return lambda: model.train_on_batch(data, np.zeros((1, tokens), "float32"))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
