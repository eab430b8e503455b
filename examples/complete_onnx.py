"""Completes words with the ONNX file of a model of byte-level BPE, without dualnet and TensorFlow.

Usage: python complete_onnx.py MODEL.onnx WORDS.txt TEXT...

Needs numpy, onnxruntime and tokenizers. WORDS.txt is that of the RUN. The answers are those of
`dualnet.complete`, but for scripts that write no spaces.
"""

import re
import sys
import unicodedata
from collections import defaultdict
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

BEAM, K, APOSTROPHES = 8, 3, "'\u2019"
BLANK_LINES = r"\n(?:[ \t\r\f\v]*\n)+"


def in_word(c):
    return c in APOSTROPHES or unicodedata.category(c)[0] in "LMN"


def words_in(text):
    words = "".join(c if in_word(c) else " " for c in text).split()
    return {word.strip(APOSTROPHES) for word in words}


class Completer:
    def __init__(self, path, words, end=BLANK_LINES):
        self.end = end  # what `<eos>` stands for; "\n" where a document is a line
        self.session = onnxruntime.InferenceSession(path)
        self.tokenizer = Tokenizer.from_file(f"{path}.tokenizer.json")
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printable]
        byte_of = {chr(byte): byte for byte in printable}  # how byte-level BPE spells bytes
        byte_of |= {chr(256 + i): byte for i, byte in enumerate(others)}
        ids = self.tokenizer.get_vocab()
        self.pieces = [bytes(map(byte_of.get, token)) for token in sorted(ids, key=ids.get)]
        texts = [piece.decode(errors="replace").replace("\ufffd", "a") for piece in self.pieces]
        self.goes_on = np.array([in_word(text[0]) for text in texts])  # with the word before it
        self.is_word = np.array([all(map(in_word, text.removeprefix(" "))) for text in texts])
        self.eos, tokens = ids["<eos>"], {piece.decode(errors="ignore") for piece in self.pieces}
        self.known = {token[1:] for token in tokens if token[:1] == " "}
        self.known |= {form for word in words for form in (word, word[:1].upper() + word[1:])}
        outputs = [output.name for output in self.session.get_outputs()]
        self.outputs = [name.removeprefix("new_") for name in outputs]
        shapes = {i.name: i.shape[1] for i in self.session.get_inputs()[1:]}
        self.zeros = {name: np.zeros((1, size), np.float32) for name, size in shapes.items()}

    def encode(self, text):
        first, *others = (
            self.tokenizer.encode(document, add_special_tokens=False).ids
            for document in re.split(self.end, text)
        )
        return sum(([self.eos, *ids] for ids in others), first)

    def step(self, ids, states):
        """Read a token of each row; return log p of the next ones, and the new states."""
        inputs = {name: states[name] for name in self.zeros}
        inputs["ids"] = np.array(ids, np.int32)[:, None]
        states = {**states, **dict(zip(self.outputs, self.session.run(None, inputs)))}
        logits = states["logits"][:, 0] - states["logits"][:, 0].max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True)), states

    def allowed(self, left, is_first, may_space):
        """Return which tokens may come, and which begin with all that is `left` to spell."""
        if not left and not is_first:
            return self.is_word & self.goes_on, self.is_word
        begins = np.array([piece.startswith(left) for piece in self.pieces])
        inside = np.array([left.startswith(piece) for piece in self.pieces])
        spaced = np.array([piece[:1] == b" " for piece in self.pieces])
        letters = self.is_word & (~spaced | bool(left) | may_space)
        return np.where(begins, letters, inside), begins

    def __call__(self, text, words=(), **states):
        """Return the likeliest words at the end of `text`, and their probabilities.

        `words` are known beside those of the file; `states` are those of a reader.
        """
        begun = next((i for i in range(len(text)) if all(map(in_word, text[i:]))), len(text))
        word = text[begun:].lstrip(APOSTROPHES)
        before = text[: len(text) - len(word)]
        spelt, last = word.encode(), before[-1:]
        may_space = not spelt and last not in ("", *" \t\r\n")
        if last == " ":
            before, spelt = before[:-1], b" " + spelt
        states = {**self.zeros, **states}
        for token in [self.eos, *self.encode(before)]:
            log_p, states = self.step([token], states)

        rows, totals, found, mass = [b""], np.zeros(1), [], 0.0 if spelt else 1.0
        while len(rows):
            scores = np.full((len(rows), len(self.pieces)), -np.inf)
            for row, so_far in enumerate(rows):
                left = spelt[len(so_far) :]
                may_come, begins = self.allowed(left, not so_far, may_space)
                scores[row][may_come] = (totals[row] + log_p[row])[may_come]
                mass += np.exp(totals[row] + log_p[row])[begins].sum() if left else 0
            best = np.argsort(-scores, axis=None, kind="stable")[:BEAM]
            best = best[scores.ravel()[best] > -np.inf]
            parents, tokens = np.divmod(best, len(self.pieces))
            totals = scores.ravel()[best]
            rows = [rows[i] + self.pieces[token] for i, token in zip(parents, tokens)]
            if not rows:
                break
            log_p, states = self.step(tokens, {n: state[parents] for n, state in states.items()})
            ending = np.log(np.exp(log_p[:, ~self.goes_on]).sum(-1))
            for so_far, total in zip(rows, totals + ending):
                if len(so_far) >= len(spelt) and so_far.strip():
                    found.append((total, so_far))
            found = sorted(found, reverse=True)[: 4 * BEAM]
            bound = found[2 * K - 1][0] if len(found) >= 2 * K else -np.inf
            longer = totals + np.where(
                [len(r) < len(spelt) for r in rows], 0, log_p[:, self.goes_on].max(-1)
            )
            kept = np.flatnonzero(longer > bound)
            rows, totals, log_p = [rows[i] for i in kept], totals[kept], log_p[kept]
            states = {name: state[kept] for name, state in states.items()}

        sums = defaultdict(float)
        for total, so_far in found:
            sums[so_far.decode(errors="replace").removeprefix(" ")] += float(np.exp(total) / mass)
        known = {*self.known, *words, *words_in(text)}
        offered = [(p, w) for w, p in sums.items() if w in known and w[-1] not in APOSTROPHES]
        return [(w, p) for p, w in sorted(offered, reverse=True)[:K]]


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    model, words, *texts = sys.argv[1:]
    complete = Completer(model, Path(words).read_text("utf-8").split())
    for text in texts:
        print(text, complete(text))
