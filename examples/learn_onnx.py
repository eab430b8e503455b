"""Completes words for many readers and learns from each, without dualnet and TensorFlow.

Usage: python learn_onnx.py MODEL.onnx WORDS.txt READER.npz complete TEXT
       python learn_onnx.py MODEL.onnx WORDS.txt READER.npz learn TEXT

MODEL.onnx is an export with `--learn`. READER.npz keeps a reader, who learns as a `dualnet.Learner`
does: it is a file of `Learner.save`, and made where there is none. Delete it to forget the reader.
Needs what complete_onnx.py needs, and that file beside it.
"""

import json
import os
import sys
import threading
from pathlib import Path

import numpy as np
import onnxruntime
from complete_onnx import BLANK_LINES, Completer, words_in


def opened(file):
    """Return what a file says of a reader, and its arrays."""
    with np.load(file) as data:
        arrays = dict(data)
    return json.loads(arrays.pop("about").tobytes()), arrays


class Readers(Completer):
    def __init__(self, path, words):
        super().__init__(path, words)
        self.lesson = onnxruntime.InferenceSession(f"{path}.learn.onnx")
        self.new, self.lock = f"{path}.reader.npz", threading.Lock()
        # In the order of a file; "ring" has the last tokens, ids plus 1, and 0 for none.
        self.names = ["memory", *(name for name in self.zeros if name != "memory"), "ring"]
        self.about, arrays = opened(self.new)
        self.types = {key: array.dtype for key, array in arrays.items()}
        is_line = "documents=line" in self.about["reads"][0]
        self.end = "\n" if is_line else BLANK_LINES

    def load(self, file):
        """Return what a file says of a reader, and the states that the reader is in."""
        about, arrays = opened(file if os.path.exists(file) else self.new)
        for key in ("checksum", "adapt", "cache"):
            if about[key] != self.about[key]:
                raise ValueError(f"{file} is of another export: its {key} is {about[key]}.")
        rows = [array.astype(np.float32)[None] for array in arrays.values()]
        return about, {"ring": np.zeros((1, 0)), **dict(zip(self.names, rows))}

    def save(self, file, about, states):
        """Write a reader into a file, whole or not at all."""
        named = zip(self.names, self.types.items())
        arrays = {key: states[name][0].astype(dtype) for name, (key, dtype) in named}
        with open(f"{file}.new", "wb") as data:
            np.savez(data, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)
        os.replace(f"{file}.new", file)

    def step(self, ids, states):
        """Read a token of each row; make likelier what followed the same tokens before."""
        log_p, states = super().step(ids, states)
        rings = np.append(states["ring"], np.array(ids)[:, None] + 1, axis=1)[:, 1:]
        p = np.exp(log_p.astype(np.float64))
        for row, ring in enumerate(rings.astype(int)):
            places = np.flatnonzero(ring)
            for length, weight in zip(range(len(ring)), self.about["cache_weights"]):
                if length:
                    places = places[places >= length]
                    places = places[ring[places - length] == ring[-length]]
                counts = np.bincount(ring[places] - 1, minlength=p.shape[1])
                total = max(len(places) + 2 * np.count_nonzero(counts), 1)
                p[row] = (1 - weight * len(places) / total) * p[row] + weight * counts / total
        return np.log(p), {**states, "ring": rings}

    def complete(self, file, text):
        """Return the likeliest words at the end of `text` for a reader, and their probabilities."""
        about, states = self.load(file)
        ring = states["ring"]
        if about["last"] != self.eos:  # with which the text begins
            ring = np.append(ring, [[about["last"] + 1]], axis=1)[:, 1:]
        return self(text, about["words"], memory=states["memory"], ring=ring)

    def learn(self, file, text):
        """Let a reader learn from `text`; return the perplexity before that."""
        with self.lock:  # another thread may have the same file
            about, states = self.load(file)
            settings, losses = about["settings"], []
            length = settings["sequence_length"]
            ids = [about["last"], *self.encode(text)]
            for i in range(0, len(ids) - 1, length):
                targets, steps = ids[i + 1 : i + length + 1], []
                for token, target in zip(ids[i:], targets):
                    log_p, states = self.step([token], states)
                    losses.append(-log_p[0, target])
                    steps.append(states)
                reads = [name for name in states if name.startswith("read_")]
                inputs = {name: np.concatenate([one[name] for one in steps], 1) for name in reads}
                for name in ("learning_rate", "decay", "clipnorm"):
                    inputs[name] = np.array([settings.get(name, 0)], np.float32)
                inputs["targets"] = np.array([targets], np.int32)
                inputs["weights"] = np.ones((1, len(targets)), np.float32)
                inputs["memory"] = states["memory"]
                answer = self.lesson.run(["new_memory", "applied"], inputs)
                states["memory"], [applied] = answer
                about["skipped"] += int(not applied)
            about["tokens"] += len(losses)
            about["words"] = sorted({*about["words"], *words_in(text)} - self.known)
            about["last"] = ids[-1]
            self.save(file, about, states)
        return float(np.exp(np.mean(losses))) if losses else 1.0


if __name__ == "__main__":
    if len(sys.argv) != 6 or sys.argv[4] not in ("complete", "learn"):
        sys.exit(__doc__)
    model, words, reader, command, text = sys.argv[1:]
    readers = Readers(model, Path(words).read_text("utf-8").split())
    print(getattr(readers, command)(reader, text))
