"""Damages cards, corpora, tokenisers, RUN folders and requests at random and runs dualnet on them.

Usage: python benchmarks/fuzz.py [--cases 2000] [--seed 0] [--show]
Each case must end with exit code 0, or with 2 and one sentence; never with a traceback, a hang,
an unfinished file, an escape sequence of a file on the terminal, or a change to existing files.
Sound requests to a SavedModel must be answered and all others refused. Prints a table by kind,
and each failed case with what reproduces it. The exit code is 1 if any failed.
"""

import argparse
import collections
import contextlib
import hashlib
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

CARD = """\
builder = "language_model"
paper = "our own"
note = "two layers"

[config]
cell = "mogrifier_lstm"
connection = "dual"
units = 8
recurrent_layers = 2
rounds = 2
rank = 3
input_dropout = 0.2
locked_dropouts = ["input"]
dual_l2 = 1e-5

[recipe]
optimizer = "nadam"
learning_rate = 0.002
clipnorm = 1.0
batch_size = 4
sequence_length = 9
epochs = 1
"""
SIDES = ["--source", "en", "--target", "de"]
TRANSLATOR = ["--epochs", "1", "--set", "units=4", "depth=1", "batch_size=30", "--quiet"]
QUICK = ["--epochs", "1", "--set", "units=4", "batch_size=4", "sequence_length=9", "--quiet"]
WORDS = ["the", "a", "cat", "dog", "bird", "sees", "likes", "finds", "and", "or", "big", "small"]
VALUES = [
    "0", "-1", "1", "3", "1e400", "nan", "inf", "-0.5", "0.5", "true", '"lstm"', "[]", "[1, 2]",
    "{}", "'", "[", "1979-05-27", "99999999999999999999", "\\", "", "a=b", "None", "0x1F", "\u00e9",
]  # fmt: skip
BOMBS = [
    ".".join("a" * 200_000) + " = 1", "a = " + "[" * 100_000, "[a" + ".b" * 99 + "]",
    "a = " + "{b=" * 900 + "1" + "}" * 900, "a = 0x" + "f" * 9_000, "units = " + "9" * 9_000,
    "# " + "a" * 2_000_000, 'note = "\\u001b[2J\\u001b]0;x\\u0007"', 'name = "\\u009b31m"',
    "units = 1_000_000_000", "recurrent_layers = 1_000_000_000", "experts = 1_000_000_000",
    "cache_size = 1_000_000_000_000", "rank = 9_000_000_000",
]  # fmt: skip
ESCAPES = [b"\x1b[2J", b"\x1b]0;x\x07", b"\xc2\x9b31m", b"\r\x1b[1A", b"\x00", b"\xe2\x80\xae"]
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # what may command a terminal
HANG, MEMORY = 120, 8 * 2**30  # seconds, bytes
SETTINGS = [
    "units", "rounds", "learning_rate", "clipnorm", "cell", "x", "sequence_length", "name",
    "beta_1", "locked_dropouts", "recurrent_units", "embedding_units", "vocabulary_size",
    "recurrent_layers",
]  # fmt: skip
KINDS = ("card", "corpus", "RUN", "request", "tokenizer", "text", "pairs")
JSON_VALUES = [None, True, 0, -1, 1.5, 2**31, 2**40, "", "x", "<eos>", "\ud83d", "(", [], [1], {}]
TOKENIZERS = ["bytes", "characters", "bpe:260", "bpe:300", "unigram:20", "word-piece:30", "words"]
READING = {
    "--tokenizer": [*TOKENIZERS, "bpe", "bpe:1", "bpe:x", "bytes:9", "unigram:9999999999", ""],
    "--documents": ["line", "blank-line", "file", "page", ""],
    "--fractions": ["1 1 1", "90 5 5", "0 1 1", "1e-9 1 1", "nan 1 1", "inf 1 1", "1 2", "a b c"],
}
OPTIONS = {
    "generate": ["--temperature", "--top-k", "--top-p", "--max-tokens", "--seed", "--prompt",
                 "--beam", "--n-best", "--length-normalization"],
    "score": ["--text"],
    "evaluate": ["--temperature", "--sequence-length", "--batch-size", "--split", "--rule", "--set",
                 "--corpus"],
    "train": ["--set", "--epochs", "--seed", "--checkpoint-steps", "--corpus"],
    "translate": ["--beam", "--nbest", "--format", "--length-normalization", "--max-tokens",
                  "--text", "--ensemble", "--plot"],
    "evaluate pairs": ["--beam", "--protocol", "--split", "--pairs", "--source", "--set"],
    "data": ["--tokenizer", "--source-tokenizer", "--files", "--source", "--target", "--pairs"],
}  # fmt: skip


