"""Models that are kept after so many words: whole RUNs, and the same after a kill."""

import functools
import shutil
import signal
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dualnet
from dualnet import corpora, runs
from dualnet._checks import whole_number
from dualnet.runs import writing
from dualnet.text import ByteTokenizer, Vocabulary
from dualnet.training import checkpoints, fitting, kept
from dualnet.training.interrupts import Stopped
from tests.checks import UNTRACED, assert_same, few_elsewhere, once
from tests.test_resume import SETTINGS, STEPS, on_call, train, train_undisturbed

pytestmark = UNTRACED
WORDS = 300  # of the training text, 50 in a step
KEPT = {"keep_every": "100..200,150", "epochs": 2}
NAMES = ["100", "150", "200", "300", "450", "600"]


def names(folder):
    return sorted(path.name for path in (folder / "kept").iterdir())


def weights(folder):
    """Return the weights of every model that was kept, by its name."""
    return {name: dualnet.load(folder / "kept" / name).get_weights() for name in names(folder)}


def assert_all_same(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        assert_same(found[name], expected[name])


MOMENTS = {
    "before": (fitting.Checkpoint, "end_step", 3),  # 100 words
    "while": (writing, "write_weights", 3),
    "after": (kept, "keep", 3),
    "with a checkpoint": (checkpoints, "save", 3),
    "in the next epoch": (kept, "keep", 5),
}


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """A run that was not disturbed, and the function that copies it as of a moment."""
    folder = tmp_path_factory.mktemp("kept") / "RUN"
    settings = {**SETTINGS, **KEPT}
    _, killed = train_undisturbed(corpus, folder, settings, [*MOMENTS.values()])
    return folder, killed


@pytest.mark.slow
def test_a_run_keeps_its_models_after_so_many_words_of_all_epochs(whole, corpus, tmp_path):
    folder, _ = whole
    assert names(folder) == NAMES
    for name in NAMES:
        card = runs.read_card(folder / "kept" / name)
        assert card.note == f"Kept after {name} words were read, by the run 'RUN'."
        assert dualnet.load(folder / "kept" / name).vocabulary == corpus.vocabulary
        lines = (folder / "kept" / name / "README.md").read_text("utf-8").splitlines()
        assert f"# RUN, {name} words" in lines and not any("unfinished" in line for line in lines)
        assert "\n".join(lines).count(f"RUN, {name} words") == 1  # none of its numbers is replaced
    once = train(corpus, tmp_path / "RUN", epochs=1, seed=5, evaluate=False)
    assert_same(weights(folder)["300"], once.model.get_weights())
    assert not (tmp_path / "RUN" / "kept").exists()


@pytest.mark.slow
@pytest.mark.parametrize("moment", few_elsewhere(MOMENTS))
def test_a_kill_loses_none_and_doubles_none(whole, corpus, tmp_path, moment):
    folder, killed = whole
    killed(MOMENTS[moment], tmp_path / "RUN")
    train(corpus, tmp_path / "RUN", resume=True)
    assert_all_same(weights(tmp_path / "RUN"), weights(folder))
    assert not list((tmp_path / "RUN").rglob(".unfinished*"))


@once
@pytest.mark.slow
def test_averages_are_kept_once_they_are_validated(corpus, tmp_path):
    recipe = {"optimizer": "sgd", "averaging": "asgd", "average_from": 2, "learning_rate": 0.5}
    run = train(corpus, tmp_path / "RUN", {**SETTINGS, **KEPT, **recipe}, evaluate=False)
    assert [row["phase"] for row in run.history] == ["train", "averaged"]
    assert min(run.history, key=lambda row: row["val_perplexity"]) is run.history[-1]
    assert_same(weights(run.folder)["600"], run.model.get_weights())


@once
@pytest.mark.slow
def test_a_restart_drops_what_the_dropped_epochs_kept(corpus, tmp_path, monkeypatch):
    def diverges(row, history):
        return row["epoch"] == 2 and row["learning_rate"] > 0.0095

    monkeypatch.setattr(fitting, "has_diverged", diverges)
    dropped = []
    drop = kept.drop_after
    monkeypatch.setattr(
        kept,
        "drop_after",
        lambda folder, words: (drop(folder, words), dropped.append(names(folder))),
    )
    settings = {**SETTINGS, **KEPT, "on_divergence": "restart"}
    run = train(corpus, tmp_path / "RUN", settings, evaluate=False)
    assert dropped == [["100", "150", "200", "300"]] and names(run.folder) == NAMES


@once
@pytest.mark.slow
def test_every_command_takes_what_was_kept(whole, cli, tmp_path, folder):
    run = shutil.copytree(whole[0] / "kept" / "200", tmp_path / "200")
    result = cli.json(f"evaluate {run} --split valid")
    model, valid = dualnet.load(run), corpora.load(folder).valid
    assert result["perplexity"] == pytest.approx(dualnet.perplexity(model, valid), rel=1e-6)
    going_on = f"train {run} --corpus {folder} --output {tmp_path}/on --epochs 1 --quiet"
    cli(f"{going_on} --keep-every 100..200")
    assert names(tmp_path / "on") == ["100", "200"]
    message = cli.refused(f"train dual_lstm --corpus {folder} --output {run} --resume")
    assert "Kept after 200 words" in message and "Fine-tune it into a new RUN" in message


@once
@pytest.mark.slow
def test_a_translator_is_kept_after_words_of_its_target(pairs_folder, tmp_path):
    pairs = corpora.load_pairs(pairs_folder, source="digits", target="words", tokenizer="words")
    total = sum(len(line.split()) for line in pairs.train.target_lines)
    recipe = {"units": 4, "depth": 1, "batch_size": 12, "epochs": 1}
    settings = {"progress": False, "evaluate": False, "keep_every": str(total)}
    run = dualnet.train("attention_gru", pairs, output=tmp_path / "RUN", **recipe, **settings)
    (name,) = names(run.folder)
    assert whole_number(name) == total
    assert_same(weights(run.folder)[name], run.model.get_weights())


@once
@pytest.mark.slow
def test_a_schedule_may_change_on_resuming_and_stays_otherwise(corpus, tmp_path):
    settings = {**SETTINGS, **KEPT}
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        interrupt = functools.partial(signal.raise_signal, signal.SIGINT)
        on_call(patch, fitting.Checkpoint, "end_step", STEPS + 1, interrupt)
        train(corpus, tmp_path / "RUN", settings, evaluate=False)
    copy = shutil.copytree(tmp_path / "RUN", tmp_path / "other")
    train(corpus, tmp_path / "RUN", resume=True, evaluate=False)
    train(corpus, copy, resume=True, evaluate=False, keep_every="500..500")
    assert names(tmp_path / "RUN") == NAMES and names(copy) == [*NAMES[:4], "500"]


# --- the schedule


@once
@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), Vocabulary((*"abc", "<eos>", "<unk>"))])
@given(text=st.text("ab ä\n", max_size=60))
def test_words_are_counted_exactly_whatever_is_read_at_once(tokenizer, text):
    ids = tokenizer.encode(text)
    corpus = types.SimpleNamespace(train=ids, vocabulary=tokenizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "CHUNK", 7)
        assert kept.num_words(corpus, "1M", steps=1) == len(tokenizer.decode(ids).split())


