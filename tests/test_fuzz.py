"""A small part of `benchmarks/fuzz.py`: damaged input never ends in a traceback."""

import pytest

from benchmarks import fuzz

CASES = 24


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return fuzz.Workshop(tmp_path_factory.mktemp("fuzz"))


def test_damaged_cards_corpora_runs_and_requests_are_refused_in_a_sentence(workshop):
    found = [fuzz.check(workshop, 7_000_000 + i) for i in range(CASES)]
    assert [wrong for _, _, wrong, _ in found if wrong] == []
    codes = [code for _, code, _, _ in found]
    assert 0 in codes and codes.count(2) > CASES / 4  # the cases are neither harmless nor hopeless


def test_the_check_itself_sees_a_traceback_and_a_changed_file(workshop, monkeypatch):
    import dualnet.cli

    def failing(arguments):
        raise TypeError("unforeseen")

    monkeypatch.setattr(dualnet.cli, "main", failing)
    assert "TypeError: unforeseen" in fuzz.check(workshop, 0)[2]

    def spoiling(arguments):
        (workshop.folder / "case" / ".unfinished-part").write_text("")
        print("refused", file=fuzz.sys.stderr)
        return 2

    monkeypatch.setattr(dualnet.cli, "main", spoiling)
    assert "parts of files" in fuzz.check(workshop, 0)[2]
