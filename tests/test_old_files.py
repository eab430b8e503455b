"""Files that earlier releases wrote open: RUN folders, `.keras` files and searches."""

import json
import tarfile
from pathlib import Path

import keras
import pytest

import dualnet
from dualnet import corpora, training, tuning
from tests.searches import in_this_process, rows

ARCHIVE = Path(__file__).parent / "golden" / "release-0.1.0.tar.xz"


@pytest.fixture
def old(tmp_path):
    """A folder with what 0.1.0 wrote on TensorFlow, and the text that it was trained on."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture
def expected(old):
    return json.loads((old / "expected.json").read_text("utf-8"))


@pytest.fixture
def text(old):
    return corpora.load(old / "text")


@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("run", dualnet.load),
        ("model.keras", dualnet.load),
        ("ensemble.keras", keras.models.load_model),
    ],
)
def test_a_model_scores_the_same(old, expected, text, name, load):
    model = load(old / name)
    assert model.vocabulary.words == text.vocabulary.words
    assert dualnet.perplexity(model, text.test) == pytest.approx(expected[name]["test"], rel=1e-6)


only_tensorflow = pytest.mark.skipif(
    keras.config.backend() != "tensorflow", reason="masks are drawn by the backend that saved it"
)


@only_tensorflow
def test_a_run_folder_resumes_as_if_it_had_never_stopped(old, expected, text):
    run = training.train(
        "dual_mdlstm", text, output=old / "run", resume=True, epochs=3, progress=False
    )
    assert len(run.history) == 3
    for split, perplexity in expected["run"]["after_3_epochs"].items():
        assert run.results[f"{split}_perplexity"] == pytest.approx(perplexity, rel=1e-5)


@only_tensorflow
def test_a_keras_file_goes_on_training_with_its_optimizer_and_state(old, expected, text):
    model = dualnet.load(old / "model.keras")
    model.fit(text.batches("train", batch_size=4, sequence_length=7), epochs=1, verbose=0)
    found = dualnet.perplexity(model, text.test)
    assert found == pytest.approx(
        expected["model.keras"]["test_after_another_epoch_of_fit"], rel=1e-5
    )


@only_tensorflow
def test_a_search_resumes_with_its_trials(old, text):
    folder = old / "search"
    before = rows(folder / "trials.csv")
    with in_this_process() as begun:
        tuning.search(
            folder / "job.toml", old / "text", output=folder, max_trials=3, resume=True,
            progress=False,
        )  # fmt: skip
    after = rows(folder / "trials.csv")
    assert len(begun) == 1  # the third alone
    assert sorted(after, key=lambda row: row["trial"])[:2] == before
    assert len(before) == 2 and len(after) == 3
