import json

import pytest

from dualnet import demo
from tests.checks import once

pytestmark = [once, pytest.mark.slow]

TINY = {"units": 4, "epochs": 1, "sequence_length": 9, "batch_size": 4}


@pytest.fixture
def short_text(monkeypatch, corpus):
    """Runs the demo on the small corpus of the tests."""
    monkeypatch.setattr(demo.corpora, "load", lambda name, **_: corpus)
    monkeypatch.setattr(demo, "PROMPTS", ("the cat",))


def test_the_demo_trains_adapts_compares_and_serves(short_text, tmp_path, capsys):
    folder = tmp_path / "demo"
    results = demo.run(folder, settings=TINY)
    out, err = capsys.readouterr()
    for name in ("lstm", "dual_lstm"):
        assert f"{name:12}" in out and f"{results[name]['test']:.2f}" in out
    reason = results["lstm"]["not_comparable"]
    assert reason and f"No figures per byte, character or word: {reason}.\n" in out
    assert "dual below plain" in out and "dynamic below static" in out
    names = {path.name for path in folder.iterdir()} - {"saved_model", demo.MARK}
    assert names == {"lstm", "dual_lstm", "curves.png", "dynamic.png", "results.json", "look.html"}
    assert json.loads((folder / "results.json").read_text()) == results
    assert f"open {folder / 'look.html'} in a browser.\n" in err
    page = (folder / "look.html").read_text("utf-8")
    assert "<h1>How lstm and dual_lstm read this text</h1>" in page and '"kind":"learning"' in page
    assert (folder / "saved_model" / "saved_model.pb").exists()


def test_with_json_the_demo_prints_nothing_else(cli, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "run", lambda folder: print("a table") or {"lstm": 1})
    assert cli.json(f"demo --output {tmp_path}/demo") == {"lstm": 1}


def test_the_demo_replaces_only_its_own_files(tmp_path):
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match=r"written by the demo.*thesis\.txt"):
        demo.run(folder)
    (folder / demo.MARK).touch()
    with pytest.raises(FileExistsError, match=r"thesis\.txt"):
        demo.run(folder)
    assert (folder / "thesis.txt").read_text() == "years of work"
    (folder / "thesis.txt").unlink()
    (folder / "lstm").mkdir()
    demo._clear(folder)
    assert [path.name for path in folder.iterdir()] == [demo.MARK]