class Workshop:
    """A folder with a corpus, a trained RUN and a card; each case damages a copy of one."""

    def __init__(self, folder):
        self.folder = Path(folder)
        chance = random.Random(0)
        self.corpus = self.folder / "corpus"
        self.corpus.mkdir()
        for split, lines in {"train": 60, "valid": 12, "test": 12}.items():
            text = [" ".join(chance.choices(WORDS, k=6)) for _ in range(lines)]
            (self.corpus / f"{split}.txt").write_text("\n".join(text) + "\n")
        self.run = self.folder / "RUN"
        code, log, _ = call(
            ["train", "lstm", "--corpus", self.corpus, "--output", self.run, *QUICK]
        )
        if code:
            raise SystemExit(log)
        self.file = self.folder / "story.txt"
        self.file.write_text("The cat.\n\nDer Hund läuft.\n猫\n" * 12, encoding="utf-8")
        self.parts = self.folder / "PARTS"  # a RUN of parts of words
        code, log, _ = call(
            ["train", "lstm", "--corpus", self.file, "--output", self.parts, "--tokenizer",
             "bpe:270", "--documents", "blank-line", *QUICK]
        )  # fmt: skip
        if code:
            raise SystemExit(log)
        self.pairs = self.folder / "pairs"
        self.pairs.mkdir()
        for split, lines in {"train": 30, "valid": 6, "test": 6}.items():
            for side in ("en", "de"):
                text = [
                    " ".join(chance.choices(WORDS, k=chance.randrange(5))) for _ in range(lines)
                ]
                (self.pairs / f"{split}.{side}").write_text("\n".join(text) + "\n")
        self.translator = self.folder / "TRANSLATOR"  # with a tokeniser for each side
        code, log, _ = call(
            ["train", "attention_gru", "--pairs", self.pairs, *SIDES, "--output", self.translator,
             "--source-tokenizer", "words", "--tokenizer", "bpe:270", *TRANSLATOR]
        )  # fmt: skip
        if code:
            raise SystemExit(log)
        self.runs = (self.run, self.parts, self.translator)

    def case(self, number):
        """Return the kind of case `number`, its damage in words, its command and its input."""
        chance = random.Random(number)
        place = self.folder / "case"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        kind = KINDS[number % len(KINDS)]
        return kind, *getattr(self, f"_{kind.lower()}")(chance, place)

    def _card(self, chance, place):
        data, how = damage_text(chance, CARD)
        (place / "own.toml").write_bytes(data)
        if chance.random() < 0.7:
            return how, ["card", place / "own.toml"], b""
        return how, ["train", place / "own.toml", "--corpus", self.corpus, "--output",
                     place / "new", *QUICK], b""  # fmt: skip

    def _corpus(self, chance, place):
        copy = place / "corpus"
        shutil.copytree(self.corpus, copy)
        how = damage_file(chance, copy / f"{chance.choice(['train', 'valid', 'test'])}.txt")
        if chance.random() < 0.7:
            return how, ["data", copy], b""
        return how, ["train", "lstm", "--corpus", copy, "--output", place / "new", *QUICK], b""

    def _run(self, chance, place):
        copy = place / "RUN"
        run = chance.choice([self.run, self.parts])
        shutil.copytree(run, copy)
        files = sorted(path for path in copy.rglob("*") if path.is_file())
        how = "; ".join(
            damage_file(chance, chance.choice(files)) for _ in range(chance.choice([1, 1, 2]))
        )
        if chance.random() < 0.4:  # otherwise the check of the sums would hide all others
            damage_file(chance, copy / "sums.json", "gone")
            how += "; no sums"
        command = chance.choice(
            [
                ["evaluate", copy],
                ["evaluate", copy],
                ["score", copy, "--text", "the cat"],
                ["generate", copy, "--prompt", "the", "--max-tokens", "2"],
                ["tokenizer", "show", copy, "--text", "the cat"],
                ["train", "lstm", "--corpus", self.corpus if run == self.run else self.file,
                 "--output", copy, "--resume",
                 "--quiet", "--epochs", chance.choice(["1", "2"])],
            ]
        )  # fmt: skip
        return how, command, b""

    def _tokenizer(self, chance, place):
        file = place / "tokenizer.json"
        shutil.copy(self.parts / "tokenizer.json", file)
        if chance.random() < 0.3:
            how = damage_file(chance, file)
        else:
            text, how = damage_json(chance, file.read_text("utf-8"))
            file.write_text(text, "utf-8")
        command = chance.choice(
            [
                ["tokenizer", "show", file, "--text", "the <eos>\n\nläuft"],
                ["data", self.file, "--tokenizer", file],
                ["data", self.file, "--tokenizer", file, "--lowercase", "--json"],
                ["train", "lstm", "--corpus", self.file, "--tokenizer", file, "--output",
                 place / "new", *QUICK],
            ]
        )  # fmt: skip
        return how, command, b""

    def _text(self, chance, place):
        file = place / "story.txt"
        shutil.copy(self.file, file)
        how = damage_file(chance, file) if chance.random() < 0.7 else "options"
        if chance.random() < 0.4:
            command = ["tokenizer", "train", file, "--output", place / "t.json", "--kind"]
            command += chance.choice([*TOKENIZERS, "bpe:9"]).replace(":", " --size ").split()
            if chance.random() < 0.3:
                command += [
                    "--special",
                    chance.choice(["<unk>", "cat", "", "(", " ", "\x00", "猫"]),
                ]
            return how, command, b""
        command = ["data", file]
        if chance.random() < 0.3:
            command = ["train", "lstm", "--corpus", file, "--output", place / "new", *QUICK]
        for option, values in READING.items():
            if chance.random() < 0.6:
                value = chance.choice(values)
                command += [option, *(value.split() if option == "--fractions" else [value])]
        return how, command, b""

    def _pairs(self, chance, place):
        """Damage pairs, or the RUN of a translator, or a request to one."""
        what = chance.choice(["pairs", "RUN", "RUN", "options"])
        copy = place / ("pairs" if what == "pairs" else "RUN")
        stdin = b"the cat\n\na dog\n"
        if what == "pairs":
            shutil.copytree(self.pairs, copy)
            split, side = chance.choice(["train", "valid", "test"]), chance.choice(["en", "de"])
            how = damage_file(chance, copy / f"{split}.{side}")
            tokenizer = ["--tokenizer", chance.choice(TOKENIZERS)]
            train = ["train", "attention_gru", "--pairs", copy, *SIDES, "--output", place / "new"]
            data = ["data", "--pairs", copy, *SIDES, *tokenizer]
            evaluate = ["evaluate", self.translator, "--pairs", copy, "--beam", "1"]
            command = chance.choice([data, data, evaluate, [*train, *tokenizer, *TRANSLATOR]])
            return how, command, b""
        if what == "RUN":
            shutil.copytree(self.translator, copy)
            files = sorted(path for path in copy.rglob("*") if path.is_file())
            how = damage_file(chance, chance.choice(files))
            if chance.random() < 0.4:
                damage_file(chance, copy / "sums.json", "gone")
                how += "; no sums"
            resume = ["train", "attention_gru", "--pairs", self.pairs, *SIDES, "--output", copy]
            resume += ["--resume", "--quiet", "--epochs", chance.choice(["1", "2"])]
            translate = ["translate", copy, "--beam", "2", "--max-tokens", "3"]
            others = [["evaluate", copy, "--beam", "1"], ["tokenizer", "show", copy], resume]
            return how, chance.choice([translate, translate, *others]), stdin
        name = chance.choice(["translate", "translate", "evaluate pairs", "data"])
        command = [name.split()[0], self.translator]
        if name == "data":
            command = [name, "--pairs", self.pairs, *SIDES]
        for _ in range(chance.choice([0, 1, 1, 2])):
            value = chance.choice([*VALUES, *TOKENIZERS, "the cat", "\x00", "\ud800"])
            command += [chance.choice(OPTIONS[name]), value]
            if command[-2] == "--plot":
                command[-1] = place / value.replace("/", "").replace("\x00", "")
        return "options", command, damage_bytes(chance, stdin)

    def _request(self, chance, place):
        name = chance.choice(["evaluate", "score", "score", "generate", "generate", "train"])
        stdin = b""
        if name == "train":
            command = [name, "lstm", "--corpus", self.corpus, "--output", place / "new", *QUICK]
        else:
            command = [name, self.run]
            stdin = damage_bytes(chance, b"the cat sees\na dog\n")
        for _ in range(chance.choice([0, 1, 1, 2])):
            option = chance.choice(OPTIONS[name])
            value = chance.choice([*VALUES, "the cat sees", "a " * 600, "\x00", "\ud800"])
            if option == "--epochs" and len(value) > 9:  # it would train all of them
                continue
            if option == "--set":
                value = f"{chance.choice(SETTINGS)}={value}"
            command += [option, value]
        return "options", command, stdin


