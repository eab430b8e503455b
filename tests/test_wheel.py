"""What an installed wheel must do; `.ci/wheel` runs this outside the checkout."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import dualnet
from dualnet import tuning, zoo
from tests.checks import once

pytestmark = once

PACKAGE = Path(dualnet.__file__).parent
if (PACKAGE.parent / "setup.cfg").exists():
    pytest.skip("dualnet is imported from a checkout, not from a wheel", allow_module_level=True)


def test_the_package_is_the_installed_one():
    assert PACKAGE.is_relative_to(sys.prefix)
    files = {str(path) for path in importlib.metadata.files("dualnet")}
    page = {f"dualnet/looking/page.{suffix}" for suffix in ("html", "css", "js")}
    assert files >= {"dualnet/py.typed", *page}
    assert not any(path.startswith(("tests/", "docs/", "benchmarks/")) for path in files)


def test_every_card_and_every_job_is_in_the_wheel():
    names = zoo.list_models()
    assert len(names) >= 40
    for name in names:
        for corpus in zoo.card(name).corpora:
            assert zoo.card(name, corpus).parameters
    jobs = tuning.list_jobs()
    assert "dual_table1" in jobs
    for name in jobs:
        tuning.load_job(name)


def test_every_shipped_model_loads_and_scores_and_its_licence_is_named():
    about = importlib.metadata.metadata("dualnet")
    licence = about.get("License-Expression") or about.get("License")
    for name in zoo.list_models(pretrained=True):
        model = dualnet.load(name)
        assert dualnet.score(model, "The game was released in 2004.\n").perplexity < 2000
        files = {str(path) for path in importlib.metadata.files("dualnet")}
        assert f"dualnet/_data/zoo/pretrained/{name}/LICENSES_SOURCES" in files
        assert "CC-BY-SA-3.0" in licence


@pytest.mark.parametrize("command", [["dualnet"], [sys.executable, "-m", "dualnet"]])
def test_the_command_lists_the_models(command, tmp_path):
    if command == ["dualnet"]:
        command = [str(Path(sys.executable).with_name("dualnet"))]
    result = subprocess.run(
        [*command, "list", "dual_*"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "dual_mdlstm" in result.stdout


def test_a_model_trains_loads_and_generates(corpus, tmp_path):
    settings = {"units": 4, "batch_size": 4, "sequence_length": 9, "epochs": 1}
    dualnet.train("dual_lstm", corpus, output=tmp_path / "run", progress=False, **settings)
    model = dualnet.load(tmp_path / "run")
    assert dualnet.perplexity(model, corpus.test) < 2 * len(corpus.vocabulary)
    assert dualnet.generate(model, "the cat", max_tokens=3, seed=1).startswith("the cat")
