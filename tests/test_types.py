"""Type checkers know the public names: a client passes, and misspelt arguments are found."""

from pathlib import Path

import pytest

api = pytest.importorskip("mypy.api", reason="mypy comes with the extra for tests")

CLIENT = """
import numpy as np

import dualnet
from dualnet import corpora, layers, training, zoo

corpus = corpora.load("python-reference")
model = zoo.build("dual_lstm", vocabulary_size=100, units=32, cell=layers.MogrifierLSTMCell)
state = model.initial_state(1)
logits, state = model.advance(np.array([[1, 2]]), state)
ids: np.ndarray = model.vocabulary.encode("the cat")
run = dualnet.train("lstm", corpus, output="RUN", units=8, epochs=1, min_count=2)
perplexity: float = dualnet.evaluate(run.model, corpus.test, window=7).perplexity
result = dualnet.dynamic_evaluation(model, corpus.test, adapt="connection", rule="sgd")
losses: float = result.token_losses.sum()
text: str = dualnet.generate(model, "the", max_tokens=3, temperature=0.5)
best: list[str] = dualnet.generate(model, "the", beam=2, n_best=2)
texts: list[str] = list(dualnet.generate(model, ["the", "a"], seed=1))
learner = dualnet.Learner(dualnet.load("dual_lstm.english"), adapt="output_bias", decay=0.1)
bits: float = learner.read("the cat").perplexity + dualnet.score(model, "the cat").perplexity
records = dualnet.surprisal(model, ["the cat"], words=True, entropy=True)
nbest = dualnet.rescore(model, [], carry=True)
dualnet.export(model, "folder", learn="output_bias")
recipe = training.Recipe(learning_rate=0.1, averaging="asgd")
"""

MISTAKES = """
dualnet.generate(model, "the", max_token=3)
dualnet.generate(model, "the", temperature="hot")
dualnet.Learner(model, adap="connection")
dualnet.Learner(model, learn_rate=0.1)
dualnet.dynamic_evaluation(model, corpus.test, adap="x")
dualnet.evaluate(model, corpus.test, windows=7)
dualnet.perplexity(model, corpus.test, batchsize=7)
dualnet.surprisal(model, "the cat", word=True)
dualnet.rescore(model, [], carries=True)
dualnet.train("lstm", corpus, output="RUN", epoch=3)
dualnet.train("lstm", corpus, output="RUN", epochs="3")
dualnet.export(model, "folder", fromat="onnx")
zoo.build("lstm", unit=32)
zoo.build("lstm", units="32")
training.Recipe(learningrate=0.1)
model.advance(np.array([[1]]))
model.initial_state("1")
"""


def test_a_client_passes_a_strict_check_of_types_and_each_mistake_is_found(tmp_path):
    lines = (CLIENT + MISTAKES).splitlines()
    (tmp_path / "client.py").write_text("\n".join(lines))
    top = Path(__file__).parents[1]
    options = ["--strict", "--config-file", str(top / "setup.cfg"), "--follow-imports=silent"]
    output, errors, _ = api.run([*options, "--no-incremental", str(tmp_path / "client.py")])
    found = {int(line.split(":")[1]) for line in output.splitlines() if ": error: " in line}
    first = len(CLIENT.splitlines()) + 2
    assert found == {*range(first, len(lines) + 1)}, output + errors
