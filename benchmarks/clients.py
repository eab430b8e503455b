"""Serves SavedModels to many interleaved clients; checks that no client sees another's state.

Usage: python benchmarks/clients.py [--clients 1000] [--threads 16] [--requests 4] [--seed 0]
Most clients read words of their own with `step`, one in each of their `--requests`, and pass the
states of an answer to their next request; of twenty, three send texts to `score_text` and
`generate_text`, and ids to the `translate` of a translator. The requests of all are shuffled and
sent from several threads at once. Each answer must equal, bit for bit, the one that its client gets
alone. Prints one line; exits with 1 if an answer differs.
"""

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

import dualnet
from dualnet import zoo
from dualnet.text import Vocabulary

TEXT = ("score_text", "generate_text")
WORDS = ("<eos>", "<unk>", *(f"w{i}" for i in range(998)))


def main():
    from options import options_of  # a script of its folder, which tests import from above

    options = options_of(__doc__, clients=1000, threads=16, requests=4, seed=0)
    model = zoo.build("dual_lstm", vocabulary_size=len(WORDS), units=64)
    model.vocabulary = Vocabulary(WORDS)
    with tempfile.TemporaryDirectory() as folder:
        served = tf.saved_model.load(dualnet.export(model, f"{folder}/model"))
        translator = zoo.build("encdec", vocabulary_size=len(WORDS), units=64)
        translator.vocabulary = translator.source_vocabulary = model.vocabulary
        translating = tf.saved_model.load(dualnet.export(translator, f"{folder}/translator"))
    signatures = {**served.signatures, "translate": translating.signatures["translate"]}
    others = ("translate", *TEXT)
    clients = clients_of(options.clients, options.requests, WORDS, options.seed, others)
    alone = [list(answers(signatures, *client)) for client in clients]
    start = time.perf_counter()
    wrong = count_wrong(signatures, clients, alone, options.threads, options.seed)
    seconds = time.perf_counter() - start
    print(f"{options.clients:,} clients, {options.threads} threads, "
          f"{options.clients * options.requests:,} requests in {seconds:.1f} s: "
          f"{wrong:,} wrong answers")  # fmt: skip
    sys.exit(1 if wrong else 0)


def clients_of(count, requests, words, seed, others=TEXT):
    """Return for each of `count` clients its endpoint and what it sends: word ids, or texts.

    Of twenty clients, the last send to the endpoints `others`, all before them to `step`.
    """
    rng = np.random.default_rng(seed)
    endpoints = (*["step"] * (20 - len(others)), *others)
    clients = []
    for i in range(count):
        endpoint = endpoints[i % 20]
        ids = rng.integers(len(words), size=(requests, 4))
        items = {"step": ids[:, 0].tolist(), "translate": ids.tolist()}
        texts = [" ".join(words[k] for k in row) for row in ids]
        clients.append((endpoint, items.get(endpoint, texts)))
    return clients


def answers(signatures, endpoint, items):
    """Yield the answer to each request of one client: outputs by name."""
    if endpoint == "step":
        yield from steps(signatures["step"], items)
        return
    settings = {"max_tokens": 5, "temperature": 1, "top_k": 0, "top_p": 1, "seed": 7}
    search = {"beam": 3, "n_best": 2, "max_tokens": 9, "length_normalization": 1}
    for item in items:
        if endpoint == "score_text":
            inputs = {"texts": item}
        elif endpoint == "translate":
            inputs = {"ids": item, "lengths": len(item), **search}
        else:
            inputs = {"prompts": item, "stop_at_eos": False, **settings}
        columns = {name: [value] for name, value in inputs.items()}
        yield ask(signatures[endpoint], **columns)


def steps(endpoint, words):
    """Yield the answer to each step of one client, who begins with states of zeros."""
    states = {
        name: np.zeros((1, spec.shape[1]))
        for name, spec in endpoint.structured_input_signature[1].items()
        if name != "ids"
    }
    for word in words:
        answer = ask(endpoint, ids=[[word]], **states)
        states = {name: answer[name] for name in states}
        yield answer


def ask(endpoint, **columns):
    """Return the answer of `endpoint` to one request."""
    specs = endpoint.structured_input_signature[1]
    inputs = {name: tf.constant(value, specs[name].dtype) for name, value in columns.items()}
    return {name: value.numpy() for name, value in endpoint(**inputs).items()}


def count_wrong(signatures, clients, alone, threads, seed):
    """Interleave the requests of `clients`; return how many answers are not those of `alone`."""
    requests = len(alone[0])
    turns = np.repeat(np.arange(len(clients)), requests)
    turns = np.random.default_rng(seed).permutation(turns)
    streams = [answers(signatures, *client) for client in clients]
    expected = [iter(of_client) for of_client in alone]

    def serve(thread):
        # A client stays in one thread, since it waits for its answer; the threads race.
        return sum(
            not same(next(streams[i]), next(expected[i])) for i in turns[turns % threads == thread]
        )

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(serve, range(threads)))


def same(answer, expected):
    return all(np.array_equal(answer[name], expected[name]) for name in expected)


if __name__ == "__main__":
    main()
