"""Rows of large texts in parts of Parquet; with pyarrow, the extra `parquet`."""

import json

import pytest

import dualnet
from dualnet import scorers
from dualnet.cli import outputs
from dualnet.corpora import records
from dualnet.runs import Run
from dualnet.text import ByteTokenizer
from tests.checks import once, small

parquet = pytest.importorskip("pyarrow.parquet")
pytestmark = [once, pytest.mark.slow]
LINES = [f"{'word ' * (1 + i * 7 % 5)}{i}\n" for i in range(40)]
FORMATS = ["", "--format surprisal --entropy"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parquet")
    small(ByteTokenizer(), units=4).save(folder / "model.keras")
    (folder / "lines.txt").write_text("".join(LINES))
    return folder


@pytest.fixture(scope="module")
def model(path):
    return dualnet.load(path / "model.keras")


@pytest.fixture(params=FORMATS, ids=["scores", "surprisal"])
def score(request, path, model, monkeypatch):
    """The command, with small blocks and parts, and one model for all."""
    monkeypatch.setattr(records, "BLOCK_BYTES", 100)
    monkeypatch.setattr(outputs, "PART_BLOCKS", 2)
    monkeypatch.setattr(Run, "model", lambda run: model)
    return f"score {path}/model.keras {path}/lines.txt {request.param}"


def files(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


def test_parts_hold_the_rows_of_the_other_formats(cli, score, tmp_path):
    totals = cli.json(f"{score} --output {tmp_path}/a.parquet")
    assert totals == cli.json(f"{score} --output {tmp_path}/a.jsonl")
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert parquet.read_table(tmp_path / "a.parquet").to_pylist() == [*map(json.loads, lines)]
    names = sorted(files(tmp_path / "a.parquet"))
    assert names[:2] == ["part-00000000.parquet", "part-00000002.parquet"] and len(names) > 3


def test_shards_share_a_folder_that_holds_the_whole(cli, score, tmp_path):
    cli(f"{score} --output {tmp_path}/whole.parquet")
    for i in (3, 1, 2):
        cli(f"{score} --output {tmp_path}/all.parquet --shard {i}/3")
    whole, joined = (parquet.read_table(tmp_path / f"{name}.parquet") for name in ("whole", "all"))
    assert joined.equals(whole)
    said = cli.refused(f"{score} --output {tmp_path}/all.parquet --shard 1/3")
    assert "`--output` must be new" in said
    cli(f"{score} --output {tmp_path}/mixed.parquet --shard 1/2")
    message = "begun with temperature = None. Received: 2.0"
    assert message in cli.refused(
        f"{score} --output {tmp_path}/mixed.parquet --shard 2/2 --temperature 2"
    )
    (tmp_path / "mine.parquet").mkdir()
    (tmp_path / "mine.parquet" / "part-1.parquet").touch()
    assert "must be new" in cli.refused(f"{score} --output {tmp_path}/mine.parquet --resume")


def test_resumed_parts_equal_uninterrupted_ones(cli, score, tmp_path, monkeypatch):
    expected = cli.json(f"{score} --output {tmp_path}/whole.parquet")
    calls, kind = [], scorers.SurprisalScorer if "surprisal" in score else scorers.TextScorer
    original = kind.rows

    def rows(scorer, texts, first=1):
        calls.append(first)
        if len(calls) == 4:
            raise OSError("killed")
        return original(scorer, texts, first)

    monkeypatch.setattr(kind, "rows", rows)
    assert "killed" in cli.refused(f"{score} --output {tmp_path}/out.parquet --resume")
    begun, whole = files(tmp_path / "out.parquet"), files(tmp_path / "whole.parquet")
    assert [*begun] == ["part-00000000.parquet"] and begun.items() < whole.items()
    unfinished = tmp_path / "out.parquet" / ".unfinished-part-00000002.parquet"
    unfinished.write_bytes(b"of a killed process")
    assert cli.json(f"{score} --output {tmp_path}/out.parquet --resume") == expected
    assert files(tmp_path / "out.parquet") == whole and not unfinished.exists()
    assert calls[4] == calls[2]  # the part that was not whole begins again
