"""Training into a RUN folder, reading one, and starting from the weights of another."""

import csv
import io
import json
import re
import shutil
import tomllib
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

import dualnet
from dualnet import _files, analysis, runs, training, zoo
from dualnet.builders import language_model
from dualnet.builders.weights import weight_names
from dualnet.training import checkpoints, fitting, reporting, start
from tests.checks import (
    Terminal,
    array,
    assert_close,
    assert_same,
    edit_card,
    once,
    values,
    write_splits,
)
from tests.reference import log_softmax

QUICK = {
    "units": 8, "batch_size": 4, "sequence_length": 9, "epochs": 2, "learning_rate": 1.0,
    "optimizer": "sgd", "recurrent_dropout": 0.2,
}  # fmt: skip


def train(corpus, output, name="dual_lstm", **settings):
    return dualnet.train(name, corpus, output=output, **{**QUICK, "progress": False, **settings})


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    """A finished run, in a folder that one killed before its first checkpoint had left."""
    output = tmp_path_factory.mktemp("runs") / "RUN"
    output.mkdir()
    (output / "vocabulary.txt").write_text("of\nanother\ncorpus\n")
    (output / ".unfinished-half").write_text("")
    return train(corpus, output, seed=3)


@pytest.fixture
def copy(run, tmp_path):
    """The folder of `run`, to alter."""
    return shutil.copytree(run.folder, tmp_path / "RUN")


def test_a_run_folder_is_complete_in_itself(run, corpus):
    names = {path.name for path in run.folder.iterdir()}
    assert names == {
        "card.toml", "vocabulary.txt", "model.weights.h5", "sums.json", "checkpoints", ".lock",
        "metrics.csv", "curves.png", "results.json", "tensorboard", "README.md",
    }  # fmt: skip
    kept = sorted(path.name for path in (run.folder / "checkpoints").iterdir())
    assert kept == ["epoch-00001-step-00000000", "epoch-00002-step-00000000"]
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
    for split, name in (("val", "val_perplexity"), ("train", "perplexity")):
        found = analysis.learning_curves({"run": run.folder}, split=split)["run"]
        assert found.tolist() == [row[name] for row in run.history]
    (events,) = (run.folder / "tensorboard").iterdir()
    assert {event.step for event in EventFileLoader(str(events)).Load() if event.step} == {1, 2}


@once
def test_a_run_folder_has_a_model_card_with_its_corpus_its_tokeniser_and_its_figures(run, corpus):
    card = (run.folder / "README.md").read_text("utf-8")
    assert card.startswith("---\nlibrary_name: dualnet\n") and f"# {run.folder.name}\n" in card
    for part in (
        f"{run.model.count_params():,} parameters", corpus.sha256, "seed 3",
        f"The tokeniser (words) has {len(corpus.vocabulary):,} units",
        f"| test | {run.results['test_perplexity']:.2f} |", "## Licence\n\nNot stated.",
    ):  # fmt: skip
        assert part in card
    assert str(run.folder.parent) not in card  # nothing of the machine


def test_a_loaded_run_has_the_numbers_that_were_written(run, corpus):
    model = dualnet.load(run.folder)
    assert model.vocabulary == corpus.vocabulary
    for split in ("valid", "test"):
        found = dualnet.perplexity(model, corpus.split(split))
        np.testing.assert_allclose(found, run.results[f"{split}_perplexity"], rtol=1e-6)
    found = runs.corpus_of_run(run.folder)
    assert found.sha256 == corpus.sha256 and found.vocabulary == corpus.vocabulary


