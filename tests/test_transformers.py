"""Exported models in Hugging Face's transformers, and in tools that stand on it; no network."""

import concurrent.futures
import copy
import doctest
import json
import math
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tokenizers
from tokenizers import pre_tokenizers

import dualnet
from dualnet import zoo
from dualnet.text import ByteTokenizer, Vocabulary, train_tokenizer
from tests.checks import array, once, small, strong

REASON = 'this test needs pip install "dualnet[transformers]"'
transformers = pytest.importorskip("transformers", reason=REASON)
torch = pytest.importorskip("torch", reason=REASON)

pytestmark = [
    pytest.mark.slow,
    # Of the packages, about others.
    pytest.mark.filterwarnings("default::DeprecationWarning", "default::FutureWarning"),
]
on_torch = pytest.mark.skipif(keras.config.backend() != "torch", reason="runs on PyTorch alone")
if keras.config.backend() == "torch":
    from transformers import (
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
    )

    import dualnet.transformers

ROOT = Path(__file__).parents[1]
TEXT = "the cat sleeps .\nthe dogs bark .\n"
TOKENIZERS = {
    "words": Vocabulary((*dict.fromkeys(TEXT.split()), "<unk>", "<eos>")),
    "lowercase": Vocabulary((*dict.fromkeys(TEXT.split()), "<unk>", "<eos>"), lowercase=True),
    "bytes": ByteTokenizer(),
    "bpe": train_tokenizer([TEXT], "bpe", size=265, special="<unk>"),
    "lowercase-bpe": train_tokenizer([TEXT], "bpe", size=265, lowercase=True),
    "characters": train_tokenizer([TEXT + "zebra?"], "characters"),
    "unigram": train_tokenizer([TEXT], "unigram", size=30),
    "word-piece": train_tokenizer([TEXT], "word-piece", size=40),
}
TRANSLATORS = {name for name in zoo.list_models() if zoo.card(name).builder == "encoder_decoder"}


def exported(model, folder):
    return str(dualnet.export(model, folder / "hf", format="transformers"))


@pytest.fixture(scope="module")
def words():
    """A model of words whose predictions are far from uniform."""
    return strong(small(TOKENIZERS["words"], "dual_lstm", units=6), TOKENIZERS["words"])


@pytest.fixture(scope="module")
def folder(words, tmp_path_factory):
    return exported(words, tmp_path_factory.mktemp("words"))


@pytest.fixture
def opened(folder):
    """The model as transformers opens it, and its tokeniser, which begins texts with `<eos>`."""
    tokenizer = AutoTokenizer.from_pretrained(folder, add_bos_token=True)
    return AutoModelForCausalLM.from_pretrained(folder), tokenizer


def log_probabilities(model, tokenizer, text):
    """Return log p of each token of `text` after the first, in nats."""
    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        log_p = model(**inputs).logits.log_softmax(-1)
    return log_p[0, :-1].gather(-1, inputs.input_ids[0, 1:, None])[:, 0].numpy()


# --- what is written


@once
def test_a_run_is_exported_for_transformers(cli, folder, tmp_path):
    run = "dual_lstm.wikitext-2"
    out = cli(f"export {run} {tmp_path}/hf --format transformers")
    assert "Hugging Face transformers" in out
    names = {path.name for path in (tmp_path / "hf").iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "LICENSES_SOURCES"}
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "CC BY-SA 3.0" in card and "| test | 53.53 |" in card
    for part in (run, "library_name: transformers", "2,294,880 parameters", "WikiText-2"):
        assert part in card
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["vocab_size"] == 8001 and config["network"]["vocabulary"] is None
    assert "must be new or empty" in cli.refused(
        f"export {run} {tmp_path}/hf --format transformers"
    )
    assert "`--learn` must be None for --format='transformers'" in cli.refused(
        f"export {run} {tmp_path}/new --format transformers --learn connection"
    )


@once
def test_another_backend_is_told_the_way_out():
    with pytest.raises(ImportError, match="KERAS_BACKEND=torch"):
        import dualnet.transformers  # noqa: F401


OTHER_PROCESS = """
import sys
import numpy as np
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
with torch.no_grad():
    logits = model(torch.tensor(np.load(sys.argv[2]).astype("int64"))).logits
np.save(sys.argv[3], logits.numpy())
"""


