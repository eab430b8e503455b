"""The learning rate of dynamic evaluation, found on validation text."""

import json
import math
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

import dualnet
from dualnet.adaptation import step_size
from dualnet.adaptation.step_size import MOST, best_rate, with_own_settings
from dualnet.requests import RULES, DynamicEvaluating, Surprising
from tests.checks import assert_same, edit_card, once, values

pytestmark = once

WORDS = 9
TOKENS = np.tile(np.arange(WORDS, dtype="int32"), 12)  # the next word is always the same
QUICK = {"units": 6, "batch_size": 4, "sequence_length": 9, "epochs": 1, "progress": False}


@pytest.fixture
def model():
    return dualnet.zoo.build("lstm", vocabulary_size=WORDS, units=4)


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("steps") / "RUN"
    return dualnet.train("lstm", corpus, output=folder, evaluate=False, **QUICK)


@pytest.mark.parametrize("best", [0.003, 0.1, 0.3, 3.0, 1e9])
def test_rates_are_tried_up_or_down_from_the_default_until_one_is_worse(best):
    tried = []

    def loss_of(rate):
        tried.append(rate)
        return abs(math.log(rate / best))

    rate, loss = best_rate(loss_of, 0.1)
    assert len(tried) == len({*tried}) <= MOST and loss == min(map(loss_of, tried[:MOST]))
    if best < 1e9:
        assert rate == best


def test_of_rates_that_diverge_the_lowest_is_not_taken_for_the_best():
    assert best_rate(lambda rate: math.inf if rate > 0.05 else rate, 0.1)[0] < 0.05


@pytest.mark.parametrize(("late", "expected"), [(0.09, 0.09), (0.3, 0.3), (3.0, 0.3)])
def test_a_rate_that_drifts_on_a_longer_text_is_lowered(late, expected):
    class Adaptation:
        rule, copy = "sgd", SimpleNamespace(trainable_variables=[], restart=lambda: None)

        def learn(self, ids, alone):
            """Return losses that are lowest at the rate 0.3 at first, then at `late`."""
            rate = max(self.copy.optimizer.learning_rate, 1e-9)
            return np.full(len(ids) - 1, abs(math.log(rate / (0.3 if ids[0] == 0 else late))))

    Adaptation.copy.optimizer = SimpleNamespace(variables=[])
    few, more = [np.zeros(6)], [np.zeros(6), *[np.ones(6)] * 9]
    found = step_size._find(Adaptation(), few, more, 0.1, by_text=False)
    assert found["learning_rate"] == expected
    assert found["perplexity"] < found["static_perplexity"]


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_rate_that_was_found_is_as_good_as_if_it_were_given(model, rule, capsys):
    settings = {"rule": rule, "sequence_length": 9}
    if rule == "rms":
        settings["statistics"] = dualnet.gradient_statistics(model, TOKENS, batch_size=2)
    before = values(model)
    found = dualnet.dynamic_evaluation(
        model, TOKENS, learning_rate="auto", valid=TOKENS[:60], **settings
    )
    assert_same(values(model), before)
    rate = found.settings["learning_rate"]
    assert rate > RULES[rule]["learning_rate"]  # an untrained model has everything to learn
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"Finding the learning rate of {rule!r} on 59 tokens of validation text"
    assert lines[1].startswith(f"learning_rate {rate:g}: perplexity ")
    given = dualnet.dynamic_evaluation(model, TOKENS, learning_rate=rate, **settings)
    np.testing.assert_array_equal(found.segment_losses, given.segment_losses)
    default = dualnet.dynamic_evaluation(model, TOKENS, **settings)
    assert default.settings["learning_rate"] == RULES[rule]["learning_rate"]
    assert found.perplexity < default.perplexity


def test_without_validation_text_auto_is_refused(model):
    with pytest.raises(dualnet.ArgumentError, match="`learning_rate` can be 'auto' for.*`valid`"):
        dualnet.dynamic_evaluation(model, TOKENS, learning_rate="auto")