@once
@pytest.mark.slow
def test_a_loss_that_is_no_number_stops_and_the_best_epoch_is_kept(run, corpus, copy):
    best = values(run.model)

    begin = fitting.FollowPlan.on_epoch_begin

    def spoil(self, epoch, logs=None):
        begin(self, epoch, logs)
        self.model.core.get_layer("embedding").embeddings.assign(
            np.full((len(corpus.vocabulary), 8), np.nan, "float32")
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting.FollowPlan, "on_epoch_begin", spoil)
        with pytest.raises(ValueError, match=r"no longer a number, in epoch 3.*intact") as error:
            train(corpus, copy, epochs=3, resume=True, checkpoint_steps=1)
    assert "learning_rate (it was 1)" in str(error.value) and "clipnorm" in str(error.value)
    assert_same(values(dualnet.load(copy)), best)
    worse = train(corpus, copy, epochs=3, resume=True, learning_rate=50.0, clipnorm=1.0)
    assert worse.results["best_epoch"] == 2 and worse.results["epochs"] == 3
    assert worse.results["valid_perplexity"] == run.results["valid_perplexity"]
    assert_same(values(worse.model), best)


@once
@pytest.mark.slow
def test_the_card_of_a_run_trains_the_same_run_again(run, corpus, tmp_path):
    card = run.folder / "card.toml"
    assert zoo.card(card).seed == 3 and zoo.card("dual_lstm").seed is None
    settings = {"output": tmp_path / "again", "progress": False, "evaluate": False}
    again = dualnet.train(str(card), corpus, epochs=1, **settings)
    assert again.history[0]["val_loss"] == run.history[0]["val_loss"]


@once
@pytest.mark.slow
@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_a_terminal_gets_a_bar_and_every_stream_a_line_per_epoch(
    corpus, tmp_path, monkeypatch, capsys, stream
):
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    has_bar = isinstance(stream, Terminal)
    if not has_bar:
        monkeypatch.setattr(reporting, "LOG_SECONDS", 0.0)
        monkeypatch.setattr(reporting, "REFRESH_SECONDS", 0.0)
    settings = {"units": 4, "batch_size": 4, "sequence_length": 9, "epochs": 2}
    dualnet.train("lstm", corpus, output=tmp_path / "RUN", evaluate=False, **settings)
    assert capsys.readouterr().out == ""
    note, _, shown = stream.getvalue().partition("\n")
    assert note == corpus.note and shown.count("train perplexity") == 2
    assert all((text in shown) == has_bar for text in ("\x1b[", "left", "50%", "━"))
    if not has_bar:  # a line tells of the tokens now and then
        found = re.findall(r"epoch 1/2  (\d+) of (\d+) tokens  [\d,]+ tokens/s  perpl", shown)
        counts = [int(count) for count, _ in found]
        assert len(counts) > 2 and counts == sorted(counts) and counts[-1] == int(found[0][1])


@once
def test_the_card_of_a_run_tells_the_model_and_what_it_was_trained_on(run, corpus):
    card = runs.read_card(run.folder)
    assert (card.name, card.corpus, card.seed, card.weights) == ("dual_lstm", "animals", 3, "")
    assert card.config["units"] == 8 and card.recipe["epochs"] == 2
    assert card.trained_on["sha256"] == corpus.sha256


@once
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"units": 9}, "`units` must stay 8, as when the run started"),
        ({"name": "lstm"}, "`name` must be 'dual_lstm'"),
        ({"epochs": 2}, r"is finished: it has 2 epochs.*such as 3"),
    ],
)
def test_a_resumed_run_keeps_its_settings(run, corpus, settings, message):
    with pytest.raises(ValueError, match=message):
        train(corpus, run.folder, resume=True, **settings)