def damage_bytes(chance, data):
    """Return `data` with some bytes changed, removed or inserted."""
    data = bytearray(data)
    for _ in range(chance.choice([1, 1, 3, 20])):
        at = chance.randrange(len(data) + 1)
        what = chance.random()
        if what < 0.4 and at < len(data):
            data[at] = chance.randrange(256)
        elif what < 0.6:
            del data[at : at + chance.randrange(1, 40)]
        else:
            data[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 9)))
    return bytes(data)


def damage_text(chance, text):
    """Return a TOML text, damaged as by a person or a disk, and a description of the damage."""
    lines = text.splitlines()
    at = chance.choice([i for i, line in enumerate(lines) if "=" in line])
    key, _, value = lines[at].partition(" = ")
    what = chance.randrange(9)
    if what == 8:
        bomb = chance.choice(BOMBS)
        table = chance.choice(["", "[config]\n", "[recipe]\n"])
        return f"{table}{bomb}\n{text if not table else ''}".encode(), f"bomb {table}{bomb[:40]}"
    if what == 7:
        escape = chance.choice(ESCAPES)
        return text.replace("two layers", "two\\u001blayers").encode() + escape, "escape sequences"
    if what == 0:
        return damage_bytes(chance, text.encode()), "bytes"
    if what == 1:
        lines[at] = f"{key[: chance.randrange(1, len(key) + 1)]}x = {value}"
    elif what == 2:
        lines[at] = f"{key} = {chance.choice(VALUES)}"
    elif what == 3:
        del lines[at]
    elif what == 4:
        lines.insert(at, lines[at])
    elif what == 5:
        lines = lines[:at]
    else:
        lines[at] = lines[at].replace(" = ", chance.choice([" ", " = = ", ": ", "."]))
    return "\n".join(lines).encode(), f"line {at + 1}: {lines[at] if at < len(lines) else 'cut'}"


