import json
import pathlib

import nbformat
from nbclient import NotebookClient

NOTEBOOK = pathlib.Path(__file__).parents[1] / "examples" / "quickstart.ipynb"


def text_of(cell):
    """Return what `cell` printed, without what TensorFlow logs."""
    return "".join(output.text for output in cell.outputs if output.get("name") == "stdout")


def test_the_quickstart_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[1]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    outputs = json.dumps(notebook.cells)
    assert "image/png" in outputs and "static" in outputs
    dynamic = next(cell for cell in notebook.cells if "dynamic_evaluation" in cell.source)
    static, adapted = (
        float(part.split()[1].rstrip(",")) for part in dynamic.outputs[0].text.split(", ")
    )
    assert adapted < static  # the paper's claim holds on the embedded text
    # Tagging and forecasting, beside a baseline each.
    accuracy, by_sign, error, unchanged = (
        float(part.split()[-1]) for cell in notebook.cells[-2:] for part in text_of(cell).split(",")
    )
    assert accuracy > by_sign + 0.1 and error < 0.5 * unchanged


def test_the_committed_notebook_holds_no_outputs():
    notebook = json.loads(NOTEBOOK.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert 6 <= len(code) <= 12
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