@once
def test_a_run_is_resumed_with_its_own_text_alone(run, corpus, tmp_path):
    write_splits(tmp_path, "the cat sees the dog\n" * 20)
    with pytest.raises(ValueError, match="`corpus` must be the one that the run started with"):
        train(dualnet.corpora.load(tmp_path), run.folder, resume=True, epochs=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batching": "sentences", "padded": False}, "`padded` must be True with batching="),
        ({"vocabulary_size": 5}, "`vocabulary_size` must be that of the corpus"),
        ({"batch_size": 5000}, "must hold at least batch_size . 1 = 5001"),
    ],
)
def test_bad_settings_are_refused_and_nothing_is_written(corpus, tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        train(corpus, tmp_path / "RUN", **settings)
    assert not (tmp_path / "RUN").exists()


@pytest.mark.parametrize("file", ["card.toml", "vocabulary.txt", "model.weights.h5"])
def test_an_altered_run_folder_is_refused_and_named(copy, file):
    data = bytearray((copy / file).read_bytes())
    data[-3] ^= 1
    (copy / file).write_bytes(data)
    with pytest.raises(ValueError, match=rf"{file} of a RUN folder must be unchanged"):
        dualnet.load(copy)
    (copy / file).unlink()
    with pytest.raises(FileNotFoundError, match=f"A RUN folder must hold .*{file}"):
        dualnet.load(copy)


def test_files_that_do_not_belong_together_are_refused_without_sums_too(run, copy):
    (copy / "sums.json").unlink()
    assert dualnet.load(copy).vocabulary == run.model.vocabulary
    card = (copy / "card.toml").read_text()
    (copy / "card.toml").write_text(card.replace("units = 8", "units = 9"))
    with pytest.raises(ValueError, match="files of a RUN folder must belong together"):
        dualnet.load(copy)


def test_a_keras_file_that_is_missing_damaged_or_of_another_model_is_refused(run, tmp_path):
    with pytest.raises(FileNotFoundError, match="`path` must be a RUN folder or a .keras file"):
        dualnet.load(tmp_path / "nowhere")
    run.model.save(tmp_path / "model.keras")
    data = (tmp_path / "model.keras").read_bytes()
    (tmp_path / "cut.keras").write_bytes(data[: len(data) // 2])
    stock = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    stock.save(tmp_path / "stock.keras")
    for name, message in {
        "cut": "damaged or of another kind",
        "stock": "must hold a language model of dualnet.*Sequential",
    }.items():
        with pytest.raises(ValueError, match=message):
            dualnet.load(tmp_path / f"{name}.keras")
    run.model.core.save_weights(tmp_path / "x.weights.h5")
    with pytest.raises(ValueError, match="must be a RUN folder or a .keras file.*load_weights"):
        dualnet.load(tmp_path / "x.weights.h5")


def test_no_file_that_is_loaded_can_run_code(corpus, copy, tmp_path):
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
    newest = max((copy / "checkpoints").iterdir())
    with np.load(newest / "state.npz") as stored:
        arrays = {name: stored[name] for name in stored.files}
    assert {array.dtype.kind for array in arrays.values()} <= {"f", "i", "u"}
    arrays["00000"] = np.array([Path(done)], dtype=object)
    np.savez(newest / "state.npz", **arrays)
    progress = json.loads((newest / "progress.json").read_text())
    progress["files"]["state.npz"] = checkpoints.sha256_of(newest / "state.npz")
    progress.pop("sha256")
    (newest / "progress.json").write_text(
        json.dumps({**progress, "sha256": _files.sha256_of_data(progress)})
    )
    card = runs.read_card(copy)
    model = start.ready(copy, card, training.Recipe(**card.recipe), corpus).model
    assert len(checkpoints.restore(copy, model).history) == 1  # from the one before
    assert not done.exists()


def test_an_output_that_is_full_or_cannot_be_written_is_refused_before_training(corpus, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="`output` must be a new or empty folder.*--resume"):
        train(corpus, tmp_path)
    with pytest.raises(FileExistsError, match="`output` must be a folder.*File exists"):
        train(corpus, tmp_path / "file")
    with pytest.raises(OSError, match="`output` must be a folder that can be written to"):
        train(corpus, tmp_path / "file" / "RUN")


# --- weights to begin with


@pytest.fixture(scope="module")
def started(run, corpus, tmp_path_factory):
    """A run of one epoch that starts from the weights of `run` and hardly moves them."""
    output = tmp_path_factory.mktemp("started") / "RUN"
    settings = {"epochs": 1, "learning_rate": 1e-9, "seed": 8}
    return train(corpus, output, str(run.folder / "card.toml"), weights=run.folder, **settings)


@once
@pytest.mark.slow
def test_a_run_starts_from_the_weights_of_another(run, started):
    best = min(row["val_perplexity"] for row in run.history)
    np.testing.assert_allclose(started.history[0]["val_perplexity"], best, rtol=1e-5)
    assert started.results["seed"] == 8  # not that of the card
    used = started.folder / "card.toml"
    assert runs.read_card(started.folder).weights == str(run.folder.resolve())
    assert tomllib.loads(used.read_text())["weights"] == str(run.folder.resolve())
    assert zoo.card(used).name == "dual_lstm"
    assert "weights" not in tomllib.loads((run.folder / "card.toml").read_text())


def left_before_the_first_checkpoint(run, folder):
    """Leave what a run has written when it is killed before its first checkpoint."""
    folder.mkdir()
    for name in ("card.toml", "vocabulary.txt"):
        shutil.copy(run.folder / name, folder)
    sums = json.loads((run.folder / "sums.json").read_text())
    del sums["model.weights.h5"]
    (folder / "sums.json").write_text(json.dumps(sums))


@once
@pytest.mark.slow
def test_a_run_without_a_checkpoint_loads_its_weights_again(run, started, corpus, tmp_path, capsys):
    left_before_the_first_checkpoint(started, tmp_path / "RUN")
    again = dualnet.train(
        "dual_lstm", corpus, output=tmp_path / "RUN", resume=True, weights=run.folder,
        progress=False, evaluate=False,
    )  # fmt: skip
    for key in ("loss", "val_loss"):
        assert again.history[0][key] == started.history[0][key]
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match=r"`weights` must stay '.*RUN', as when the run started"):
        train(corpus, tmp_path / "RUN", resume=True, weights=started.folder)


@once
@pytest.mark.slow
def test_lost_weights_are_missed_before_the_first_checkpoint_alone(run, started, corpus, tmp_path):
    left_before_the_first_checkpoint(started, tmp_path / "RUN")
    shutil.copytree(started.folder, tmp_path / "done")
    for name in ("RUN", "done"):
        edit_card(tmp_path / name, str(run.folder.resolve()), "/gone")
    with pytest.raises(FileNotFoundError, match="`weights` must be .*'/gone', which does not"):
        dualnet.train("dual_lstm", corpus, output=tmp_path / "RUN", resume=True)
    dualnet.train(
        "dual_lstm", corpus, output=tmp_path / "done", resume=True, evaluate=False, progress=False
    )


@pytest.mark.slow
def test_another_text_is_read_with_the_words_of_the_weights_and_what_did_not_match_is_told(
    run, corpus, tmp_path, capsys, monkeypatch
):
    write_splits(tmp_path, "the fish finds the dog\n" * 20)
    own = dualnet.corpora.load(tmp_path, tokenizer="words", min_count=1)
    assert own.vocabulary.words != corpus.vocabulary.words
    settings = {"weights": run.folder, "epochs": 1, "recurrent_layers": 2, "evaluate": False}
    found = train(tmp_path, tmp_path / "RUN", progress=True, **settings)
    assert found.model.vocabulary.words == corpus.vocabulary.words
    told = capsys.readouterr().err
    assert f"Starting from the weights in {str(run.folder)!r}. 7 of 10 weights" in told
    assert "\n3 missing, unch" in told and ": recurrence_2/cell_2/kernel," in told
    # A corpus that is read already keeps its words, those that both have their weights.
    settings |= {"learning_rate": 1e-9, "recurrent_layers": 1}
    monkeypatch.setattr(reporting, "TIMED_SECONDS", 0)
    monkeypatch.setattr(reporting, "REFRESH_SECONDS", 0)
    found = train(own, tmp_path / "OWN", progress=True, **settings)
    told = capsys.readouterr().err
    assert f"1 by word, {len(own.vocabulary)} kept and others at their mean: embedding" in told
    assert told.count("An epoch takes about ") == 1  # told after the first steps, once
    rows = [
        array(model.core.get_layer("embedding").embeddings) for model in (found.model, run.model)
    ]
    for word in ("fish", "the"):
        row, expected = (
            x[words.id(word)] for x, words in zip(rows, (own.vocabulary, corpus.vocabulary))
        )
        np.testing.assert_allclose(row, expected, atol=1e-5)


@once
@pytest.mark.slow
def test_training_goes_on_from_a_run_by_its_folder(run, corpus, tmp_path):
    write_splits(tmp_path, "the fish finds the dog\n" * 20)
    settings = {"epochs": 1, "learning_rate": 1e-9, "progress": False, "evaluate": False}
    found = dualnet.train(run.folder, tmp_path, output=tmp_path / "RUN", **settings)
    assert found.model.vocabulary.words == corpus.vocabulary.words
    used, began = runs.read_card(found.folder), runs.read_card(run.folder)
    assert used.weights == str(run.folder.resolve()) and used.config == began.config
    assert used.recipe == {**began.recipe, "epochs": 1, "learning_rate": 1e-9}
    assert_close(found.model.trainable_variables, run.model.trainable_variables, atol=1e-4)
    seeds = dualnet.training.train_seeds(
        run.folder, tmp_path, seeds=(1, 2), output=tmp_path / "SEEDS",
        **{**settings, "evaluate": True},
    )  # fmt: skip
    assert runs.read_card(seeds["runs"][1]["path"]).weights == used.weights


def test_fine_tuning_says_where_it_began(run, tmp_path, capsys):
    write_splits(tmp_path, "the fish finds the dog\n" * 20)
    settings = {"epochs": 1, "learning_rate": 1e-9}
    found = dualnet.train(run.folder, tmp_path, output=tmp_path / "RUN", **settings)
    start = found.results["start_perplexity"]
    np.testing.assert_allclose(start, found.history[0]["val_perplexity"], rtol=1e-3)
    assert f"Validation perplexity before the first step: {start:.2f}\n" in capsys.readouterr().err
    more = dualnet.train(
        run.folder, tmp_path, output=tmp_path / "RUN", epochs=2, resume=True, progress=False
    )
    assert more.results["start_perplexity"] == start and "start_perplexity" not in run.results
    write_splits(
        tmp_path, "the fish finds the dog\n" * 20, valid="dog dog finds finds the the\n" * 20
    )
    settings |= {"learning_rate": 0.5, "evaluate": False}
    worse = dualnet.train(run.folder, tmp_path, output=tmp_path / "WORSE", **settings)
    message = r"worse than before the first step, ([\d.]+)\. Try a smaller learning_rate than 0.5\."
    [start] = re.findall(message, capsys.readouterr().err)
    assert worse.history[0]["val_perplexity"] > float(start)


def test_what_does_not_fit_the_run_to_go_on_from_is_refused(run, tmp_path):
    write_splits(tmp_path, "the fish finds the dog\n" * 20)
    output = tmp_path / "RUN"
    for settings, message in (
        ({"recurrent_units": 5}, r"Settings must keep the sizes of .*cell_1/kernel the shape"),
        ({"tokenizer": "bytes"}, "`tokenizer` must be left out: the model to start from reads"),
    ):
        with pytest.raises(ValueError, match=message):
            dualnet.train(run.folder, tmp_path, output=output, progress=False, **settings)
    own = dualnet.corpora.load(tmp_path)
    with pytest.raises(ValueError, match="`corpus` must have the vocabulary of the model to start"):
        dualnet.train(run.folder, own, output=output, progress=False)
    assert not output.exists()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"units": 5}, ValueError, "`weights` must be of a model like this one. Received: '.*RUN'"),
        ({"weights": "/none"}, FileNotFoundError, "`weights` must be .*'/none', which does not"),
        (
            {"weights": None, "gate": "input"},
            ValueError,
            "`weights` must be given: a gate is trained on a trained model",
        ),
        (
            {"gate": "input", "recurrent_layers": 2},
            ValueError,
            "`weights` must hold every.*without recurrence_2/cell_2/k",
        ),
    ],
)
def test_unusable_weights_are_refused(run, corpus, tmp_path, settings, error, message):
    with pytest.raises(error, match=message):
        train(corpus, tmp_path / "RUN", **{"weights": run.folder, **settings})
    assert not (tmp_path / "RUN").exists()


