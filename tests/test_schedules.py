"""What comes next in a run: a pure function, tried with made-up perplexities."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dualnet.training import Recipe
from dualnet.training.schedule import has_diverged, plan, watched
from tests.checks import once

pytestmark = once

ASGD = {"optimizer": "sgd", "learning_rate": 30.0, "averaging": "asgd"}
walks = st.lists(st.floats(-1.0, 0.7), max_size=90).map(lambda steps: 50 + np.cumsum(steps))


def plans(recipe, perplexities):
    """Return the plans of the epochs that end with these validation perplexities."""
    history, found = [], []
    for perplexity in perplexities:
        coming = plan(recipe, history)
        if coming is None:
            break
        found.append(coming)
        history.append({"phase": coming.phase, "val_perplexity": perplexity})
    return found


def rates(recipe, count):
    return [each.learning_rate for each in plans(recipe, np.arange(count, 0.0, -1))]


# --- learning rates


@pytest.mark.parametrize(
    ("settings", "first_smaller"),
    [
        ({"learning_rate": 1.0, "hold_epochs": 6, "decay": 1 / 1.2, "epochs": 39}, 7),
        ({"learning_rate": 0.2, "hold_epochs": 20, "decay": 0.98039, "epochs": 200}, 21),
    ],
)
def test_rates_are_held_and_then_decay_as_published(settings, first_smaller):
    found = rates(Recipe(optimizer="sgd", **settings), 500)
    assert len(found) == settings["epochs"]
    hold, decay, rate = (settings[key] for key in ("hold_epochs", "decay", "learning_rate"))
    assert found[: first_smaller - 1] == [rate] * hold
    for epoch in range(first_smaller, len(found) + 1):
        assert found[epoch - 1] == pytest.approx(rate * decay ** (epoch - hold), rel=1e-12)


def test_a_rate_stays_or_falls_after_every_epoch_that_is_not_below_the_best_before():
    assert set(rates(Recipe(), 100)) == {1e-3}
    recipe = Recipe(optimizer="sgd", learning_rate=0.8, plateau_decay=0.5)
    found = plans(recipe, [9.0, 8.0, 8.0, 8.5, 7.0, 6.0, 6.5, 5.0])
    assert [each.learning_rate for each in found] == [0.8, 0.8, 0.8, 0.4, 0.2, 0.2, 0.2, 0.1]


def test_a_rate_is_divided_by_the_root_of_the_epoch_beside_all_other_factors():
    iog = Recipe(optimizer="adam", learning_rate=1e-3, epochs=5, square_root_decay=True)
    expected = [1e-3, 7.0710678e-4, 5.7735027e-4, 5e-4, 4.4721360e-4]
    assert rates(iog, 9) == pytest.approx(expected, rel=1e-7)
    recipe = Recipe(
        optimizer="sgd", learning_rate=8.0, epochs=4, square_root_decay=True, hold_epochs=2,
        decay=0.5, plateau_decay=0.25, averaging="asgd", finetune="once", finetune_epochs=2,
    )  # fmt: skip
    found = [each.learning_rate for each in plans(recipe, [9.0, 9.0, 7.0, 6.0, 5.0, 4.0])]
    rounds = [8.0, 8.0]  # as if there were no decay
    assert found == pytest.approx([8.0, 8 / 2**0.5, 1 / 3**0.5, 0.25, *rounds], rel=1e-12)


def test_a_linear_decay_falls_from_the_first_step_to_zero_after_the_last_beside_other_factors():
    recipe = Recipe(learning_rate=1.0, linear_decay=True, epochs=4, decay=0.5, hold_epochs=2)
    found = plans(recipe, [9.0, 8.0, 7.0, 6.0])
    assert [each.learning_rate for each in found] == [1.0, 0.75, 0.25, 0.0625]
    assert [each.fall for each in found] == [0.25, 0.25, 0.125, 0.0625]
    sgd = {"optimizer": "sgd", "averaging": "asgd", "finetune": "once", "finetune_epochs": 1}
    *_, first_round = plans(Recipe(**sgd, epochs=2, linear_decay=True), [9.0, 8.0, 7.0])
    assert (first_round.learning_rate, first_round.fall) == (1e-3, 0)


def test_perplexity_decides_among_epochs_of_equal_bleu():
    perplexities, bleus = [9.0, 7.0, 8.0, 6.0], [0.0, 0.0, 0.0, 1.0]
    history = [
        {"phase": "train", "val_perplexity": perplexity, "val_bleu": bleu}
        for perplexity, bleu in zip(perplexities, bleus)
    ]
    best = [min(history[:count], key=watched)["val_perplexity"] for count in range(1, 5)]
    assert best == [9.0, 7.0, 7.0, 6.0]
    recipe = Recipe(learning_rate=1.0, plateau_decay=0.5, patience=2, epochs=9)
    assert [plan(recipe, history[:count]).learning_rate for count in (2, 3, 4)] == [1.0, 0.5, 0.5]


def test_an_epoch_has_diverged_if_both_perplexities_are_worse_and_validation_is_twice_the_best():
    def row(valid, train, **more):
        return {"val_perplexity": valid, "perplexity": train, **more}

    history = [row(60, 80), row(50, 60)]
    assert has_diverged(row(101, 61), history)
    assert not has_diverged(row(99, 61), history), "a rise that may pass"
    assert not has_diverged(row(101, 59), history), "overfitting"
    assert not has_diverged(row(1e9, 1e9), []), "nothing is learnt yet"
    assert has_diverged(row(math.inf, 80), [])
    plain = {"val_perplexity_plain": 101}
    averaged = [row(60, 80, val_perplexity_plain=50)]
    assert has_diverged(row(55, 81, **plain), averaged), "the average hides it"


def test_each_restart_lowers_the_rates_of_all_epochs():
    recipe = Recipe(learning_rate=1.0, decay=0.5)
    history = [{"phase": "train", "val_perplexity": 9.0}]
    assert plan(recipe, history).learning_rate == 0.25
    assert plan(recipe, history, restarts=2).learning_rate == pytest.approx(0.25 * 0.81)


def test_training_ends_when_patience_does():
    recipe = Recipe(epochs=20, patience=2)
    assert len(plans(recipe, [9.0, 8.0, 8.5, 7.0, 7.0, 7.5, 6.0, 5.0])) == 6
    assert len(plans(Recipe(epochs=8), [9.0, 8.0, 8.5, 7.0, 7.0, 7.5, 6.0, 5.0])) == 8
    fine = Recipe(**ASGD, epochs=20, patience=1, finetune="once")
    assert [each.phase for each in plans(fine, [9.0, 8.0, 8.5, 7.0])][2:] == ["train", "finetune-1"]


# --- averaging


def switch_of_merity(losses, n):
    """Return the first averaged epoch as the loop of the released code has it, or None."""
    best_val_loss = []
    for epoch, val_loss in enumerate(losses, start=1):
        if len(best_val_loss) > n and val_loss > min(best_val_loss[:-n]):
            return epoch + 1
        best_val_loss.append(val_loss)
    return None


def first_averaged(recipe, perplexities):
    found = [each for each in plans(recipe, [*perplexities, 1.0]) if each.averaged]
    return found[0].epoch if found else None


@pytest.mark.parametrize("n", [1, 5])
@given(walk=walks)
@example(walk=np.arange(50.0, 120.0))  # at the earliest
@example(walk=np.arange(120.0, 50.0, -1))  # never
def test_averaging_begins_where_the_released_code_begins_it(n, walk):
    recipe = Recipe(**ASGD, average_interval=n)
    assert first_averaged(recipe, walk) == switch_of_merity(walk, n)


def test_averaging_that_began_goes_on_and_begins_once():
    found = plans(Recipe(**ASGD, average_interval=1, epochs=8), [5, 6, 7, 4, 3, 2, 1, 1, 1])
    assert [each.phase for each in found] == ["train"] * 3 + ["averaged"] * 5
    assert [each.begins for each in found] == [True, False, False, True] + [False] * 4
    assert {each.learning_rate for each in found} == {30.0}


@pytest.mark.parametrize("kind", ["asgd", "mean"])
def test_averaging_begins_at_the_latest_where_it_is_told_to(kind):
    falling = np.arange(50.0, 0.0, -1)
    for limit, epoch in ((0, None), (1, 1), (4, 4)):
        recipe = Recipe(**{**ASGD, "averaging": kind}, average_from=limit)
        assert first_averaged(recipe, falling) == epoch


def test_the_mean_begins_after_so_many_epochs_without_a_new_best():
    recipe = Recipe(averaging="mean", average_interval=3)
    assert first_averaged(recipe, [9, 8, 9, 9, 9, 9]) == 6
    assert first_averaged(recipe, [9, 8, 9, 9, 7, 9, 9, 6, 9, 9]) is None


# --- fine-tuning


@given(walk=walks.filter(len))
def test_a_round_of_fine_tuning_ends_where_the_released_code_ends_it(walk):
    recipe = Recipe(**ASGD, average_interval=2, epochs=1, finetune="once", finetune_epochs=1000)
    found = plans(recipe, [60.0, *walk])[1:]
    assert len(found) == (switch_of_merity(walk, 2) or len(walk) + 1) - 1
    assert {each.phase for each in found} == {"finetune-1"}
    assert all(each.averaged for each in found)
    assert [each.begins for each in found] == [True] + [False] * (len(found) - 1)


def test_a_round_of_fine_tuning_has_its_limit_and_its_rate():
    settings = {**ASGD, "epochs": 3, "finetune": "once", "hold_epochs": 1, "decay": 0.5}
    found = plans(Recipe(**settings), np.arange(99.0, 0.0, -1))
    assert [each.learning_rate for each in found] == [30.0, 15.0, 7.5, 30.0, 30.0, 30.0]
    assert [each.last for each in found] == [3, 3, 3, 6, 6, 6]
    recipe = Recipe(**settings, finetune_epochs=2, finetune_learning_rate=10.0)
    assert rates(recipe, 99) == [30.0, 15.0, 7.5, 10.0, 10.0]


def test_rounds_are_repeated_until_one_brings_no_gain():
    recipe = Recipe(**ASGD, epochs=2, finetune="until_no_gain")
    found = plans(recipe, [9, 8, 7, 9, 6, 5, 5, 6, 1, 1])
    assert [each.phase for each in found] == [
        "train", "train", "finetune-1", "finetune-1", "finetune-2", "finetune-2",
        "finetune-3", "finetune-3",
    ]  # fmt: skip
    assert [each.begins for each in found] == [True, False] * 4


# --- recipes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"averaging": "asgd"},
         "`averaging` must not be 'asgd' with an optimizer other.*Use averaging='two_tailed'"),
        ({"finetune": "once", "averaging": "mean"},
         "`finetune` must be 'none' without averaging='asgd'.*Train with optimizer='sgd'"),
        ({"batching": "sentences", "drop_state_probability": 0.1},
         "`drop_state_probability` needs batching='streams'"),
        ({"group_by_length": True}, "`group_by_length` needs batching='sentences'"),
    ],
)  # fmt: skip
def test_a_recipe_that_cannot_be_followed_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**settings)