SCHEDULES = st.lists(
    st.tuples(st.integers(1, 30), st.none() | st.integers(30, 90)), min_size=1, max_size=3
)


@once
@given(SCHEDULES, st.lists(st.integers(0, 120), min_size=3, max_size=3).map(sorted))
def test_what_is_due_in_two_spans_is_due_in_both_together(parts, places):
    text = ",".join(f"{step}" if end is None else f"{step}..{end}" for step, end in parts)
    assert kept.ranges(text) == parts
    a, b, c = places
    assert kept.due(text, a, c) == kept.due(text, a, b) + kept.due(text, b, c)
    wanted = {n for n in range(a + 1, c + 1) for step, end in parts
              if n % step == 0 and n <= (end or n)}  # fmt: skip
    assert kept.due(text, a, c) == sorted(wanted)


@once
@pytest.mark.parametrize(
    ("keep_every", "message"),
    [
        ("10M..1M", "must be ranges of words such as '1M'"),
        ("20", "must not ask for less than the words of a step, here 50"),
    ],
)  # fmt: skip
def test_a_schedule_that_cannot_be_is_refused_and_nothing_is_written(
    corpus, tmp_path, keep_every, message
):
    with pytest.raises(ValueError, match=message):
        train(corpus, tmp_path / "RUN", keep_every=keep_every)
    assert not (tmp_path / "RUN").exists()
