"""Served models complete words as Python does."""

import numpy as np
import pytest

import dualnet
from tests.checks import once
from tests.serving_clients import client_of
from tests.test_completion import model_of

pytestmark = once
TEXTS = [
    "the sh", "the ", "THE SHI", "a (sh", "ship,", "", "ship\nt", "the Queequeg saw Que", "don'",
    "tab\tsh", "naïv", "«ü", "12", "zq", "the ship's", "two  sp", "'t",
    "the shop saw sho", "x  t", "the shop\nsaw sh",
]  # fmt: skip


def check(ask, complete, texts, k=3, words="", stop_words="", **columns):
    rows = len(texts)
    settings = {"k": [k] * rows, "words": [words] * rows, "stop_words": [stop_words] * rows}
    answer = ask("complete_text", prompts=texts, **settings, **columns)
    for text, own, probabilities in zip(texts, answer["words"], answer["probabilities"]):
        expected = complete(text)
        assert [word.decode() for word in own if word] == [word for word, _ in expected]
        np.testing.assert_allclose(
            probabilities[: len(expected)], [p for _, p in expected], rtol=1e-4
        )
        assert not probabilities[len(expected) :].any()


@pytest.mark.parametrize("kind", ["bpe", "lower", "words", "bytes"])
def test_an_endpoint_offers_the_words_of_python(kind, tmp_path):
    model = model_of("bpe" if kind == "lower" else kind, lowercase=kind == "lower")
    ask = client_of(dualnet.export(model, tmp_path / "1"))
    check(ask, lambda text: dualnet.complete(model, text), TEXTS)
    settings = {"k": 8, "words": "ship sho shore", "stop_words": "THE the"}
    own = {name: value if name == "k" else value.split() for name, value in settings.items()}
    check(ask, lambda text: dualnet.complete(model, text, **own), TEXTS, **settings)
    with pytest.raises(Exception, match="`k` must be from 1 to 8"):
        ask("complete_text", prompts=["a"], k=[9], words=[""], stop_words=[""])


def test_a_memory_completes_as_its_learner(tmp_path):
    model = model_of("bpe")
    learner = dualnet.Learner(model, "output_bias", rule="sgd", learning_rate=1.0)
    ask = client_of(dualnet.export(model, tmp_path / "1", learn="output_bias", learning_rate=1.0))
    sizes = [*model.state_size, 0]
    names = [*(f"state_{i + 1}" for i in range(len(sizes) - 1)), "memory"]
    columns = {name: np.zeros((1, size), "float32") for name, size in zip(names, sizes)}
    defaults = {name: [-1.0] for name in ("learning_rate", "decay", "clipnorm")}
    text = "the ship (a shore) sails, the ships"
    answer = ask("learn_text", texts=[text], last=[-1], **columns, **defaults)
    learner.read(text)
    memory = np.repeat(answer["memory"], len(TEXTS), axis=0)
    memory[1::2] = 0  # every other row is the plain model

    def complete(text):
        one = model if TEXTS.index(text) % 2 else learner
        return dualnet.complete(one, text)

    check(ask, complete, TEXTS, memory=memory)
    assert dualnet.complete(model, "the s") != dualnet.complete(learner, "the s")
