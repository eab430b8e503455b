"""Damages cards, corpora, tokenisers, RUN folders and requests at random and runs dualnet on them.

Usage: python benchmarks/fuzz.py [--cases 2000] [--seed 0] [--show]
Each case must end with exit code 0, or with 2 and one sentence; never with a traceback, a hang,
an unfinished file, an escape sequence of a file on the terminal, or a change to existing files.
Prints a table by kind, and each failed case with what reproduces it; with `--show` every message.
The exit code is 1 if any failed.
"""

import collections
import contextlib
import hashlib
import io
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from pathlib import Path

import hypothesis
from hypothesis import strategies as st

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

FACTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
COMMANDS, REQUESTS, VALUES = (FACTS[name] for name in ("commands", "requests", "values"))
CARD = FACTS["own_card"]
WORDS = ["the", "a", "cat", "dog", "bird", "sees", "likes", "finds", "and", "or", "big", "small"]
ANY_VALUE = [*VALUES["number"], *VALUES["tokenizer"], *VALUES["text"], "a " * 600, "\x00", "\ud800"]
BOMBS = [
    "a = " + "[" * 100_000, "a = 0x" + "f" * 9_000, 'note = "\\u001b[2J\\u001b]0;x\\u0007"',
    'name = "\\u009b31m"', "units = 1_000_000_000", "recurrent_layers = 1_000_000_000",
]  # fmt: skip
ESCAPES = [b"\x1b[2J", b"\x1b]0;x\x07", b"\xc2\x9b31m", b"\r\x1b[1A", b"\x00", b"\xe2\x80\xae"]
OTHERS = [b"", b"\x00" * 50, b"{}", b"[]", b"null", b"\n\n", b"\xef\xbb\xbf"]
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # what may command a terminal
HANG, MEMORY = 120, 8 * 2**30  # seconds, bytes