@once
@pytest.mark.slow
def test_a_gate_is_trained_over_a_frozen_run_and_resumed(run, corpus, tmp_path):
    folder = tmp_path / "GATED"
    settings = {"gate_units": 3, "batch_size": 4, "learning_rate": 0.02, "epsilon": 1e-6}
    quick = {"output": folder, "progress": False, "evaluate": False}
    training.train_gate(run.folder, corpus, epochs=1, **settings, **quick)
    training.train_gate(run.folder, corpus, epochs=2, resume=True, **quick)
    card = runs.read_card(folder)
    assert card.config["gate"] == "input" and card.config["gate_dropout"] == 0.5
    assert card.seed == 0 != run.results["seed"]  # another run over the same model
    expected = settings | {"epochs": 2, "weight_decay": 1e-6, "loss_reduction": "sum"}
    assert expected.items() <= {**card.config, **card.recipe}.items()
    after = weight_names(dualnet.load(folder))
    for name, weight in weight_names(dualnet.load(run.folder)).items():
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (after[name], weight)))
    with pytest.raises(ValueError, match="`run` must be of a model without a gate"):
        training.train_gate(folder, corpus, output=tmp_path / "none")
    moved = shutil.copytree(run.folder, tmp_path / "moved")
    training.train_gate(moved, corpus, epochs=3, resume=True, **quick)
    (tmp_path / "begun").mkdir()
    quick["output"] = tmp_path / "begun"
    training.train_gate(run.folder, corpus, epochs=1, resume=True, **settings, **quick)
    assert runs.read_card(tmp_path / "begun").config["gate"] == "input"


