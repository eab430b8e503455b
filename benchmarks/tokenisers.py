"""Compares tokenisers: models of one size, trained equally long, in bits per byte.

Usage: python benchmarks/tokenisers.py FILE OUTPUT [--minutes 10] [--parameters 1000000]
                                       [--bytes 2000000] [--tokenizers bytes characters bpe:2000]
Reads the first `--bytes` of FILE and divides them 90 to 5 to 5 by line. Lines of the smaller parts
with a character that the largest lacks are left out, since a model of characters would not have to
predict it. Trains `dual_lstm` with each tokeniser, with as many units as the budget of weights
allows, for that many minutes of processor time on one core. Prints one line each; a finished RUN in
OUTPUT is not trained again.
"""

import json
import os
import time

from options import options_of

for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ[name] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

MODEL = "dual_lstm"
SETTINGS = {
    "batch_size": 32, "learning_rate": 0.002, "clipnorm": 1.0, "embedding_l2": 0, "dual_l2": 0,
    "input_dropout": 0.1, "recurrent_dropout": 0.0, "output_dropout": 0.1,
    "dual_input_dropout": 0.0, "dual_output_dropout": 0.1, "seed": 1, "epochs": 1000,
}  # fmt: skip
STEPS = {"bytes": 100, "characters": 100}  # tokens per segment: about as much text in each
OTHER_STEPS = 35


def write_splits(text, folder):
    """Write the lines of `text` as train, valid and test, without characters that train lacks."""
    folder.mkdir(exist_ok=True)
    lines = text.split("\n")
    first, second = len(lines) * 90 // 100, len(lines) * 95 // 100
    known = set("".join(lines[:first]))
    parts = {"train": lines[:first], "valid": lines[first:second], "test": lines[second:]}
    for split, part in parts.items():
        kept = [line for line in part if known.issuperset(line)]
        print(f"{split}: {len(kept):,} of {len(part):,} lines", flush=True)
        (folder / f"{split}.txt").write_text("".join(line + "\n" for line in kept), "utf-8")


def main():
    options = options_of(
        __doc__, "file", "output", minutes=10.0, parameters=1_000_000, bytes=2_000_000,
        tokenizers=["bytes", "characters", "bpe:2000"],
    )  # fmt: skip
    from dualnet import corpora, training, zoo
    from dualnet.tuning.budget import solve

    options.output.mkdir(parents=True, exist_ok=True)
    text = options.output / "text"
    write_splits(options.file.read_bytes()[: options.bytes].rpartition(b"\n")[0].decode(), text)
    print(f"{'tokenizer':<12}{'units':>6}{'weights':>11}{'size':>6}{'tokens/byte':>12}{'epochs':>7}"
          f"{'test: perplexity':>18}{'bits per byte':>15}{'per word':>10}")  # fmt: skip
    for tokenizer in options.tokenizers:
        corpus = corpora.load(text, tokenizer=tokenizer)
        settings = SETTINGS | {"sequence_length": STEPS.get(tokenizer, OTHER_STEPS)}
        size = len(corpus.vocabulary)
        card = zoo.card(MODEL)
        units = solve(card, {}, options.parameters, vocabulary_size=size)
        run = options.output / tokenizer.replace(":", "-")
        end = time.process_time() + 60 * options.minutes

        def stop(history, end=end):
            return time.process_time() > end

        if not (run / "results.json").exists():
            training.train(
                MODEL, corpus, output=run, units=units, progress=False, stop=stop, **settings
            )
        results = json.loads((run / "results.json").read_text())
        num_bytes = sum(len(corpus.vocabulary.spelling[i]) for i in corpus.test)
        print(f"{tokenizer:<12}{units:>6}{results['parameters']:>11,}{size:>6}"
              f"{len(corpus.test) / num_bytes:>12.3f}{results['epochs']:>7}"
              f"{results['test_perplexity']:>18.3f}{results['test_bits_per_byte']:>15.3f}"
              f"{results['test_perplexity_per_word']:>10.1f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