def repeat(check, cases, seed=0):
    """Call `check(draw)` for `cases` random cases, where `draw` takes strategies of hypothesis."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=cases, database=None, deadline=None, phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(st.data())
    def run(data):
        check(data.draw)

    run()


# --- damage


def edited(data):
    """Return a strategy of `data`, with bytes changed, removed or inserted, or cut."""
    places = st.integers(0, len(data))
    return st.one_of(
        st.builds(
            lambda at, bit: data[:at] + bytes(b ^ (1 << bit) for b in data[at : at + 1])
            + data[at + 1 :], places, st.integers(0, 7),
        ),
        st.builds(lambda at, n: data[:at] + data[at + n :], places, st.integers(1, 40)),
        st.builds(
            lambda at, inserted: data[:at] + inserted + data[at:], places,
            st.sampled_from(ESCAPES) | st.binary(min_size=1, max_size=9),
        ),
        places.map(lambda at: data[:at]),
    )  # fmt: skip


@st.composite
def broken_toml(draw, text):
    """Damage a TOML text as a person or a disk does."""
    lines = text.splitlines()
    at = draw(st.sampled_from([i for i, line in enumerate(lines) if " = " in line]))
    key, _, value = lines[at].partition(" = ")
    bombs = st.builds(
        lambda bomb, table: f"{table}{bomb}\n{'' if table else text}",
        st.sampled_from(BOMBS), st.sampled_from(["", "[config]\n", "[recipe]\n"]),
    )  # fmt: skip
    other_lines = st.one_of(
        st.integers(1, len(key)).map(lambda n: f"{key[:n]}x = {value}"),
        st.sampled_from(VALUES["number"]).map(lambda value: f"{key} = {value}"),
        st.sampled_from(["", f"{lines[at]}\n{lines[at]}"]),
        st.sampled_from([" ", " = = ", ": ", "."]).map(lambda sign: f"{key}{sign}{value}"),
    )
    damaged = other_lines.map(lambda line: "\n".join([*lines[:at], line, *lines[at + 1 :]]))
    escaped = st.just(text.replace("two layers", "two\\u001blayers"))
    return draw(bombs | damaged | damaged | st.just("\n".join(lines[:at])) | escaped).encode()


def damage(draw, path):
    """Damage the file `path`; return what was done."""
    what = draw(st.sampled_from(["contents"] * 6 + ["gone", "folder", "pipe", "device"]))
    data = path.read_bytes()
    path.unlink()
    if what == "contents":
        contents = edited(data) | edited(data).flatmap(edited) | st.sampled_from(OTHERS)
        if path.suffix == ".toml":
            contents |= broken_toml(data.decode())
        path.write_bytes(draw(contents))
    elif what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "device":
        path.symlink_to("/dev/zero")
    return f"{what}: {path.name}"


@st.composite
def requests(draw):
    """Return a command of `REQUESTS` with up to two of its options."""
    request = draw(st.sampled_from([*REQUESTS]))
    command = words_of(request)
    options = st.sampled_from(REQUESTS[request])
    for option in draw(st.lists(options, max_size=2, unique=True)):
        value = draw(st.sampled_from(VALUES.get(option, ANY_VALUE)))
        if option == "--set":
            value += "=" + draw(st.sampled_from(VALUES["number"]))
        if option == "--epochs" and len(value) > 9:  # it would train all of them
            value = "1"
        command += [option, *(value.split() if option == "--fractions" else [value])]
    return command


# --- commands


def words_of(command):
    """Return the words of a command of fuzz.toml."""
    return shlex.split(command.format(**FACTS["short"]))


class Workshop:
    """A folder with texts, a card and trained RUN folders; each case damages a copy of one."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.case = self.folder / "case"
        chance = random.Random(0)
        for name in ("corpus", "pairs", "case"):
            (self.folder / name).mkdir()
        for split, lines in {"train": 60, "valid": 12, "test": 12}.items():
            for name in ("corpus/{}.txt", "pairs/{}.en", "pairs/{}.de"):
                counts = [6 if "txt" in name else chance.randrange(5) for _ in range(lines)]
                text = [" ".join(chance.choices(WORDS, k=count)) for count in counts]
                (self.folder / name.format(split)).write_text("\n".join(text) + "\n")
        (self.folder / "story.txt").write_text("The cat.\n\nDer Hund läuft.\n猫\n" * 20, "utf-8")
        (self.folder / "own.toml").write_text(CARD)
        for run, command in FACTS["runs"].items():
            words = [run if word == "case/new" else word for word in words_of(command)]
            code, log, _ = self.call(["train", *words])
            if code:
                raise SystemExit(log)
        shutil.copy(self.folder / "PARTS/tokenizer.json", self.folder)

    def call(self, command, stdin=b""):
        """Run `dualnet` in this process and folder.

        Return its exit code (None: a traceback), and what it wrote to standard error and output.
        """
        from dualnet import cli

        def hang(number, frame):
            raise RuntimeError(f"it hung for {HANG} seconds")

        signal.signal(signal.SIGALRM, hang)
        signal.alarm(HANG)
        out, err = io.StringIO(), io.StringIO()
        stdin_before = sys.stdin
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8", errors="surrogateescape")
        try:
            streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
            with contextlib.chdir(self.folder), streams[0], streams[1]:
                code = cli.main(command)
        except SystemExit as stopped:  # of argparse
            code = stopped.code
        except BaseException:
            return None, traceback.format_exc(), out.getvalue()
        finally:
            signal.alarm(0)
            sys.stdin = stdin_before
        return code, err.getvalue(), out.getvalue()

    def check(self, draw):
        """Run a case; return its kind, its exit code, its messages, and what is wrong, or ""."""
        shutil.rmtree(self.case, ignore_errors=True)
        self.case.mkdir()
        kind = draw(st.sampled_from([*COMMANDS, "request", "request"]))
        if kind == "request":
            done, command = [], draw(requests())
        else:
            done = self._damage_copy(draw, kind)
            command = words_of(draw(st.sampled_from(COMMANDS[kind])))
        stdin = draw(st.just(b"the cat sees\n\na dog\n") | edited(b"the cat sees\n\na dog\n"))
        code, log, wrong = self.outcome(command, stdin)
        return kind, code, log, wrong and f"{kind}, {done}: {shlex.join(command)!a}\n{wrong}"

    def _damage_copy(self, draw, name):
        source, copy = self.folder / name, self.case / name
        if source.is_file():
            shutil.copy(source, copy)
            return [damage(draw, copy)]
        shutil.copytree(source, copy)
        paths = sorted(path for path in copy.rglob("*") if path.is_file())
        count = 2 if name in FACTS["runs"] else 1
        damaged = draw(st.lists(st.sampled_from(paths), min_size=1, max_size=count, unique=True))
        done = [damage(draw, path) for path in damaged]
        sums = copy / "sums.json"
        if sums.is_file() and draw(st.booleans()):  # their check would hide all others
            sums.unlink()
            done.append("no sums")
        return done

    def outcome(self, command, stdin=b""):
        """Run a command; return its exit code, its messages, and what is wrong with it, or ""."""
        whole = [fingerprint(self.folder / run) for run in FACTS["runs"]]
        before = fingerprint(self.case)
        code, log, out = self.call(command, stdin)
        # Reports of damaged checkpoints may come before the sentence.
        sentence = re.sub(r"^Checkpoint .* is damaged: .*\n", "", log, flags=re.MULTILINE)
        wrong = ""
        if code is None:
            wrong = log
        elif code not in (0, 2):
            wrong = f"exit code {code}"
        elif code == 2 and not log.strip():
            wrong = "no message"
        elif code == 2 and "usage:" not in log and len(sentence.splitlines()) != 1:
            wrong = f"more than a sentence: {log}"
        elif parts := [path.name for path in self.case.rglob(".unfinished*")]:
            wrong = f"parts of files: {parts}"
        elif code == 2 and "--resume" not in command and fingerprint(self.case) != before:
            wrong = f"files changed: {sorted(map(str, fingerprint(self.case).keys() ^ before))}"
        elif raw := RAW.findall(log + out.replace("\r\n", "\n")):
            wrong = f"raw on the terminal: {raw[:9]}"
        elif [fingerprint(self.folder / run) for run in FACTS["runs"]] != whole:
            wrong = "a RUN was changed"
        return code, log, wrong


