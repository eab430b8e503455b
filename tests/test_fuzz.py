"""A few cases of `benchmarks/fuzz.py`: damaged input never ends in a traceback."""

import keras
import pytest

from benchmarks import fuzz
from tests.checks import UNTRACED

pytestmark = UNTRACED
CASES = 24


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return fuzz.Workshop(tmp_path_factory.mktemp("fuzz"))


def codes_of(check, cases):
    codes = []

    def noted(draw):
        _, code, _, wrong = check(draw)
        assert not wrong
        codes.append(code)

    fuzz.repeat(noted, cases, seed=7)
    return codes


def test_damaged_cards_corpora_runs_and_requests_are_refused_in_one_sentence(workshop):
    codes = codes_of(workshop.check, CASES)
    assert 0 in codes and codes.count(2) > CASES / 4  # the damage is neither harmless nor total


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="a SavedModel is TensorFlow's")
def test_a_saved_model_answers_sound_requests_and_refuses_all_others(workshop):
    assert {0, 2} == {*codes_of(fuzz.Endpoints(workshop).check, 2 * CASES)}


def test_the_check_itself_detects_a_traceback_and_an_unfinished_file(workshop, monkeypatch):
    import dualnet.cli

    def failing(arguments):
        raise TypeError("unforeseen")

    monkeypatch.setattr(dualnet.cli, "main", failing)
    assert "TypeError: unforeseen" in workshop.outcome(["list"])[2]

    def littering(arguments):
        (workshop.case / ".unfinished-part").write_text("")
        print("refused", file=fuzz.sys.stderr)
        return 2

    monkeypatch.setattr(dualnet.cli, "main", littering)
    assert "parts of files" in workshop.outcome(["list"])[2]
