import csv
import json
import shutil
import tomllib
from pathlib import Path

import keras
import numpy as np
import pytest

import dualnet
from dualnet import analysis
from dualnet.builders import language_model
from dualnet.builders.weights import weight_names
from dualnet.training import checkpoints, recorder
from dualnet.training.start import is_gated, load_start
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
        "card.toml", "vocabulary.txt", "model.weights.h5", "sums.json", "checkpoints", ".lock",
        "metrics.csv", "curves.png", "results.json", "tensorboard",
    }  # fmt: skip
    kept = sorted(path.name for path in (run.folder / "checkpoints").iterdir())
    assert kept == ["epoch-00001-step-00000000", "epoch-00002-step-00000000"]
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


def test_the_best_epoch_is_kept_and_not_the_last(corpus, tmp_path):
    run = train(corpus, tmp_path / "RUN", epochs=3, optimizer="sgd", learning_rate=60.0, clipnorm=9)
    history = [row["val_perplexity"] for row in run.history]
    assert run.results["best_epoch"] == 1 + int(np.argmin(history))
    found = dualnet.evaluate(run.model, corpus.valid, batch_size=4).perplexity
    np.testing.assert_allclose(found, min(history), rtol=0.05)


def test_a_loss_that_is_no_number_stops_and_says_what_to_change(corpus, tmp_path):
    run = train(corpus, tmp_path / "RUN", epochs=1)
    good = values(run.model)

    def spoil(self, epoch, logs=None):
        self.model.core.get_layer("embedding").embeddings.assign(
            np.full((len(corpus.vocabulary), 8), np.nan, "float32")
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder.Recorder, "on_epoch_begin", spoil)
        with pytest.raises(ValueError, match=r"no longer a number, in epoch 2.*is kept") as error:
            train(corpus, tmp_path / "RUN", epochs=2, resume=True, checkpoint_steps=1)
    assert "learning_rate (it was 0.01)" in str(error.value) and "clipnorm" in str(error.value)
    for one, two in zip(good, values(dualnet.load(run.folder))):
        np.testing.assert_array_equal(one, two)
    train(corpus, tmp_path / "RUN", epochs=2, resume=True)  # from the state before


def test_the_card_of_a_run_is_trained_to_the_same_run_once_more(run, corpus, tmp_path):
    card = run.folder / "card.toml"
    assert dualnet.zoo.card(card).seed == 3 and dualnet.zoo.card("dual_lstm").seed is None
    again = dualnet.train(str(card), corpus, output=tmp_path / "again", progress=False)
    assert [row["val_loss"] for row in again.history] == [row["val_loss"] for row in run.history]
    other = dualnet.train(
        str(card), corpus, output=tmp_path / "other", progress=False, seed=0, epochs=1
    )
    assert other.results["seed"] == 0
    assert other.history[0]["val_loss"] != run.history[0]["val_loss"]


def test_a_seed_of_a_card_that_cannot_be_is_refused_by_line(run, corpus, tmp_path):
    card = tmp_path / "own.toml"
    text = (run.folder / "card.toml").read_text()
    card.write_text(text.replace("seed = 3", "seed = -3"))
    line = text[: text.index("seed = 3")].count("\n") + 1
    with pytest.raises(ValueError, match=rf"own.toml, line {line}: `seed` must be an integer of"):
        dualnet.train(str(card), corpus, output=tmp_path / "RUN", progress=False)
    assert not (tmp_path / "RUN").exists()


def test_the_corpus_of_a_run_is_found_again(run, corpus, tmp_path):
    found = dualnet.training.corpus_of_run(run.folder)
    assert found.sha256 == corpus.sha256 and found.vocabulary == corpus.vocabulary
    shutil.copytree(run.folder, tmp_path / "RUN")
    (tmp_path / "RUN" / "vocabulary.txt").unlink()
    with pytest.raises(FileNotFoundError, match="A RUN folder must hold vocabulary.txt"):
        dualnet.training.corpus_of_run(tmp_path / "RUN")


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


