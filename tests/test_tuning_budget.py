import dataclasses

import numpy as np
import pytest

from dualnet import zoo
from dualnet.builders import CELLS
from dualnet.tuning.budget import solve
from tests.checks import once

pytestmark = once

SMALL = zoo.Card(name="small", builder="language_model", config={"vocabulary_size": 7}, recipe={})
# With what makes sizes depend on one another: layers, ranks, connections, outputs.
SETTINGS = {
    "depth_gated_lstm": {"depth": 2, "connection": "dual_without_input"},
    "elman": {"tied": False, "output_bias": True, "recurrent_layers": 2},
    "gru": {"experts": [2, 1], "tied": False, "latent_units": 3},
    "layernorm_gru": {"experts": 2},
    "layernorm_lstm": {"embedding_units": 5, "connection": "dual"},
    "lstm": {"gate": "lstm", "gate_units": 3},
    "lstm_per_gate": {"use_bias": False, "connection": "dual", "experts": [0, 1, 2]},
    "mogrifier_lstm": {"rounds": 3, "rank": 4, "connection": "dual", "recurrent_layers": 2},
    "recurrent_highway": {"depth": 2, "tied": False},
}


def weights(card, settings, **sizes):
    return zoo.build("lstm", **{**card.config, **settings, **sizes}).count_params()


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_the_size_is_the_largest_that_the_budget_allows(cell):
    settings = {"cell": cell, **SETTINGS.get(cell, {}), "learning_rate": 0.1}
    parameters = int(np.random.default_rng(len(cell)).integers(4000, 9000))
    size = solve(SMALL, settings, parameters)
    del settings["learning_rate"]
    assert size > 5  # more than the models that are counted
    below, above = (weights(SMALL, settings, units=units) for units in (size, size + 1))
    assert below <= parameters < above


def test_one_size_is_solved_for_where_the_card_has_a_list():
    card = dataclasses.replace(
        zoo.card("awd_lstm_doc"),
        config={**zoo.card("awd_lstm_doc").config, "embedding_units": 3, "vocabulary_size": 7},
    )
    assert isinstance(card.config["recurrent_units"], list)
    size = solve(card, {"experts": [0, 0, 1, 2]}, 3000, "recurrent_units")
    counts = [
        zoo.build(
            "awd_lstm_doc", vocabulary_size=7, embedding_units=3, experts=[0, 0, 1, 2],
            recurrent_units=units,
        ).count_params()
        for units in (size, size + 1)
    ]  # fmt: skip
    assert counts[0] <= 3000 < counts[1]


def test_the_members_of_an_ensemble_share_the_budget():
    table = {"builder": "language_model", "arguments": {"vocabulary_size": 7, "units": 2}}
    card = zoo.Card(name="two", builder="ensemble", config={"members": [table, table]}, recipe={})
    alone = solve(SMALL, {"vocabulary_size": 99}, 2999)
    assert solve(card, {"vocabulary_size": 99}, 2 * 2999) == alone
    assert weights(SMALL, {"vocabulary_size": 99}, units=alone) <= 2999


MELIS = {"vocabulary_size": 10_001}  # from their logs: one word more than ours


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "parameters", "size"),
    [
        ("mogrifier_lstm", MELIS, 24_000_000, 912),
        ("mogrifier_lstm", {**MELIS, "cell": "lstm", "rounds": 0, "rank": 0}, 23_998_976, 951),
        ("mogrifier_lstm", {**MELIS, "cell": "lstm", "rounds": 0, "rank": 0}, 23_998_975, 950),
        ("lstm", {}, 8_882_400, 600),
    ],
)
def test_the_sizes_of_published_counts_are_found(name, settings, parameters, size):
    assert solve(zoo.card(name), settings, parameters) == size


@pytest.mark.parametrize(
    ("settings", "parameters", "message"),
    [
        ({}, 53, "must be at least 54, the weights of 'small' for units=2"),
        ({"embedding_units": 4, "recurrent_units": 4}, 9, "`solve_for` must be a size of which"),
    ],
)
def test_what_cannot_be_solved_is_refused(settings, parameters, message):
    with pytest.raises(ValueError, match=message):
        solve(SMALL, settings, parameters)
