"""`encoder_decoder`: against float64 NumPy, padding, steps, saving, bad arguments."""

import functools

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dualnet
from dualnet import assign, corpora, weight_names
from dualnet.builders import TranslationModel, encoder_decoder
from dualnet.evaluation.pair_perplexity import evaluate_pairs
from dualnet.text import Vocabulary
from tests import reference
from tests.checks import UNTRACED, array, assert_close, few_elsewhere, gradients, once

pytestmark = UNTRACED

VOCABULARY, SOURCES = 7, 6
SOURCE = np.array([[3, 4, 5, -1], [1, 2, 0, 5]])
TARGET = np.array([[0, 6, 2], [0, 5, -1]])
DOC = {"experts": [0, 0, 2, 2], "tied": False, "embedding_units": 4, "recurrent_units": 4}
CASES = {
    "general": {"recurrent_layers": 2},
    "DOC of two layers": {"recurrent_layers": 2, **DOC, "latent_units": 3},
    "additive": {
        "attention": "additive", "alignment_units": 3, "encoder": "embeddings",
        "first_state": "learned", "tied": False, "output_bias": True, "recurrent_layers": 2,
    },
    "depth-gated": {
        "cell": "depth_gated_lstm", "depth": 2, "attention": "additive", "tied": False,
        "encoder": "embeddings", "first_state": "learned",
    },
    "concatenated, dual": {"encoder_merge": "concatenate", "connection": "dual"},
    "Mogrifier": {"cell": "mogrifier_lstm", "rounds": 2, "share_embeddings": True},
    "GRU from zeros": {"cell": "gru", "first_state": "zeros"},
}  # fmt: skip
each_case = pytest.mark.parametrize("case", CASES)
COMPARED = {  # with NumPy alone
    **{case: CASES[case] for case in ("general", "DOC of two layers", "additive")},
    "DOC of all levels": {
        "recurrent_layers": 2, **DOC, "experts": [1, 2, 1, 2], "latent_units": 3,
    },
    "additive over both directions": {
        "attention": "additive", "alignment_units": 3, "recurrent_layers": 2, "tied": False,
    },
    "general over embeddings": {"encoder": "embeddings", "first_state": "learned"},
}  # fmt: skip


@functools.cache
def built(case):
    options = {**CASES, **COMPARED}[case]
    sources = VOCABULARY if options.get("share_embeddings") else SOURCES
    sizes = {} if "embedding_units" in options else {"units": 4}
    return encoder_decoder(VOCABULARY, source_vocabulary_size=sources, **sizes, **options)


def a_model(case, rng):
    """Return the model of `case`, built once, with other weights."""
    model = built(case)
    weights = weight_names(model)
    assign(model, {name: 0.5 * rng.normal(size=w.shape) for name, w in weights.items()})
    return model


def logits_of(model, source=SOURCE, target=TARGET):
    return array(model({"source": source, "target": target}))


# --- the reference: one sentence at a time, without padding


def of(weights, prefix):
    return {k.removeprefix(prefix): w for k, w in weights.items() if k.startswith(prefix)}


def lstm_over(x, weights):
    h = c = np.zeros((1, len(weights["recurrent_kernel"])))
    outputs, h, c = reference.over_time(reference.lstm_step, x[None], [h, c], weights)
    return outputs[0], [h, c]


def translate(weights, source, target, options):
    """Return the logits or log-probabilities of one sentence pair, `(time, words)`."""
    embeddings = weights["embedding/embeddings"]
    layers = options.get("recurrent_layers", 1)
    vectors = weights["source_embedding/embeddings"][source]
    if options.get("encoder") == "embeddings":
        memory = vectors
        states = [value[None] for value in of(weights, "first_state/state_").values()]
    else:
        forward, backward, states = vectors, vectors[::-1], []
        for k in range(1, layers + 1):
            forward, after = lstm_over(forward, of(weights, f"encoder_forward_{k}/cell_{k}/"))
            backward, before = lstm_over(backward, of(weights, f"encoder_backward_{k}/cell_{k}/"))
            states += [a + b for a, b in zip(after, before)]
        memory = forward + backward[::-1]
    keys = memory @ weights["keys/kernel"]
    own = of(weights, "decoder/attention/")
    step = reference.additive_attention_step
    if options.get("attention") != "additive":
        step = reference.general_attention_step
        if len(states) == 2 * layers:  # a learned first state has the attentional vector, too
            states = [np.zeros((1, own["attention_kernel"].shape[1])), *states]
    steps = [(reference.lstm_step, 2)] * layers
    mask = np.ones((1, len(source)), bool)
    rows = []
    for word in target:
        x = embeddings[word][None]
        output, states = step(x, states, own, steps, memory[None], keys[None], mask)
        size = len(own["cell_1/recurrent_kernel"])
        levels = [output[:, k * size : (k + 1) * size] for k in range(layers)]
        last = output[:, layers * size :]
        if options.get("attention") == "additive":
            last = np.tanh(
                levels[-1] + last @ weights["readout_context/kernel"]
                + x @ weights["readout_embedding/kernel"]
            )  # fmt: skip
        rows.append(logits_from([x, *levels, last], weights, options)[0])
    return np.stack(rows)