@pytest.mark.slow
def test_the_model_of_a_run_finds_its_rate_once_and_the_run_keeps_it(run, corpus, capsys, cli):
    model = dualnet.load(run.folder)
    first = dualnet.dynamic_evaluation(model, corpus.test)
    assert "Finding the learning rate of 'nadam'" in capsys.readouterr().err
    [record] = json.loads((run.folder / "learning.json").read_text())
    assert record["learning_rate"] == first.settings["learning_rate"]
    again = dualnet.dynamic_evaluation(run.model, corpus.test)
    assert again.settings == first.settings and "Finding" not in capsys.readouterr().err
    printed = cli.json(f"evaluate {run.folder} --dynamic")
    assert printed["learning_rate"] == record["learning_rate"]
    explicit = dualnet.dynamic_evaluation(model, corpus.test, learning_rate=1e-3)
    assert explicit.settings["learning_rate"] == 1e-3
    dualnet.surprisal(model, "the cat", adapt=True)
    kept = json.loads((run.folder / "learning.json").read_text())
    assert [(each["rule"], each["by_text"]) for each in kept] == [("nadam", False), ("nadam", True)]
    # What was found with another setting, or at another temperature, is not taken for it.
    for is_found in (True, False):
        dualnet.dynamic_evaluation(model, corpus.test, temperature=2.0)
        assert ("Finding" in capsys.readouterr().err) == is_found

    # An older record of all weights has no key `adapt`. Of other weights, it is found again.
    del kept[0]["adapt"]
    for weights, is_found_again in ((kept[0]["weights"], False), ("others", True)):
        kept[0]["weights"] = weights
        (run.folder / "learning.json").write_text(json.dumps(kept))
        capsys.readouterr()
        dualnet.dynamic_evaluation(dualnet.load(run.folder), corpus.test)
        assert ("Finding" in capsys.readouterr().err) == is_found_again


@pytest.mark.slow
def test_with_a_cache_a_run_has_a_rate_of_its_own(run, corpus, capsys, cli):
    model, kept = dualnet.load(run.folder), []
    for size in (0, 20, 30):
        cached = dualnet.with_cache(model, size, weight=0.5) if size else model
        for is_found in (True, False):
            found = dualnet.dynamic_evaluation(cached, corpus.test, rule="sgd", sequence_length=7)
            assert ("Finding the learning rate" in capsys.readouterr().err) == is_found
        kept.append(found)
    for is_found in (True, False):
        dualnet.dynamic_evaluation(model, corpus.test, rule="sgd", sequence_length=7, cache=20)
        assert ("Finding the learning rate" in capsys.readouterr().err) == is_found
    settings = "--dynamic --rule sgd --sequence-length 7 --cache size=20 weight=0.5 scale=0.3"
    printed = cli.json(f"evaluate {run.folder} {settings}")
    assert printed["perplexity"] == pytest.approx(kept[1].perplexity)
    assert printed["learning_rate"] == kept[1].settings["learning_rate"]


@pytest.mark.slow
def test_a_model_that_has_learnt_since_neither_takes_the_rate_of_the_run_nor_gives_it_one(
    run, corpus, capsys
):
    model, settings = dualnet.load(run.folder), {"rule": "sgd", "sequence_length": 9}
    dualnet.dynamic_evaluation(model, corpus.test, keep=True, **settings)
    kept = (run.folder / "learning.json").read_text()
    for _ in range(2):
        capsys.readouterr()
        dualnet.dynamic_evaluation(model, corpus.test, **settings)
        assert "Finding the learning rate" in capsys.readouterr().err
    model = dualnet.load(run.folder)
    model.compile("adam")
    model.fit(corpus.batches("train", batch_size=2, sequence_length=9), verbose=0)
    dualnet.dynamic_evaluation(model, corpus.test, rule="sgd", sequence_length=8)
    assert (run.folder / "learning.json").read_text() == kept


def test_a_shipped_model_learns_from_python_as_from_the_shell():
    model = dualnet.load("lstm.wikitext-2")
    own = with_own_settings(model, DynamicEvaluating(), by_text=False)
    assert own.of_rule() | {"rule": own.rule} == {
        "rule": "sgd", "learning_rate": 0.2, "decay": 0.0, "sequence_length": 20
    }  # fmt: skip
    by_text = with_own_settings(model, Surprising(adapt=True), by_text=True)
    assert (by_text.rule, by_text.learning_rate) == ("sgd", 0.2)
    assert (
        with_own_settings(dualnet.with_cache(model, 9), DynamicEvaluating(), by_text=False) == own
    )
    named = DynamicEvaluating(rule="nadam", learning_rate=1e-3)
    assert with_own_settings(model, named, by_text=False) is named


@pytest.mark.slow
def test_where_the_text_of_a_run_has_changed_the_default_is_taken(run, folder, tmp_path, capsys):
    text, copy = tmp_path / "text", tmp_path / "RUN"
    shutil.copytree(folder, text)
    shutil.copytree(run.folder, copy, ignore=shutil.ignore_patterns("learning.json"))
    edit_card(copy, str(folder), str(text))
    (text / "valid.txt").write_text("the cat sees the dog\n")
    model = dualnet.load(copy)
    ids = model.vocabulary.encode("the cat sees the dog")
    found = dualnet.dynamic_evaluation(model, ids, rule="sgd")
    assert found.settings["learning_rate"] == RULES["sgd"]["learning_rate"]
    assert "'sgd' learns at its default rate" in capsys.readouterr().err
    with pytest.raises(ValueError, match="is not that of the run"):
        dualnet.dynamic_evaluation(model, ids, rule="sgd", learning_rate="auto")
