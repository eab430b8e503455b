"""The oracles that draw the trials, and the rule that prunes them; no processes."""

import dataclasses
import json
import math
import shutil
import statistics

import keras_tuner
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from keras_tuner.engine.trial import TrialStatus

from dualnet.tuning import Job
from dualnet.tuning.engine import oracles
from dualnet.tuning.engine.oracles import FAILURES, OBJECTIVE, make_oracle
from dualnet.tuning.job import Parameter
from dualnet.tuning.trial import should_prune
from tests.checks import once

pytestmark = once

SPACE = (
    Parameter(name="learning_rate", min_value=1e-4, max_value=1e-1, sampling="log"),
    Parameter(name="output_dropout", min_value=0.0, max_value=0.5),
)


def job_of(tuner="random", *, trials=4, space=SPACE, seed=0, **options):
    early = "none" if tuner == "hyperband" else "median"
    return Job(
        name="small", model="lstm", tuner=tuner, tuner_options=options, max_trials=trials,
        early_stopping=early, space=space, fixed={"units": 6}, seed=seed,
    )  # fmt: skip


def begin(folder, job=None, *, epochs=4):
    """Return the oracle of a search in `folder`, which goes on if there is one."""
    oracle = make_oracle(job or job_of(), epochs=epochs)
    oracle._set_project_dir(str(folder), "search")
    if (folder / "search" / "oracle.json").is_file():
        oracle.reload()
    return oracle


def end(oracle, trial, perplexity=None):
    """End `trial` as a tuner does; without a perplexity it has failed."""
    if perplexity is None:
        trial.status = TrialStatus.FAILED
    else:
        oracle.update_trial(trial.trial_id, {OBJECTIVE: perplexity})
        trial.status = TrialStatus.COMPLETED
    oracle.end_trial(trial)


def finish(oracle, score=lambda trial: 5.0):
    """Run all that is left with one worker; return the names of what it ran."""
    ran = []
    while True:
        trial = oracle.create_trial("last")
        if trial.status == TrialStatus.STOPPED:
            return ran
        assert trial.status == TrialStatus.RUNNING and len(ran) < 50
        ran.append(trial.trial_id)
        end(oracle, trial, score(trial))


def assert_whole(oracle, count=4):
    """Assert that all trials are there, and each began and ended once."""
    names = sorted(oracle.trials)
    assert names == [f"{i}" for i in range(count)]
    assert sorted(oracle.start_order) == sorted(oracle.end_order) == names
    assert all(oracle.trials[i].status in oracles.FINISHED for i in names)
    assert oracle.ongoing_trials == {} and oracle.retries == []


# --- kills


def test_a_kill_before_the_first_trial_was_given_out(tmp_path):
    oracle = begin(tmp_path)
    oracle.save()
    begun = tmp_path / "search" / "trial_0"
    begun.mkdir()
    trial = oracle.create_trial("a")
    begin(tmp_path)
    empty = tmp_path / "empty"
    (empty / "search").mkdir(parents=True)
    shutil.copytree(begun, empty / "search" / "trial_0")  # without oracle.json
    again = begin(empty)
    assert finish(again)[0] == trial.trial_id
    assert_whole(again)


# --- workers that come and go


def test_a_worker_gets_its_trial_back(tmp_path):
    oracle = begin(tmp_path)
    trial = oracle.create_trial("a")
    assert oracle.create_trial("a").trial_id == trial.trial_id
    oracle.create_trial("b")
    again = begin(tmp_path)
    assert sorted(again.adopt()) == ["a", "b"]
    assert again.create_trial("a").trial_id == trial.trial_id and again.retries == []
    assert again.tuner_ids == {"a", "b"}
    assert again.create_trial("c").trial_id == "2"


# --- the end of a search


def test_a_search_is_over_where_the_first_trials_all_fail(tmp_path):
    oracle = begin(tmp_path, job_of(trials=50))
    assert len(finish(oracle, lambda trial: None)) == FAILURES and oracle.all_failed
    assert begin(tmp_path, job_of(trials=50)).all_failed


