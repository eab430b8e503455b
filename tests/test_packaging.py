import configparser
import os
import pathlib
import subprocess
import sys

import keras
import pytest

import dualnet

ROOT = pathlib.Path(dualnet.__file__).parents[1]


def test_the_package_list_is_the_tree():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = set(config["options"]["packages"].split())
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "dualnet").rglob("__init__.py")
    }
    assert listed == found | {"dualnet._data.tuning", "dualnet._data.zoo"}


def test_every_public_name_can_be_had_and_hides_no_module():
    for name in dualnet.__all__:
        assert getattr(dualnet, name) is not None
        assert callable(getattr(dualnet, name)) != name.islower() or name not in sys.modules
    assert not {path.stem for path in (ROOT / "dualnet").glob("*.py")} & set(dualnet._FUNCTIONS)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dualnet.nothing  # noqa: B018


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
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, str(folder), str(tmp_path / "RUN")],
        capture_output=True, text=True, check=False, env={**os.environ},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert list((tmp_path / "RUN" / "tensorboard").iterdir())


def test_the_recurrence_can_be_imported_before_all_else():
    # The layers import the builders, to register their classes, and these the recurrence.
    subprocess.run([sys.executable, "-c", "import dualnet.recurrence"], check=True, cwd=ROOT)