def test_a_run_that_was_killed_before_its_first_checkpoint_is_begun_anew(corpus, tmp_path):
    used = tmp_path / "RUN"
    used.mkdir()
    (used / "vocabulary.txt").write_text("of\nanother\ncorpus\n")
    (used / ".unfinished-half").write_text("")
    run = train(corpus, used, epochs=1)
    assert dualnet.load(used).vocabulary == corpus.vocabulary
    assert not (used / ".unfinished-half").exists()
    assert run.results["epochs"] == 1


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
        ({"epsilon": 0}, "`epsilon` must be above 0"),
        ({"batching": "sentences", "padded": False}, "`padded` must be True with batching="),
        ({"beta_1": "a"}, "`beta_1` must be a number of at least 0 and below 1"),
        ({"locked_dropouts": 5}, "`locked_dropouts` must be a list"),
        ({"vocabulary_size": 5}, "`vocabulary_size` must be that of the corpus"),
        ({"batch_size": 5000}, "The split 'train' must hold at least batch_size"),
        ({"seed": 2**32}, r"`seed` must be below 2\*\*32"),
        ({"seed": -1}, "`seed` must be an integer of at least 0"),
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


@pytest.mark.parametrize("file", ["card.toml", "vocabulary.txt", "model.weights.h5"])
def test_an_altered_run_folder_is_refused_and_named(run, tmp_path, file):
    copy = tmp_path / "RUN"
    shutil.copytree(run.folder, copy)
    data = bytearray((copy / file).read_bytes())
    data[-40] ^= 1
    (copy / file).write_bytes(data)
    with pytest.raises(ValueError, match=rf"{file} of a RUN folder must be as it was written"):
        dualnet.load(copy)
    (copy / file).unlink()
    with pytest.raises(FileNotFoundError, match=f"A RUN folder must hold {file}"):
        dualnet.load(copy)


def test_files_that_do_not_belong_together_are_refused_without_sums_too(run, tmp_path):
    copy = tmp_path / "RUN"
    shutil.copytree(run.folder, copy)
    (copy / "sums.json").unlink()
    assert dualnet.load(copy).vocabulary == run.model.vocabulary
    card = (copy / "card.toml").read_text()
    (copy / "card.toml").write_text(card.replace("units = 8", "units = 9"))
    with pytest.raises(ValueError, match="files of a RUN folder must belong together"):
        dualnet.load(copy)
    (copy / "card.toml").write_text(card.replace('builder = "language_model"', "builder = 3"))
    with pytest.raises(ValueError, match="card.toml: `builder` must be there, and be text"):
        dualnet.load(copy)
    (copy / "sums.json").write_text("[")
    (copy / "card.toml").write_text(card)
    with pytest.raises(ValueError, match="sums.json of a RUN folder must be as it was written"):
        dualnet.load(copy)