def test_a_search_goes_on_past_failures_and_the_best_are_completed(tmp_path):
    oracle = begin(tmp_path, job_of(trials=12))
    ran = finish(oracle, lambda trial: 5.0 if trial.trial_id == "03" else None)
    assert len(ran) == 12 and not oracle.all_failed
    assert [trial.trial_id for trial in oracle.get_best_trials(9)] == ["03"]


@pytest.mark.parametrize(("scale", "high", "step"), [("linear", 0.9, 0.1), ("log", 0.8, 2)])
def test_a_grid_tries_each_value_of_a_range_once(tmp_path, scale, high, step):
    names = {"min_value": 0.1, "max_value": high, "step": step, "sampling": scale}
    oracle = begin(tmp_path, job_of("grid", space=(Parameter(name="output_dropout", **names),)))
    finish(oracle)
    values = [t.hyperparameters.values["output_dropout"] for t in oracle.trials.values()]
    assert len(values) == 4 and min(np.diff(sorted(values))) > 1e-3


@pytest.mark.parametrize("tuner", ["random", "bayesian", "hyperband"])
def test_a_seed_draws_the_same_trials_after_a_kill(tmp_path, tuner):
    """Also where only some were run before, and by seed 0, which KerasTuner takes for none."""
    options = {"factor": 3} if tuner == "hyperband" else {"num_initial_points": 2}
    job = job_of(tuner, trials=3, **(options if tuner != "random" else {}))

    def score(trial):
        return 3 + abs(math.log10(trial.hyperparameters.values["learning_rate"]) + 2)

    whole = begin(tmp_path / "whole", job)
    finish(whole, score)
    oracle = begin(tmp_path / "killed", job)
    for _ in range(2):
        trial = oracle.create_trial("last")
        end(oracle, trial, score(trial))
        oracle = begin(tmp_path / "killed", job)
    finish(oracle, score)
    for name, trial in whole.trials.items():
        drawn = oracle.trials[name].hyperparameters.values
        assert drawn.keys() == trial.hyperparameters.values.keys()
        for key, value in trial.hyperparameters.values.items():
            assert drawn[key] == (value if isinstance(value, str) else pytest.approx(value))
    other = begin(tmp_path / "other", dataclasses.replace(job, seed=1))
    first = whole.trials[whole.start_order[0]].hyperparameters.values
    assert other.create_trial("a").hyperparameters.values != first


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # of so few points
def test_bayesian_trials_under_way_at_the_same_time_differ(tmp_path):
    """KerasTuner's guess for those under way is 0, below all, before the regression is fitted."""
    job = job_of("bayesian", trials=20, num_initial_points=3, space=SPACE[:1])
    oracle = begin(tmp_path, job)
    for score in (7.0, 6.0, 5.0):
        end(oracle, oracle.create_trial("a"), score)
    oracle.create_trial("a")
    oracle = begin(tmp_path, job)  # resumed
    assert oracle.create_trial("a").trial_id == "03"
    guesses = []
    plain = keras_tuner.oracles.BayesianOptimizationOracle._vectorize_trials

    def seen(self):
        x, y = plain(self)
        guesses.append(y)
        return x, y

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(oracle), "_vectorize_trials", seen)
        drawn = [oracle.create_trial(name) for name in ("b", "c")]
    every = [*drawn, oracle.trials["03"]]
    points = {tuple(trial.hyperparameters.values.values()) for trial in every}
    assert len(points) == len(every)
    assert len(guesses) == 4 and all(np.min(y) > 1 for y in guesses)


