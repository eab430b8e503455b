"""Trains a published model at full size for some steps: does the loss fall, how fast is it?

Usage: python benchmarks/published_steps.py [--model dual_mdlstm] [--corpus ptb] [--steps 300]
Prints the mean loss of every 50 steps, and tokens per second after the first 10 steps.
"""

import argparse
import math
import time

import keras
import numpy as np

from dualnet import corpora, zoo
from dualnet.training import Recipe, versions


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="dual_mdlstm")
    parser.add_argument("--corpus", default="ptb")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    card = zoo.card(options.model, options.corpus)
    corpus = corpora.load(options.corpus, lowercase=card.lowercase)
    recipe = Recipe(**card.recipe)
    keras.utils.set_random_seed(0)
    model = zoo.build(options.model, corpus=options.corpus)
    model.compile(optimizer=recipe.make_optimizer())
    batches = corpus.batches(
        "train", batch_size=recipe.batch_size, sequence_length=recipe.sequence_length
    )
    print(f"{options.model}, {model.count_params():,} parameters, as published; {versions()}")
    losses, seconds = [], []
    for step in range(1, options.steps + 1):
        inputs, targets = batches[step]
        began = time.perf_counter()
        nll = math.log(model.train_on_batch(inputs, targets)[1])
        seconds.append(time.perf_counter() - began)
        losses.append(nll)
        if not math.isfinite(nll):
            raise SystemExit(f"the loss is no number at step {step}")
        if step % 50 == 0:
            mean = np.mean(losses[-50:])
            print(f"steps {step - 49:>4} to {step:>4}: {mean:.3f} nats per token", flush=True)
    steady = np.median(seconds[10:])
    spread = np.subtract(*np.percentile(seconds[10:], [75, 25]))
    tokens = recipe.batch_size * recipe.sequence_length
    print(f"{tokens / steady:,.0f} tokens per second; {steady:.3f} s per step (IQR {spread:.3f})")


if __name__ == "__main__":
    main()
