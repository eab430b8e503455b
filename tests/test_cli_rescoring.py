"""The command `rescore`: what it writes and prints, and bad input in one sentence."""

from pathlib import Path

import pytest

import dualnet
from dualnet import corpora
from dualnet.rescoring import (
    Hypothesis,
    NBest,
    compare,
    load_weights,
    read_nbest,
    rescore,
    save_weights,
    tune,
    write_nbest,
)
from tests import commands
from tests.checks import NO_DROPOUT, UNTRACED, needed, once, sentences

pytestmark = [*UNTRACED, once, pytest.mark.slow]

TEXTS = [
    ["the cat sees the fish", "the cat cat sees fish", "the the"],
    ["the dog likes the cat", "dog the likes the cat"],
    ["the bird finds the dog"],
]
REFERENCES = ["the cat sees the dog", "the dog likes the cat", "the bird finds the dog"]
LISTS = [
    NBest(str(k), tuple(Hypothesis(text, {"tm": -0.5 * i}, -1.0 * i) for i, text in enumerate(row)))
    for k, row in enumerate(TEXTS)
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for seed, split in enumerate(corpora.SPLITS):
        (folder / f"{split}.txt").write_text(sentences(12, seed) + "<unk>\n")
    return corpora.load(folder)


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    """A RUN folder of a language model."""
    output = tmp_path_factory.mktemp("rescoring") / "lm"
    settings = {"units": 8, "batch_size": 4, "sequence_length": 9, "epochs": 1, **NO_DROPOUT}
    dualnet.train("lstm", corpus, output=output, progress=False, evaluate=False, **settings)
    return output


@pytest.fixture(scope="module")
def model(run):
    return dualnet.load(run)


@pytest.fixture
def nbest(tmp_path):
    write_nbest(tmp_path / "nbest", LISTS)
    return tmp_path / "nbest"


@pytest.fixture
def references(tmp_path):
    (tmp_path / "references").write_text("".join(f"{line}\n" for line in REFERENCES))
    return tmp_path / "references"


def assert_alike(found, expected):
    """Lists hold the same, but for what rounding makes of the last digits."""
    for nbest, other in zip(found, expected, strict=True):
        assert str(nbest.id) == str(other.id)
        for each, same in zip(nbest.hypotheses, other.hypotheses, strict=True):
            assert each.text == same.text
            assert each.features == pytest.approx(same.features, abs=1e-5)
            assert each.score == pytest.approx(same.score, abs=1e-5)


def test_lists_of_moses_get_features_and_a_score(cli, run, model, nbest, tmp_path):
    out = cli(f"rescore {run} {nbest}")
    assert out.startswith("0 ||| the cat sees the fish ||| tm= -0.0 base= -0.0 length= 5.0 lm= -")
    (tmp_path / "out").write_text(out)
    assert_alike(read_nbest(tmp_path / "out"), rescore({"lm": model}, LISTS))
    cli(f"rescore {run} {nbest} --output {tmp_path}/file")
    assert (tmp_path / "file").read_text() == out


@pytest.mark.parametrize("format", ["jsonl", "kaldi", "trees"])
def test_lists_of_other_formats_stay_in_them(cli, run, model, format, tmp_path):
    lists = [NBest(0, (Hypothesis("(S (X the cat )X )S", rest="(S (X (D the) (N cat)))"),) * 2)]
    lists = lists if format == "trees" else LISTS
    name = "nbest.JSONL" if format == "jsonl" else "nbest"  # which tells its format
    write_nbest(tmp_path / name, lists, format=format)
    command = f"rescore {run} {tmp_path}/{name}" + f" --format {format}" * (name == "nbest")
    scores = []
    if format == "kaldi":
        command += f" --scores {tmp_path}/nbest.tm {tmp_path}/nbest.score"
        names = ("tm", "score", "base", "length", "lm")
        scores = [f"{tmp_path}/out.{name}" for name in names]
    assert cli(f"{command} --output {tmp_path}/out") == ""
    found = list(read_nbest(tmp_path / "out", format=format, scores=scores))
    if format == "trees":
        [[first, _]] = [each.hypotheses for each in found]
        expected = rescore({"lm": model}, lists)[0].hypotheses[0].score
        assert first.score == pytest.approx(expected, abs=1e-5)
        assert first.rest == "(S (X (D the) (N cat)))"
    else:
        assert_alike(found, rescore({"lm": model}, LISTS))
    best = {"jsonl": TEXTS[2][0], "kaldi": f"2 {TEXTS[2][0]}", "trees": "(S (X (D the) (N cat)))"}
    assert cli(f"{command} --best").splitlines()[-1] == best[format]


def test_the_best_hypotheses_are_written_one_for_each_list(cli, run, model, nbest, tmp_path):
    expected = [each.best.text for each in rescore({"lm": model}, LISTS, weights={"lm": -1.0})]
    save_weights(tmp_path / "weights", {"lm": -1.0})
    command = f"rescore {run} {nbest} --best --feature-weights {tmp_path}/weights"
    assert cli(command).splitlines() == expected
    last = f"--best --feature-weights {tmp_path}/weights {nbest}"
    save_weights(tmp_path / "weights", {Path(run).name: -1.0, "other": 0.0})
    model.save(tmp_path / "other.keras")
    assert cli(f"rescore {run} {tmp_path}/other.keras {last}").splitlines() == expected
    save_weights(tmp_path / "weights", {"lm": -1.0})
    cli(f"{command} --output {tmp_path}/out")
    assert (tmp_path / "out").read_text().splitlines() == expected


def test_several_runs_have_the_names_of_their_folders(
    cli, run, model, translator_run, nbest, tmp_path
):
    (tmp_path / "source").write_text("1 2\n3\n4 5 6\n")
    model.save(tmp_path / "other.keras")
    runs = f"{run} {translator_run} {run} {tmp_path}/other.keras"
    (tmp_path / "out").write_text(cli(f"rescore {runs} {nbest} --input {tmp_path}/source"))
    models = {"lm": model, "RUN": dualnet.load(translator_run), "lm_2": model, "other": model}
    expected = rescore(models, LISTS, sources=["1 2", "3", "4 5 6"])
    assert_alike(read_nbest(tmp_path / "out"), expected)


def test_a_model_carries_its_state_and_adapts(cli, run, model, nbest, tmp_path):
    options = "--adapt --carry --rule sgd --set learning_rate=0.5 decay=0.1"
    settings = {"adapt": True, "carry": True, "rule": "sgd", "learning_rate": 0.5, "decay": 0.1}
    (tmp_path / "out").write_text(cli(f"rescore {run} {nbest} {options}"))
    assert_alike(read_nbest(tmp_path / "out"), rescore({"lm": model}, LISTS, **settings))


# --- weights


def test_weights_are_tuned_shown_in_a_table_and_compared_again(
    cli, run, model, nbest, references, tmp_path
):
    needed("rescore", "jiwer")
    out = cli(
        f"rescore {run} {nbest} --tune {references} --metric wer --seed 3 "
        f"--save-weights {tmp_path}/weights --output {tmp_path}/out"
    )
    lists = rescore({"lm": model}, LISTS)
    weights = tune(lists, REFERENCES, metric="wer", seed=3)
    found = compare(lists, REFERENCES, weights, metric="wer", seed=3)
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["3", "lists", "WER", "95%", "interval"]
    for row, name in zip(rows[1:], ["base", "rescored", "oracle", "difference"]):
        figure = getattr(found, name)
        low, high = f"{figure.low:.2f}", f"{figure.high:.2f}"
        assert row == [name, f"{figure.value:.2f}", low, "to", high]
    assert rows[6] == ["feature", "weight"] and rows[7] == ["tm", f"{weights['tm']:.6g}"]
    assert load_weights(tmp_path / "weights") == pytest.approx(weights)
    assert (tmp_path / "weights").read_text().startswith('metric = "wer"\nlists = 3\n')
    # The lists that are written have the scores of these weights.
    again = rescore({"lm": model}, LISTS, weights=weights)
    assert_alike(read_nbest(tmp_path / "out"), again)
    command = f"rescore {run} {nbest} --compare {references} --metric wer"
    result = cli.json(f"{command} --feature-weights {tmp_path}/weights")
    assert result["rescored"]["value"] == pytest.approx(found.rescored.value)
    assert result["weights"] == pytest.approx(weights)


def test_trees_are_tuned_for_f1(cli, run, tmp_path):
    good, bad = "(S (NP (D the) (N cat)) (V sees))", "(S (D the) (VP (N cat) (V sees)))"
    (tmp_path / "kbest").write_text(f"-1\n{bad}\n-2\n{good}\n\n" * 3)
    (tmp_path / "gold").write_text(f"{good}\n" * 3)
    command = f"rescore {run} {tmp_path}/kbest --format trees --tune {tmp_path}/gold"
    out = cli(f"{command} --best --output {tmp_path}/best")
    assert [line.split()[:2] for line in out.splitlines()[:4]] == [
        ["3", "lists"], ["base", "50.00"], ["rescored", "100.00"], ["oracle", "100.00"],
    ]  # fmt: skip
    assert (tmp_path / "best").read_text() == f"{good}\n" * 3


SPARSE = [
    NBest("0", (Hypothesis("the cat"), Hypothesis("the dog", {"a/b": -2.0}, -1.0))),
    NBest("1", (Hypothesis("the bird"), Hypothesis("a fish"))),
]


@pytest.mark.parametrize(("missing", "counts"), [("zero", "0"), ("lowest", "the lowest of its li")])
def test_a_note_says_what_a_feature_counts_that_hypotheses_lack(
    cli, run, model, tmp_path, missing, counts
):
    write_nbest(tmp_path / "nbest", SPARSE)
    weights = {"a/b": 1.0, "base": 2.0, "lm": 0.5}
    save_weights(tmp_path / "weights", weights)
    command = f"rescore {run} {tmp_path}/nbest --missing {missing}"
    code, out, said = cli.call(f"{command} --feature-weights {tmp_path}/weights")
    note = f"Some hypotheses lack a feature, such as 'a/b': it counts {counts}"
    assert code == 0 and said.count("lack a feature") == 1 and note in said
    assert f"--missing {missing}" in said
    (tmp_path / "out").write_text(out)
    expected = rescore({"lm": model}, SPARSE, weights=weights, missing=missing)
    assert_alike(read_nbest(tmp_path / "out"), expected)
    assert "lack a feature" not in cli.call(command)[2]  # only the RUN has a weight


def test_a_tree_of_other_words_is_told_before_anything_is_scored(cli, run, tmp_path, monkeypatch):
    monkeypatch.setattr("dualnet.extras.rescoring.rescoring.rescored", None)  # not called
    (tmp_path / "kbest").write_text("(S (A a))\n\n-1\n(S (A a))\n-2\n(S\n(B b))\n")
    (tmp_path / "gold").write_text("(S (A a))\n" * 2)
    for option in ("--tune", "--compare"):
        said = cli.refused(
            f"rescore {run} {tmp_path}/kbest --format trees {option} {tmp_path}/gold"
        )
        assert "`hypothesis` must have the words of its reference" in said


# --- bad input

BAD = commands.REFUSED["rescoring"]


@pytest.fixture(scope="module")
def path(run, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    write_nbest(folder / "nbest", LISTS)
    (folder / "gold").write_text("".join(f"{line}\n" for line in REFERENCES))
    (folder / "short").write_text("one\n")
    (folder / "empty").write_text("")
    save_weights(folder / "other.toml", {"ml": 1.0})
    model.save(folder / "tm.keras")
    return folder


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_refused_in_one_sentence(cli, run, translator_run, path, command, monkeypatch):
    monkeypatch.chdir(path)
    places = {"run": run, "translator": translator_run, "rescore": f"rescore {run} nbest"}
    files = sorted(path.iterdir())
    assert BAD[command] in cli.refused(command.format(**places))
    assert sorted(path.iterdir()) == files


def test_an_error_late_in_a_file_leaves_the_output_untouched(cli, run, tmp_path, monkeypatch):
    write_nbest(tmp_path / "nbest", LISTS)
    (tmp_path / "out").write_text("kept")

    def damaged(*arguments, **settings):
        yield LISTS[0]
        raise ValueError("the disk is full")

    monkeypatch.setattr("dualnet.extras.rescoring.rescoring.rescored", damaged)
    for options in ("", "--best"):
        command = f"rescore {run} {tmp_path}/nbest --output {tmp_path}/out {options}"
        assert "the disk is full" in cli.refused(command)
        assert (tmp_path / "out").read_text() == "kept" and len([*tmp_path.iterdir()]) == 2