def run_on_torch(code, *arguments, cwd):
    """Run `code` in a process of its own, and return what it prints."""
    environment = {**os.environ, "KERAS_BACKEND": "torch", "HF_HOME": str(cwd / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", code, *arguments]
    process = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_another_process_computes_the_same_logits(words, folder, tmp_path):
    ids = np.random.default_rng(0).integers(words.vocabulary_size, size=(2, 9)).astype("int32")
    np.save(tmp_path / "ids.npy", ids)
    run_on_torch(OTHER_PROCESS, folder, "ids.npy", "logits.npy", cwd=tmp_path)
    logits = np.load(tmp_path / "logits.npy")
    np.testing.assert_allclose(logits[..., :-1], array(words(ids)), rtol=1e-5, atol=1e-5)


@once
def test_the_page_gives_the_surprisals_of_the_shipped_model(cli, tmp_path):
    pytest.importorskip("minicons", reason=REASON)
    page = (ROOT / "docs" / "guides" / "comparing.md").read_text()
    [command] = re.findall(r"^```bash\n(?:dualnet )(export .*)\n", page, re.MULTILINE)
    cli(command.replace("hf/dual_lstm", f"{tmp_path}/hf/dual_lstm"))
    code = "".join(re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    printed = run_on_torch(code, cwd=tmp_path).split("---")[0]
    found = [line.rpartition("\t")[2] for line in printed.splitlines()]
    text = "The old ship sank in the storm."
    table = cli(f'score dual_lstm.wikitext-2 --text "{text}" --format surprisal')
    expected = [line.split("\t")[3] for line in table.splitlines()[1:]]
    np.testing.assert_allclose(np.array(found, float), np.array(expected, float), rtol=1e-5)


@on_torch
def test_the_example_of_the_manual_runs():
    assert doctest.testmod(dualnet.extras.transformers).failed == 0


# --- the tokeniser


@once  # the files of a tokeniser are the same on each backend
@pytest.mark.parametrize(
    ("kind", "documents"), [(kind, "line") for kind in TOKENIZERS]
    + [("words", "blank-line"), ("bytes", "file"), ("bpe", "blank-line"), ("unigram", "file")],
)  # fmt: skip
def test_the_tokeniser_gives_the_same_ids(kind, documents, tmp_path):
    config = {**TOKENIZERS[kind].get_config(), "documents": documents}
    vocabulary = dualnet.text.from_config(config)
    path = exported(small(vocabulary), tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    for text in (TEXT, "", " The CAT\tsleeps\u00a0.", "\n\n the zebra?\n \n\ncat \x1f.", "aé\n"):
        assert tokenizer(text).input_ids == vocabulary.encode(text).tolist(), text
    assert tokenizer.bos_token_id == tokenizer.eos_token_id == vocabulary.eos_id
    assert tokenizer.pad_token_id == len(vocabulary) == len(tokenizer) - 1
    assert tokenizer.unk_token_id == vocabulary.unk_id
    assert tokenizer("<eos>the cat").input_ids[0] == vocabulary.eos_id
    again = transformers.AutoTokenizer.from_pretrained(path, add_bos_token=True)
    again.save_pretrained(tmp_path / "again")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert again(TEXT).input_ids == [vocabulary.eos_id, *vocabulary.encode(TEXT).tolist()]


@once
def test_a_tokeniser_that_reads_several_lines_otherwise_there_is_told(tmp_path):
    library = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", byte_fallback=False))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=40, special_tokens=["<unk>", "<eos>"], show_progress=False
    )
    library.train_from_iterator(TEXT.splitlines(), trainer)
    library.save(str(tmp_path / "tokenizer.json"))
    vocabulary = dualnet.text.load_tokenizer(tmp_path / "tokenizer.json")
    with pytest.warns(UserWarning, match="the ids of a text of several lines are not those of dua"):
        path = exported(small(vocabulary), tmp_path)
    [line, *_] = TEXT.splitlines()
    there = transformers.AutoTokenizer.from_pretrained(path)
    assert there(line).input_ids == vocabulary.encode(line).tolist()


# --- reading


@on_torch
def test_negative_ids_are_errors_unless_the_mask_hides_them(words, folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([[1, 2, -100]])
    with pytest.raises(ValueError, match="`input_ids` must hold ids of the model, 0 to"):
        model(ids)
    logits = model(ids, attention_mask=ids >= 0).logits
    np.testing.assert_allclose(array(logits[:, :2]), array(model(ids[:, :2]).logits), rtol=1e-5)


def cached(words):
    return dualnet.with_cache(words, size=3)


def own(words):
    tokens, state = keras.Input((None,), dtype="int32"), keras.Input((4,))
    embedded = keras.layers.Embedding(len(words.vocabulary), 3)(tokens)
    gru = keras.layers.GRU(4, return_sequences=True, return_state=True)
    hidden, after = gru(embedded, initial_state=state)
    core = keras.Model([tokens, state], [keras.layers.Dense(len(words.vocabulary))(hidden), after])
    return strong(dualnet.LanguageModel.from_core(core))


def padded(words):
    return strong(small(words.vocabulary, padded=True))


def of_zoo(name):
    def build(words):
        return strong(small(words.vocabulary, name), scale=0.5)

    return build


# An ensemble of ten is one of five, slower.
LEFT_OUT = {*TRANSLATORS, "variational_rhn_10", "variational_rhn_10_iog"}
MODELS = {name: of_zoo(name) for name in zoo.list_models() if name not in LEFT_OUT}
MODELS |= {"cached": cached, "own": own, "padded": padded}


@on_torch
@pytest.mark.parametrize("name", MODELS)
def test_every_language_model_reads_padded_batches_as_texts_alone(name, words, tmp_path):
    model = MODELS[name](words)
    read = AutoModelForCausalLM.from_pretrained(exported(model, tmp_path))
    ids = np.random.default_rng(1).integers(model.vocabulary_size, size=(3, 5)).astype("int32")
    lengths = [5, 3, 1]
    alone = [array(model(ids[i : i + 1, :n]))[0] for i, n in enumerate(lengths)]
    for side in ("left", "right"):
        place = [slice(5 - n, 5) if side == "left" else slice(n) for n in lengths]
        tokens, mask = np.full((3, 5), model.vocabulary_size), np.zeros((3, 5), "int64")
        for i, n in enumerate(lengths):
            tokens[i, place[i]], mask[i, place[i]] = ids[i, :n], 1
        with torch.no_grad():
            found = read(torch.tensor(tokens), attention_mask=torch.tensor(mask))
            assert torch.equal(read(torch.tensor(tokens)).logits, found.logits)
            next_id = torch.zeros((3, 1), dtype=torch.int64)
            after = read(next_id, cache=found.cache, output_hidden_states=True)
        for i, n in enumerate(lengths):
            logits = found.logits[i, place[i]].numpy()
            np.testing.assert_allclose(logits[:, :-1], alone[i], rtol=1e-4, atol=1e-5)
            assert (logits[:, -1] < -1000).all()
            whole = array(model(np.append(ids[i, :n], 0)[None].astype("int32")))[0, -1]
            np.testing.assert_allclose(after.logits[i, 0, :-1], whole, rtol=1e-4, atol=1e-5)
        assert all(hidden.shape[:2] == (3, 1) for hidden in after.hidden_states)


@on_torch
def test_log_probabilities_loss_and_hidden_states_are_ours(words, opened):
    model, tokenizer = opened
    score = dualnet.score(words, TEXT)
    found = log_probabilities(model, tokenizer, TEXT)
    np.testing.assert_allclose(found, score.log_probabilities, rtol=1e-5, atol=1e-5)
    inputs = tokenizer(TEXT, return_tensors="pt")
    output = model(**inputs, labels=inputs.input_ids, output_hidden_states=True)
    assert isinstance(output.hidden_states, tuple)
    assert math.exp(output.loss.item()) == pytest.approx(score.perplexity, rel=1e-5)
    expected = array(words.hidden_states(inputs.input_ids.numpy().astype("int32")))
    np.testing.assert_allclose(output.hidden_states[-1].detach(), expected, atol=1e-6)
    assert len(output.hidden_states) == 3  # embeddings, the dual connection, and the one layer
    base = AutoModel.from_pretrained(model.name_or_path)(**inputs)
    assert torch.equal(base.last_hidden_state, output.hidden_states[-1])
    first, second = model(**inputs, return_dict=False)[0], output.logits
    assert torch.equal(first, second)


# --- drawing


@on_torch
@pytest.mark.parametrize("side", ["left", "right"])
def test_greedy_sampled_and_beamed_texts_do_not_depend_on_the_batch(side, words, opened):
    model, tokenizer = opened
    tokenizer.padding_side = side
    prompts = ["the cat sleeps", "the", "dogs bark . the"]
    batch = tokenizer(prompts, return_tensors="pt", padding=True)
    settings = {"max_new_tokens": 8, "do_sample": False}
    start = batch.input_ids.shape[1]

    def words_of(row):
        return tokenizer.decode(row, skip_special_tokens=True)

    greedy = model.generate(**batch, **settings)
    expected = dualnet.generate(words, prompts, temperature=0, max_tokens=8, stop_at_eos=True)
    assert [words_of(row) for row in greedy] == expected
    beamed = model.generate(**batch, num_beams=3, length_penalty=0.0, **settings)
    for prompt, row in zip(prompts, beamed):
        alone = tokenizer(prompt, return_tensors="pt")
        found = model.generate(**alone, num_beams=3, length_penalty=0.0, **settings)
        assert words_of(found[0]) == words_of(row)

    torch.manual_seed(1)
    settings |= {"do_sample": True, "temperature": 5.0, "num_return_sequences": 3}
    drawn = model.generate(**batch, **settings)
    new = drawn[:, start:]
    assert drawn.shape[0] == 9 and len(torch.unique(new)) > 5
    assert not (new == tokenizer.unk_token_id).any()
    settings = {"max_new_tokens": 1, "return_dict_in_generate": True, "output_logits": True}
    logits = model.generate(**batch, **settings).logits[0]
    for prompt, row in zip(prompts, logits):
        alone = model(**tokenizer(prompt, return_tensors="pt")).logits[0, -1]
        torch.testing.assert_close(row, alone)


@on_torch
def test_copies_of_a_model_have_networks_of_their_own(words, opened):
    model, tokenizer = opened
    inputs = tokenizer("the cat sleeps", return_tensors="pt")

    def changed(copy):
        with torch.no_grad():
            for parameter in copy.parameters():
                parameter.mul_(0.5)
        copy(**inputs)
        return copy

    expected, network = model(**inputs).logits, model.network
    network.vocabulary = words.vocabulary
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        copies = [*pool.map(copy.deepcopy, [model] * 2), pickle.loads(pickle.dumps(model))]
        [*pool.map(changed, copies)]
    assert torch.equal(model(**inputs).logits, expected)
    scores = [dualnet.score(net, TEXT).perplexity for net in (network, words)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-5)
    assert all(not torch.equal(copy(**inputs).logits, expected) for copy in copies)


@on_torch
@pytest.mark.parametrize("dtype", [torch.bfloat16, "float16"])
def test_parameters_have_the_dtype_asked_for_and_logits_the_length(dtype, folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    assert str(model.dtype).removeprefix("torch.") == str(dtype).removeprefix("torch.")
    ids = torch.tensor([[0, 1, 2]])
    logits = model(ids).logits
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, logits[:, -2:])
    kept = torch.tensor([0, 2])
    torch.testing.assert_close(model(ids, logits_to_keep=kept).logits, logits[:, kept])


@on_torch
def test_words_that_a_model_does_not_have_are_refused_with_the_way_out(opened):
    model, tokenizer = opened
    tokenizer.add_tokens(["zebra"])
    for call in (
        lambda: model(**tokenizer("the zebra", return_tensors="pt")),
        lambda: model.generate(**tokenizer("the zebra", return_tensors="pt"), max_new_tokens=2),
        lambda: model.resize_token_embeddings(len(tokenizer)),
        model.get_input_embeddings,
    ):
        with pytest.raises((ValueError, NotImplementedError), match="to add words, train a model"):
            call()


@on_torch
def test_a_cache_goes_on_where_it_ended(opened):
    model, tokenizer = opened
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    whole = model(ids).logits
    for name in ("cache", "past_key_values"):
        cache = model(ids[:, :4]).cache
        assert cache.get_seq_length() == 4
        rest = model(ids[:, 4:], **{name: cache}).logits
        torch.testing.assert_close(rest, whole[:, 4:])


# --- training


def dataset_of(tokenizer):
    texts = ["the cat sleeps", "the dogs bark", "the dogs bark . the cat sleeps"] * 8
    return [dict(tokenizer(text)) for text in texts]


def trainer_of(model, tokenizer, dataset, folder, collator, **settings):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), num_train_epochs=6, per_device_train_batch_size=4, use_cpu=True,
        learning_rate=0.05, report_to=[], save_strategy="no", disable_tqdm=True, **settings,
    )  # fmt: skip
    return transformers.Trainer(
        model=model, args=arguments, train_dataset=dataset, data_collator=collator
    )


@on_torch
def test_the_trainer_fine_tunes_the_weights_of_both_libraries(opened, tmp_path):
    model, tokenizer = opened
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    dataset = dataset_of(tokenizer)
    trainer = trainer_of(model, tokenizer, dataset, tmp_path / "t", collator)
    first = trainer.evaluate(dataset)["eval_loss"]
    trainer.train()
    assert trainer.evaluate(dataset)["eval_loss"] < 0.5 * first
    assert all(not torch.equal(before[name], value) for name, value in model.named_parameters())
    # The Keras variables are the same tensors: dualnet reads with what the trainer learnt.
    network = model.network
    network.vocabulary = TOKENIZERS["words"]
    text = "the dogs bark ."
    found = log_probabilities(model.eval(), tokenizer, text)
    score = dualnet.score(network, text).log_probabilities
    np.testing.assert_allclose(found, score, rtol=1e-5, atol=1e-5)
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "modeling_dualnet.py").is_file()
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    np.testing.assert_array_equal(log_probabilities(again, tokenizer, text), found)


@on_torch
def test_a_model_that_remote_code_opened_is_saved_as_it_was(folder, opened, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    model.save_pretrained(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "config.json", "generation_config.json", "model.safetensors", "modeling_dualnet.py",
    }  # fmt: skip
    configs = [json.loads(Path(at, "config.json").read_text()) for at in (folder, tmp_path)]
    assert configs[0]["auto_map"] == configs[1]["auto_map"]
    again = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(again(ids).logits, opened[0](ids).logits)


@on_torch
def test_gradients_are_those_of_keras(opened):
    model, tokenizer = opened
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    model(ids, labels=ids).loss.backward()
    network = model.network
    losses, _ = network.graph.losses(
        ids[:, :-1].int(), network.initial_state(1), ids[:, 1:].int(), training=False
    )
    weights = list(model.weights.parameters())
    for gradient, weight in zip(torch.autograd.grad(losses.mean(), weights), weights):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-4, atol=1e-6)


@on_torch
def test_texts_are_classified(folder, opened, tmp_path):
    _, tokenizer = opened
    # `from_pretrained` says that the weights of the classifier are new.
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    dataset = dataset_of(tokenizer)
    for i, row in enumerate(dataset):
        row["labels"] = int(i % 3 == 1)  # whether the dogs have the last word
    collator = transformers.DataCollatorWithPadding(tokenizer)
    trainer = trainer_of(model, tokenizer, dataset, tmp_path / "t", collator)
    trainer.train()
    found = trainer.predict(dataset).predictions
    assert (found.argmax(-1) == [row["labels"] for row in dataset]).all()
    alone = model.eval()(torch.tensor([dataset[1]["input_ids"]])).logits[0].detach()
    np.testing.assert_allclose(found[1], alone, rtol=1e-4, atol=1e-5)


# --- tools that stand on transformers

SENTENCES = ["the cat sleeps .", "the dogs bark . the cat", "dogs"]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A model, and the folder that it is exported to."""
    model = strong(small(TOKENIZERS["bpe"], units=6), TOKENIZERS["bpe"])
    return model, exported(model, tmp_path_factory.mktemp("bpe"))


@on_torch
def test_minicons_scores_tokens_and_minimal_pairs_as_dualnet(client):
    scorer = pytest.importorskip("minicons.scorer", reason=REASON)
    model, folder = client
    lm = scorer.IncrementalLMScorer(folder, "cpu")
    settings = {"bos_token": True, "surprisal": True, "base_two": True}
    tokens = lm.token_score(SENTENCES, **settings)
    found = [value for text in tokens for _, value in text[1:]]
    expected = [record["surprisal"] for record in dualnet.surprisal(model, SENTENCES)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    sums = lm.sequence_score(SENTENCES, reduction=lambda x: x.sum(0).item(), bos_token=True)
    scores = [score.log_probabilities.sum() for score in dualnet.score(model, SENTENCES)]
    np.testing.assert_allclose(sums, scores, rtol=1e-5)


@on_torch
def test_minicons_corrects_words_as_dualnet_where_no_text_ends(tmp_path):
    scorer = pytest.importorskip("minicons.scorer", reason=REASON)
    settings = {"units": 6, "tied": False, "output_bias": True}
    model = strong(small(TOKENIZERS["bpe"], **settings), TOKENIZERS["bpe"])
    bias = array(model.get_layer("output").bias).copy()
    # What minicons does not count among the ends of a word: `<eos>`, tabs and newlines.
    bias[model.vocabulary.eos_id] = -100
    bias[[piece[:1] in b"\t\n\v\f\r" and piece > b"" for piece in model.vocabulary.spelling]] = -100
    model.get_layer("output").bias.assign(bias)
    lm = scorer.IncrementalLMScorer(exported(model, tmp_path), "cpu")
    of_words = {"tokenize_function": str.split, "bos_token": True, "surprisal": True}
    found = lm.word_score_tokenized(SENTENCES, bow_correction=True, base_two=True, **of_words)
    found = [pair for text in found for pair in text if pair[0] in TEXT.split()]
    records = dualnet.surprisal(model, SENTENCES, words=True, bow_correction=True)
    assert [word for word, _ in found] == [record["token"] for record in records]
    expected = [record["surprisal"] for record in records]
    np.testing.assert_allclose([bits for _, bits in found], expected, rtol=1e-4, atol=1e-4)
