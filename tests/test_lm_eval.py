"""Models in EleutherAI's lm-evaluation-harness: no test reaches the network."""

import json
import socket

import keras
import numpy as np
import pytest

import dualnet
from dualnet.text import ByteTokenizer, Vocabulary, train_tokenizer
from tests.checks import once, small, values

pytest.importorskip("lm_eval", reason='this test needs pip install "dualnet[lm-eval]"')

from lm_eval.api.instance import Instance

from dualnet.lm_eval import DualnetLM

pytestmark = [once, pytest.mark.slow]

TEXT = "the cat sleeps .\nthe dogs bark .\n"
TOKENIZERS = {
    "words": Vocabulary((*dict.fromkeys(TEXT.split()), "<unk>", "<eos>")),
    "bytes": ByteTokenizer(),
    "bpe": train_tokenizer([TEXT], "bpe", size=265),
    "characters": train_tokenizer([TEXT + "zebra?"], "characters"),
    "unigram": train_tokenizer([TEXT], "unigram", size=30),
    "word-piece": train_tokenizer([TEXT], "word-piece", size=40),
}


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    asked = []

    def refuse(*args, **kwargs):
        asked.append(args)
        raise OSError("no network in tests")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert not asked


@pytest.fixture(scope="module")
def models():
    built = {}
    for kind, tokenizer in TOKENIZERS.items():
        keras.utils.set_random_seed(3)
        model = small(tokenizer, units=8)
        model.set_weights([3 * weight for weight in values(model)])  # far from uniform
        built[kind] = DualnetLM(model)
    return built


def requests(kind, *arguments):
    return [Instance(kind, doc={}, arguments=each, idx=i) for i, each in enumerate(arguments)]


def sums_of(lm, texts):
    """Return log p of `texts`, read in one call: each shape takes a while to compile."""
    return [
        each.log_probabilities.astype("float64").sum() for each in dualnet.score(lm.model, texts)
    ]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_log_likelihoods_are_those_of_score(models, kind):
    lm = models[kind]
    # Of the tokens before the boundary, and of the rest, whose white space is the continuation's.
    pairs = [("the cat", " sleeps ."), ("the cat ", "sleeps ."), (TEXT, TEXT)]
    pairs += [("", text) for text in ("the cat sleeps .", TEXT, "a", "", "the zebra?")]
    found = lm.loglikelihood(requests("loglikelihood", *pairs))
    wholes = sums_of(lm, ["".join(pair) for pair in pairs])
    contexts = sums_of(lm, [context.rstrip() for context, _ in pairs])
    expected = np.subtract(wholes, contexts)
    np.testing.assert_allclose([value for value, _ in found], expected, rtol=1e-5, atol=1e-5)


def test_a_token_across_the_boundary_belongs_to_the_continuation(models):
    lm = models["words"]
    [(value, _)] = lm.loglikelihood(requests("loglikelihood", ("the dogs ba", "rk .")))
    whole, context = sums_of(lm, ["the dogs bark .", "the dogs"])
    assert value == pytest.approx(whole - context, abs=1e-5)


@pytest.mark.filterwarnings("ignore:Perplexities per word")
@pytest.mark.parametrize("kind", ["words", "bytes"])
def test_rolling_log_likelihoods_are_those_of_whole_texts(models, kind):
    texts = [TEXT, "the dogs bark .", TEXT * 20]
    found = models[kind].loglikelihood_rolling(
        requests("loglikelihood_rolling", *((text,) for text in texts))
    )
    np.testing.assert_allclose(found, sums_of(models[kind], texts), rtol=1e-5)


def test_perplexities_of_a_tokeniser_that_loses_text_are_warned_of(models):
    with pytest.warns(UserWarning, match="do not compare: the white space between words is lost"):
        models["words"].loglikelihood_rolling(requests("loglikelihood_rolling", (TEXT,)))


def test_the_greedy_continuation_is_the_likeliest_token(models):
    lm = models["words"]
    words = lm.tokenizer.words
    ends = ["\n" if word == "<eos>" else " " + word.strip("<>") for word in words]  # "unk": unknown
    found = lm.loglikelihood(requests("loglikelihood", *(("the cat", end) for end in ends)))
    logits = lm.model(np.array([[lm.tokenizer.eos_id, *lm.tokenizer.encode("the cat")]]))
    likeliest = int(np.argmax(keras.ops.convert_to_numpy(logits)[0, -1]))
    assert [greedy for _, greedy in found] == [i == likeliest for i in range(len(words))]


