"""How much slower is an LSTM with one product per gate than one with a single product?

Usage: python benchmarks/fused.py [--units 200 650 1500] [--batch 64] [--time 35] [--jit]
Prints, for the training step and the forward pass over a segment, the median of the seconds
of `PerGateLSTMCell` and of `LSTMCell` with their interquartile range, and the ratio of the
medians. The two cells take turns, with the same weights. A published comparison in PyTorch
has 26.61 s against 20.81 s, a ratio of 1.28, for 1500 units and batches of 64. The backend
is the active one of Keras, on whichever device it takes.
"""

import argparse
import time

import keras
import numpy as np
from keras import ops

from dualnet.layers import LSTMCell, PerGateLSTMCell, Recurrence
from dualnet.training import versions

LEAST_REPEATS = 9


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, nargs="+", default=[200, 650, 1500])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--time", type=int, default=35)
    parser.add_argument("--repeats", type=int, default=15, help="at least 9")
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--jit", action="store_true", help="compile by XLA or torch.compile")
    options = parser.parse_args()
    if keras.backend.backend() == "jax":
        options.jit = True  # without it Keras has JAX run each operation by itself
    if options.repeats < LEAST_REPEATS:
        parser.error(f"--repeats must be at least {LEAST_REPEATS}")
    print(" ".join(f"{name} {version}" for name, version in versions().items()))
    print(
        f"batch {options.batch}, time {options.time}, jit {'on' if options.jit else 'off'}; ms, "
        f"median (IQR) of {options.repeats} after {options.warm_up} warm-ups"
    )
    print(f"{'units':>5}  {'pass':8}{'per gate':>18}{'fused':>18}{'ratio':>7}")
    for units in options.units:
        for name, passes in passes_over_a_segment(units, options).items():
            per_gate, fused = take_turns(passes, options.repeats, options.warm_up)
            ratio = np.median(per_gate) / np.median(fused)
            print(f"{units:>5}  {name:8}{shown(per_gate)}{shown(fused)}{ratio:>7.2f}", flush=True)


def passes_over_a_segment(units, options):
    """Return by name of a pass two functions that run it, per gate and fused.

    Each returns when the device is done: its result is on the host.
    """
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(options.batch, options.time, units)).astype("float32")
    targets = ops.convert_to_tensor(np.zeros((options.batch, units), "float32"))
    inputs = ops.convert_to_tensor(inputs)  # on the device once for all
    models = []
    for kind in (PerGateLSTMCell, LSTMCell):
        keras.utils.set_random_seed(0)  # fresh weights are then the same
        sequence = keras.Input((options.time, units))
        outputs, *_ = Recurrence(kind(units))(sequence)
        # The mean over time needs every output, and little of it goes to the host.
        model = keras.Model(sequence, keras.layers.GlobalAveragePooling1D()(outputs))
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=options.jit)
        models.append(model)
    apart, together = (model.predict_on_batch(inputs) for model in models)
    if not np.allclose(apart, together, rtol=1e-3, atol=1e-4):
        raise SystemExit("the two cells disagree")
    return {
        "training": [lambda m=model: m.train_on_batch(inputs, targets) for model in models],
        "forward": [lambda m=model: m.predict_on_batch(inputs) for model in models],
    }


def take_turns(functions, repeats, warm_up):
    """Return for each function its seconds, after `warm_up` calls that are not counted."""
    seconds = [[] for _ in functions]
    for turn in range(warm_up + repeats):
        for function, own in zip(functions, seconds):
            began = time.perf_counter()
            function()
            if turn >= warm_up:
                own.append(time.perf_counter() - began)
    return seconds


def shown(seconds):
    spread = np.subtract(*np.percentile(seconds, [75, 25]))
    return f"{f'{1e3 * np.median(seconds):.2f} ({1e3 * spread:.2f})':>18}"


if __name__ == "__main__":
    main()
