import json
import pathlib
import shutil
import subprocess
import sys

import keras
import pytest

from dualnet import zoo
from dualnet.cli import main

QUICK = ["--set", "units=8", "batch_size=4", "sequence_length=9", "learning_rate=0.01", "--quiet"]


def call(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    found = capsys.readouterr()
    return code, found.out, found.err


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("cli") / "RUN"
    arguments = ["train", "lstm", "--corpus", folder, "--output", output, "--epochs", 1, *QUICK]
    assert main([str(argument) for argument in arguments]) == 0
    return output


@pytest.mark.parametrize("arguments", [["list"], ["list", "dual_*", "--json"], ["card", "lstm"]])
def test_listing_and_cards_load_no_keras(arguments):
    code = (
        "import sys; from dualnet.cli import main; import dualnet;"
        f"code = main({arguments!r});"
        "loaded = {'tensorflow', 'keras', 'jax', 'torch'} & set(sys.modules);"
        "sys.exit(code or (f'loaded {loaded}' if loaded else 0))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_list_shows_the_models_that_match(capsys):
    assert call(capsys, "list", "--json")[1] == json.dumps(zoo.list_models()) + "\n"
    code, out, _ = call(capsys, "list", "dual_m*")
    assert code == 0 and "dual_mdlstm" in out and "22,879,450" in out and "\nlstm" not in out
    assert "No model matches 'x*'" in call(capsys, "list", "x*")[1]


def test_card_says_what_is_published_and_what_is_ours(capsys):
    _, out, _ = call(capsys, "card", "dual_lstm", "--corpus", "wikitext-2")
    assert "20,950,200" in out and "85.88" in out and "lower-cased" in out
    assert "learning_rate = 0.001  (our choice: the source is silent)" in out
    assert json.loads(call(capsys, "card", "lstm", "--json")[1])["parameters"] == 8_882_400


def test_data_counts_tokens(capsys, folder, corpus):
    _, out, _ = call(capsys, "data", folder, "--json")
    found = json.loads(out)
    assert found["tokens"]["train"] == len(corpus.train)
    assert found["vocabulary_size"] == len(corpus.vocabulary)
    assert f"{len(corpus.train):,} tokens" in call(capsys, "data", folder)[1]


def test_a_run_is_evaluated_with_json_that_begins_as_documented(capsys, run, corpus):
    results = json.loads((run / "results.json").read_text())
    code, out, _ = call(capsys, "evaluate", run, "--json")
    found = json.loads(out)
    assert code == 0
    assert list(found)[:3] == ["perplexity", "tokens", "batch_size"]
    assert found["perplexity"] == pytest.approx(results["test_perplexity"], rel=1e-6)
    assert (found["tokens"], found["batch_size"]) == (len(corpus.test) - 1, 1)
    _, out, _ = call(capsys, "evaluate", run, "--split", "valid", "--batch-size", 4)
    assert "read as 4 streams" in out


def test_a_run_is_evaluated_dynamically(capsys, run, tmp_path):
    code, out, _ = call(
        capsys, "evaluate", run, "--dynamic", "--rule", "sgd", "--set", "learning_rate=0.5",
        "decay=0.01", "--sequence-length", 7, "--temperature", 1.1, "--json",
        "--plot", tmp_path / "trace.png",
    )  # fmt: skip
    found = json.loads(out)
    assert code == 0 and list(found)[:3] == ["perplexity", "tokens", "batch_size"]
    assert found["sequence_length"] == 7 and found["temperature"] == 1.1 and found["decay"] == 0.01
    assert (tmp_path / "trace.png").exists()
    small = ["--set", "sequence_length=3"]
    code, out, err = call(capsys, "evaluate", run, "--dynamic", "--rule", "rms", *small)
    assert code == 0 and "rule rms" in out, err


def test_resume_goes_on(capsys, folder, run):
    arguments = ["train", "lstm", "--corpus", folder, "--output", run, "--resume", *QUICK]
    code, out, _ = call(capsys, *arguments, "--epochs", 2, "--json")
    assert code == 0 and json.loads(out)["epochs"] == 2


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="TensorFlow alone exports")
def test_a_run_is_exported(capsys, run, tmp_path):
    code, out, _ = call(capsys, "export", run, tmp_path / "saved_model")
    assert code == 0 and "endpoints score, step, score_text, generate_text in" in out
    assert (tmp_path / "saved_model" / "saved_model.pb").exists()
    code, _, err = call(capsys, "export", run, tmp_path / "saved_model")
    assert code == 2 and "must be new or empty" in err
    code, out, _ = call(
        capsys, "export", run, tmp_path / "m.tflite", "--format", "litert", "--json"
    )
    assert code == 0
    path = tmp_path / "m.tflite"
    assert json.loads(out) == {"path": str(path), "format": "litert", "endpoints": ["step"]}
    assert path.stat().st_size > 1000
    code, _, err = call(capsys, "export", run, path, "--format", "onnx")
    assert code == 2 and "`path` must be a file that ends in '.onnx'" in err


def bad(folder, run, tmp_path):
    train = ["train", "lstm", "--corpus", folder, "--output", tmp_path / "new"]
    return {
        "an unknown model": (["card", "dual_ltsm"], "Did you mean one of"),
        "an unknown model to train": (["train", "lstn", *train[2:]], "Did you mean one of"),
        "an unknown override": ([*train, "--set", "unit=3"], "Did you mean 'units'"),
        "a set without a value": ([*train, "--set", "units"], "takes KEY=VALUE"),
        "a value out of range": ([*train, "--set", "input_dropout=1.5"], "`input_dropout` must be"),
        "a wrong type": ([*train, "--set", "units=many"], "`units` must be an integer"),
        "an unknown corpus": (["data", "ptv"], "Did you mean 'ptb'"),
        "a missing folder": (["data", tmp_path / "nowhere"], "must exist"),
        "a split shorter than one batch": ([*train, "--set", "batch_size=999"], "batch_size"),
        "a folder that is no run": (["evaluate", tmp_path], "must hold card.toml"),
        "an unknown rule": (["evaluate", run, "--dynamic", "--rule", "nadan"], "'nadam'"),
        "a rule without dynamic": (["evaluate", run, "--rule", "sgd"], "needs --dynamic"),
        "an unknown setting": (
            ["evaluate", run, "--dynamic", "--set", "learning_rte=1"], "mean 'learning_rate'",
        ),
        "an unknown split": (["evaluate", run, "--split", "tests"], "`split` must be one of"),
        "a full output folder": ([*train[:-1], run], "`output` must be a new or empty folder"),
        "a temperature of zero": (["evaluate", run, "--temperature", 0], "`temperature` must be"),
        "a finished run": ([*train[:-1], run, "--resume"], "is finished: it has"),
        "nothing to resume": ([*train, "--resume"], "--resume needs a RUN folder"),
        "a card that is not there": (["train", "my.toml", *train[2:]], "There is no file"),
        "an interval of no steps": (
            [*train, "--checkpoint-steps", 0], "`checkpoint_steps` must be an integer",
        ),
        "a keras file without corpus": (["evaluate", keras_file(run)], "`--corpus` must be given"),
        "an output that is a file": ([*train[:-1], run / "card.toml"], "`output` must be a folder"),
    }  # fmt: skip


def keras_file(run):
    """Return a `.keras` file of the model of `run`."""
    path = run / ".." / "model.keras"
    if run != pathlib.Path() and not path.exists():
        import dualnet

        dualnet.load(run).save(path)
    return path


CASES = list(bad("", pathlib.Path(), pathlib.Path()))


@pytest.mark.parametrize("case", CASES)
def test_bad_input_gives_one_sentence_and_exit_code_2(capsys, folder, run, tmp_path, case):
    arguments, message = bad(folder, run, tmp_path)[case]
    code, out, err = call(capsys, *arguments)
    assert code == 2, case
    assert message in err and "Traceback" not in err
    assert out == "" and err.count("\n") == 1


@pytest.mark.parametrize(
    ("split", "text", "message"),
    [
        ("valid", None, "must have the split 'valid'"),
        ("test", b"", "must not be empty"),
        ("train", b"a \xff b\n", "must be UTF-8"),
        ("valid", b"a b\n", "at least"),
    ],
)
def test_bad_text_gives_one_sentence_and_exit_code_2(
    capsys, folder, tmp_path, split, text, message
):
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_bytes((folder / f"{name}.txt").read_bytes())
    if text is None:
        (tmp_path / f"{split}.txt").unlink()
    else:
        (tmp_path / f"{split}.txt").write_bytes(text)
    arguments = ["train", "lstm", "--corpus", tmp_path, "--output", tmp_path / "RUN", *QUICK]
    code, _, err = call(capsys, *arguments)
    assert code == 2 and message in err and err.count("\n") == 1
    assert not (tmp_path / "RUN").exists()


def test_a_run_whose_text_has_changed_is_told(capsys, folder, tmp_path):
    text = tmp_path / "text"
    shutil.copytree(folder, text)
    train = ["train", "lstm", "--corpus", text, "--output", tmp_path / "RUN", "--epochs", 1, *QUICK]
    assert call(capsys, *train)[0] == 0
    (text / "test.txt").write_text("the cat sees the dog\n" * 9)
    code, _, err = call(capsys, "evaluate", tmp_path / "RUN")
    assert code == 2 and "corpus of a RUN must be unchanged" in err
    code, out, _ = call(capsys, "evaluate", tmp_path / "RUN", "--corpus", text, "--json")
    assert code == 0 and json.loads(out)["tokens"] == 9 * 6 - 1
    (text / "valid.txt").write_text("the cat sees the dog\nthe zebra\n")
    code, _, err = call(capsys, "evaluate", tmp_path / "RUN", "--corpus", text)
    assert code == 2 and "'zebra' in line 2 of" in err and "valid.txt" in err
    code, out, _ = call(capsys, "evaluate", keras_file(tmp_path / "RUN"), "--corpus", folder)
    assert code == 0 and "perplexity" in out


def test_the_command_line_is_quiet_about_the_start_of_the_backend(folder, tmp_path):
    arguments = ["train", "lstm", "--corpus", folder, "--output", tmp_path / "RUN", "--epochs", 1]
    found = subprocess.run(
        [sys.executable, "-m", "dualnet", *map(str, arguments), *QUICK[:-1]],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = found.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("epoch 1/1  train perplexity"), found.stderr
    assert len(found.stdout.splitlines()) == 3
