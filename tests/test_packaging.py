import configparser
import os
import pathlib
import re
import subprocess
import sys

import keras
import pytest

import dualnet

ROOT = pathlib.Path(dualnet.__file__).parents[1]


def test_the_package_list_is_the_tree():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    folders = {path.parent for path in (ROOT / "dualnet").rglob("*.py")}
    packages = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    packages |= {"dualnet._data.tuning", "dualnet._data.zoo"}
    assert {*config["options"]["packages"].split()} == packages
    assert all((folder / "__init__.py").is_file() for folder in folders)


def test_changelog_citation_and_metadata_name_the_same_version():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    version = config["metadata"]["version"]
    dated = re.search(r"^## (\d\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert dated[1] == version
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {version}\n" in citation and f'"{dated[2]}"' in citation


def test_every_public_name_can_be_imported_and_no_function_hides_a_module():
    for name in dualnet.__all__:
        assert getattr(dualnet, name) is not None
    modules = {path.stem for path in (ROOT / "dualnet").iterdir()}
    assert not modules & {*dualnet._FUNCTIONS} and modules >= {*dualnet._FUNCTIONS.values()}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dualnet.nothing  # noqa: B018


WITHOUT_KERAS = """
import sys
from pathlib import Path
from types import SimpleNamespace
import dualnet.requests
from dualnet import corpora, zoo
from dualnet.cli import main
from dualnet.corpora import cached_ids
from dualnet.tuning import report

def check(what):
    large = {"jax", "keras", "keras_tuner", "matplotlib", "sklearn", "tensorflow", "torch"}
    assert not large & {*sys.modules}, (what, large & {*sys.modules})

for command in (["list"], ["list", "dual_*", "--json"], ["card", "lstm"]):
    assert main(command) == 0
check("the command line")
for name in zoo.list_models():
    zoo.card(name)
check("the zoo")
cached_ids.LARGE_BYTES = 0
corpora.load(sys.argv[1])
check("a large text")
job = SimpleNamespace(name="j", kind="training", space=())
rows = [report.Row(trial="0", status="failed", drawn={})]
report.write_report(Path(sys.argv[2]), job, rows)
check("the report of a search")
"""


def test_what_needs_no_model_loads_no_keras(folder, tmp_path):
    command = [sys.executable, "-c", WITHOUT_KERAS, str(folder), str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


WITHOUT_TENSORFLOW = """
import sys
sys.modules["tensorflow"] = None
import dualnet
from dualnet.cli import main
folder, run = sys.argv[1:]
code = main(["train", "dual_lstm", "--corpus", folder, "--output", run, "--epochs", "1", "--set",
             "units=4", "batch_size=4", "sequence_length=9"])
code = code or main(["evaluate", run, "--dynamic"])
model = dualnet.load(run)
model.save(run + "/model.keras")
dualnet.generate(dualnet.load(run + "/model.keras"), "the cat", max_tokens=3, seed=1)
assert sys.modules["tensorflow"] is None
sys.exit(code)
"""


@pytest.mark.skipif(
    keras.config.backend() == "tensorflow", reason="the TensorFlow backend needs TensorFlow"
)
def test_all_but_export_works_where_tensorflow_is_not_installed(folder, tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, str(folder), str(tmp_path / "RUN")],
        capture_output=True, text=True, check=False, env={**os.environ},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert list((tmp_path / "RUN" / "tensorboard").iterdir())