@once
@pytest.mark.slow
def test_a_gate_serves_an_ensemble_of_models_of_sentences(run, corpus, tmp_path):
    sentences = {"batching": "sentences", "group_by_length": True}
    one = train(corpus, tmp_path / "one", **sentences, epochs=1)
    both = training.combine_runs([one.folder, one.folder], tmp_path / "both")
    settings = {"epochs": 1, "batch_size": 4, "gate_units": 3, "progress": False}
    gated = training.train_gate(both, corpus, output=tmp_path / "gated", **settings)
    assert gated.model.padded and np.isfinite(gated.results["test_perplexity"])
    mixed = training.combine_runs([one.folder, run.folder], tmp_path / "mixed")
    assert training.Recipe(**runs.read_card(mixed).recipe).batching == "streams"


@once
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The cell 'keras.layers.LSTMCell' runs whole")
def test_the_same_command_resumes_a_run_of_an_own_cell_or_an_epsilon_of_its_cell(corpus, tmp_path):
    norm = {"name": "layernorm_lstm", "epsilon": 1e-3, "units": 4}
    own = {"name": "lstm", "cell": keras.layers.LSTMCell, "units": 4}
    for number, settings in enumerate((norm, own)):
        folder = tmp_path / f"{number}"
        train(corpus, folder, epochs=1, recurrent_dropout=0.0, **settings)
        train(corpus, folder, epochs=2, recurrent_dropout=0.0, **settings, resume=True)
    again = {"name": str(tmp_path / "0"), "recurrent_dropout": 0.0, "units": 4}
    train(corpus, tmp_path / "next", **again, epochs=1)
    shutil.move(tmp_path / "0", tmp_path / "moved")
    assert train(corpus, tmp_path / "next", **again, epochs=2, resume=True).results["epochs"] == 2


