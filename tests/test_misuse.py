"""Public functions, classes and methods name the argument that is bad."""

import pytest

import dualnet
from tests import misuse
from tests.checks import UNTRACED, once

pytestmark = [*UNTRACED, once]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return misuse.Workshop(tmp_path_factory.mktemp("misuse"))


# These train, search or draw before they can know.
LONG = {
    "adaptation.dynamic_evaluation", "corpora.Corpus.batches", "generation.generate",
    "training.train", "training.train_gate", "tuning.search",
}  # fmt: skip
CASES = [
    pytest.param(name, values, id=f"{name}-{kind}", marks=[pytest.mark.slow] * is_slow)
    for name in misuse.public_names()
    for kind, values, is_slow in [
        ("few", misuse.FEW, name in LONG), ("more", misuse.MORE, True),
    ]
]  # fmt: skip


@pytest.mark.parametrize(("name", "values"), CASES)
def test_a_bad_argument_is_named(name, values, workshop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a call writes to the file that a value names
    if name == "serving.export" and values is misuse.MORE:  # many of which it takes for a path
        target = "dualnet.serving.saved_model.write_saved_model"
        monkeypatch.setattr(target, lambda *arguments: None)
    assert list(workshop.misuse(name, values)) == []


def test_what_does_not_name_the_argument_is_noticed():
    assert misuse.names(dualnet.ArgumentError("x", "must be 1."), "x", 2)
    assert misuse.names(FileNotFoundError("There is no file 'a'."), "path", "a")
    for error in (TypeError("x"), ValueError("it must be 1"), AttributeError("x")):
        assert not misuse.names(error, "x", 2)