def damage_json(chance, text):
    """Return a JSON text with one value changed, removed or added, and what was done."""
    data = json.loads(text)
    at, path = data, []
    while True:
        key = chance.choice([*(at if isinstance(at, dict) else range(len(at)))])
        path.append(str(key)[:20])
        if not isinstance(at[key], (dict, list)) or not at[key] or chance.random() < 0.2:
            break
        at = at[key]
    value = chance.choice(JSON_VALUES)
    what = chance.random()
    if what < 0.2:
        del at[key]
    elif what < 0.35 and isinstance(at, dict):
        at[chance.choice(["", "x", "type", "id", "\u0120\u0120"])] = value
    else:
        at[key] = value
    return json.dumps(data), f"{'.'.join(path)} = {value!a}"


def damage_file(chance, path, what=None):
    """Damage the file `path` and return a description of the damage."""
    if not path.is_file():
        return f"{path.name} is gone"
    data = path.read_bytes()
    what = what or chance.choice(
        ["flip", "flip", "cut", "gone", "empty", "bytes", "folder", "other", "pipe", "device",
         "escapes"]
    )  # fmt: skip
    if what == "flip" and data:
        at = chance.randrange(len(data))
        path.write_bytes(
            data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
        )
    elif what == "cut":
        path.write_bytes(data[: chance.randrange(len(data) + 1)])
    elif what == "empty":
        path.write_bytes(b"")
    elif what == "bytes":
        path.write_bytes(damage_bytes(chance, data[:100_000]))
    elif what in ("pipe", "device"):
        path.unlink()
        os.mkfifo(path) if what == "pipe" else path.symlink_to("/dev/zero")
    elif what == "escapes":
        at = chance.randrange(len(data) + 1)
        path.write_bytes(data[:at] + chance.choice(ESCAPES) + data[at:])
    elif what == "other":
        path.write_bytes(
            chance.choice([b"\x00" * 50, b"{}", b"[]", b"null", b"\n\n", b"\xef\xbb\xbf"])
        )
    else:
        path.unlink()
        if what == "folder":
            path.mkdir()
    return f"{what}: {path.name}"


