"""Completes words for many readers and learns from each, without dualnet and TensorFlow.

Usage: python learn_onnx.py MODEL.onnx WORDS.txt READERS.db READER complete TEXT
       python learn_onnx.py MODEL.onnx WORDS.txt READERS.db READER learn TEXT
       python learn_onnx.py MODEL.onnx WORDS.txt READERS.db READER forget

MODEL.onnx is an export with `--learn`. READERS.db, a file of SQLite, keeps the memories. A reader
learns as a `dualnet.Learner` does. Needs what complete_onnx.py needs, and that file beside it.
"""

import contextlib
import sqlite3
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from complete_onnx import Completer

LENGTH = 20  # tokens of a step
DEFAULT = np.array([-1], np.float32)  # of a setting: that of the export


class Readers(Completer):
    def __init__(self, path, words, database):
        super().__init__(path, words)
        self.lesson = onnxruntime.InferenceSession(f"{path}.learn.onnx")
        self.losses = [output.name for output in self.lesson.get_outputs()]
        self.sizes = [*(value.size for value in self.zeros.values()), 1]
        self.database = database
        with self.opened() as kept:
            kept.execute("create table if not exists readers (name primary key, value)")

    @contextlib.contextmanager
    def opened(self):
        """Open the memories; others wait until what is done with them is written."""
        connection = sqlite3.connect(self.database, timeout=600, isolation_level=None)
        with contextlib.closing(connection) as kept:
            kept.execute("pragma secure_delete = on")  # what is deleted is overwritten
            kept.execute("begin immediate")
            yield kept
            kept.execute("commit")

    def load(self, kept, reader):
        """Return the memory and the states of a reader, and the token that was read last."""
        row = kept.execute("select value from readers where name = ?", [reader]).fetchone()
        if row is None:
            return dict(self.zeros), self.eos
        *parts, last = np.split(np.frombuffer(row[0], np.float32), np.cumsum(self.sizes)[:-1])
        return {name: part[None] for name, part in zip(self.zeros, parts)}, int(last[0])

    def complete(self, reader, text):
        """Return the likeliest words at the end of `text` for `reader`, and their probabilities."""
        with self.opened() as kept:
            states, _ = self.load(kept, reader)
        return self(text, memory=states["memory"])

    def learn(self, reader, text):
        """Let `reader` learn from `text`; return the perplexity before that."""
        with self.opened() as kept:
            states, last = self.load(kept, reader)
            ids = [last, *self.tokenizer.encode(text, add_special_tokens=False).ids]
            losses = []
            for i in range(0, len(ids) - 1, LENGTH):
                targets = np.array([ids[i + 1 : i + LENGTH + 1]], np.int32)
                answers = []
                for token in ids[i : i + targets.size]:
                    answer, states = self.run([token], states)
                    answers.append(answer)
                read = [name for name in answer if name.startswith("read_")]
                inputs = {name: np.concatenate([one[name] for one in answers], 1) for name in read}
                inputs |= {"targets": targets, "weights": np.ones(targets.shape, np.float32)}
                inputs |= dict.fromkeys(("learning_rate", "decay", "clipnorm"), DEFAULT)
                answer = self.lesson.run(None, {**inputs, "memory": states["memory"]})
                learnt = dict(zip(self.losses, answer))
                states["memory"] = learnt["new_memory"]
                losses.append(learnt["losses"][0])
            value = np.concatenate([*states.values(), [[ids[-1]]]], axis=1).astype(np.float32)
            row = [reader, value.tobytes()]
            kept.execute("insert or replace into readers values (?, ?)", row)
        return float(np.exp(np.concatenate(losses).mean())) if losses else 1.0

    def forget(self, reader):
        """Delete the memory of `reader`."""
        with self.opened() as kept:
            kept.execute("delete from readers where name = ?", [reader])


if __name__ == "__main__":
    model, words, database, reader, command, *texts = sys.argv[1:]
    readers = Readers(model, Path(words).read_text("utf-8").split(), database)
    print(getattr(readers, command)(reader, *texts))
