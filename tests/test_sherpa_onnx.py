"""A model exported for sherpa-onnx answers a recogniser as `dualnet.score` does."""

import keras
import numpy as np
import pytest

import dualnet
from dualnet import serving, zoo
from dualnet.extras import sherpa
from dualnet.text import Vocabulary
from tests.checks import NO_DROPOUT, needed, once

pytestmark = once

onnxruntime, _ = needed("onnx", "onnxruntime", "tf2onnx")

WORDS = ("▁THE", "▁CAT", "<eos>", "S", "<unk>", "▁SEES", "▁A")
# Not in the order of the model's ids, nor of their own; "▁A" is missing, "▁ZEBRA" unknown.
TOKENS = "<blk> 0\n<sos/eos> 1\n<unk> 2\nS 4\n▁SEES 3\r\n▁THE 5\n▁ZEBRA 6\n▁CAT 7\n\n#0\t8\n"
NAMES = ("<blk>", "<sos/eos>", "<unk>", "▁SEES", "S", "▁THE", "▁ZEBRA", "▁CAT", "#0")


def a_model(name="lstm", words=WORDS, **arguments):
    keras.utils.set_random_seed(3)
    sizes = {"vocabulary_size": len(words), "units": 4, **NO_DROPOUT}
    model = zoo.build(name, **{**sizes, **arguments})
    model.vocabulary = Vocabulary(words)
    for weight in model.trainable_weights:
        weight.assign(weight * 3)  # so that words differ in likelihood
    return model


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens.txt"
    path.write_text(TOKENS, encoding="utf-8")
    return path