def test_a_keras_file_that_is_damaged_or_of_another_model_is_refused(run, tmp_path):
    run.model.save(tmp_path / "model.keras")
    data = (tmp_path / "model.keras").read_bytes()
    (tmp_path / "cut.keras").write_bytes(data[: len(data) // 2])
    (tmp_path / "empty.keras").write_bytes(b"")
    stock = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    stock.save(tmp_path / "stock.keras")
    for name, message in {
        "cut": "damaged or of another kind",
        "empty": "damaged or of another kind",
        "stock": "must hold a language model of dualnet.*Sequential",
    }.items():
        with pytest.raises(ValueError, match=message):
            dualnet.load(tmp_path / f"{name}.keras")
    run.model.core.save_weights(tmp_path / "x.weights.h5")
    with pytest.raises(ValueError, match="must be a RUN folder or a .keras file.*load_weights"):
        dualnet.load(tmp_path / "x.weights.h5")


def test_no_file_that_is_loaded_can_run_code(run, corpus, tmp_path):
    done = tmp_path / "done"
    attack = eval(
        f"lambda x: (open({str(done)!r}, 'w').close(), x)[1]"
    )  # no closure, as an attacker would
    code = keras.Sequential([keras.Input((2,)), keras.layers.Lambda(attack)])
    code.save(tmp_path / "code.keras")
    done.unlink(missing_ok=True)
    with pytest.raises(ValueError, match="[Ll]ambda|unsafe"):
        dualnet.load(tmp_path / "code.keras")
    # A pickled object where an array is expected.
    copy = tmp_path / "RUN"
    shutil.copytree(run.folder, copy)
    newest = max((copy / "checkpoints").iterdir())
    with np.load(newest / "state.npz") as stored:
        arrays = {name: stored[name] for name in stored.files}
    arrays["00000"] = np.array([Path(done)], dtype=object)
    np.savez(newest / "state.npz", **arrays)
    progress = json.loads((newest / "progress.json").read_text())
    progress["files"]["state.npz"] = checkpoints.sha256_of(newest / "state.npz")
    progress.pop("sha256")
    (newest / "progress.json").write_text(
        json.dumps({**progress, "sha256": checkpoints._sum(progress)})
    )
    train(corpus, copy, resume=True, epochs=3)  # from the one before
    assert not done.exists()


def test_an_output_that_cannot_be_written_is_told_before_training(corpus, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="`output` must be a folder.*is a file"):
        train(corpus, tmp_path / "file")
    with pytest.raises(OSError, match="`output` must be a folder that can be written to"):
        train(corpus, tmp_path / "file" / "RUN")


def test_a_run_is_in_the_precision_of_its_checkpoint(run):
    with np.load(max((run.folder / "checkpoints").iterdir()) / "state.npz") as stored:
        kinds = {stored[name].dtype.kind for name in stored.files}
    assert kinds <= {"f", "i", "u"}


def test_a_model_trained_by_sentence_is_evaluated_so_and_goes_on_with_resume(corpus, tmp_path):
    settings = {"name": "lstm", "batching": "sentences", "seed": 3}
    whole = train(corpus, tmp_path / "whole", **settings)
    assert whole.results["by_sentence"]
    wanted = dualnet.perplexity(whole.model, corpus.test, by_sentence=True)
    np.testing.assert_allclose(whole.results["test_perplexity"], wanted, rtol=1e-6)
    train(corpus, tmp_path / "parts", epochs=1, **settings)
    parts = train(corpus, tmp_path / "parts", resume=True, **settings)
    assert [row["loss"] for row in parts.history] == [row["loss"] for row in whole.history]
    assert tomllib.loads((whole.folder / "card.toml").read_text())["config"]["padded"] is True


def test_random_lengths_and_shuffles_are_for_streams_alone(corpus, tmp_path):
    for settings, message in (
        ({"length_deviation": 2.0}, "`length_deviation` must be 0 with batching='sentences'"),
        ({"partial_shuffle": True}, "`partial_shuffle` must be False with batching='sentences'"),
        ({"batching": "lines"}, "`batching` must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            train(corpus, tmp_path / "RUN", **{"batching": "sentences", **settings})


@pytest.mark.parametrize("optimizer", ["adam", "nadam"])
def test_a_recipe_gives_its_settings_to_the_optimizer(optimizer):
    made = dualnet.training.Recipe(optimizer=optimizer, beta_1=0.5, epsilon=1e-3).make_optimizer()
    assert (made.beta_1, made.epsilon) == (0.5, 1e-3)


# --- weights to begin with


@pytest.fixture(scope="module")
def started(run, corpus, tmp_path_factory):
    """A run of one epoch that begins with the weights of `run` and hardly moves them."""
    output = tmp_path_factory.mktemp("started") / "RUN"
    return train(corpus, output, weights=run.folder, epochs=1, learning_rate=1e-9, seed=8)


def test_a_run_goes_on_from_the_weights_of_another(run, started):
    best = min(row["val_perplexity"] for row in run.history)
    np.testing.assert_allclose(started.history[0]["val_perplexity"], best, rtol=1e-5)
    used = started.folder / "card.toml"
    assert tomllib.loads(used.read_text())["weights"] == str(run.folder.resolve())
    assert dualnet.zoo.card(used).name == "dual_lstm"
    assert "weights" not in tomllib.loads((run.folder / "card.toml").read_text())


def left_before_the_first_checkpoint(run, folder):
    """Leave what a run has written when it is killed before its first checkpoint."""
    folder.mkdir()
    for name in ("card.toml", "vocabulary.txt"):
        shutil.copy(run.folder / name, folder)
    sums = json.loads((run.folder / "sums.json").read_text())
    del sums["model.weights.h5"]
    (folder / "sums.json").write_text(json.dumps(sums))


def test_a_run_without_a_checkpoint_begins_with_its_weights_again(
    run, started, corpus, tmp_path, capsys
):
    left_before_the_first_checkpoint(started, tmp_path / "RUN")
    again = dualnet.train(
        "dual_lstm", corpus, output=tmp_path / "RUN", resume=True, weights=run.folder,
        progress=False,
    )  # fmt: skip
    for key in ("loss", "val_loss"):
        assert again.history[0][key] == started.history[0][key]
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match=r"`weights` must stay as the run began, '.*RUN'. Rec"):
        train(corpus, tmp_path / "RUN", resume=True, weights=started.folder)


def test_weights_that_are_gone_are_missed_before_the_first_checkpoint_alone(
    run, started, corpus, tmp_path
):
    left_before_the_first_checkpoint(started, tmp_path / "RUN")
    shutil.copytree(started.folder, tmp_path / "done")
    for name in ("RUN", "done"):
        card = tmp_path / name / "card.toml"
        card.write_text(card.read_text().replace(str(run.folder.resolve()), "/gone"))
        (tmp_path / name / "sums.json").unlink()
    with pytest.raises(FileNotFoundError, match="`weights` must be .*'/gone', which.*put it back"):
        dualnet.train("dual_lstm", corpus, output=tmp_path / "RUN", resume=True)
    train(corpus, tmp_path / "done", resume=True, epochs=2, learning_rate=1e-9)
    with pytest.raises(ValueError, match="`weights` must stay as the run began, None"):
        train(corpus, run.folder, resume=True, epochs=3, weights=started.folder)


def test_another_text_is_read_with_the_words_of_the_weights_and_what_did_not_match_is_told(
    run, corpus, tmp_path, capsys
):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("the fish finds the dog\n" * 20)
    own = dualnet.corpora.load(tmp_path)
    assert own.vocabulary.words != corpus.vocabulary.words
    settings = {"weights": run.folder, "epochs": 1, "recurrent_layers": 2, "progress": True}
    with pytest.raises(ValueError, match="`corpus` must have the vocabulary of the model that"):
        train(own, tmp_path / "RUN", **settings)
    assert capsys.readouterr().err == ""
    found = train(tmp_path, tmp_path / "RUN", **settings)
    assert found.model.vocabulary.words == corpus.vocabulary.words
    told = capsys.readouterr().err
    assert f"Begins with the weights in {str(run.folder)!r}. 7 of 10 weights are taken.\n" in told
    assert "\n3 not there, left as they were: recurrence_2/cell_2/kernel," in told


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"units": 5},
            ValueError,
            r"`weights` must be of a model like this one. Received: '.*RUN'",
        ),
        ({"weights": "/none"}, FileNotFoundError, "`weights` must be .*'/none', which does not"),
        ({"weights": __file__}, ValueError, "must be a RUN folder or a .keras file"),
    ],
)
def test_weights_that_cannot_be_begun_with_are_refused(
    run, corpus, tmp_path, settings, error, message
):
    with pytest.raises(error, match=message):
        train(corpus, tmp_path / "RUN", **{"weights": run.folder, **settings})
    assert not (tmp_path / "RUN").exists()