@once
@pytest.mark.slow
def test_a_folder_of_the_name_of_a_corpus_is_that_text_and_has_its_card(tmp_path):
    assert training.card_for("dual_mdlstm", "data/wikitext-2").corpus == "wikitext-2"
    folder = tmp_path / "python-reference"
    folder.mkdir()
    write_splits(folder, "the cat sees the dog\n" * 40)
    run = dualnet.train("lstm", str(folder), output=tmp_path / "RUN", **{**QUICK, "units": 4})
    assert runs.corpus_of_run(run.folder).source == str(folder)


@once
@pytest.mark.slow
def test_runs_are_combined_into_a_run_of_their_ensemble(run, started, corpus, tmp_path):
    folders = [run.folder, started.folder]
    combined = dualnet.load(training.combine_runs(folders, tmp_path / "ENSEMBLE"))
    ensemble = dualnet.ensemble([dualnet.load(folder) for folder in folders])
    ids = corpus.test[None, :20]
    logits = [keras.ops.convert_to_numpy(model(ids)) for model in (combined, ensemble)]
    np.testing.assert_allclose(*logits, rtol=1e-6)
    with pytest.raises(ValueError, match="`runs` must be at least two RUN folders"):
        training.combine_runs(folders[:1], tmp_path / "none")


@once
@pytest.mark.slow
def test_a_run_in_bfloat16_keeps_float32_weights_and_ends_as_a_float32_model(run, corpus, tmp_path):
    coarse = train(corpus, tmp_path / "RUN", seed=3, epochs=1, dtype_policy="mixed_bfloat16")
    assert runs.read_card(coarse.folder).recipe["dtype_policy"] == "mixed_bfloat16"
    assert runs.read_card(run.folder).recipe["dtype_policy"] == "float32"
    assert keras.config.dtype_policy().name == "float32"
    assert {weight.dtype for weight in coarse.model.weights} == {"float32"}
    assert {layer.compute_dtype for layer in coarse.model.core.layers} == {"float32"}
    perplexity, exact = (history[0]["val_perplexity"] for history in (coarse.history, run.history))
    assert perplexity != exact and perplexity == pytest.approx(exact, rel=0.05)
    again = dualnet.perplexity(dualnet.load(coarse.folder), corpus.test)
    assert coarse.results["test_perplexity"] == pytest.approx(again, rel=1e-6)
    rest = train(corpus, coarse.folder, resume=True, epochs=2, evaluate=False)
    assert rest.history[1]["val_perplexity"] < perplexity


# --- label smoothing


@once
@pytest.mark.slow
def test_label_smoothing_is_in_the_training_loss_alone(rng):
    model = language_model(9, units=4)
    model.compile(optimizer=keras.optimizers.SGD(0.0))
    tokens, targets = rng.integers(9, size=(2, 2, 5))
    log_p = log_softmax(ops.convert_to_numpy(model(tokens)))
    nll = -np.take_along_axis(log_p, targets[..., None], axis=-1).mean()
    for smoothing in (0.0, 0.3):
        model.label_smoothing = smoothing
        model.train_function = None
        model.reset_state()
        loss, perplexity = model.train_on_batch(tokens, targets)
        assert loss == pytest.approx((1 - smoothing) * nll - smoothing * log_p.mean(), rel=1e-5)
        assert perplexity == pytest.approx(np.exp(nll), rel=1e-5)
        assert model.evaluate(tokens, targets, batch_size=2, verbose=0)[0] == pytest.approx(nll)
