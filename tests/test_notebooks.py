"""The notebooks of examples/ run from top to bottom, and what they say is so."""

import json
import math
import re
from pathlib import Path

import pytest

from tests.checks import needed, once

nbformat, nbclient = needed("test-all", "nbformat", "nbclient")
pytestmark = [once, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
# What runs before the cells, for the time that they take. Graphs are not optimised.
BEGIN = """
import tensorflow as tf
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
"""
# Trainings show how cells are compared, and what a RUN is: a part of the text will do for that.
SHORT_TEXT = """
from dualnet.corpora import python_reference
texts, kept = python_reference.split_texts(), {"train": 16, "valid": 12, "test": 12}
short = {split: "".join(texts[split].splitlines(True)[::n]) for split, n in kept.items()}
python_reference.split_texts = lambda: short
"""
FIRST = {
    "change_one_equation": SHORT_TEXT,
    # The quickstart compiles the steps of such a model.
    "look_and_adapt": "import dualnet.adaptation.adapted_copy as step; step.LEAST_WEIGHTS = 10**9",
    "quickstart": SHORT_TEXT,
    # All of the validation text: read as one stream, its perplexity is nearly that of 32 streams.
    "search": SHORT_TEXT.replace('"valid": 12', '"valid": 1') + """
from tests.searches import in_this_process
trials = in_this_process()
trials.__enter__()
""",
}  # fmt: skip
NOTEBOOKS = sorted(path.stem for path in (ROOT / "examples").glob("*.ipynb"))


class Outputs:
    """What the cells of a notebook gave, each found by a part of its source."""

    def __init__(self, notebook):
        self.cells = [cell for cell in notebook.cells if cell.cell_type == "code"]

    def of(self, part):
        (outputs,) = [cell.outputs for cell in self.cells if part in cell.source]
        return outputs

    def text(self, part):
        """Return what a cell printed, without what TensorFlow logs."""
        return "".join(out.text for out in self.of(part) if out.get("name") == "stdout")

    def numbers(self, part):
        """Return the numbers in each line that a cell printed."""
        lines = self.text(part).replace(",", "").splitlines()
        return [[float(x) for x in re.findall(r"[-+]?\d+\.?\d*(?:e-?\d+)?", row)] for row in lines]


def check_quickstart(outputs):
    (tokens, perplexity), (size, per_byte) = outputs.numbers("score = dualnet.score")
    bits = outputs.numbers("records = dualnet.surprisal")
    assert sum(row[-1] for row in bits[:-1]) == pytest.approx(bits[-1][-1], abs=0.6)
    assert bits[-1][-1] == pytest.approx(tokens * math.log2(perplexity), rel=0.01)
    assert bits[-1][-1] == pytest.approx(size * per_byte, rel=0.01)
    assert outputs.numbers("dualnet.export")[-1][-1] < 1e-4


def check_look_and_adapt(outputs):
    gains = [row[0] for row in outputs.numbers("pairs = zip")[:-1]]
    assert len(gains) == 12 and gains[0] == max(gains) and gains[-1] == min(gains)
    # Names come back: learning gains with both models.
    for static, dynamic in outputs.numbers("for model in (plain, dual):\n"):
        assert dynamic < 0.9 * static
    perplexities = [perplexity for _, perplexity in outputs.numbers("for rate in")]
    assert min(perplexities) < 0.5 * perplexities[0] and min(perplexities) < 0.5 * perplexities[-1]
    (_, fixed, learning), *others = outputs.numbers("sentences = [")[1:]
    assert fixed == learning  # nothing is learnt yet
    assert sum(row[2] for row in others) < sum(row[1] for row in others)
    assert outputs.text("again =") == "the model is as it was: True\n"


def check_own_keras_model(outputs):
    [[accuracy, by_sign]] = outputs.numbers("by_sign =")
    [[error, unchanged]] = outputs.numbers("unchanged =")
    assert accuracy > by_sign + 0.1 and error < 0.5 * unchanged
    assert outputs.text("load_model") == "same outputs after loading: True\n"


def check_change_one_equation(outputs):
    [[difference]] = outputs.numbers("largest difference")
    assert difference < 1e-5
    [[_, weights, units, others]] = outputs.numbers("aim = build")
    assert units > 32 and abs(others / weights - 1) < 0.01
    ratios = [coupled / lstm for _, lstm, coupled in outputs.numbers("for seed in range(5)")]
    (ratio, low, high), _ = outputs.numbers("margin = 2.776")
    assert min(ratios) < ratio < max(ratios) and low < ratio < high
    verdict = "better" if high < 1 else "worse" if low > 1 else "not told apart"
    assert f"is {verdict}" in outputs.text("margin = 2.776")
    assert outputs.text("model.save") == "notebook>CoupledCell same perplexity: True\n"


def check_search(outputs):
    ranked = outputs.numbers("rank trial perplexity")[1:]
    assert [row[0] for row in ranked] == [1, 2, 3]
    assert [row[2] for row in ranked] == sorted(row[2] for row in ranked)
    assert outputs.numbers("get_best_models")[-1] == [pytest.approx(ranked[0][2], rel=0.05)]


def check_translate(outputs):
    scores = [row[0] for row in outputs.numbers("n_best=3")]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    measured = outputs.numbers("translation_metrics(hyp")
    assert [row[0] for row in measured] == [1, 5]
    for _, bleu, right, count in measured:
        assert bleu > 85 and right > 0.6 * count


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_and_what_it_says_is_so(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:  # fewer trials, one after another
        cell.source = cell.source.replace("max_trials = 6", "max_trials = 3")
        cell.source = cell.source.replace("workers=2", "workers=1")
    notebook.cells.insert(0, nbformat.v4.new_code_cell(BEGIN + FIRST.get(name, "")))
    client = nbclient.NotebookClient(
        notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    assert "tensorflow:" not in json.dumps(notebook.cells)  # its log, which the docs would show
    globals()[f"check_{name}"](Outputs(notebook))
    assert not any(tmp_path.iterdir())  # files go into a temporary folder


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_committed_notebook_holds_no_outputs(name):
    notebook = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text("utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
