"""Exported models that learn: each request carries a memory, and nothing is kept between them."""

import concurrent.futures
import pathlib
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import dualnet
from dualnet import zoo
from dualnet.cli import main
from dualnet.requests import Exporting
from dualnet.serving import saved_model
from dualnet.serving.learning import Memories
from dualnet.text import Vocabulary
from tests.checks import once, strong
from tests.serving_clients import (
    check_table,
    client_of,
    close,
    graph_client,
    remote_process,
    warm_up_requests,
)

pytestmark = [once, pytest.mark.slow]

ROOT = pathlib.Path(dualnet.__file__).parents[1]
WORDS = Vocabulary(("<eos>", "a", "b", "<unk>", "c", "d"))
LENGTH = 4
SETTINGS = {"learning_rate": 0.4, "decay": 0.05, "clipnorm": 2.0, "sequence_length": LENGTH}
DEFAULT = -1.0  # of a setting: that of the export


def a_model(name="dual_lstm", seed=0, **arguments):
    model = zoo.build(name, vocabulary_size=len(WORDS), units=3, **arguments)
    return strong(model, WORDS, seed=seed)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A model, its exported folder, and `served.ask(endpoint, **columns)`."""
    model = a_model()
    path = tmp_path_factory.mktemp("served") / "model"
    dualnet.export(model, path, learn="connection", **SETTINGS)
    return SimpleNamespace(model=model, path=path, ask=client_of(path))


def a_learner(model, adapt="connection", **settings):
    return dualnet.Learner(model, adapt, rule="sgd", **{**SETTINGS, **settings})


def fresh(model, rows=1):
    """Return what a new reader sends beside its text."""
    states = {f"state_{i}": np.zeros((rows, n)) for i, n in enumerate(model.state_size, start=1)}
    settings = {name: [DEFAULT] * rows for name in ("learning_rate", "decay", "clipnorm")}
    return {**states, "memory": np.zeros((rows, 0)), **settings}


def after(answer, columns):
    """Return `columns` with the memory and the states of `answer`."""
    return {name: answer.get(name, value) for name, value in columns.items()}


def weights_of(memory):
    return np.asarray(memory)[:, :-1]  # without the mark of the model


def test_learn_equals_learners_in_a_process_without_dualnet_and_keras(served):
    rng = np.random.default_rng(0)
    texts = rng.integers(1, len(WORDS), size=(2, 50 * LENGTH)).astype("int32")
    rates = [0.4, 0.1]
    learners = [a_learner(served.model, learning_rate=rate) for rate in rates]
    expected = [one.read(text).token_losses for one, text in zip(learners, texts)]
    with remote_process() as remote:
        columns = {**fresh(served.model, rows=2), "learning_rate": [DEFAULT, rates[1]]}
        stream = np.pad(texts, ((0, 0), (1, 0)))  # after <eos>
        for i in range(0, texts.shape[1], LENGTH):
            ids = stream[:, i : i + LENGTH + 1]
            answer = remote(served.path, "learn", ids=ids, lengths=[ids.shape[1]] * 2, **columns)
            close([row[1:] for row in answer["log_probabilities"]],
                  [-losses[i : i + LENGTH] for losses in expected], rtol=1e-5)  # fmt: skip
            assert answer["applied"] == [True, True]
            columns = after(answer, columns)
        memory = columns["memory"]
        close(weights_of(memory), [one._state.memory for one in learners], rtol=1e-4)
        words = [" ".join(WORDS.words[i] for i in text[:9]) for text in texts]
        answer = remote(served.path, "generate_text", prompts=words, max_tokens=[5] * 2,
                        temperature=[0.0] * 2, top_k=[0] * 2, top_p=[1.0] * 2, seed=[0] * 2,
                        stop_at_eos=[False] * 2, memory=memory)  # fmt: skip
        for text, one, prompt in zip(answer["texts"], learners, words):
            assert text == one.generate(prompt, temperature=0, max_tokens=5)
        plain = remote(served.path, "score_text", texts=words, memory=np.zeros((2, 0)))
        for found, word in zip(plain["perplexity"], words):
            assert found == pytest.approx(dualnet.score(served.model, word).perplexity, rel=1e-5)


def test_learn_text_equals_learners_and_goes_on_where_the_text_before_ended(served):
    texts = ["a b c d a b c d d", "", "c d", "x a"], ["b a", "a", "c d d d d", ""]
    columns = {**fresh(served.model, rows=4), "last": [-1] * 4}
    learners = [a_learner(served.model) for _ in range(4)]
    for of_each in texts:
        answer = served.ask("learn_text", texts=of_each, **columns)
        columns = after(answer, columns)
        for row, (one, text) in enumerate(zip(learners, of_each)):
            found, count = one.read(text), answer["lengths"][row]
            close(answer["log_probabilities"][row, :count], -found.token_losses)
            assert answer["perplexity"][row] == pytest.approx(found.perplexity, rel=1e-4)
            assert answer["last"][row] == one._state.last
            close(columns["memory"][row, :-1], one._state.memory)
            for i, state in enumerate(one._state.states, start=1):
                close(columns[f"state_{i}"][row], state)
        assert not answer["skipped"].any()
    for one, memory in zip(learners, columns["memory"]):
        ids = np.array([[0, 1, 2, 4]], "int32")
        zeros = {name: np.zeros((1, n)) for name, n in zip(("state_1", "state_2"), (3, 3))}
        taught = one._kind.taught(served.model, one._state.memory)
        logits, _ = taught.advance(ids, list(zeros.values()))
        close(served.ask("step", ids=ids, memory=[memory], **zeros)["logits"], logits)
        score = served.ask("score", ids=ids, lengths=[4], memory=[memory])["log_probabilities"]
        log_p = tf.nn.log_softmax(logits[0]).numpy()[range(3), ids[0, 1:]]
        close(score[0, 1:], log_p)


def test_200_clients_of_16_threads_mix_no_memories_up(served):
    rng, rows = np.random.default_rng(1), 200
    ids = rng.integers(0, len(WORDS), size=(2, rows, 6)).astype("int32")
    rates = rng.uniform(0.1, 1.0, rows)
    columns = {**fresh(served.model, rows), "learning_rate": rates}
    for part in ids:  # all in one batch
        answer = served.ask("learn", ids=part, lengths=[6] * rows, **columns)
        columns = after(answer, columns)

    def client(row):
        own = {**fresh(served.model), "learning_rate": rates[row : row + 1]}
        for part in ids:
            answer = served.ask("learn", ids=part[row : row + 1], lengths=[6], **own)
            own = after(answer, own)
        return own["memory"][0]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        memories = list(pool.map(client, range(rows)))
    close(memories, columns["memory"], rtol=1e-4)
    assert np.abs(np.diff(memories, axis=0)).max(axis=1).min() > 1e-3  # no two are alike


def test_padding_teaches_nothing_and_neither_does_a_single_token(served):
    ids = np.array([[0, 1, 2, 4], [0, 1, 5, 5], [3, 4, 4, 4], [1, 1, 1, 1]], "int32")
    lengths = [4, 2, 1, 0]
    answer = served.ask("learn", ids=ids, lengths=lengths, **fresh(served.model, rows=4))
    for row, length in enumerate(lengths):
        alone = served.ask(
            "learn", ids=ids[row : row + 1, :length], lengths=[length], **fresh(served.model)
        )
        for name in ("memory", "state_1", "state_2"):
            close(answer[name][row], alone[name][0])
        assert answer["applied"][row] and not answer["log_probabilities"][row, length:].any()
    assert answer["memory"][:2, :-1].any(axis=1).all() and not answer["memory"][2:, :-1].any()
    taught = {**fresh(served.model), "memory": answer["memory"][:1], "decay": [1.0]}
    same = served.ask("learn", ids=ids[:1], lengths=[1], **taught)["memory"]
    np.testing.assert_array_equal(same, answer["memory"][:1])


def test_a_step_that_is_not_finite_is_not_applied_and_said(served):
    ids = np.array([[0, 1, 2, 4, 5]] * 2, "int32")
    columns = {**fresh(served.model, rows=2), "learning_rate": [20.0] * 2, "clipnorm": [0.0] * 2}
    memory = served.ask("learn", ids=ids, lengths=[5, 5], **columns)["memory"]
    assert np.abs(weights_of(memory)).max(axis=1).min() > 1.5
    columns |= {"memory": memory, "decay": [3e38, 0.5]}  # beyond float32
    answer = served.ask("learn", ids=ids, lengths=[5, 5], **columns)
    assert answer["applied"].tolist() == [False, True]
    np.testing.assert_array_equal(answer["memory"][0], memory[0])
    assert np.abs(answer["memory"][1] - memory[1]).max() > 0.01
    text = " ".join(WORDS.words[i] for i in ids[0])
    answer = served.ask("learn_text", texts=[text] * 2, last=[-1] * 2, **columns)
    assert answer["skipped"].tolist() == [2, 0]


def test_memories_of_another_model_and_of_scores_that_are_not_finite_are_refused(served):
    row = {"ids": [[0, 1, 2]], "lengths": [3]}
    memory = served.ask("learn", **row, **fresh(served.model))["memory"]
    other = endpoints_of(a_model(seed=5), "connection")
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="`memory` must be zeros, or what this"
    ):
        other("learn", **row, **{**fresh(served.model), "memory": memory})
    with pytest.raises(tf.errors.InvalidArgumentError, match="`memory` must be .* 22 numbers"):
        served.ask("learn", **row, **{**fresh(served.model), "memory": np.zeros((1, 7))})
    memory[:, :-1] = 3e38
    with pytest.raises(tf.errors.InvalidArgumentError, match="`memory` must be such that scores"):
        served.ask("score", **row, memory=memory)


def test_rows_with_and_without_a_memory_are_read_side_by_side(served):
    rng = np.random.default_rng(4)
    ids, lengths = rng.integers(len(WORDS), size=(2, 9)), [9, 9]
    memory = served.ask("learn", ids=ids, lengths=lengths, **fresh(served.model, 2))["memory"]
    memory[0] = 0.0
    both = served.ask("score", ids=ids, lengths=lengths, memory=memory)["log_probabilities"]
    plain = served.ask("score", ids=ids, lengths=lengths, memory=np.zeros((2, 0)))
    plain = plain["log_probabilities"]
    close(both[0], plain[0])
    assert np.abs(both[1] - plain[1]).max() > 0.01
    found = served.model.advance(ids, served.model.initial_state(2))[0]
    log_p = tf.gather(tf.nn.log_softmax(found)[:, :-1], ids[:, 1:], batch_dims=2)
    close(plain[:, 1:], log_p)


def test_the_sum_of_two_memories_is_the_model_with_both_differences(served):
    """As the guide says: with scales, and the mark of one of them."""
    rng = np.random.default_rng(5)
    ids, lengths = rng.integers(len(WORDS), size=(2, 9)), [9, 9]
    own, names = served.ask("learn", ids=ids, lengths=lengths, **fresh(served.model, 2))["memory"]
    joined = 0.7 * own + 0.5 * names
    joined[-1] = own[-1]
    answer = served.ask("score", ids=ids[:1], lengths=[9], memory=joined[None])
    learner = a_learner(served.model)
    learner._state = learner._state._replace(memory=joined[:-1])
    with learner.taught() as taught:
        expected, _ = taught.advance(ids[:1], taught.initial_state(1))
        log_p = tf.gather(tf.nn.log_softmax(expected)[:, :-1], ids[:1, 1:], batch_dims=2)
        close(answer["log_probabilities"][:, 1:], log_p)


def test_loading_warns_of_nothing_and_the_server_warms_up(served, caplog, tmp_path):
    model = a_model("dual_mogrifier_rlstm")
    path = dualnet.export(model, tmp_path / "model", learn="recurrent_matrix", **SETTINGS)
    caplog.clear()
    for folder in (served.path, path):
        ask = client_of(folder)
        assert not caplog.records
        requests = warm_up_requests(folder)
        assert {"learn", "learn_text", "complete_text"} <= {name for name, _ in requests}
        for name, inputs in requests:
            ask(name, **inputs)


def test_the_served_scores_do_not_look_ahead(served):
    def scorer(ids):
        text = " ".join(WORDS.words[i] for i in ids)
        answer = served.ask("learn_text", texts=[text], last=[-1], **fresh(served.model))
        return answer["log_probabilities"][0]

    text = np.random.default_rng(3).integers(1, len(WORDS), size=15)
    assert dualnet.check_causal(scorer, text, positions=3).causal


def test_the_documented_table_names_all_inputs_and_outputs(served):
    page = (ROOT / "docs" / "guides" / "personalisation.md").read_text()
    section = page.partition("\n## Learners in a served model\n")[2]
    check_table(section, ["learn"], served.ask.signatures)
    check_table(section, ["learn_text"], served.ask.signatures)


# --- other models


def endpoints_of(model, learn):
    """Return a client of `learn` and `score`, as graphs, without export."""
    memories = Memories(model, Exporting(learn=learn, **SETTINGS))
    score = saved_model._score(memories.reader)
    return graph_client({"learn": memories.learn(), "score": memories.read_with(score)})


@pytest.mark.parametrize(
    ("name", "arguments", "learn"),
    [
        ("dual_lstm", {"experts": 2}, ["connection", "output_bias"]),
        ("lstm", {"tied": False}, ["matrix:2", "output_bias"]),
        ("dual_mogrifier_rlstm", {"recurrent_layers": 2}, ["recurrent_matrix", "connection"]),
        ("lstm", {"gate": "input"}, "output_bias"),
    ],
    ids=["mixture", "matrix", "recurrent matrix", "gate"],
)
def test_other_models_and_weights_learn_as_learners_do(name, arguments, learn):
    model = a_model(name, **arguments)
    ask, one = endpoints_of(model, learn), a_learner(model, learn)
    text = np.random.default_rng(2).integers(1, len(WORDS), size=3 * LENGTH)
    expected, stream = one.read(text).token_losses, np.append(0, text)[None]
    columns = fresh(model)
    for i in range(0, len(text), LENGTH):
        ids = stream[:, i : i + LENGTH + 1]
        answer = ask("learn", ids=ids, lengths=[LENGTH + 1], **columns)
        close(answer["log_probabilities"][0, 1:], -expected[i : i + LENGTH])
        columns = after(answer, columns)
    close(weights_of(columns["memory"])[0], one._state.memory)
    score = ask("score", ids=stream, lengths=[stream.size], memory=columns["memory"])
    one._state = one._state._replace(
        states=[np.zeros(n, "float32") for n in model.state_size], last=0
    )
    close(score["log_probabilities"][0, 1:], -one.score(text).token_losses)


def test_what_output_bias_learnt_is_read_with_other_weights_under_their_mark():
    """As the guide says."""
    model, ids = a_model(seed=7), np.array([[0, 1, 2, 4, 5, 3]])
    old, new = (endpoints_of(one, "output_bias") for one in (a_model(), model))
    memory, other = (
        ask("learn", ids=ids, lengths=[6], **fresh(model))["memory"] for ask in (old, new)
    )
    memory[:, -1] = other[:, -1]
    found = new("score", ids=ids, lengths=[6], memory=memory)["log_probabilities"]
    logits = model.advance(ids, model.initial_state(1))[0] + memory[:, None, :-1]
    log_p = tf.gather(tf.nn.log_softmax(logits)[:, :-1], ids[:, 1:], batch_dims=2)
    close(found[:, 1:], log_p)


@pytest.mark.parametrize(
    ("model", "path", "settings", "message"),
    [
        (a_model, "m", {"learn": "recurrence"}, "`learn` must name weights that learn for each"),
        (lambda: a_model(cache_size=3), "m", {"learn": "connection"}, "without a cache"),
        (a_model, "m.onnx", {"learn": "recurrent_matrix"}, "must name weights above the recurrenc"),
        (a_model, "m", {"decay": 0.1}, "`decay` needs `learn`"),
    ],
)
def test_what_cannot_learn_is_refused_before_anything_is_written(
    model, path, settings, message, tmp_path
):
    with pytest.raises(dualnet.ArgumentError, match=message):
        dualnet.export(model(), tmp_path / path, **settings)
    assert not list(tmp_path.iterdir())


def test_the_command_says_which_endpoints_learn(served, tmp_path, capsys, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        served.model.save(tmp_path / "model.keras")
    written = []
    monkeypatch.setattr(saved_model, "write_saved_model", lambda *a: written.append(a))
    arguments = ["export", str(tmp_path / "model.keras"), str(tmp_path / "m")]
    assert main([*arguments, "--learn", "connection", "output_bias", "--decay", "0.4"]) == 0
    assert "learn, learn_text in" in capsys.readouterr().out
    [(_, _, names, _, memories)] = written
    assert names[-2:] == ["learn", "learn_text"]
    assert memories.settings == {"learning_rate": 0.1, "decay": 0.4, "sequence_length": 20}
    assert memories.size == 22 + len(WORDS)