def logits_from(levels, weights, options):
    if "experts" not in options:
        if "output/kernel" not in weights:
            return levels[-1] @ weights["embedding/embeddings"].T
        return levels[-1] @ weights["output/kernel"] + weights.get("output/bias", 0)
    return np.log(reference.mixture(levels, of(weights, "output/"), options["experts"]))


@pytest.mark.parametrize("case", COMPARED)
def test_logits_and_gradients_match_the_papers(case, rng):
    model = a_model(case, rng)
    variables = weight_names(model)
    start = {name: array(w).astype("float64") for name, w in variables.items()}
    pairs = [(s[s >= 0], t[t >= 0]) for s, t in zip(SOURCE, TARGET)]
    projections = [rng.normal(size=(len(target), VOCABULARY)) for _, target in pairs]

    def scalar_of(weights):
        return sum(
            np.sum(p * translate(weights, *pair, COMPARED[case]))
            for p, pair in zip(projections, pairs)
        )

    found = logits_of(model)
    for row, (source, target) in zip(found, pairs):
        expected = translate(start, source, target, COMPARED[case])
        np.testing.assert_allclose(row[: len(target)], expected, rtol=1e-4, atol=1e-5)

    padded = np.zeros((len(pairs), TARGET.shape[1], VOCABULARY), "float32")
    for row, p in zip(padded, projections):
        row[: len(p)] = p

    def scalar():
        logits = model({"source": SOURCE, "target": TARGET})
        return keras.ops.sum(logits * keras.ops.convert_to_tensor(padded, "float32"))

    for (name, variable), gradient in zip(
        variables.items(), gradients(scalar, list(variables.values()))
    ):
        direction = rng.normal(size=variable.shape)
        above, below = (
            scalar_of({**start, name: start[name] + step * direction}) for step in (1e-5, -1e-5)
        )
        np.testing.assert_allclose(
            np.sum(gradient * direction), (above - below) / 2e-5, rtol=2e-3, atol=1e-4, err_msg=name
        )


# --- padding and steps


