"""The analyses of the papers agree with NumPy; their figures are drawn."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops
from matplotlib import font_manager

from dualnet import analysis, builders, corpora, plots, zoo
from dualnet.text import Vocabulary
from tests.checks import array, by_name, normal, once
from tests.reference import log_softmax

pytestmark = once

WORDS = ("<unk>", "<eos>", *(f"w{i}" for i in range(10)))
COUNT = len(WORDS)


def base(**settings):
    return builders.language_model(
        **{"vocabulary_size": COUNT, "units": 4, "input_dropout": 0.5} | settings
    )


def randomised(model):
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(normal(rng, *weight.shape))
    model.vocabulary = Vocabulary(WORDS)
    return model


@pytest.fixture(scope="module")
def plain():
    return randomised(base(tied=False, output_bias=True))


@pytest.fixture(scope="module")
def gated():
    return randomised(builders.with_gate(base(), 3))


@pytest.fixture(scope="module")
def mixture():
    return mixed([0, 2, 3], recurrent_layers=2)


def mixed(experts, **settings):
    settings |= {"latent_units": 3, "latent_dropout": 0.5, "output_dropout": 0.5}
    return randomised(base(tied=False, output_bias=True, experts=experts, **settings))


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(5).integers(COUNT, size=60).astype("int32")


def whole(graph, model, tokens):
    """Return the first output of `graph` on `tokens` read at once, `(tokens, n)`, float64."""
    states = [np.zeros((1, size), "float32") for size in model.state_size]
    outputs, *_ = graph.predict_on_batch([tokens[None], *states])
    return outputs[0].astype("float64")


def check_png(path, least=10_000):
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and data.endswith(b"IEND\xaeB`\x82")
    assert least < len(data) < 400_000
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # nothing left beside it
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])


# --- gates


def test_the_favoured_words_have_the_largest_gate_values(gated):
    weights = by_name(gated.core.get_layer("gate"))
    favoured = analysis.favoured_words(gated, ["w3", "<unk>"], count=4)
    assert list(favoured) == ["w3", "<unk>"]
    for word, best in favoured.items():
        products = weights["embeddings"][WORDS.index(word)] @ weights["kernel"]
        values = 1 / (1 + np.exp(-products - weights["bias"]))
        ids = sorted(range(COUNT), key=lambda i: -values[i])[:4]
        assert [next_word for next_word, _ in best] == [WORDS[i] for i in ids]
        np.testing.assert_allclose([value for _, value in best], values[ids], rtol=1e-5)
        assert type(best[0][1]) is float


def test_a_gate_and_words_that_do_not_fit_are_refused(gated, plain):
    for arguments, message in [
        ({"model": plain}, r"`model` must have a gate that reads the current token alone"),
        ({"words": ["w1", "w33"]}, r"Received: 'w33'\. Did you mean 'w3'"),
        ({"count": -1}, "`count` must be an integer of at least 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            analysis.favoured_words(**{"model": gated, "words": "w3", **arguments})


# --- experts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experts", "settings", "layers_of_experts"),
    [
        ([0, 2, 3], {"recurrent_layers": 2}, ("recurrence_1",) * 2 + ("recurrence_2",) * 3),
        (4, {"connection": "dual"}, ("connection",) * 4),
    ],
)
def test_shares_are_the_mean_priors_whatever_the_segment_length(
    tokens, experts, settings, layers_of_experts, monkeypatch
):
    model = mixed(experts, **settings)
    core = model.core
    (features, *_) = keras.tree.flatten(core.get_layer(layers_of_experts[-1]).output)
    hidden = whole(keras.Model(core.inputs, [features, *core.outputs[1:]]), model, tokens)
    weights = array(core.get_layer("output").prior_kernel).astype("float64")
    sums = np.exp(log_softmax(hidden @ weights)).sum(0)
    monkeypatch.setattr("dualnet.extras.analysis.SEGMENT", 7)
    used = analysis.expert_shares(model, tokens)
    np.testing.assert_allclose(used.shares, sums / 60, rtol=1e-5)
    assert used.coefficient_of_variation == pytest.approx(sums.std() / sums.mean(), rel=1e-5)
    assert used.tokens == 60 and used.layers == layers_of_experts


@pytest.mark.slow
def test_shares_of_a_translator_are_the_mean_priors_over_its_targets():
    layers = ("embedding", *["recurrence_2"] * 2, *["attentional_vector"] * 3)
    model = randomised(zoo.build("encdec", vocabulary_size=COUNT, units=4, experts=[1, 0, 2, 3]))
    model.source_vocabulary = model.vocabulary
    pairs = corpora.PairSplit(
        ("1 2", "3", "4 5 6"), ("one two", "", "four five"),
        *(np.array(ids, "int32") for ids in ([3, 4, 5, 6, 7, 8], [9, 10, 11, 2])),
        np.array([0, 2, 3, 6]), np.array([0, 2, 2, 4]),
    )  # fmt: skip
    weights = array(model.graph.head.prior_kernel).astype("float64")
    sums = np.zeros(6)
    for index in range(3):
        target = ops.convert_to_tensor([[model.vocabulary.eos_id, *pairs.target(index)]], "int32")
        states = model.encoder(pairs.source(index)[None])
        features, *_ = model.graph.body([target, *states])
        last = features[-1] if isinstance(features, (list, tuple)) else features
        sums += np.exp(log_softmax(array(last)[0] @ weights)).sum(0)
    used = analysis.expert_shares(model, pairs)
    np.testing.assert_allclose(used.shares, sums / 7, rtol=1e-5)
    assert used.tokens == 7 and used.layers == layers


# --- rank


@pytest.mark.parametrize("rows", [60, 10])  # of 12 words: with and without the QR reduction
def test_rank_and_singular_values_are_those_of_numpy(plain, tokens, rows, monkeypatch):
    monkeypatch.setattr("dualnet.extras.analysis.SEGMENT", 7)
    matrix = log_softmax(whole(plain.core, plain, tokens))[:rows]
    values = np.linalg.svd(matrix, compute_uv=False)
    result = analysis.rank(plain, tokens, rows=rows)
    assert result.shape == matrix.shape
    np.testing.assert_allclose(result.singular_values, values, rtol=1e-5, atol=1e-5 * values[0])
    tolerance = max(matrix.shape) * 2.0**-23 * values[0]
    assert result.tolerance == pytest.approx(tolerance, rel=1e-5)
    assert result.rank == np.linalg.matrix_rank(matrix, tol=tolerance)
    between = (values[1] + values[2]) / 2
    result = analysis.rank(plain, tokens, rows=rows, tolerance=between)
    assert (result.rank, result.tolerance) == (2, between)


@pytest.mark.parametrize("settings", [{"rows": -5}, {"rows": 0}, {"tolerance": -1}])
def test_a_rank_of_no_rows_or_with_a_negative_tolerance_is_refused(plain, tokens, settings):
    with pytest.raises(ValueError, match=f"`{min(settings)}` must be a.* of at least"):
        analysis.rank(plain, tokens, **settings)


def test_a_mixture_has_a_higher_rank_than_a_softmax(plain, mixture, tokens):
    assert analysis.rank(plain, tokens).rank == 6  # 4 units, the bias, the normaliser
    assert analysis.rank(mixture, tokens).rank == COUNT  # experts of 3 units each


# --- learning curves


def write_run(folder, train, valid):
    folder.mkdir(parents=True)
    rows = [f"{epoch},train,{a},{b}\n" for epoch, (a, b) in enumerate(zip(train, valid), start=1)]
    (folder / "metrics.csv").write_text("".join(["epoch,phase,perplexity,val_perplexity\n", *rows]))
    return folder


@pytest.fixture
def runs(tmp_path):
    epochs = np.arange(1, 51)
    return {
        name: write_run(tmp_path / "runs" / name, low + 500 / epochs**2, low + 400 / epochs)
        for name, low in (("lstm", 80.0), ("doc", 60.0))
    }


def test_learning_curves_are_the_perplexities_of_the_epochs(runs):
    epochs = np.arange(1, 51)
    curves = analysis.learning_curves(runs)
    assert list(curves) == ["lstm", "doc"]
    np.testing.assert_array_equal(curves["doc"], 60 + 400 / epochs)
    assert curves["doc"].dtype == np.float64
    training = analysis.learning_curves(runs, split="train")["lstm"]
    np.testing.assert_array_equal(training, 80 + 500 / epochs**2)


def test_learning_curves_are_drawn_with_or_without_those_in_training(runs, tmp_path, pictures):
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / "curves.png"
    labels = {"val": {"lstm valid", "doc valid"}}
    labels["both"] = labels["val"] | {"lstm train", "doc train"}
    for split, expected in labels.items():
        analysis.plot_learning_curves(runs, path, split=split)
        assert check_png(path) == (840, 540)
        axes = pictures[-1].axes[0]
        assert {line.get_label() for line in axes.lines} == expected
        said = "dropouts on" in axes.get_legend().get_title().get_text()
        assert said == (split != "val"), "why training lies above validation"


def test_labels_are_drawn_in_the_fonts_that_have_their_characters(tmp_path, pictures, caplog):
    def characters(family):
        font = font_manager.findfont(font_manager.FontProperties(family=family))
        return font_manager.get_font(font).get_charmap().keys()

    rare = chr(max(characters("STIXGeneral") - characters(None)))
    bars = [(label, 0.5) for label in ("läuft", "猫は歩く", rare)]
    panels = {"犬": bars, "no bars": []}
    plots.plot_bars(panels, tmp_path / "bars.png", title="कुत्ता", axis="كلب")
    check_png(tmp_path / "bars.png", least=5000)
    assert not caplog.records
    (text,) = (label for label in pictures[0].axes[0].get_yticklabels() if rare in label.get_text())
    usual, *others = text.get_fontfamily()
    assert usual == "sans-serif" and any(ord(rare) in characters(name) for name in others)


@pytest.mark.parametrize(("epochs", "whole"), [(40, True), (41, False)])
def test_curves_keep_their_first_point_unless_they_are_long(epochs, whole, tmp_path, pictures):
    values = 80 + 3000 / np.arange(1, epochs + 1) ** 2
    plots.plot_curves({"lstm valid": values}, tmp_path / "curves.png", cut=True)
    axes = pictures[0].axes[0]
    assert (values[0] < axes.get_ylim()[1]) == whole
    assert ("cut off" in axes.get_ylabel()) != whole
    labels = [text.get_window_extent() for text in axes.get_yticklabels() if text.get_text()]
    assert len(labels) > 2
    assert all(upper.y0 > lower.y1 for lower, upper in itertools.pairwise(labels))


@pytest.mark.parametrize("tokens", [1, 3000])
def test_curves_by_position_begin_with_the_first_token(tokens, tmp_path, pictures, rng):
    losses = rng.exponential(4.0, tokens)
    losses[0] = 12.0
    plots.plot_positions({"static": losses}, tmp_path / "positions.png")
    (axes,) = pictures[0].axes
    _, running = axes.lines
    assert running.get_xdata()[0] == 1 and len(running.get_xdata()) == tokens
    assert (np.exp(12.0) < axes.get_ylim()[1]) == (tokens <= 30)  # of many, the scale is theirs