def test_a_gate_needs_all_weights_but_its_own(run, corpus, tmp_path, monkeypatch):
    assert is_gated({"gate": "input"}) and not is_gated({"gate": "none"}) and not is_gated({})
    monkeypatch.setattr("dualnet.training.start.is_gated", lambda config: True)
    with pytest.raises(ValueError, match="`weights` must be given: a gate is trained on a model"):
        train(corpus, tmp_path / "RUN")
    with pytest.raises(ValueError, match="`weights` must hold all.*without recurrence_2/cell_2/k"):
        train(corpus, tmp_path / "RUN", weights=run.folder, recurrent_layers=2)
    assert not (tmp_path / "RUN").exists()
    model = language_model(len(corpus.vocabulary), units=8, connection="dual")
    gate = keras.layers.Dense(len(corpus.vocabulary), name="gate")
    logits, *states = model.core.outputs
    core = keras.Model(model.core.inputs, [gate(logits), *states])
    gated = dualnet.builders.LanguageModel(core, builder="language_model", arguments={})
    found = load_start(run.model, gated, "RUN", {})
    assert found.missing == ("gate/kernel", "gate/bias") and len(found.taken) == 7


def test_a_gate_is_trained_over_a_run_that_stands_still_and_goes_on_as_it_began(
    run, corpus, tmp_path
):
    folder = tmp_path / "GATED"
    given = {"gate_units": 3, "batch_size": 4, "epochs": 1, "learning_rate": 0.02, "epsilon": 1e-6}
    dualnet.training.train_gate(run.folder, corpus, output=folder, progress=False, **given)
    dualnet.training.train_gate(
        run.folder, corpus, output=folder, progress=False, resume=True, epochs=2
    )
    used = dualnet.training.read_card(folder)
    assert used["config"]["gate"] == "input" and used["config"]["gate_dropout"] == 0.5
    assert used["seed"] == 0 != run.results["seed"]  # another run, of which only the base is given
    wanted = given | {"epochs": 2, "weight_decay": 1e-6, "loss_reduction": "sum"}
    assert wanted.items() <= {**used["config"], **used["recipe"]}.items()
    after = weight_names(dualnet.load(folder))
    for name, weight in weight_names(dualnet.load(run.folder)).items():
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (after[name], weight)))
    with pytest.raises(ValueError, match="`run` must be of a model without a gate"):
        dualnet.training.train_gate(folder, corpus, output=tmp_path / "none")


