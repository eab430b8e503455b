"""Files that 0.2.0 wrote open, score and resume: RUN folders, `.keras` files and a search.

They were written on TensorFlow with the figures in `expected.json`. From 0.2.0 on, files are an
interface: never write the archive anew to make a test pass.
"""

import json
import tarfile
from pathlib import Path

import keras
import pytest

import dualnet
from dualnet import corpora, tuning
from dualnet.text import Vocabulary
from tests.checks import once
from tests.searches import in_this_process, rows

pytestmark = once

ARCHIVE = Path(__file__).parent / "golden" / "release-0.2.0.tar.xz"


@pytest.fixture
def files(tmp_path):
    """A folder with what 0.2.0 wrote, and the texts that it was trained on."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture
def expected(files):
    return json.loads((files / "expected.json").read_text("utf-8"))


@pytest.fixture
def text(files):
    vocabulary = Vocabulary.load(files / "run" / "vocabulary.txt")
    return corpora.load(files / "text", vocabulary=vocabulary)


@pytest.fixture
def pairs(files):
    tokenizer = files / "translator" / "tokenizer.json"
    return corpora.load_pairs(files / "pairs", source="digits", target="words", tokenizer=tokenizer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("run", dualnet.load),
        ("model.keras", dualnet.load),
        ("gated.keras", dualnet.load),
        ("ensemble.keras", keras.models.load_model),
    ],
)
def test_a_model_scores_the_same(files, expected, text, name, load):
    model = load(files / name)
    assert model.vocabulary.words == text.vocabulary.words
    assert dualnet.perplexity(model, text.test) == pytest.approx(expected[name]["test"], rel=1e-6)


@pytest.mark.slow
def test_a_translator_scores_and_translates_the_same(files, expected, pairs):
    model = dualnet.load(files / "translator")
    model.compile()
    batches = pairs.batches("test", batch_size=8, shuffle=False)
    found = model.evaluate(batches, verbose=0, return_dict=True)["perplexity"]
    assert found == pytest.approx(expected["translator"]["test"], rel=1e-5)
    lines = dualnet.translate(model, pairs.test.source_lines[:3], beam=2, max_tokens=4)
    assert lines == expected["translator"]["translations"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "translator"])
def test_a_run_killed_in_an_epoch_resumes_as_if_it_had_never_stopped(files, expected, pairs, name):
    corpora = {"run": ("dual_mdlstm", f"{files}/text"), "translator": ("attention_gru", pairs)}
    model, corpus = corpora[name]  # text by its path: read as words, as it was
    run = dualnet.train(model, corpus, output=files / name, resume=True, progress=False)
    assert len(run.history) == 3
    for split, perplexity in expected[name]["after_3_epochs"].items():
        assert run.results[f"{split}_perplexity"] == pytest.approx(perplexity, rel=1e-5)


@pytest.mark.slow
def test_a_keras_file_goes_on_training_with_its_optimizer_and_state(files, expected, text):
    model = dualnet.load(files / "model.keras")
    model.fit(text.batches("train", batch_size=4, sequence_length=7), epochs=1, verbose=0)
    assert dualnet.perplexity(model, text.test) == pytest.approx(
        expected["model.keras"]["test_after_another_epoch_of_fit"], rel=1e-5
    )


@pytest.mark.slow
def test_a_search_resumes_with_its_trials(files, expected, text):
    folder = files / "search"
    finished = rows(folder / "trials.csv")
    with in_this_process() as begun:
        tuning.search(
            folder / "job.toml", files / "text", output=folder, max_trials=3, resume=True,
            progress=False,
        )  # fmt: skip
    trials = sorted(rows(folder / "trials.csv"), key=lambda row: row["trial"])
    assert [path.name for path in begun] == ["2"]  # which was killed in its second epoch
    assert len(finished) == 2 and trials[:2] == finished
    assert float(trials[2]["val_perplexity"]) == pytest.approx(
        expected["search"]["val_perplexity"], rel=1e-5
    )