class Recogniser:
    """Asks a file for scores as the class `OnlineRnnLM` of sherpa-onnx does: by position."""

    def __init__(self, path):
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.inputs = [spec.name for spec in self.session.get_inputs()]
        metadata = self.session.get_modelmeta().custom_metadata_map
        self.layers, self.size, self.sos_id = (
            int(metadata[key]) for key in ("num_layers", "hidden_size", "sos_id")
        )

    def step(self, token, *states):
        values = [np.array([[token]], "int64"), *states]
        score, *states = self.session.run(None, dict(zip(self.inputs, values, strict=True)))
        return score, states

    def scores(self, ids):
        """Return the log-probabilities of `ids`, each after those before it."""
        score, states = self.step(self.sos_id, *np.zeros((2, self.layers, 1, self.size), "float32"))
        found = []
        for token in ids:
            found.append(score.ravel()[token])
            score, states = self.step(token, *states)
        return found


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model of two layers, and a recogniser that asks its file."""
    folder = tmp_path_factory.mktemp("exported")
    (folder / "tokens.txt").write_text(TOKENS, encoding="utf-8")
    model = a_model("dual_lstm", recurrent_layers=2)
    path = dualnet.export(
        model, folder / "lm.onnx", format="sherpa-onnx", tokens=folder / "tokens.txt"
    )
    assert sorted(file.name for file in folder.iterdir()) == ["lm.onnx", "tokens.txt"]
    return model, Recogniser(path)


def test_the_file_scores_tokens_as_the_model_does(exported):
    model, recogniser = exported
    text = "▁THE ▁CAT S ▁SEES ▁ZEBRA ▁THE"
    expected = dualnet.score(model, text)
    assert expected.words[4] == "<unk>"
    found = recogniser.scores([NAMES.index(word) for word in text.split()])
    np.testing.assert_allclose(found, expected.log_probabilities, rtol=1e-4, atol=1e-5)


def test_the_file_is_what_sherpa_onnx_expects(exported):
    model, recogniser = exported
    session = recogniser.session
    specs = [(spec.name, spec.type, spec.shape[0], spec.shape[-1]) for spec in session.get_inputs()]
    assert specs[0][:2] == ("token", "tensor(int64)") and specs[0][3] == 1
    assert specs[1:] == [("h", "tensor(float)", 2, 4), ("c", "tensor(float)", 2, 4)]
    assert [spec.name for spec in session.get_outputs()] == ["score", "new_h", "new_c"]
    metadata = {"num_layers": "2", "hidden_size": "4", "sos_id": "1"}
    assert session.get_modelmeta().custom_metadata_map == metadata
    score, (h, c) = recogniser.step(1, *np.zeros((2, 2, 1, 4), "float32"))
    assert (score.shape, score.dtype) == ((1, len(NAMES)), np.float32)
    # Layer by layer, h and c are those of the model, whose states alternate.
    _, states = model.advance([[2]], model.initial_state(1))
    for i, state in enumerate(map(keras.ops.convert_to_numpy, states)):
        np.testing.assert_allclose((h, c)[i % 2][i // 2], state, rtol=1e-5, atol=1e-6)
    # Blank and disambiguation are never written; "▁A" keeps its share; "▁ZEBRA" is <unk>.
    assert score[0, [0, 8]].max() == np.float32(-1e30) and score[0, 2] == score[0, 6]
    (only_in_model,) = dualnet.score(model, "▁A").log_probabilities
    total = np.exp([*score[0, 1:6], score[0, 7], only_in_model]).sum()
    assert total == pytest.approx(1, rel=1e-5)
    # It reads several hypotheses at once, too.
    states = dict.fromkeys(("h", "c"), np.ones((2, 2, 4), "float32"))
    scores, *new_states = session.run(None, {"token": [[1], [5]], **states})
    assert scores.shape == (2, len(NAMES)) and new_states[1].shape == (2, 2, 4)


def test_tokens_are_mapped_to_units(tmp_path):
    def mapped(text, words=WORDS, **settings):
        path = tmp_path / "tokens.txt"
        path.write_text(text, encoding="utf-8")
        return serving.token_map(path, Vocabulary(words, **settings))

    found = mapped(TOKENS)
    assert found.read.tolist() == [2, 2, 4, 5, 3, 0, 4, 1, 2, 2]
    assert found.scored.tolist() == [7, 2, 4, 5, 3, 0, 4, 1, 7]
    assert (found.sos_id, found.unknown, found.unused) == (1, ("▁ZEBRA",), ("▁A",))
    assert found.summary() == (
        "Tokens: 9; unknown to the model: 1 (▁ZEBRA). Tokens that the recogniser lacks: 1 (▁A)."
    )
    # Without a token for the start of a text, an id behind the last is the start.
    assert mapped("a 0\nb 1\n", ("b", "<eos>", "a")).sos_id == 2
    # Of several, that of the start is taken, wherever it stands.
    assert mapped("</s> 0\na 1\n<s> 2\n", ("<eos>", "a")).sos_id == 2
    # A model that lower-cases its text reads tokens so, too.
    assert mapped("CAT 0\n", ("cat", "<eos>"), lowercase=True).scored.tolist() == [0]
    # A model without <unk> does without the <unk> of the file, which is never written.
    assert mapped("<blk> 0\n<unk> 1\na 2\n", ("a", "<eos>")).scored.tolist() == [2, 2, 0]


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("a 0\nb 0", WORDS, "hold a token and its id on each line, each id once.*line 2: 'b 0'"),
        ("<blk> 0\n<unk> 1\nthe 2", WORDS, r"a file with tokens of the model, such as .*THE.*the"),
    ],
)
def test_a_file_that_holds_no_tokens_of_the_model_is_refused(text, words, message, tmp_path):
    path = tmp_path / "tokens.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"`tokens` must {message}|`tokens` must be .*{message}"):
        serving.token_map(path, Vocabulary(words))


def test_other_cells_are_refused(tokens, tmp_path):
    expected = "`format` must be another for a model whose layers are not all plain.*GRUCell"
    with pytest.raises(ValueError, match=expected):
        dualnet.export(a_model("gru"), tmp_path / "lm.onnx", format="sherpa-onnx", tokens=tokens)
    assert [*tmp_path.iterdir()] == [tokens]


def test_any_model_of_plain_lstm_layers_is_taken(tokens):
    per_gate = a_model("lstm_per_gate")
    for model in (per_gate, dualnet.ensemble([per_gate, a_model()])):
        assert sherpa.check_sherpa(model, tokens).sos_id == 1


def test_a_model_without_words_or_eos_is_refused(tokens, tmp_path):
    model = a_model()
    model.vocabulary = None
    with pytest.raises(ValueError, match="`model` must have a vocabulary to find `tokens` in"):
        dualnet.export(model, tmp_path / "lm.onnx", format="sherpa-onnx", tokens=tokens)
    with pytest.raises(ValueError, match="`model` must know <eos>, which begins a text"):
        serving.token_map(tokens, Vocabulary(("S", "▁THE")))


def test_the_command_exports_and_says_what_is_not_shared(tokens, tmp_path, cli, monkeypatch):
    run = tmp_path / "run.keras"
    a_model().save(run)
    command = f"export {run} {tmp_path}/lm.onnx --format sherpa-onnx --tokens {tokens}"
    shown = cli(command)
    assert "A single step of the model in " in shown and "unknown to the model: 1 (▁ZEBRA)" in shown
    monkeypatch.setattr(sherpa, "sherpa_files", lambda model, found, name: {"": b"a model"})
    result = cli.json(command)
    assert (result["format"], result["unknown_tokens"]) == ("sherpa-onnx", ["▁ZEBRA"])
    assert (result["endpoints"], result["unused_units"]) == (["step"], ["▁A"])