@pytest.mark.parametrize("kind", ["words", "bytes", "bpe"])
def test_generated_text_continues_the_context(models, kind):
    lm, settings = models[kind], {"until": [], "max_gen_toks": 6}
    contexts = ["the cat", "the dogs bark .\n", ""]
    texts = lm.generate_until(
        requests("generate_until", *((context, settings) for context in contexts))
    )
    generated = dualnet.generate(lm.model, contexts, max_tokens=6, temperature=0, stop_at_eos=True)
    assert [context + text for context, text in zip(contexts, texts)] == generated
    [(_, greedy), (_, not_greedy)] = lm.loglikelihood(
        requests("loglikelihood", ("the cat", texts[0]), ("the", " cat . . the dogs"))
    )
    assert (greedy or "\ufffd" in texts[0] or kind == "words") and not not_greedy


def test_text_ends_before_the_first_stop_string(models):
    lm = models["characters"]
    settings = {"until": ["\0"], "max_gen_toks": 20, "do_sample": True, "temperature": 1.0}
    [free] = lm.generate_until(requests("generate_until", ("the", settings)))
    stop = free[5:7]
    [text] = lm.generate_until(requests("generate_until", ("the", {**settings, "until": stop})))
    assert text == free[: free.index(stop)] and len(free) == 20
    with pytest.raises(ValueError, match="must be of do_sample.*Received: num_beams=4"):
        lm.generate_until(requests("generate_until", ("the", {"num_beams": 4})))


def test_a_run_is_loaded_and_a_model_without_eos_refused(models, tmp_path):
    models["bytes"].model.save(tmp_path / "model.keras")
    texts = requests("loglikelihood", ("the", " cat"))
    loaded = DualnetLM(tmp_path / "model.keras").loglikelihood(texts)
    np.testing.assert_allclose(loaded, models["bytes"].loglikelihood(texts), rtol=1e-6)
    with pytest.raises(ValueError, match="must have a vocabulary with <eos>"):
        DualnetLM(small(Vocabulary(("the", "cat"))))


PAIRS = [
    {"sentence_good": "the cat sleeps .", "sentence_bad": "the cat bark ."},
    {"sentence_good": "the dogs bark .", "sentence_bad": "the dogs sleeps ."},
    {"sentence_good": "dogs sleeps the .", "sentence_bad": "the cat ."},
    {"sentence_good": "the .", "sentence_bad": "the cat sleeps ."},
    {"sentence_good": "cat cat cat", "sentence_bad": "bark the"},
]
CHOICES = "{{[sentence_good, sentence_bad]}}"
GENERATION = {"until": ["\n"], "max_gen_toks": 4}
TASKS = {  # type of the output, text, target, metric, and the rest
    "pairs": ("multiple_choice", "", 0, "acc", {"doc_to_choice": CHOICES, "target_delimiter": ""}),
    "rolling": ("loglikelihood_rolling", "", "{{sentence_good}}", "bits_per_byte", {}),
    "generating": (
        "generate_until", "{{sentence_bad}}", "{{sentence_good}}", "exact_match",
        {"generation_kwargs": GENERATION},
    ),
}  # fmt: skip


def test_the_harness_runs_local_tasks_without_the_network(models, tmp_path):
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    data = tmp_path / "pairs.jsonl"
    data.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    files = {"data_files": {"test": str(data)}, "cache_dir": str(tmp_path / "cache")}
    for name, (output, text, target, metric, rest) in TASKS.items():
        task = {
            "task": f"local_{name}", "dataset_path": "json", "test_split": "test",
            "dataset_kwargs": files, "output_type": output, "doc_to_text": text,
            "doc_to_target": target, "metric_list": [{"metric": metric}], **rest,
        }  # fmt: skip
        (tmp_path / f"{name}.yaml").write_text(json.dumps(task))  # which is YAML, too
    lm = models["bpe"]
    results = simple_evaluate(
        model=lm,
        tasks=[f"local_{name}" for name in TASKS],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )
    found = {name: results["results"][f"local_{name}"] for name in TASKS}
    accuracy = dualnet.minimal_pairs(lm.model, data).overall.accuracy
    assert found["pairs"]["acc,none"] == accuracy and 0 < accuracy < 1
    sentences = [pair["sentence_good"] for pair in PAIRS]
    bits = -sum(sums_of(lm, sentences)) / np.log(2)
    size = sum(len(sentence.encode()) for sentence in sentences)
    assert found["rolling"]["bits_per_byte,none"] == pytest.approx(bits / size, rel=1e-5)
    answers = [sample["resps"][0][0] for sample in results["samples"]["local_generating"]]
    prompts = [pair["sentence_bad"] for pair in PAIRS]
    expected = dualnet.generate(lm.model, prompts, max_tokens=4, temperature=0)
    assert answers == [
        text[len(prompt) :].split("\n")[0] for text, prompt in zip(expected, prompts)
    ]