# --- whatever happens

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["begin", "complete", "fail", "twice"]), st.integers(0, 2)),
        st.tuples(st.sampled_from(["release"]), st.integers(0, 3)),
        st.tuples(st.sampled_from(["kill", "adopt"]), st.just(0)),
        # The chief is killed before the oracle's file was written, in the midst of that.
        st.tuples(st.sampled_from(["torn begin", "torn end"]), st.integers(0, 2)),
    ),
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=20)
@given(events=EVENTS)
@example(events=[("begin", 0), ("begin", 1), ("complete", 0), ("kill", 0)])
@example(events=[("begin", 0), ("complete", 0), ("begin", 0), ("torn end", 0)])
@example(events=[("begin", 0), ("complete", 0), ("torn begin", 0), ("begin", 0)])
@example(events=[("begin", 0), ("release", 0), ("release", 0), ("begin", 1), ("kill", 0)])
@example(events=[("begin", 0), ("release", 0), ("twice", 0)])
@example(events=[("begin", 0), ("kill", 0), ("begin", 1), ("adopt", 0)])
def test_whatever_happens_each_trial_ends_once(tmp_path_factory, events):
    folder = tmp_path_factory.mktemp("events")
    job = job_of(trials=5)
    oracle = begin(folder, job)
    ongoing, scores = {}, {}  # of each worker its trial; what each trial ended with first
    drawn = {}  # the values of each trial as it was first given out

    def close(worker, perplexity):
        trial = ongoing.pop(worker)
        if trial.trial_id in oracle.trials:
            end(oracle, trial, perplexity)
            scores.setdefault(trial.trial_id, perplexity)
        return trial

    for event, worker in events:
        file = folder / "search" / "oracle.json"
        before = file.read_bytes() if file.exists() else None
        if event in ("begin", "torn begin"):
            trial = oracle.create_trial(worker)
            if trial.status == TrialStatus.RUNNING:
                ongoing[worker] = trial
                values = trial.hyperparameters.values
                assert drawn.setdefault(trial.trial_id, values) == values, "a kill changes none"
        elif event in ("complete", "fail", "torn end") and worker in ongoing:
            close(worker, None if event == "fail" else 4.0 + worker)
        elif event == "twice" and worker in ongoing:
            trial = close(worker, 4.0)
            end(oracle, trial, 3.0)
        elif event == "release":
            oracle.release(worker)  # it may go on, and end its trial later
        if event == "adopt":
            oracle = begin(folder, job)
            oracle.adopt()
        if event.startswith("torn") and before is not None:
            file.write_bytes(before)
        if event == "kill" or event.startswith("torn"):
            oracle = begin(folder, job)
            ongoing.clear()
        assert len(set(oracle.end_order)) == len(oracle.end_order)
    for worker in list(oracle.ongoing_trials):
        oracle.release(worker)
    finish(oracle)
    if oracle.all_failed:
        assert len(oracle.end_order) == 5
    assert_whole(oracle, 5)
    again = begin(folder, job)
    assert_whole(again, 5)
    for name, score in scores.items():
        assert again.trials[name].score == score
    for name in again.trials:
        state = json.loads((folder / "search" / f"trial_{name}" / "trial.json").read_text())
        assert state["status"] == again.trials[name].status


# --- pruning


@pytest.mark.parametrize(
    ("perplexities", "peers", "pruned"),
    [
        ([9, 9, 9], [[1, 1, 1]] * 3, True),
        ([9, 2, 9], [[1, 3, 3], [3, 3, 3], [3, 3, 3]], False),  # the best so far counts
        ([9, 9, 9], [[9, 9, 9, 1]] * 3, False),  # later epochs do not count
    ],
)
def test_a_trial_behind_the_median_is_pruned(perplexities, peers, pruned):
    assert should_prune(perplexities, peers, 10) is pruned


HISTORY = st.lists(st.floats(1, 1e6), max_size=12)


@given(perplexities=HISTORY, peers=st.lists(HISTORY, max_size=6), epochs=st.integers(1, 12))
def test_laws_of_pruning(perplexities, peers, epochs):
    pruned = should_prune(perplexities, peers, epochs)
    assert should_prune(perplexities, peers[::-1], epochs) == pruned, "the order is irrelevant"
    assert not should_prune(perplexities, [perplexities] * 5, epochs), "not behind itself"
    if perplexities:
        assert not should_prune([*perplexities[:-1], 1.0], peers, epochs), "none is better"
    if pruned:
        assert len(perplexities) > epochs / 5
        reached = [peer for peer in peers if len(peer) >= len(perplexities)]
        median = statistics.median(min(peer[: len(perplexities)]) for peer in reached)
        assert len(reached) >= 3 and min(perplexities) > median
        assert should_prune([2 * value for value in perplexities], peers, epochs), (
            "so is a worse one"
        )
