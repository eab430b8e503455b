"""`compare`: the difference of two models on one text, and whether it may be chance."""

from types import SimpleNamespace

import numpy as np
import pytest

import dualnet
from dualnet._checks import ArgumentError
from dualnet.text import Vocabulary
from tests.checks import once


def scored(losses):
    return SimpleNamespace(token_losses=np.asarray(losses, np.float32))


def correlated(rng, length, memory=0.8):
    """Return noise of which neighbours have much in common, of mean 0."""
    noise, value = np.empty(length), rng.normal() / np.sqrt(1 - memory**2)
    for i in range(length):
        value = memory * value + rng.normal()
        noise[i] = value
    return noise


def test_the_difference_is_that_of_the_logarithms_of_the_perplexities():
    models = [dualnet.zoo.build("lstm", vocabulary_size=9, units=units) for units in (3, 4)]
    tokens = np.random.default_rng(0).integers(9, size=900)
    found = dualnet.compare(*models, tokens, block=10)
    one, other = (dualnet.perplexity(model, tokens) for model in models)
    np.testing.assert_allclose(found.difference, np.log(one / other), rtol=1e-5)
    np.testing.assert_allclose(found.perplexities, (one, other), rtol=1e-5)
    results = [dualnet.evaluate(model, tokens) for model in models]
    assert dualnet.compare(*results, block=10) == found
    assert (found.tokens, found.blocks) == (899, 90)
    same = dualnet.compare(models[0], models[0], tokens)
    assert (same.difference, same.interval) == (0.0, (0.0, 0.0)) and "may be chance" in str(same)
    assert "+0.0 % (95 % interval +0.0 to +0.0)" in str(same)


@once
def test_the_interval_has_the_true_difference_19_times_of_20_also_where_neighbours_are_alike():
    rng = np.random.default_rng(1)
    inside = tokens_alone = 0
    for seed in range(60):
        shared, own = 3 + rng.normal(size=4000), correlated(rng, 4000)
        pair = scored(shared + own + 0.1), scored(shared)
        low, high = dualnet.compare(*pair, block=100, resamples=200, seed=seed).interval
        inside += low < 0.1 < high
        low, high = dualnet.compare(*pair, block=1, resamples=200, seed=seed).interval
        tokens_alone += low < 0.1 < high
    assert 0.87 < inside / 60 < 0.99
    assert tokens_alone / 60 < 0.7  # what blocks are for


def test_what_cannot_be_compared_is_refused_with_a_way_out():
    model = dualnet.zoo.build("lstm", vocabulary_size=3, units=4)
    other = dualnet.zoo.build("lstm", vocabulary_size=3, units=4)
    other.vocabulary = Vocabulary(("<eos>", "a", "b"))
    tokens = np.arange(60) % 3
    with pytest.raises(ArgumentError, match="`second` must have the vocabulary of `first`"):
        dualnet.compare(model, other, tokens)
    with pytest.raises(ArgumentError, match="`first` must be a model.*first='runs/lstm'"):
        dualnet.compare("runs/lstm", "runs/dual", tokens)
    with pytest.raises(ArgumentError, match="`tokens` must be given for models"):
        dualnet.compare(model, model)
    with pytest.raises(ArgumentError, match="`tokens` must be given.*of the same text"):
        dualnet.compare(scored([1, 2]), scored([1, 2, 3]))
    with pytest.raises(ArgumentError, match="`tokens` must fill at least 10 bl.*in blocks of 30"):
        dualnet.compare(model, model, tokens, block=30)
    with pytest.raises(ArgumentError, match="`tokens` must fill at least 10 .* 5 tokens in blocks"):
        dualnet.compare(scored([1] * 5), scored([1] * 5))
    larger = dualnet.zoo.build("lstm", vocabulary_size=4, units=4)
    with pytest.raises(ArgumentError, match=r"`second` must .*\(4, None\), first=\(3, None"):
        dualnet.compare(model, larger, tokens)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"blocks": 20}, "`blocks` needs models.* Received: blocks=20. Did you mean 'block'?"),
        ({"by_sentence": True}, "`by_sentence` needs models that read `tokens`"),
        ({"seed": -1}, "`seed` must be an integer of at least 0. Received: seed=-1"),
    ],
)
def test_a_setting_of_results_that_changes_nothing_is_refused(settings, message):
    with pytest.raises(ArgumentError, match=message):
        dualnet.compare(scored([1] * 20), scored([2] * 20), **settings)


def test_the_seed_is_that_of_the_dropout_samples_too(monkeypatch):
    def evaluated(model, tokens, **settings):
        assert settings == {"seed": 5, "mc_dropout_samples": 2}
        return scored(tokens)

    monkeypatch.setattr("dualnet.evaluation.comparing.evaluate", evaluated)
    model = dualnet.zoo.build("lstm", vocabulary_size=3, units=4)
    assert dualnet.compare(model, model, np.ones(20), mc_dropout_samples=2, seed=5).blocks == 20


@once
@pytest.mark.slow
def test_the_command_says_by_how_much_the_second_model_is_better(cli, tmp_path):
    (tmp_path / "text.txt").write_text("The ship was built in the harbour of London.\n" * 30)
    line = f"compare lstm.english dual_lstm.english --corpus {tmp_path}/text.txt"
    found = cli.json(line)
    assert found["tokens"] > 300 and found["interval"][0] < found["difference"]
    assert "lstm.english and dual_lstm.english on text whole: perplexity" in cli(line)
