"""What is no TOML file is refused in a sentence, and files of Windows are read."""

import os

import pytest

from dualnet import rescoring, zoo
from dualnet.text import load_tokenizer, train_tokenizer
from dualnet.tuning import load_job
from tests.checks import once

pytestmark = once


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


def test_a_byte_order_mark_is_not_read(tmp_path):
    """Editors of Windows write one at the start of a file."""
    mark = "\ufeff"
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
