"""Learners as users run them: with one compiled step for each kind, and killed while they save."""

import concurrent.futures
import multiprocessing
import os
import random
import signal
import time

import keras
import numpy as np
import pytest

import dualnet
from dualnet import learners, zoo
from dualnet.learners import Learner, read_many
from dualnet.text import Vocabulary
from tests.checks import assert_same, strong
from tests.test_learners import kept

pytestmark = pytest.mark.slow

WORDS = Vocabulary(("<eos>", *"abcdef"))
KILLS = 100


def a_model():
    return strong(zoo.build("dual_lstm", vocabulary_size=len(WORDS), units=3), WORDS)


def a_learner(model, rate=0.5, **settings):
    return Learner(model, rule="sgd", learning_rate=rate, sequence_length=4, **settings)


def test_learners_of_a_kind_share_one_compiled_step_and_threads_mix_nothing_up(monkeypatch):
    model, rng = a_model(), np.random.default_rng(2)
    texts = rng.integers(1, len(WORDS), size=(8, 12))
    traced = []
    learn = learners.Lesson.learn

    def counted(self, graph, segment):
        traced.append(segment["tokens"].shape)
        return learn(self, graph, segment)

    monkeypatch.setattr(learners.Lesson, "learn", counted)
    alone = []
    for i, text in enumerate(texts):
        one = a_learner(model, rate=0.1 * (i + 1), decay=0.01 * i, clipnorm=1.0 + i)
        alone.append([one.read(text).token_losses, one.score(text).token_losses, *kept(one)])
        if i == 0:
            of_the_first = len(traced)
    if keras.config.backend() != "torch":  # which compiles nothing
        assert len(traced) == of_the_first

    def in_a_thread(i):
        one = a_learner(model, rate=0.1 * (i + 1), decay=0.01 * i, clipnorm=1.0 + i)
        return [one.read(texts[i]).token_losses, one.score(texts[i]).token_losses, *kept(one)]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found, expected in zip(pool.map(in_a_thread, range(8)), alone):
            assert_same(found, expected)
    several = [a_learner(model, 0.1 * (i + 1), decay=0.01 * i, clipnorm=1.0 + i) for i in range(8)]
    read_many(several, [*texts])
    for one, (_, _, memory, *_) in zip(several, alone):
        np.testing.assert_allclose(one._state.memory, memory, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("adapt", ["connection", ["recurrence", "output_bias"]])
def test_a_compiled_learner_equals_dynamic_evaluation(adapt):
    model, text = a_model(), np.random.default_rng(3).integers(1, len(WORDS), size=23)
    found = Learner(model, adapt, rule="sgd", learning_rate=0.5, sequence_length=4).read(text)
    expected = dualnet.dynamic_evaluation(
        model, np.append(0, text), rule="sgd", learning_rate=0.5, sequence_length=4, adapt=adapt
    )
    np.testing.assert_allclose(found.token_losses, expected.token_losses, rtol=1e-4, atol=1e-5)


# --- kills


def killed_while_they_save(path):
    """In a process of its own: kill a saver of one learner and another in turn, `KILLS` times."""
    model, rng = a_model(), random.Random(1)
    both = [a_learner(model), a_learner(model)]
    both[1].read("a b c d e f a b")
    states = [kept(one) for one in both]
    both[0].save(path)
    checksum = learners.checksum_of(model)
    learners.checksum_of = lambda model: checksum  # what saves uses NumPy alone: it is a fork
    last, within = set(), 0
    for _ in range(KILLS):
        saver = os.fork()
        if not saver:
            while True:
                for one in both:
                    one.save(path)
        time.sleep(rng.uniform(0, 0.1))
        os.kill(saver, signal.SIGKILL)
        os.waitpid(saver, 0)
        within += any(path.parent.glob(".*.unfinished-*"))
        found = Learner.load(path, model)
        which = int(found.tokens > 0)
        assert_same(kept(found), states[which])
        last.add(which)
    assert last == {0, 1} and within > KILLS / 10  # kills within a save
    both[0].save(path)
    assert [found.name for found in path.parent.iterdir()] == [path.name]


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="the same file on each backend")
def test_a_learner_killed_while_it_is_saved_is_never_lost(tmp_path):
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["dualnet.learners", __name__])
    process = processes.Process(target=killed_while_they_save, args=(tmp_path / "a.learner",))
    process.start()
    process.join(timeout=300)
    assert process.exitcode == 0
