"""A few cases of `benchmarks/fuzz.py`: damaged input never ends in a traceback."""

import pytest

from benchmarks import fuzz
from tests.checks import UNTRACED, once

pytestmark = [*UNTRACED, once, pytest.mark.slow]
CASES = 24


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return fuzz.Workshop(tmp_path_factory.mktemp("fuzz"))


def test_damaged_cards_corpora_runs_and_requests_are_refused_in_one_sentence(workshop):
    codes = []

    def noted(draw):
        _, code, _, wrong = workshop.check(draw)
        assert not wrong
        codes.append(code)

    fuzz.repeat(noted, CASES, seed=7)
    assert 0 in codes and codes.count(2) > CASES / 4  # the damage is neither harmless nor total