def test_runs_are_put_together_into_a_run_of_their_ensemble(run, started, corpus, tmp_path):
    folders = [run.folder, started.folder]
    made = dualnet.training.combine_runs(folders, tmp_path / "ENSEMBLE")
    models = [dualnet.load(folder) for folder in folders]
    found = dualnet.perplexity(dualnet.load(made), corpus.test)
    expected = dualnet.perplexity(dualnet.ensemble(models), corpus.test)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    with pytest.raises(ValueError, match="`runs` must be at least two RUN folders"):
        dualnet.training.combine_runs(folders[:1], tmp_path / "none")


def test_learning_curves_are_read_from_what_training_writes(run):
    for split, name in (("val", "val_perplexity"), ("train", "perplexity")):
        found = analysis.learning_curves({"run": run.folder}, split=split)["run"]
        assert found.tolist() == [row[name] for row in run.history]


def test_a_run_in_bfloat16_keeps_float32_weights_and_ends_as_a_float32_model(run, corpus, tmp_path):
    coarse = train(corpus, tmp_path / "RUN", seed=3, dtype_policy="mixed_bfloat16")
    used = tomllib.loads((coarse.folder / "card.toml").read_text())
    assert used["recipe"]["dtype_policy"] == "mixed_bfloat16"
    assert tomllib.loads((run.folder / "card.toml").read_text())["recipe"]["dtype_policy"] == (
        "float32"
    )
    assert keras.config.dtype_policy().name == "float32"
    assert {weight.dtype for weight in coarse.model.weights} == {"float32"}
    assert {layer.compute_dtype for layer in coarse.model.core.layers} == {"float32"}
    for row, fine in zip(coarse.history, run.history, strict=True):
        assert row["val_perplexity"] != fine["val_perplexity"]
        assert row["val_perplexity"] == pytest.approx(fine["val_perplexity"], rel=0.05)
    loaded = dualnet.load(coarse.folder)
    again = dualnet.perplexity(loaded, corpus.test)
    assert coarse.results["test_perplexity"] == pytest.approx(again, rel=1e-6)
    rest = train(corpus, coarse.folder, resume=True, epochs=3)
    assert len(rest.history) == 3 and rest.history[2]["val_perplexity"] < 200
