import csv
import json
import tomllib

import keras
import numpy as np
import pytest

import dualnet
from dualnet import training
from tests.conftest import values

QUICK = {
    "units": 8,
    "batch_size": 4,
    "sequence_length": 9,
    "epochs": 2,
    "learning_rate": 0.01,
    "recurrent_dropout": 0.2,
}


def train(corpus, output, **settings):
    arguments = {**QUICK, "progress": False, **settings}
    return dualnet.train(arguments.pop("name", "dual_lstm"), corpus, output=output, **arguments)


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    return train(corpus, tmp_path_factory.mktemp("runs") / "RUN", seed=3)


def test_a_run_folder_is_complete_in_itself(run, corpus):
    names = {path.name for path in run.folder.iterdir()}
    assert names == {
        "card.toml", "vocabulary.txt", "model.weights.h5", "resume-2.keras", "resume.json",
        "metrics.csv", "curves.png", "results.json", "tensorboard",
    }  # fmt: skip
    used = tomllib.loads((run.folder / "card.toml").read_text())
    assert used["config"]["units"] == 8 and used["recipe"]["learning_rate"] == 0.01
    results = json.loads((run.folder / "results.json").read_text())
    assert results == run.results
    assert results["seed"] == 3 and results["versions"]["keras"] == keras.__version__
    assert results["corpus"]["tokens"]["train"] == len(corpus.train)
    assert results["vocabulary"] == {
        "size": len(corpus.vocabulary), "sha256": corpus.vocabulary.sha256,
    }  # fmt: skip
    with (run.folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert float(rows[1]["val_perplexity"]) < float(rows[0]["val_perplexity"])


def test_a_loaded_run_has_the_numbers_that_were_written(run, corpus):
    model = dualnet.load(run.folder)
    assert model.vocabulary == corpus.vocabulary
    for split in ("valid", "test"):
        found = dualnet.perplexity(model, corpus.split(split))
        np.testing.assert_allclose(found, run.results[f"{split}_perplexity"], rtol=1e-6)
    assert run.results["test_perplexity"] < len(corpus.vocabulary)


def test_tensorboard_scalars_can_be_read(run):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (file,) = (run.folder / "tensorboard").iterdir()
    steps = {event.step for event in EventFileLoader(str(file)).Load() if event.step}
    assert steps == {1, 2}


def test_a_run_stopped_after_an_epoch_and_resumed_equals_an_undisturbed_one(corpus, tmp_path):
    whole = train(corpus, tmp_path / "whole", epochs=3, seed=1)

    class StopError(Exception):
        pass

    def stop(self, epoch, logs=None):
        if epoch == 2:
            raise StopError

    with pytest.MonkeyPatch.context() as patch, pytest.raises(StopError):
        patch.setattr(training._Recorder, "on_epoch_begin", stop)
        patch.setattr(training._Recorder, "began", 0.0, raising=False)
        patch.setattr(training._Recorder, "shown", float("inf"), raising=False)
        train(corpus, tmp_path / "halves", epochs=3, seed=1)
    keras.utils.set_random_seed(99)
    resumed = dualnet.train(
        "dual_lstm", corpus, output=tmp_path / "halves", resume=True, progress=False
    )  # with the settings that it began with
    assert len(resumed.history) == 3
    for one, two in zip(values(whole.model), values(resumed.model)):
        np.testing.assert_array_equal(one, two)
    ends = [keras.models.load_model(r.folder / "resume-3.keras") for r in (whole, resumed)]
    for one, two in zip(*(values(end) for end in ends)):
        np.testing.assert_array_equal(one, two)


def test_the_best_epoch_is_kept_and_not_the_last(corpus, tmp_path):
    run = train(corpus, tmp_path / "RUN", epochs=3, optimizer="sgd", learning_rate=60.0, clipnorm=9)
    history = [row["val_perplexity"] for row in run.history]
    assert run.results["best_epoch"] == 1 + int(np.argmin(history))
    found = dualnet.evaluate(run.model, corpus.valid, batch_size=4).perplexity
    np.testing.assert_allclose(found, min(history), rtol=0.05)


def test_a_loss_that_is_no_number_stops_and_says_what_to_change(corpus, tmp_path):
    run = train(corpus, tmp_path / "RUN", epochs=1)
    good = values(run.model)
    model = keras.models.load_model(run.folder / "resume-1.keras")
    model.core.get_layer("embedding").embeddings.assign(
        np.full((len(corpus.vocabulary), 8), np.nan, "float32")
    )
    model.save(run.folder / "resume-1.keras")
    with pytest.raises(
        ValueError, match=r"no longer a number, in epoch 2.*after epoch 1 is kept"
    ) as e:
        train(corpus, tmp_path / "RUN", epochs=2, resume=True)
    assert "learning_rate (it was 0.01)" in str(e.value) and "clipnorm" in str(e.value)
    for one, two in zip(good, values(dualnet.load(run.folder))):
        np.testing.assert_array_equal(one, two)


def test_training_again_into_the_same_folder_is_refused(run, corpus):
    with pytest.raises(FileExistsError, match="`output` must be a new or empty folder.*--resume"):
        train(corpus, run.folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"units": 9}, "`units` must stay as the run began, 8"),
        ({"name": "lstm"}, "`name` must be 'dual_lstm'"),
        ({"epochs": 2}, r"is finished: it has 2 epochs.*--epochs 3"),
        ({"batch_size": 3, "epochs": 3}, "`batch_size` must stay as the run began, 4"),
    ],
)
def test_a_run_goes_on_as_it_began(run, corpus, settings, message):
    with pytest.raises(ValueError, match=message):
        train(corpus, run.folder, resume=True, **settings)