def call(command, stdin=b""):
    """Run `dualnet` in this process.

    Return its exit code (None: a traceback), and what it wrote to standard error and output.
    """
    from dualnet import cli

    def hang(number, frame):
        raise RuntimeError(f"it hung for {HANG} seconds")

    signal.signal(signal.SIGALRM, hang)
    signal.alarm(HANG)
    out, err = io.StringIO(), io.StringIO()
    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8", errors="surrogateescape")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main([str(part) for part in command])
    except SystemExit as stopped:  # of argparse
        code = stopped.code
    except BaseException:
        return None, traceback.format_exc(), out.getvalue()
    finally:
        signal.alarm(0)
        sys.stdin = before
    return code, err.getvalue(), out.getvalue()


def fingerprint(folder):
    """Return a hash of each file below `folder` except locks."""
    return {
        path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def check(workshop, number):
    """Run case `number`; return its kind, its exit code, and what is wrong with it, or ""."""
    kind, how, command, stdin = workshop.case(number)
    place = workshop.folder / "case"
    whole = [fingerprint(run) for run in workshop.runs]
    before = fingerprint(place)
    code, log, out = call(command, stdin)
    wrong = ""
    resumed = "--resume" in command
    if code is None:
        wrong = log
    elif code not in (0, 2):
        wrong = f"exit code {code}"
    elif code == 2 and not log.strip():
        wrong = "no message"
    elif code == 2 and "usage:" not in log and len(message(log).splitlines()) != 1:
        wrong = f"more than a sentence: {log}"
    elif parts := [path.name for path in place.rglob(".unfinished*")]:
        wrong = f"parts of files: {parts}"
    elif code == 2 and not resumed and fingerprint(place) != before:
        wrong = f"files changed: {sorted(map(str, fingerprint(place).keys() ^ before.keys()))}"
    elif raw := RAW.findall(log + out.replace("\r\n", "\n")):
        wrong = f"raw on the terminal: {raw[:9]}"
    elif [fingerprint(run) for run in workshop.runs] != whole:
        wrong = "a RUN was changed"
    if wrong:
        wrong = f"case {number}, {kind}, {how}: {' '.join(map(str, command))}\n{wrong}"
    return kind, code, wrong, log


# --- a SavedModel


class Endpoints:
    """The SavedModel of a RUN, which is asked sound and unsound questions."""

    def __init__(self, workshop):
        import tensorflow as tf

        folder = workshop.folder / "saved_model"
        code, log, _ = call(["export", workshop.run, folder])
        if code:
            raise SystemExit(log)
        self.tf = tf
        self.model = tf.saved_model.load(str(folder))
        self.words = 3 + len(WORDS)  # at least: <unk>, <eos> and the words
        signature = self.model.signatures["step"].structured_input_signature[1]
        self.states = {name: spec.shape[-1] for name, spec in signature.items() if name != "ids"}
        self.words = self.ask("step", self.question("step", [[0]]))["logits"].shape[-1]

    def question(self, name, ids):
        rows, time = len(ids), len(ids[0])
        if name == "score":
            return {"ids": ids, "lengths": [time] * rows}
        return {"ids": ids, **{key: [[0.0] * size] * rows for key, size in self.states.items()}}

    def ask(self, name, question):
        integers = ("ids", "lengths")
        tensors = {
            key: self.tf.constant(value, "int32" if key in integers else "float32")
            for key, value in question.items()
        }
        return self.model.signatures[name](**tensors)

    def check(self, number):
        """Ask question `number`; return whether it was answered, and what is wrong, or ""."""
        chance = random.Random(number)
        name, rows, time = chance.choice(["score", "step"]), chance.choice([1, 2]), 4
        question = self.question(
            name, [[chance.randrange(self.words) for _ in range(time)] for _ in range(rows)]
        )
        damages = ["", "id", "large id", "time"] + (
            ["lengths", "negative", "beyond", "padding"] if name == "score" else ["rows"]
        )
        how = chance.choice(damages)
        row, at = chance.randrange(rows), chance.randrange(time)
        if how in ("id", "large id"):
            far = chance.choice([self.words, self.words + 1, 10**7, 2**31 - 1])
            question["ids"][row][at] = far if how == "large id" else -chance.choice([1, 2, 2**31])
        elif how == "time":
            question = self.question(name, [[]] * rows)
        elif how == "lengths":
            question["lengths"] = [time] * chance.choice([n for n in (1, 2, 3) if n != rows])
        elif how in ("negative", "beyond"):
            question["lengths"][row] = -1 if how == "negative" else time + chance.choice([1, 10**9])
        elif how == "padding":  # is not read
            question["lengths"][row] = at
            question["ids"][row][at:] = [-1] * (time - at)
        elif how == "rows":
            key = chance.choice(sorted(self.states))
            others = [n for n in (1, 2, 3) if n != rows]
            question[key] = [[0.0] * self.states[key]] * chance.choice(others)
        sound = how in ("", "padding") or (how == "time" and name == "score")
        try:
            answer = self.ask(name, question)
        except self.tf.errors.InvalidArgumentError as error:
            wrong = "a sound request is refused" if sound else ""
            told = "ust" in str(error) or "is not in [" in str(error)
            if not sound and not told:
                wrong = f"an internal error: {str(error)[:300]}"
            answered = False
        except Exception:
            wrong, answered = traceback.format_exc(), False
        else:
            values = [self.tf.cast(value, "float32") for value in answer.values()]
            finite = all(bool(self.tf.reduce_all(self.tf.math.is_finite(v))) for v in values)
            wrong = "" if sound and finite else "not finite" if sound else "it is answered"
            answered = True
        return answered, wrong and f"case {number}, model, {name}, {how}: {question}\n{wrong}"


def message(log):
    """Return the log of a command without reports of damaged checkpoints."""
    return re.sub(r"^Checkpoint .* is damaged: .*\n", "", log, flags=re.MULTILINE)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print every message")
    options = parser.parse_args()
    import keras

    # A case that fills the memory fails alone.
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.RLIM_INFINITY))
    began = time.perf_counter()
    counts = collections.Counter()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="dualnet-fuzz-") as folder:
        workshop = Workshop(folder)
        served = keras.backend.backend() == "tensorflow"
        endpoints = Endpoints(workshop) if served else None
        for i in range(options.cases):
            number = options.seed * 1_000_000 + i
            if served and i % 5 == 4:
                kind, log = "model", ""
                answered, wrong = endpoints.check(number)
                code = 0 if answered else 2
            else:
                kind, code, wrong, log = check(workshop, number)
            counts[kind, "wrong" if wrong else code] += 1
            if wrong:
                failed += 1
                print(wrong, flush=True)
            elif options.show and log:
                print(f"{i} {kind}: {log.strip().splitlines()[-1]}", flush=True)
            if i % 100 == 99:
                keras.backend.clear_session()
    print(f"{'kind':10}{'accepted':>10}{'refused':>10}{'wrong':>10}")
    for kind in (*KINDS, "model"):
        print(f"{kind:10}" + "".join(f"{counts[kind, key]:>10}" for key in (0, 2, "wrong")))
    print(f"{options.cases} cases in {time.perf_counter() - began:.0f} s, {failed} wrong")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