@pytest.mark.slow
@pytest.mark.parametrize("case", few_elsewhere(CASES, 3))
@settings(max_examples=3, deadline=None)
@given(more=st.integers(1, 3), seed=st.integers(0, 99))
def test_padding_and_the_other_sentences_of_a_batch_change_nothing(case, more, seed):
    model = a_model(case, np.random.default_rng(seed))
    expected = logits_of(model)
    wider = np.pad(SOURCE, ((0, 0), (0, more)), constant_values=-1)
    longer = np.pad(TARGET, ((0, 0), (0, more)), constant_values=-1)
    np.testing.assert_allclose(
        logits_of(model, wider, longer)[:, :3], expected, rtol=1e-4, atol=1e-5
    )
    alone = logits_of(model, SOURCE[:1, :3], TARGET[:1])
    np.testing.assert_allclose(alone, expected[:1], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@each_case
def test_steps_from_the_encoded_source_give_the_logits_of_the_whole(case, rng):
    model = a_model(case, rng)
    state, steps = model.encode(SOURCE), []
    for t in range(TARGET.shape[1]):
        logits, state = model.advance(TARGET[:, t : t + 1], state)
        steps.append(array(logits)[:, 0])
    real = TARGET >= 0
    np.testing.assert_allclose(
        np.stack(steps, axis=1)[real], logits_of(model)[real], rtol=1e-4, atol=1e-5
    )
    hidden, after = model.hidden_states(TARGET, model.encode(SOURCE))
    assert hidden.shape[:2] == TARGET.shape
    for part, expected in zip(after, state, strict=True):
        np.testing.assert_allclose(array(part), array(expected), rtol=1e-4, atol=1e-5)


# --- training and files


class Pairs(keras.utils.PyDataset):
    carried = False
    pads = True

    def __len__(self):
        return 1

    def __getitem__(self, index):
        targets = np.roll(np.maximum(TARGET, 0), -1, axis=1)
        return {"source": SOURCE, "target": TARGET}, targets, (TARGET >= 0).astype("float32")


@pytest.mark.slow
@pytest.mark.parametrize("case", few_elsewhere(["DOC of two layers", "depth-gated"]))
def test_fit_moves_every_weight(case, rng):
    model = a_model(case, rng)
    before = {name: array(w) for name, w in weight_names(model).items()}
    model.compile(optimizer="adam")
    losses = model.fit(Pairs(workers=1), epochs=2, verbose=0).history["loss"]
    assert losses[1] < losses[0]
    assert all(np.any(before[name] != array(w)) for name, w in weight_names(model).items())


@once
@pytest.mark.slow
@each_case
def test_a_file_gives_the_model_back(case, rng, tmp_path):
    model = a_model(case, rng)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(again, TranslationModel)
    assert_close([logits_of(again)], [logits_of(model)])


def test_the_loss_of_a_batch_is_that_of_its_real_words(rng):
    model = a_model("general", rng)
    model.compile(optimizer="adam")
    _, targets, weight = Pairs()[0]
    p = np.take_along_axis(reference.softmax(logits_of(model)), targets[..., None], axis=-1)
    expected = np.sum(-np.log(p[..., 0]) * weight) / weight.sum()
    loss, perplexity = model.evaluate(Pairs(workers=1), verbose=0)
    np.testing.assert_allclose([loss, perplexity], [expected, np.exp(expected)], rtol=1e-5)
    first, _ = model.train_on_batch(*Pairs()[0])  # of arrays
    np.testing.assert_allclose(first, expected, rtol=1e-5)


# --- bad arguments


def test_pairs_of_other_words_are_refused():
    pairs = corpora.load_pairs("numbers")
    words, others = pairs.vocabulary, Vocabulary(pairs.vocabulary.words[::-1])
    model = encoder_decoder(len(words), units=4)
    model.vocabulary, model.source_vocabulary = words, others
    model.compile(optimizer="adam")
    with pytest.raises(dualnet.ArgumentError, match="^`x` .*=.model.source_vocabulary, model"):
        model.fit(pairs.batches("train"), verbose=0)
    with pytest.raises(dualnet.ArgumentError, match="^`corpus` must have the vocabulary of"):
        evaluate_pairs(model, pairs, "test")


def test_a_translator_without_an_end_or_for_a_keras_export_is_refused(rng, tmp_path):
    model = encoder_decoder(2, units=4)
    model.vocabulary = model.source_vocabulary = Vocabulary(("a", "b"))
    with pytest.raises(dualnet.ArgumentError, match="`model` must have <eos>"):
        dualnet.translate(model, "a")
    with pytest.raises(dualnet.ArgumentError, match="`model` translates.* dualnet.export"):
        model.export(tmp_path / "model")


def test_targets_and_batches_beyond_a_vocabulary_are_refused(rng):
    model = a_model("general", rng)
    model.compile(optimizer="adam", run_eagerly=True)
    inputs, targets, weight = Pairs()[0]
    for name, data in (
        ("y", (inputs, targets + 6, weight)),
        ("target", ({**inputs, "target": inputs["target"] + 6}, targets, weight)),
        ("source", ({**inputs, "source": inputs["source"] + 6}, targets, weight)),
    ):
        for method in (model.fit, model.evaluate, model.train_on_batch):
            with pytest.raises(dualnet.ArgumentError, match=f"^`{name}` must hold"):
                method(*data)
        with pytest.raises(dualnet.ArgumentError, match=f"^`{name}` must hold"):
            model.fit(batch for batch in [data])


@once
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": "embeddings"}, "first_state.*learned"),
        ({"skip_connections": True}, "skip_connections.*left out"),
        ({"padded": False}, "`padded` must be True"),
        (
            {"attention": "additive", "attention_units": 5},
            "attention_units.*highest recurrent layer",
        ),
        ({"share_embeddings": True, "source_vocabulary_size": 9}, "share_embeddings.*one voc"),
        ({"experts": [0, 2]}, "experts.*3 numbers, the first for the embedding.*Rec"),
        ({"depth": 2, "recurrent_layers": 2}, "`depth` must be left out beside `recurrent_layers`"),
    ],
)
def test_bad_arguments_get_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        encoder_decoder(VOCABULARY, **{"units": 4, **options})


def test_ids_and_states_that_do_not_fit_are_refused(rng):
    model = a_model("general", rng)
    with pytest.raises(ValueError, match="ids of the model's vocabulary, 0 to 5"):
        model.encode([[6]])
    with pytest.raises(ValueError, match="`state`.*encode"):
        model.advance([[0]], model.encode(SOURCE))
    with pytest.raises(ValueError, match="encode"):
        model.initial_state(2)
