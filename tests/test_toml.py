"""TOML files that would hang or break a reader are refused in a sentence."""

import os
import time

import pytest

from dualnet import rescoring, zoo
from dualnet._toml import read_toml
from dualnet.text import load_tokenizer, train_tokenizer
from dualnet.tuning import load_job

DEEP = "nest at most 20 deep"


@pytest.mark.parametrize(
    ("text", "requirement"),
    [
        (".".join(["a"] * 200_000) + " = 1", DEEP),
        ("[" + " . ".join(['"a.b"'] * 21) + "]", DEEP),
        ("a = { " + "b = { " * 20 + "c = 1" + " }" * 21, DEEP),
        ("a = " + "[" * 21 + "]" * 21, DEEP),
        ("a = " + "[" * 50_000, "be TOML"),
        ("# " + "a" * 10**6, "have at most 1,000,000 bytes"),
        ("units = 9_223_372_036_854_775_808", "line 1, where `units` has more"),
        ("[config]\nunits = [1, 0x" + "f" * 9_000 + "]", "line 2, where `units` has more"),
        ("units = " + "9" * 9_000, "be TOML"),
    ],
)
def test_a_bomb_is_refused(tmp_path, cli, text, requirement):
    (tmp_path / "card.toml").write_text(text)
    began = time.perf_counter()
    line = cli.refused(f"card {tmp_path}/card.toml")
    assert time.perf_counter() - began < 2
    assert requirement in line and str(tmp_path / "card.toml") in line and len(line) < 400


@pytest.mark.parametrize("command", ["card", "jobs"])
@pytest.mark.parametrize("kind", ["device", "pipe", "folder", "nothing"])
def test_what_is_no_file_is_refused_without_a_hang(tmp_path, cli, kind, command):
    path = tmp_path / "own.toml"
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    assert str(path) in cli.refused(f"{command} {path}")


def test_text_with_many_dots_is_no_key(tmp_path):
    text = "a.b" + ".c" * 18 + ' = 1\nnote = "' + "x." * 100 + '" # ' + "y." * 100
    text += "\nmore = '''" + "\n'z." * 100 + "'''\r\nlast = [" + "0.5, " * 100 + "]\n"
    (tmp_path / "card.toml").write_bytes(text.encode())
    table = read_toml(tmp_path / "card.toml")
    assert table["note"] == "x." * 100 and len(table["last"]) == 100


def test_a_byte_order_mark_is_not_read(tmp_path):
    """Editors of Windows write one at the start of a file."""
    mark = "\ufeff"
    (tmp_path / "card.toml").write_text(f'{mark}base = "lstm"\nunits = 1\n', "utf-8")
    with pytest.raises(ValueError, match="line 2: `units` must be one of"):
        zoo.card(tmp_path / "card.toml")
    (tmp_path / "card.toml").write_text(f"{mark}units = 1\n", "utf-8")
    with pytest.raises(ValueError, match="line 1: `units` must be one of"):
        zoo.card(tmp_path / "card.toml")
    (tmp_path / "card.toml").write_text(f'{mark}base = "lstm"\n', "utf-8")
    assert zoo.card(tmp_path / "card.toml").config == zoo.card("lstm").config
    (tmp_path / "job.toml").write_text(f'{mark}model = "lstm"\n[space]\nunits = [4, 6]\n', "utf-8")
    assert load_job(tmp_path / "job.toml").model == "lstm"
    (tmp_path / "tokenizer.json").write_text(mark + train_tokenizer(["a b"], "bpe", size=258).json)
    assert len(load_tokenizer(tmp_path / "tokenizer.json")) == 258
    lists = tmp_path / "lists.jsonl"
    lists.write_text(mark + '{"id": 1, "text": "a"}\n', "utf-8")
    assert [
        nbest.best.text for nbest in rescoring.read_nbest(tmp_path / "lists.jsonl", format="jsonl")
    ] == ["a"]
