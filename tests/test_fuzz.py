"""A few cases of `benchmarks/fuzz.py`: damaged input never ends in a traceback."""

import keras
import pytest

from benchmarks import fuzz
from tests.searches import EAGERLY

pytestmark = EAGERLY
CASES = 24


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return fuzz.Workshop(tmp_path_factory.mktemp("fuzz"))


def test_damaged_cards_corpora_runs_and_requests_are_refused_in_one_sentence(workshop):
    _, codes, failures, _ = zip(*(fuzz.check(workshop, 7_000_000 + i) for i in range(CASES)))
    assert [failure for failure in failures if failure] == []
    assert 0 in codes and codes.count(2) > CASES / 4  # the damage is neither harmless nor total


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="a SavedModel is TensorFlow's")
def test_a_saved_model_answers_sound_requests_and_refuses_all_others(workshop):
    endpoints = fuzz.Endpoints(workshop)
    answered, failures = zip(*(endpoints.check(8_000_000 + i) for i in range(2 * CASES)))
    assert [failure for failure in failures if failure] == []
    assert True in answered and False in answered


def test_the_check_itself_detects_a_traceback_and_an_unfinished_file(workshop, monkeypatch):
    import dualnet.cli

    def failing(arguments):
        raise TypeError("unforeseen")

    monkeypatch.setattr(dualnet.cli, "main", failing)
    assert "TypeError: unforeseen" in fuzz.check(workshop, 0)[2]

    def littering(arguments):
        (workshop.folder / "case" / ".unfinished-part").write_text("")
        print("refused", file=fuzz.sys.stderr)
        return 2

    monkeypatch.setattr(dualnet.cli, "main", littering)
    assert "parts of files" in fuzz.check(workshop, 0)[2]
