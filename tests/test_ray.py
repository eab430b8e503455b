"""Scores in Ray Data, on a local cluster of two workers."""

import json
import os
import signal

import numpy as np
import pytest

import dualnet
from dualnet.text import ByteTokenizer
from tests.checks import once, small

pyarrow = pytest.importorskip("pyarrow", reason='this test needs pip install "dualnet[ray]"')
ray = pytest.importorskip("ray", reason='this test needs pip install "dualnet[ray]"')
pytestmark = [once, pytest.mark.slow, pytest.mark.filterwarnings("default")]
LINES = [f"{'word ' * (1 + i * 7 % 5)}{i}\n" for i in range(60)]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    small(ByteTokenizer(), units=4).save(folder / "model.keras")
    (folder / "lines.txt").write_text("".join(LINES))
    for i in range(4):
        (folder / f"part-{i}.txt").write_text("".join(LINES[15 * i : 15 * i + 15]))
    return folder


def test_rows_go_beside_the_columns_of_a_batch(path):
    from dualnet.ray import Scorer

    model = dualnet.load(path / "model.keras")
    batch = {"id": np.array([5, 6]), "text": np.array(["a cat", "b"], object)}
    table = Scorer(path / "model.keras", end="", temperature=2.0)(batch)
    scores = dualnet.score(model, ["a cat", "b"], temperature=2.0)
    assert table.column_names[:4] == ["id", "text", "perplexity", "tokens"]
    for row, score, number in zip(table.to_pylist(), scores, (5, 6)):
        assert row["id"] == number and tuple(row["words"]) == score.words
        np.testing.assert_allclose(row["log_probabilities"], score.log_probabilities, rtol=1e-5)
    arrow = pyarrow.table({"id": pyarrow.array([5, 6], "int8"), "text": ["a cat", "b"]})
    arrow = arrow.set_column(1, "text", arrow["text"].dictionary_encode())
    found = Scorer(path / "model.keras", end="", temperature=2.0)(arrow)
    assert found.to_pylist() == table.to_pylist()
    assert found.schema.types == [*arrow.schema.types, *table.schema.types[2:]]
    for empty in (arrow.slice(0, 0), pyarrow.table({"text": pyarrow.array([], "null")})):
        assert Scorer(path / "model.keras")(empty).schema.types[-2:] == table.schema.types[-2:]
    rows = Scorer(path / "model.keras", format="surprisal", words=True)(batch).to_pylist()
    assert [(row["id"], row["token"]) for row in rows] == [
        (5, "a"), (5, "cat"), (5, "<eos>"), (6, "b"), (6, "<eos>"),
    ]  # fmt: skip
    assert [*rows[0]] == ["id", "token_id", "token", "surprisal"]
    pairs = {"sentence_good": ["a cat"], "sentence_bad": ["b"], "item": [3]}
    [row] = Scorer(path / "model.keras", format="pairs")(pairs).to_pylist()
    [expected] = dualnet.minimal_pairs(model, [("a cat", "b")]).rows()
    assert row == {"item": 3, **{name: expected[name] for name in expected if name in row}}


def test_two_workers_of_which_one_is_killed_give_every_row_once_in_order(path, cli, tmp_path):
    from dualnet.ray import Scorer

    killed = tmp_path / "killed"

    class Killed(Scorer):
        """Kills its process in the second batch, once."""

        calls = 0

        def __call__(self, batch):
            self.calls += 1
            if self.calls == 2 and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__call__(batch)

    cli(f"score {path}/model.keras {path}/lines.txt --output {tmp_path}/whole.jsonl")
    whole = [json.loads(line) for line in (tmp_path / "whole.jsonl").read_text().splitlines()]
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    try:
        ray.data.DataContext.get_current().execution_options.preserve_order = True
        rows = (
            ray.data.read_text([f"{path}/part-{i}.txt" for i in range(4)])
            .map_batches(
                Killed,
                fn_constructor_args=[f"{path}/model.keras"],
                compute=ray.data.ActorPoolStrategy(size=2),
                batch_size=5,
                num_cpus=0.5,
            )
            .take_all()
        )
    finally:
        ray.shutdown()
    assert killed.exists()
    assert [row["text"] for row in rows] == [line.removesuffix("\n") for line in LINES]
    sums = [np.sum([row["log_probability"] for row in found]) for found in (rows, whole)]
    assert sums[0] == pytest.approx(sums[1], rel=1e-6)
    for row, expected in zip(rows, whole, strict=True):
        assert [*row["words"]] == expected["words"]
        np.testing.assert_allclose(
            row["log_probabilities"], expected["log_probabilities"], rtol=1e-4, atol=1e-5
        )
