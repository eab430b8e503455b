"""Texts beyond memory: rows as they come, shards, parts of Parquet, and work that is resumed."""

import concurrent.futures
import csv
import gzip
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import dualnet
from dualnet import _files, scorers
from dualnet.cli import outputs
from dualnet.corpora import records
from dualnet.runs import Run
from dualnet.text import ByteTokenizer, Vocabulary
from tests.checks import needed, once, small

LINES = [f"{'word ' * (1 + i * 7 % 5)}{i}\n" for i in range(40)]
PAIRS = [
    {"sentence_good": f"a cat {i}", "sentence_bad": f"{'cat ' * (i % 3)}a {i}", "UID": f"u{i % 2}"}
    for i in range(12)
]
BLOCK = 100  # bytes: some 7 blocks of LINES and 12 of PAIRS
FORMATS = {
    "scores": "score {model} {lines}",
    "surprisal": "score {model} {lines} --format surprisal --words --entropy",
    "pairs": "minimal-pairs {model} {pairs}",
}

pytestmark = [once, pytest.mark.usefixtures("small_blocks")]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Paths of a model, of lines and of pairs; and of the same, compressed."""
    folder = tmp_path_factory.mktemp("large")
    paths = {name: folder / name for name in ("model.keras", "lines.txt", "pairs.jsonl")}
    small(ByteTokenizer(), units=4).save(paths["model.keras"])
    paths["lines.txt"].write_text("".join(LINES))
    paths["pairs.jsonl"].write_text("".join(json.dumps(pair) + "\n\n" for pair in PAIRS))
    for name in ("lines.txt", "pairs.jsonl"):
        folder.joinpath(f"{name}.gz").write_bytes(gzip.compress(paths[name].read_bytes()))
    return {name.split(".")[0]: path for name, path in paths.items()}


@pytest.fixture(scope="module")
def model(places):
    return dualnet.load(places["model"])


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(records, "BLOCK_BYTES", BLOCK)


@pytest.fixture
def loaded_once(monkeypatch, model):
    """Let every command use one model, which is compiled once."""
    monkeypatch.setattr(Run, "model", lambda run: model)


@pytest.fixture(params=FORMATS)
def command(request, places, loaded_once):
    return FORMATS[request.param].format(**places)


@pytest.fixture
def suffix(command):
    return "tsv" if "surprisal" in command else "jsonl"


@pytest.fixture
def killed(monkeypatch):
    """Return a function that lets the scoring of block N end in an error, once."""

    def kill(number):
        for kind in (scorers.TextScorer, scorers.SurprisalScorer, scorers.PairScorer):
            monkeypatch.setattr(kind, "rows", rows_of(kind.rows, number))

    def rows_of(original, number):
        calls = 0

        def rows(scorer, items, first=1):
            nonlocal calls
            calls += 1
            if calls == number:
                raise OSError("killed")
            return original(scorer, items, first)

        return rows

    return kill


@pytest.mark.usefixtures("loaded_once")
def test_rows_are_those_of_python_whatever_the_format(cli, places, model, tmp_path):
    scores = dualnet.score(model, LINES)
    for suffix in ("jsonl", "tsv"):
        said = cli(f"score {places['model']} {places['lines']} --output {tmp_path}/o.{suffix}")
        assert said.startswith("perplexity ") and " of 40 texts\n" in said
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    for number, (row, score) in enumerate(zip(rows, scores, strict=True), 1):
        assert (row["sentence_id"], row["tokens"]) == (number, score.tokens)
        assert tuple(row["words"]) == score.words and tuple(row["whole_words"]) == score.whole_words
        np.testing.assert_allclose(row["log_probabilities"], score.log_probabilities, rtol=1e-5)
        assert row["log_probability"] == pytest.approx(sum(row["log_probabilities"]))
    lines = (tmp_path / "o.tsv").read_text().splitlines()
    table = [*csv.DictReader(lines, delimiter="\t")]
    assert [*table[0]] == ["sentence_id", "perplexity", "tokens", "log_probability"]
    assert [row["tokens"] for row in table] == [str(row["tokens"]) for row in rows]
    printed = cli.json(f"score {places['model']} {places['lines']}")
    totals = cli.json(f"score {places['model']} {places['lines']} --output {tmp_path}/t.jsonl")
    for name in ("perplexity", "tokens", "bits_per_byte", "perplexity_per_word"):
        assert totals[name] == printed[name]
    assert totals["log_probability"] == pytest.approx(sum(row["log_probability"] for row in rows))
    assert totals["texts"] == 40


def test_blocks_change_no_figure(cli, command, tmp_path, monkeypatch):
    first = cli.json(f"{command} --output {tmp_path}/small.jsonl")
    monkeypatch.setattr(records, "BLOCK_BYTES", 1 << 17)
    second = cli.json(f"{command} --output {tmp_path}/large.jsonl")
    for name, value in first.items():
        assert second[name] == (pytest.approx(value) if isinstance(value, float) else value)
    one, other = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("small.jsonl", "large.jsonl")
    )
    for row, same in zip(one, other, strict=True):
        for name, value in row.items():
            is_number = isinstance(value, float) or "log_prob" in name
            expected = pytest.approx(value, rel=1e-4, abs=1e-5) if is_number else value
            assert same[name] == expected


@pytest.mark.parametrize("count", [3, 15])  # of more than there are blocks, some are empty
def test_shards_one_after_another_are_the_whole(cli, command, suffix, tmp_path, count):
    whole, shards = cli.json(f"{command} --output {tmp_path}/whole.{suffix}"), range(1, count + 1)
    parts = [
        cli.json(f"{command} --output {tmp_path}/{i}.{suffix} --shard {i}/{count}") for i in shards
    ]
    written = [(tmp_path / f"{i}.{suffix}").read_bytes() for i in shards]
    assert b"".join(written) == (tmp_path / f"whole.{suffix}").read_bytes()
    assert (b"" in written) == (count > 3)
    for name in {"tokens", "texts", "pairs"} & whole.keys():
        assert sum(part[name] for part in parts) == whole[name]
    if "--format" in command:
        printed = "".join(cli(f"{command} --shard {i}/{count}") for i in shards)
        assert printed == cli(command)


def test_resumed_work_equals_uninterrupted_work(cli, command, suffix, tmp_path, killed):
    expected = cli.json(f"{command} --output {tmp_path}/whole.{suffix}")
    again = f"{command} --output {tmp_path}/out.{suffix} --resume"
    killed(4)
    assert "killed" in cli.refused(again)
    out, whole = tmp_path / f"out.{suffix}", (tmp_path / f"whole.{suffix}").read_bytes()
    begun = out.read_bytes()
    assert begun and whole.startswith(begun) and begun.endswith(b"\n") and len(begun) < len(whole)
    out.write_bytes(begun + b'{"half a li')  # written, but not yet counted
    assert cli.json(again) == expected
    assert out.read_bytes() == whole
    assert cli.json(again) == expected  # nothing is left to do
    assert out.read_bytes() == whole


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.slow
def test_work_is_resumed_with_the_same_files_in_order_and_as_fixed_as_it_was(cli, places, tmp_path):
    pairs = tmp_path / "others.jsonl"
    pairs.write_bytes(places["pairs"].read_bytes())
    command, output = f"minimal-pairs {places['model']}", f"--output {tmp_path}/out.jsonl"
    cli(f"{command} {places['pairs']} {pairs} {output}")
    said = cli.refused(f"{command} {pairs} {places['pairs']} {output} --resume")
    assert "was begun with files = ['pairs.jsonl', 'others.jsonl']" in said
    command = f"score {places['model']} {places['lines']} --format surprisal"
    command += f" --output {tmp_path}/a.jsonl"
    cli(f"{command} --adapt --set learning_rate=0.1 --rule sgd")
    assert "was begun with adapt = True" in cli.refused(f"{command} --resume")


def test_compressed_files_and_pipes_are_read_alike(cli, command, tmp_path, places, monkeypatch):
    packed = command.replace("lines.txt", "lines.txt.gz").replace("pairs.jsonl", "pairs.jsonl.gz")
    cli(f"{command} --output {tmp_path}/a.jsonl")
    cli(f"{packed} --output {tmp_path}/b.jsonl")
    for i in (1, 2):
        cli(f"{packed} --output {tmp_path}/{i}.jsonl --shard {i}/2")
    joined = b"".join((tmp_path / f"{i}.jsonl").read_bytes() for i in (1, 2))
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes() == joined
    if "score" in command:
        data = gzip.compress(places["lines"].read_bytes())
        for name, option in (("c", ""), ("d", " --shard 1/2")):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
            line = command.replace(str(places["lines"]), "") + f" --output {tmp_path}/{name}.jsonl"
            code, _, said = cli.call(line + option)
            assert code == 2 * bool(option) and ("whose size is known" in said) == bool(option)
        assert (tmp_path / "c.jsonl").read_bytes() == joined


@pytest.mark.usefixtures("loaded_once")
def test_a_pipe_is_read_by_a_model_that_learns(cli, places, tmp_path):
    pipe = tmp_path / "pipe"
    learn = "--format surprisal --adapt --rule sgd --set learning_rate=0.01"
    expected = cli(f"score {places['model']} {places['lines']} {learn}")
    os.mkfifo(pipe)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(pipe.write_bytes, gzip.compress(places["lines"].read_bytes()))
        assert cli(f"score {places['model']} {pipe} {learn}") == expected


@pytest.mark.usefixtures("loaded_once")
def test_rows_are_written_as_they_come(cli, places, tmp_path, monkeypatch):
    original, sizes = scorers.TextScorer.rows, []

    def rows(scorer, texts, first=1):
        sizes.append((tmp_path / "out.jsonl").read_text().count("\n"))
        assert sizes[-1] == first - 1 and sum(map(len, texts)) < 2 * BLOCK
        return original(scorer, texts, first)

    monkeypatch.setattr(scorers.TextScorer, "rows", rows)
    cli(f"score {places['model']} {places['lines']} --output {tmp_path}/out.jsonl")
    assert len(sizes) > 5


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize("name", ["score", "minimal-pairs"])
@pytest.mark.parametrize("damage", ["bytes", "packed"])
def test_bad_input_is_told_with_file_and_line(cli, places, tmp_path, name, damage):
    good = places["lines" if name == "score" else "pairs"].read_bytes()
    path = tmp_path / "bad"
    path.write_bytes(good + b"\xff\n" if damage == "bytes" else gzip.compress(good)[:-10])
    line = good.count(b"\n") + 1
    command = f"{name} {places['model']} {path} --output {tmp_path}/out.jsonl"
    if damage == "packed":
        said = cli.refused(f"{command.replace('out.jsonl', 'shard.jsonl')} --shard 1/2")
        assert str(path) in said
    said = cli.refused(command)
    expected = {"bytes": f"0xff at offset {len(good)}, in line {line}", "packed": "after line "}
    assert expected[damage] in said and str(path) in said
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["sentence_id"] for row in rows] == [*range(1, len(rows) + 1)] and len(rows) > 5
    if damage == "bytes":  # once repaired, it goes on
        path.write_bytes(good + b"\n\n" if name == "minimal-pairs" else good + b".\n")
        cli(f"{command} --resume")


def test_a_word_that_no_model_knows_is_told_with_its_line(cli, tmp_path):
    small(Vocabulary(("the", "cat", "<eos>"))).save(tmp_path / "words.keras")
    (tmp_path / "text").write_text("the cat\n" * 30 + "the dog\n")
    for option in ("", "--format surprisal"):
        said = cli.call(f"score {tmp_path}/words.keras {tmp_path}/text {option}")[2]
        assert f"It is in '{tmp_path}/text', line 31." in said
    pairs = [{"sentence_good": "the cat", "sentence_bad": f"cat {word}"} for word in ("the", "dog")]
    (tmp_path / "pairs").write_text("\n".join(map(json.dumps, pairs)))
    said = cli.call(f"minimal-pairs {tmp_path}/words.keras {tmp_path}/pairs")[2]
    assert "word='dog'" in said and f"It is in '{tmp_path}/pairs', line 2." in said


@pytest.mark.usefixtures("loaded_once")
def test_what_would_mix_two_works_is_refused(cli, places, tmp_path):
    score = f"score {places['model']} {places['lines']}"
    out = tmp_path / "out.tsv"
    cli(f"{score} --output {out}")
    assert "`--output` must be new" in cli.refused(f"{score} --output {out}")
    for option, message in {
        "--temperature 2": "begun with temperature = None. Received: 2.0",
        "--shard 1/2": "shard = None. Received: '1/2'",
        "--format surprisal": "format = None. Received: 'surprisal'",
    }.items():
        assert message in cli.refused(f"{score} --output {out} --resume {option}")
    words = f"{score} --format surprisal --words --output {tmp_path}/words.tsv"
    cli(f"{words} --bow-correction")
    assert "bow_correction = True. Received: None" in cli.refused(f"{words} --resume")
    (tmp_path / "more.txt").write_text("more")
    said = cli.refused(f"score {places['model']} {tmp_path}/more.txt --output {out} --resume")
    assert "bytes = " in said
    out.write_bytes(out.read_bytes()[:50])
    assert "must find the" in cli.refused(f"{score} --output {out} --resume")
    assert len(out.read_bytes()) == 50
    other = tmp_path / "other.jsonl"
    other.write_text("mine")
    assert "must be new" in cli.refused(f"{score} --output {other} --resume")
    assert other.read_text() == "mine"


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize("stop", [0, 4], ids=["finished", "killed"])
@pytest.mark.parametrize("change", ["text", "pipe", "tokenizer"])
def test_resumed_work_reads_the_same_text_with_the_same_tokeniser(
    cli, places, model, tmp_path, monkeypatch, killed, change, stop
):
    source = "-" if change == "pipe" else tmp_path / "text"
    command = f"score {places['model']} {source} --output {tmp_path}/out.jsonl --resume"

    def call(*lines):
        data = "".join(lines).encode()
        (tmp_path / "text").write_bytes(data)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        return cli.call(command)[::2]

    killed(stop)
    assert call(*LINES)[0] == 2 * bool(stop)
    with monkeypatch.context() as patch:
        if change == "tokenizer":
            patch.setattr(model, "vocabulary", ByteTokenizer(documents="file"))
            assert "begun with tokenizer = [" in call(*LINES)[1]
        else:
            others = LINES[1:] if change == "text" else []
            assert "a text that differs" in call("ward 0\n", *others)[1]
    assert call(*LINES)[0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--output {}/a.txt", "must end in .jsonl, .tsv or .parquet"),
        ("--resume", "`--resume` needs --output"),
        ("--shard 0/3", "I from 1 to N"),
        ("--format surprisal --adapt --shard 1/2", "`--shard` cannot be combined with --adapt"),
    ],
)
def test_options_that_cannot_be_are_refused(cli, places, tmp_path, options, message):
    score = f"score {places['model']} {places['lines']}"
    assert message in cli.refused(f"{score} {options.format(tmp_path)}")


def test_files_are_as_private_as_the_umask_says(tmp_path):
    code = "import os, sys; os.umask(0o077); from dualnet import _files as files\n"
    code += "files.write_whole(sys.argv[1] + '/file', 'x')\n"
    code += "with files.folder_beside(sys.argv[1] + '/folder'): pass"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"file": 0o600, "folder": 0o700}


def test_a_file_that_is_replaced_keeps_its_mode_and_the_link_to_it(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to("file")
    _files.write_whole(link, "new")
    assert link.is_symlink() and file.read_text() == "new"
    assert file.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["a", "é" * 127, f"{'a' * 251}.npz"])
def test_a_link_to_nothing_and_a_long_name_are_written(tmp_path, name):
    (tmp_path / "link").symlink_to(name)
    _files.write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / name).read_text() == "new"
    assert {path.name for path in tmp_path.iterdir()} == {"link", name}


def test_what_killed_writers_left_is_removed_at_the_next_write_unless_it_is_held(tmp_path):
    code = "import sys; from dualnet import _files as files\n"
    code += "with files.written_beside(sys.argv[1]) as file:\n"
    code += "    file.write_text('its own'); print(flush=True); input()"
    command, pipes = [sys.executable, "-c", code, tmp_path / "file"], {"stdin": -1, "stdout": -1}
    with subprocess.Popen(command, **pipes) as killed, subprocess.Popen(command, **pipes) as held:
        killed.stdout.readline(), held.stdout.readline()
        killed.kill()
        killed.wait()
        assert len([*tmp_path.iterdir()]) == 2
        _files.write_whole(tmp_path / "file", "new")
        assert len([*tmp_path.iterdir()]) == 2 and (tmp_path / "file").read_text() == "new"
        held.communicate(b"\n")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "its own"


# --- tables


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize("name", ["a.csv", "b.tsv", "C.CSV.gz", "d.parquet"])
def test_a_column_of_a_table_is_its_texts_and_without_one_names_are_told(
    cli, places, model, tmp_path, name
):
    texts = ["the cat, a dog", 'a "cat"', "the\ncat\td", "NA", ""]
    if name == "d.parquet":
        pyarrow, parquet = needed("parquet", "pyarrow", "pyarrow.parquet")
        parquet.write_table(pyarrow.table({"item": range(5), "text": texts}), tmp_path / name)
    else:
        rows = io.StringIO()
        writer = csv.writer(rows, delimiter="\t" if name == "b.tsv" else ",")
        writer.writerows([("item", "text"), *enumerate(texts)])
        data = rows.getvalue().encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if "gz" in name else data)
    command = f"score {places['model']} {tmp_path / name}"
    assert "['item', 'text']. Name the column" in cli.refused(command)
    assert "must be one of ['item', 'text']" in cli.refused(f"{command} --column sentence")
    found = cli.json(f"{command} --column text")["texts"]
    scores = dualnet.score(model, texts)
    assert [text["words"] for text in found] == [[*score.words] for score in scores]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("n,text\n\n1,the cat, a dog\n", "line 3: 3 cells"), ("text,text\n1,2\n", "2: 2 cells"),
        ('n,text\n1,"the cat\n2,a dog\n', "3: unexpected end"), ("n,text\n1\n", "line 2: 1 cells"),
    ],
)  # fmt: skip
def test_a_table_whose_rows_are_not_like_its_head_is_refused(cli, tmp_path, table, message):
    (tmp_path / "a.csv").write_text(table)
    assert message in cli.refused(f"score dual_lstm.english {tmp_path}/a.csv --column text")


# --- Parquet, with pyarrow

SCORES = [name for name in FORMATS if name != "pairs"]


@pytest.fixture
def parquet(monkeypatch):
    """The reader of Parquet; parts hold two blocks each."""
    monkeypatch.setattr(outputs, "PART_BLOCKS", 2)
    [reader] = needed("parquet", "pyarrow.parquet")
    return reader


def parts_of(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


@pytest.mark.slow
@pytest.mark.parametrize("command", SCORES, indirect=True)
def test_parts_hold_the_rows_of_the_other_formats(cli, command, tmp_path, parquet):
    totals = cli.json(f"{command} --output {tmp_path}/a.parquet")
    assert totals == cli.json(f"{command} --output {tmp_path}/a.jsonl")
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert parquet.read_table(tmp_path / "a.parquet").to_pylist() == [*map(json.loads, lines)]
    names = sorted(parts_of(tmp_path / "a.parquet"))
    assert names[:2] == ["part-00000000.parquet", "part-00000002.parquet"] and len(names) > 3


@pytest.mark.slow
@pytest.mark.parametrize("command", SCORES, indirect=True)
def test_shards_share_a_folder_that_holds_the_whole(cli, command, tmp_path, parquet):
    cli(f"{command} --output {tmp_path}/whole.parquet")
    for i in (3, 1, 2):
        cli(f"{command} --output {tmp_path}/all.parquet --shard {i}/3")
    whole, joined = (parquet.read_table(tmp_path / f"{name}.parquet") for name in ("whole", "all"))
    assert joined.equals(whole)
    said = cli.refused(f"{command} --output {tmp_path}/all.parquet --shard 1/3")
    assert "`--output` must be new" in said
    mixed = f"{command} --output {tmp_path}/mixed.parquet --shard"
    cli(f"{mixed} 1/2")
    said = cli.refused(f"{mixed} 2/2 --temperature 2")
    assert "begun with temperature = None. Received: 2.0" in said
    (tmp_path / "mine.parquet").mkdir()
    (tmp_path / "mine.parquet" / "part-1.parquet").touch()
    assert "must be new" in cli.refused(f"{command} --output {tmp_path}/mine.parquet --resume")


@pytest.mark.slow
@pytest.mark.parametrize("command", SCORES, indirect=True)
def test_resumed_parts_equal_uninterrupted_ones(cli, command, tmp_path, parquet, killed):
    expected = cli.json(f"{command} --output {tmp_path}/whole.parquet")
    again = f"{command} --output {tmp_path}/out.parquet --resume"
    killed(4)
    assert "killed" in cli.refused(again)
    begun, whole = parts_of(tmp_path / "out.parquet"), parts_of(tmp_path / "whole.parquet")
    assert [*begun] == ["part-00000000.parquet"] and begun.items() < whole.items()
    # The part that was not whole begins again.
    unfinished = tmp_path / "out.parquet" / ".unfinished-part-00000002.parquet"
    unfinished.write_bytes(b"of a killed process")
    assert cli.json(again) == expected
    assert parts_of(tmp_path / "out.parquet") == whole and not unfinished.exists()


@once
def test_shards_that_begin_at_the_same_time_share_a_folder(tmp_path):
    needed("parquet", "pyarrow")
    model = small(ByteTokenizer(), units=4)

    def begin(folder, number):
        scorer = scorers.TextScorer(model)
        outputs.Parts(folder, scorer, {}, shard=(number, 8), resume=False)._save()

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        for attempt in range(10):
            folders = [tmp_path / f"{attempt}.parquet"] * 8
            assert [*threads.map(begin, folders, range(1, 9))] == [None] * 8


# --- processes


@pytest.mark.slow
def test_a_killed_process_is_resumed(cli, places, tmp_path):
    score = f"score {places['model']} {places['lines']} --format surprisal --output"
    code = f"from dualnet.corpora import records; records.BLOCK_BYTES = {BLOCK}\n"
    code += "from dualnet.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
    progress = tmp_path / "out.tsv.progress.json"
    begun = shlex.split(f"{score} {tmp_path}/out.tsv")
    with subprocess.Popen([sys.executable, "-c", code, *begun]) as process:
        while not progress.exists() or not json.loads(progress.read_text())["after"]:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    found = progress.read_text()
    progress.write_text("x")
    assert "must be intact. Received" in cli.refused(f"{score} {tmp_path}/out.tsv --resume")
    progress.write_text(found)
    cli(f"{score} {tmp_path}/out.tsv --resume")
    cli(f"{score} {tmp_path}/whole.tsv")
    assert (tmp_path / "out.tsv").read_bytes() == (tmp_path / "whole.tsv").read_bytes()