def fingerprint(folder):
    """Return a hash of each file below `folder` except locks."""
    return {
        path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def main():
    import keras
    from options import options_of  # a script of its folder, which tests import from above

    options = options_of(__doc__, cases=2000, seed=0, show=False)

    # A case that fills the memory fails alone.
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.RLIM_INFINITY))
    began = time.perf_counter()
    counts = collections.Counter()

    with tempfile.TemporaryDirectory(prefix="dualnet-fuzz-") as folder:
        workshop = Workshop(folder)

        def counted(draw):
            kind, code, log, wrong = workshop.check(draw)
            counts[kind, "wrong" if wrong else code] += 1
            if wrong:
                print(wrong, flush=True)
            elif options.show and log:
                print(f"{kind}: {log.strip().splitlines()[-1]}", flush=True)
            if counts.total() % 100 == 0:
                keras.backend.clear_session()

        repeat(counted, options.cases, options.seed)
    print(f"{'kind':15}{'accepted':>10}{'refused':>10}{'wrong':>10}")
    for kind in dict.fromkeys(kind for kind, _ in counts):
        print(f"{kind:15}" + "".join(f"{counts[kind, key]:>10}" for key in (0, 2, "wrong")))
    failed = sum(count for (_, code), count in counts.items() if code == "wrong")
    print(f"{counts.total()} cases in {time.perf_counter() - began:.0f} s, {failed} wrong")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
