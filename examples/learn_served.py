"""Lets readers teach a model in TensorFlow Serving's format, and keeps their memories in SQLite.

Usage: python learn_served.py MODEL READERS.db READER learn TEXT
       python learn_served.py MODEL READERS.db READER score TEXT
       python learn_served.py MODEL READERS.db READER forget

MODEL is the folder of an export with `--learn`. `learn` and `score` print the perplexity of a text.
Needs NumPy and TensorFlow alone. Threads may share a `Readers`, and processes a database.
"""

import contextlib
import io
import sqlite3
import sys

import numpy as np
import tensorflow as tf


class Readers:
    def __init__(self, model, file):
        self.signatures, self.file = tf.saved_model.load(model).signatures, file
        specs = self.signatures["learn_text"].structured_input_signature[1]
        self.start = {  # of a new reader: no memory, zero states, -1 for settings and last token
            name: np.full(
                [1, *(size or 0 for size in spec.shape[1:])],
                0 if "state" in name else -1,
                spec.dtype.as_numpy_dtype,
            )
            for name, spec in specs.items()
            if name != "texts"
        }
        with self.transaction() as database:
            columns = "reader primary key, arrays, day"
            database.execute(f"create table if not exists readers ({columns})")

    @contextlib.contextmanager
    def transaction(self):
        connection = sqlite3.connect(self.file, timeout=60)
        with contextlib.closing(connection) as database, database:
            database.execute("pragma secure_delete = on")  # overwrites what is deleted
            database.execute("begin immediate")  # others wait, so that no update is lost
            yield database

    def ask(self, endpoint, **inputs):
        columns = {name: tf.constant(value) for name, value in inputs.items()}
        return self.signatures[endpoint](**columns)

    def load(self, database, reader):
        """Return the inputs of `learn_text` but the text: memory, states, last token, settings."""
        query = "select arrays from readers where reader = ?"
        row = database.execute(query, [reader]).fetchone()
        return {**self.start, **np.load(io.BytesIO(row[0]))} if row else self.start

    def learn(self, reader, text):
        """Let `reader` learn from `text`; return its perplexity before that."""
        with self.transaction() as database:
            answer = self.ask("learn_text", texts=[text], **self.load(database, reader))
            file = io.BytesIO()
            np.savez(file, **{name: answer[name] for name in self.start if name in answer})
            row = [reader, file.getvalue()]
            database.execute("insert or replace into readers values (?, ?, current_date)", row)
        return float(answer["perplexity"][0])

    def memory(self, scales):
        """Return the sum of the memories of readers, each times its scale."""
        with self.transaction() as database:
            memories = [self.load(database, reader)["memory"] for reader in scales]
        learnt = [one for one in memories if one.size]  # a new reader has none
        if not learnt:
            return self.start["memory"]
        weights = [scale for scale, one in zip(scales.values(), memories) if one.size]
        total = np.tensordot(np.float32(weights), np.stack(learnt), 1)
        total[:, -1] = learnt[0][:, -1]  # the mark of the model, which is no weight
        return total

    def score(self, text, scales):
        """Return the perplexity of `text` to readers of these scales, such as {"anna": 1}."""
        answer = self.ask("score_text", texts=[text], memory=self.memory(scales))
        return float(answer["perplexity"][0])

    def forget(self, reader):
        with self.transaction() as database:
            database.execute("delete from readers where reader = ?", [reader])

    def forget_idle(self, days):
        """Forget those who have read nothing for so many days."""
        with self.transaction() as database:
            database.execute("delete from readers where day < date('now', ?)", [f"-{days} days"])


if __name__ == "__main__":
    if [*sys.argv[4:5], len(sys.argv)] not in (["learn", 6], ["score", 6], ["forget", 5]):
        sys.exit(__doc__)
    model, file, reader, command, *texts = sys.argv[1:]
    readers = Readers(model, file)
    if command == "learn":
        print(readers.learn(reader, *texts))
    elif command == "score":
        print(readers.score(*texts, {reader: 1}))
    else:
        readers.forget(reader)