def test_a_run_stopped_in_its_last_evaluation_makes_it_when_resumed(corpus, tmp_path):
    first = train(corpus, tmp_path / "RUN", epochs=1)
    (tmp_path / "RUN" / "results.json").unlink()
    again = train(corpus, tmp_path / "RUN", epochs=1, resume=True)
    assert again.results == first.results
    assert (tmp_path / "RUN" / "results.json").is_file()


def test_a_run_goes_on_with_its_own_text_alone(run, tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("the cat sees the dog\n" * 20)
    with pytest.raises(ValueError, match="`corpus` must be the one that the run began with"):
        train(dualnet.corpora.load(tmp_path), run.folder, resume=True, epochs=3)


def test_nothing_to_resume_is_said(corpus, tmp_path):
    with pytest.raises(FileNotFoundError, match="--resume needs a RUN folder"):
        train(corpus, tmp_path, resume=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rat": 1}, "`learning_rat` must be an argument.*Did you mean 'learning_rate'"),
        ({"optimizer": "adamw"}, "`optimizer` must be one of.*Did you mean 'adam'"),
        ({"epochs": 0}, "`epochs` must be an integer of at least 1"),
        ({"learning_rate": 0.0}, "`learning_rate` must be above 0"),
        ({"beta_1": 1.0}, "`beta_1` must be a number of at least 0 and below 1"),
        ({"beta_1": "a"}, "`beta_1` must be a number of at least 0 and below 1"),
        ({"locked_dropouts": 5}, "`locked_dropouts` must be a list"),
        ({"vocabulary_size": 5}, "`vocabulary_size` must be that of the corpus"),
        ({"batch_size": 5000}, "batch_size"),
        ({"name": "dual_lstmm"}, "Unknown model.*dual_lstm"),
        ({"input_dropout": 2}, "`input_dropout`"),
    ],
)
def test_bad_settings_are_refused_and_nothing_is_written(corpus, tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        train(corpus, tmp_path / "RUN", **settings)
    assert not (tmp_path / "RUN").exists()


def test_a_path_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="`path` must be a RUN folder or a .keras file"):
        dualnet.load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="must hold card.toml"):
        dualnet.load(tmp_path)
