"""Generated words are those that the model, the seed and the settings determine."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

import dualnet
from dualnet._backend import double_precision
from dualnet.builders.reader import Reader
from dualnet.generation import sampling
from dualnet.generation.drawing import Draw, drawn_by
from dualnet.text import ByteTokenizer, Vocabulary, train_tokenizer
from tests.checks import once, small, strong
from tests.reference import drawing

WORDS = ("the", "<unk>", "<eos>", *(f"w{i}" for i in range(17)))
UNK, EOS = 1, 2
PROMPTS = ["w1 w2 w3", "w4 w5 w6", "the w7 w8"]


def make(words=WORDS):
    """Return a small model with confident predictions."""
    return strong(small(Vocabulary(words), "dual_lstm", units=8))


@pytest.fixture(scope="module")
def model():
    return make()


def continued(model, prompts, texts):
    """Yield, for each prompt, the ids after it and the logits they were drawn from."""
    encode = model.vocabulary.encode
    padded = np.zeros((len(texts), 24), "int32")  # one length, which JAX compiles once
    padded[:, 0] = EOS
    for row, text in zip(padded, texts):
        row[1 : 1 + len(encode(text))] = encode(text)
    logits = ops.convert_to_numpy(model(padded)).astype("float64")
    logits[..., UNK] = -np.inf
    for row, row_logits, prompt, text in zip(padded, logits, prompts, texts):
        start, end = 1 + len(encode(prompt)), 1 + len(encode(text))
        yield row[start:end], row_logits[start - 1 : end - 1]


@pytest.fixture
def calls(monkeypatch, model):
    """The tokens of each call that reads a prompt."""
    tokens = []
    original = Reader.predict_on_batch

    def record(self, x):
        if "tokens" in x:
            tokens.append(np.array(x["tokens"]))
        return original(self, x)

    monkeypatch.setattr(Reader, "predict_on_batch", record)
    return tokens


def test_greedy_takes_the_likeliest_word_of_a_full_forward_pass(model):
    text = dualnet.generate(model, PROMPTS[0], max_tokens=20, temperature=0)
    ((drawn, logits),) = continued(model, PROMPTS[:1], [text])
    assert len(drawn) == 20 and len(set(drawn)) > 2
    np.testing.assert_array_equal(drawn, logits.argmax(-1))
    for only in ({"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-300}):
        settings = {"temperature": 2.0, "seed": 5, **only}
        assert dualnet.generate(model, PROMPTS[0], max_tokens=20, **settings) == text


def test_a_seed_determines_the_words(model):
    seeds = (1, 1, 2)
    one, two, three = (dualnet.generate(model, "w1 w2", max_tokens=12, seed=i) for i in seeds)
    assert one == two != three
    assert one.startswith("w1 w2") and "<unk>" not in one
    assert len(model.vocabulary.encode(one)) == 14
    texts = {dualnet.generate(model, "w1", max_tokens=20, temperature=3.0) for _ in range(3)}
    assert len(texts) == 3  # without a seed, each call draws anew


@pytest.mark.parametrize("rows", [64, 2])  # 2: more prompts than one batch
def test_prompts_in_parallel_are_continued_as_each_alone(model, monkeypatch, rows):
    monkeypatch.setattr(sampling, "ROWS", rows)
    prompts = ["w1 w2 w3 w4 w5", "", "the", "w9 w9\nw3", "the"]
    together = dualnet.generate(model, prompts, max_tokens=6, temperature=0)
    alone = [dualnet.generate(model, prompt, max_tokens=6, temperature=0) for prompt in prompts]
    assert together == alone
    assert isinstance(together, list) and isinstance(alone[0], str)


def test_a_text_does_not_depend_on_the_other_prompts(model):
    settings = {"max_tokens": 9, "temperature": 1.5, "seed": 8}
    one = dualnet.generate(model, ["w1 w2", "w3", "w1 w2"], **settings)
    two = dualnet.generate(model, ["w1 w2", "w5 w6 w7 w8", "w1 w2", "the"], **settings)
    assert one[0] == two[0] == dualnet.generate(model, "w1 w2", **settings)
    assert one[2] == two[2] != one[0]  # each position has its own generator


def test_a_long_prompt_is_read_in_segments_with_the_same_result(model, calls, monkeypatch):
    prompt = " ".join(f"w{i % 17}" for i in range(10))
    whole = dualnet.generate(model, prompt, max_tokens=4, temperature=0)
    monkeypatch.setattr(sampling, "WORK", 4)
    calls.clear()
    assert dualnet.generate(model, prompt, max_tokens=4, temperature=0) == whole
    assert [call.shape[1] for call in calls] == [4, 4, 3]


def test_stop_at_eos_ends_a_text_before_the_first_eos(model):
    settings = {"max_tokens": 40, "temperature": 30.0, "seed": 6}
    prompts = ["w1\nw2", "w3", "w4 w5"]
    texts = dualnet.generate(model, prompts, **settings)
    stopped = dualnet.generate(model, prompts, stop_at_eos=True, **settings)
    assert len({len(text) for text in stopped}) > 1
    for prompt, text, line in zip(prompts, texts, stopped):
        continuation = text[len(prompt) :]
        assert "\n" in continuation
        assert line == prompt + continuation.split("\n")[0]


def test_unk_is_drawn_only_where_it_is_allowed_even_if_it_is_the_likeliest():
    model = make()
    logits = ops.convert_to_numpy(model(np.array([[EOS, 5]], "int32")))[0, -1]
    likeliest = int(logits.argmax())
    words = list(WORDS)
    words[UNK], words[likeliest] = words[likeliest], words[UNK]
    assert words.index("<eos>") == EOS != likeliest != 5
    model.vocabulary = Vocabulary(words)
    greedy = dualnet.generate(model, words[5], max_tokens=1, temperature=0)
    assert model.vocabulary.encode(greedy)[-1] == logits.argsort()[-2]
    texts = dualnet.generate(model, [words[5]] * 40, max_tokens=3, top_k=2, seed=0)
    assert "<unk>" not in " ".join(texts)
    greedy = dualnet.generate(model, words[5], max_tokens=1, temperature=0, allow_unknown=True)
    assert greedy == f"{words[5]} <unk>"
    settings = {"max_tokens": 1, "top_k": 1, "seed": 0, "allow_unknown": True}
    assert dualnet.generate(model, words[5], **settings) == greedy


TEXT = "The cat and the dog\nA bird of \u00e4"
SIZES = {"bpe": 280, "characters": None, "unigram": 40, "word-piece": 60}


@once
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["words", "bytes", *SIZES])
def test_a_prompt_and_its_continuation_are_one_text_with_any_tokenizer(kind, monkeypatch):
    if kind in SIZES:
        tokenizer = train_tokenizer([TEXT], kind, size=SIZES[kind])
    else:
        tokenizer = ByteTokenizer() if kind == "bytes" else Vocabulary((*TEXT.split(), "<eos>"))
    model, drawn = small(tokenizer, units=2), []
    monkeypatch.setattr(sampling, "continuations", lambda *_, on_tokens: [list(drawn)])
    for prompt in ("The cat and", "The cat and the dog\n", ""):
        start = len(tokenizer.encode(prompt))
        drawn[:] = ids = tokenizer.encode(TEXT)[start:]
        assert dualnet.generate(model, prompt, max_tokens=len(ids)) == TEXT
    if kind in ("bytes", "bpe"):  # that know every character, and may end within one
        drawn[:] = tokenizer.encode("\u732b")[:1]
        assert dualnet.generate(model, " A\t\n\n ", max_tokens=1) == " A\t\n\n \ufffd"
    monkeypatch.undo()
    pieces = []
    text = dualnet.generate(model, "The cat", max_tokens=50, seed=1, on_text=pieces.append)
    assert "".join(pieces) == text and len(pieces) > 2


def test_without_eos_a_text_starts_with_the_first_word_of_the_prompt(calls):
    model = make(tuple(word for word in WORDS if word not in ("<eos>", "<unk>")))
    calls.clear()
    text = dualnet.generate(model, "w1 w2", max_tokens=3, seed=0)
    assert text.startswith("w1 w2 ") and len(text.split()) == 5
    np.testing.assert_array_equal(calls[0], [model.vocabulary.encode("w1 w2")])
    assert len(dualnet.generate(model, "w1 w2", max_tokens=3, beam=2).split()) == 5
    with pytest.raises(ValueError, match=r"`prompt` must hold a word .*Give the first word"):
        dualnet.generate(model, ["w1", " "])
    with pytest.raises(ValueError, match=r"`stop_at_eos` must be False.*Set max_tokens"):
        dualnet.generate(model, "w1", stop_at_eos=True)


def drawn_shares(logits, temperature=1.0, top_k=None, top_p=None, min_p=None, draws=1000):
    """Return the share of evenly spaced random numbers by which each token is drawn."""
    settings = {"temperature": temperature, "top_p": top_p, "min_p": min_p and math.log(min_p)}
    rows = np.repeat(np.array([logits], "float32"), draws, axis=0)
    with double_precision():
        columns = {name: x and ops.full((draws, 1), x, "float64") for name, x in settings.items()}
        draw = Draw(**columns, top_k=top_k and min(top_k, len(logits)))
        random = ops.convert_to_tensor((np.arange(draws)[:, None] + 0.5) / draws)
        ids = ops.convert_to_numpy(draw(ops.convert_to_tensor(rows), random))
    return np.bincount(ids, minlength=len(logits)) / draws


@given(
    logits=st.lists(st.integers(-40, 40), min_size=2, max_size=30),
    temperature=st.sampled_from([0.3, 1.0, 7.0]),
    top_k=st.none() | st.integers(1, 40),
    top_p=st.none() | st.sampled_from([0.05, 0.41, 0.83, 0.99]),
)
def test_each_token_is_drawn_by_its_share_of_the_random_numbers(logits, temperature, top_k, top_p):
    # Integers often tie, and no sum of their powers equals `top_p` to the last bit.
    logits = np.array([*logits, -math.inf])
    shares = drawn_shares(logits, temperature, top_k, top_p)
    expected = drawing(logits, temperature, top_k, top_p)
    assert not shares[expected == 0].any()
    np.testing.assert_allclose(shares, expected, atol=0.0011)


def test_min_p_leaves_out_what_is_too_unlikely_beside_the_likeliest():
    logits = np.log([0.5, 0.3, 0.1, 0.1])
    np.testing.assert_allclose(drawn_shares(logits, min_p=0.5), [0.625, 0.375, 0, 0], atol=0.0011)
    assert drawn_shares(logits, 3.0, min_p=0.5).all()  # at this temperature all are likely enough


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS])
@given(
    settings=st.fixed_dictionaries(
        {"max_tokens": st.sampled_from([1, 16, 37]), "seed": st.integers(0, 99)},
        optional={
            "temperature": st.sampled_from([0.0, 0.4, 1.0, 8.0]),
            "top_k": st.sampled_from([1, 6, 40]),
            "top_p": st.sampled_from([0.05, 0.83, 1.0]),
            "min_p": st.sampled_from([0.01, 0.5]),
            "repetition_penalty": st.sampled_from([0.7, 1.5]),
            "stop_at_eos": st.booleans(),
            "allow_unknown": st.booleans(),
        },
    )
)
def test_a_text_does_not_depend_on_the_size_of_blocks(model, prompts, settings):
    texts = dualnet.generate(model, prompts, **settings)
    for size in (1, 5):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sampling, "BLOCK", size)
            assert dualnet.generate(model, prompts, **settings) == texts


@once
@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"seed": 1}, {"top_k": 5, "seed": 1}])
def test_a_long_text_begins_as_a_short_one(model, settings):
    long, short = (
        dualnet.generate(model, "w1 w2", max_tokens=n, **settings) for n in (130, sampling.LONG - 1)
    )
    assert long.startswith(short)


@pytest.mark.parametrize("stop_at_eos", [False, True])
def test_text_is_told_as_it_is_drawn(model, stop_at_eos):
    settings = {"max_tokens": 40, "temperature": 3.0, "seed": 6, "stop_at_eos": stop_at_eos}
    pieces = []
    text = dualnet.generate(model, "w1 w2", on_text=pieces.append, **settings)
    assert "".join(pieces) == text == dualnet.generate(model, "w1 w2", **settings)
    assert stop_at_eos or len(pieces) > 2
    several = [""] * 3

    def add(piece, i):
        several[i] += piece

    assert dualnet.generate(model, PROMPTS, on_text=add, **settings) == several
    with pytest.raises(ValueError, match="`on_text` cannot be combined with `beam`"):
        dualnet.generate(model, "w1", on_text=print, beam=2)


def test_repetition_is_penalised_for_the_tokens_of_the_text(model):
    greedy = {"temperature": 0.0, "max_tokens": 30}
    tokens = dualnet.generate(model, "w1", **greedy).split()
    varied = dualnet.generate(model, "w1", repetition_penalty=1e9, **greedy).split()
    assert len({*varied}) > len({*tokens})
    assert dualnet.generate(model, "w1", repetition_penalty=1.0, **greedy).split() == tokens


@once
@given(
    st.lists(st.sampled_from([0.0, 1e-300, 0.1, 0.3, 7.0]), min_size=1, max_size=400).filter(any),
    st.floats(0, 1, exclude_max=True),
)
def test_a_word_is_drawn_by_the_sums_of_blocks_as_by_one_sum(weights, random):
    weights = np.array(weights)
    [drawn] = ops.convert_to_numpy(drawn_by(weights[None], np.array([[random]])))
    assert weights[drawn] > 0
    sums = np.cumsum(weights) / weights.sum()
    assert sums[drawn] >= random - 1e-12
    assert sums[drawn - 1] * (drawn > 0) <= random + 1e-12


def test_logits_that_are_not_finite_are_an_error():
    message = "`model` must compute finite logits"
    model = make()
    weights = model.core.get_layer("embedding").embeddings
    broken = ops.convert_to_numpy(weights).copy()
    broken[5, 0] = math.nan
    weights.assign(broken)
    for settings in ({}, {"temperature": 0.0}, {"top_k": 3}):
        with pytest.raises(ValueError, match=message):
            dualnet.generate(model, WORDS[5], max_tokens=20, seed=0, **settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": []}, "`prompt` must hold at least one string"),
        ({"beam": 21}, "`beam` must be at most the number of tokens.*, 20. Received: beam=21"),
    ],
)
def test_bad_arguments_are_refused_by_name(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        dualnet.generate(model, **{"prompt": "w1", **arguments})
