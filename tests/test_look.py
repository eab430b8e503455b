"""The page of `dualnet.look`: its figures, its text, its errors, and that it is complete."""

import html
import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from keras import ops

import dualnet
from dualnet import analysis, builders, looking
from dualnet.text import Vocabulary
from tests import commands
from tests.checks import assert_same, few_elsewhere, once, small, strong, values
from tests.test_surprisal import TEXT, TOKENIZERS

pytestmark = once

SGD = {"rule": "sgd", "learning_rate": 0.1, "sequence_length": 10}


def a_model(name="dual_lstm", tokenizer=TOKENIZERS["words"], seed=4):
    return strong(small(tokenizer, name), seed=seed)


@pytest.fixture(scope="module", params=TOKENIZERS)
def model(request):
    return a_model(tokenizer=TOKENIZERS[request.param])


def data_of(page):
    """Return the data of a page, as its script reads them."""
    document = page if isinstance(page, str) else page.html
    source = re.search(r'<script [^>]*id="data">(.*?)</script>', document, re.DOTALL)[1]
    data = json.loads(source)
    return {**data, "names": {int(i): name for i, name in data["names"].items()}}


def logits_of(model, text):
    """Return the ids of a text and the logits of each, by one call of the model."""
    ids = np.append(model.vocabulary.eos_id, model.vocabulary.encode(text)).astype("int32")
    return ids[1:], ops.convert_to_numpy(model(ids[None, :-1]))[0]


def table(data, reading, key):
    """Return a column of a reading, a row for each token, with ids by their names."""
    column = reading[key]
    if key in ("likeliest", "favoured"):
        column = [data["names"][i] for i in column]
    return np.array(column).reshape(len(data["ids"]), -1)


# --- figures -------------------------------------------------------------------------


def test_the_figures_are_those_of_surprisal_and_of_the_sorted_logits(model, monkeypatch):
    monkeypatch.setattr("dualnet.looking.reading.SEGMENT", 5)  # read in several pieces
    page = dualnet.look(model, TEXT, temperature=1.3)
    data = data_of(page)
    (reading,) = data["readings"]
    records = dualnet.surprisal(model, TEXT, temperature=1.3)
    bits = [record["surprisal"] for record in records]
    np.testing.assert_allclose(reading["bits"], bits, rtol=1e-4, atol=2e-5)
    assert [data["names"][i] for i in data["ids"]] == [record["token"] for record in records]
    ids, logits = logits_of(model, TEXT)
    names, order = np.array(model.vocabulary.words), np.argsort(-logits, axis=-1, kind="stable")
    position = {name: i for i, name in enumerate(names.tolist())}
    found = np.vectorize(position.get)(table(data, reading, "likeliest"))
    assert all(len(set(row)) == found.shape[1] for row in found.tolist())
    likeliest = np.take_along_axis(logits, order[:, :5], -1)  # PyTorch has no order of equal ones
    np.testing.assert_allclose(np.take_along_axis(logits, found, -1), likeliest, atol=1e-5)
    assert reading["ranks"] == [int((row >= row[i]).sum()) for i, row in zip(ids, logits)]
    scaled = logits.astype("float64") / 1.3
    p = np.exp(scaled) / np.exp(scaled).sum(-1, keepdims=True)
    expected = np.take_along_axis(p, order[:, :5], -1)
    np.testing.assert_allclose(table(data, reading, "probabilities"), expected, atol=2e-6)
    perplexity = 2 ** np.mean(bits)
    np.testing.assert_allclose(page.perplexities[0]["fixed"], perplexity, rtol=1e-5)
    np.testing.assert_allclose(reading["perplexity"], perplexity, rtol=1e-5)
    assert page.units == len(ids)


@pytest.mark.slow
@pytest.mark.parametrize("weights", few_elsewhere([None, "output_bias"]))
def test_learning_has_the_losses_of_dynamic_evaluation_and_restores_the_weights(model, weights):
    before = values(model)
    text = TEXT * 2
    page = dualnet.look(model, text, adapt=True, adapt_weights=weights, **SGD)
    fixed, learning = data_of(page)["readings"]
    assert_same(values(model), before)
    ids = np.append(model.vocabulary.eos_id, model.vocabulary.encode(text)).astype("int32")
    dynamic = dualnet.dynamic_evaluation(model, ids, adapt=weights, **SGD)
    ends = np.cumsum(dynamic.segment_lengths)[:-1]
    nats = np.array(learning["bits"]) * math.log(2)
    losses = [part.mean() for part in np.split(nats, ends)]
    np.testing.assert_allclose(losses, dynamic.segment_losses, rtol=1e-4)
    assert (fixed["segment"], learning["segment"]) == (None, 10)
    np.testing.assert_allclose(fixed["bits"][:10], learning["bits"][:10], rtol=1e-5)
    gains = np.subtract(fixed["bits"], learning["bits"])
    assert gains.sum() > 0.1 if weights is None else abs(gains).max() > 0.01  # it has learnt


def test_a_gate_shows_the_words_that_it_favours_after_each_word():
    words = TOKENIZERS["words"]
    model = strong(builders.with_gate(a_model(), 3), words)
    data = data_of(dualnet.look(model, TEXT * 2, adapt=True, **SGD))
    fixed, learning = data["readings"]
    favoured, gates = (table(data, fixed, key) for key in ("favoured", "gates"))
    before = ["<eos>", *(data["names"][i] for i in data["ids"][:-1])]
    for word, names, gate in zip(before, favoured, gates):
        expected = analysis.favoured_words(model, word)[word]
        assert names.tolist() == [name for name, _ in expected]
        np.testing.assert_allclose(gate, [value for _, value in expected], atol=1e-4)
    changed = (gates != table(data, learning, "gates")).any(axis=1)
    assert not changed[:10].any() and changed[10:].any()  # the gate learns, too


@pytest.mark.parametrize("experts", [3, [1, 2]])
def test_a_mixture_shows_the_share_of_each_expert(experts):
    words = TOKENIZERS["words"]
    settings = {"experts": experts} if experts == 3 else {"experts": experts, "recurrent_layers": 1}
    model = strong(builders.language_model(len(words), units=4, **settings), words)
    data = data_of(dualnet.look(model, TEXT))
    (reading,) = data["readings"]
    shares = table(data, reading, "shares")
    assert shares.shape == (len(data["ids"]), 3)
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=2e-4)
    stream = np.append(words.eos_id, words.encode(TEXT)[:-1]).astype("int32")
    used = analysis.expert_shares(model, stream)
    np.testing.assert_allclose(shares.mean(axis=0), used.shares, atol=1e-4)


def test_the_inside_of_a_model_has_the_means_of_its_gates_and_the_parts_of_each_logit(model):
    (reading,) = data_of(dualnet.look(model, TEXT))["readings"]
    gates = analysis.inside(model, TEXT).layers["recurrence_1", "f"]
    found = reading["inside"]
    np.testing.assert_allclose(found["mean of f in recurrence_1"], gates.mean(1), atol=1e-3)
    parts = analysis.contributions(model, TEXT)
    bits = parts["input"] / math.log(2)
    np.testing.assert_allclose(found["bits that the word before adds"], bits, atol=1e-3)
    both = data_of(dualnet.look(a_model("lstm"), TEXT, adapt=True, **SGD))["readings"]
    labels = [f"mean of {gate} in recurrence_1" for gate in "ifo"]
    assert [sorted(each["inside"]) for each in both] == [sorted(labels), []]


# --- text ----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_pieces_are_the_text_again(model):
    for text in (TEXT, "\n\n the\tcat", "Katze läuft"):
        data = data_of(dualnet.look(model, text))
        pieces = zip(data["before"], data["pieces"], strict=True)
        assert "".join(map("".join, pieces)) + data["after"] == text
        assert len(data["ids"]) == len(data["pieces"])


def test_words_are_those_of_surprisal_and_characters_are_whole(model):
    text = "The “cat” — 5\u00a0dogs\nläuft"
    data = data_of(dualnet.look(model, text))
    if list(data["levels"]) == ["word"]:  # the tokens are words
        assert data["levels"]["word"] == [*range(len(data["ids"]))]
        return
    assert list(data["levels"]) == ["token", "word"]
    words = dualnet.surprisal(model, text, words=True)
    sums = np.add.reduceat(data["readings"][0]["bits"], data["levels"]["word"])
    np.testing.assert_allclose(sums, [word["surprisal"] for word in words], rtol=1e-3)
    ends = [*data["levels"]["token"][1:], len(data["ids"])]
    pieces = ["".join(data["pieces"][i:j]) for i, j in zip(data["levels"]["token"], ends)]
    assert all(pieces) and "“" in "".join(pieces) and len(pieces) <= len(text)


def test_no_text_and_no_name_can_leave_its_place():
    attack = "</script><script>alert(1)</script><!-- & ' \" \u2028 <img>"
    words = Vocabulary((*attack.split(), "<unk>", "<eos>"))
    page = dualnet.look({attack: a_model(tokenizer=words)}, attack)
    plain = dualnet.look({"plain": a_model(tokenizer=words)}, words.words[2])
    for tag in ("<script", "</script", "<img", "<!--", "alert(1)"):
        assert page.html.count(tag) - 2 * (tag == "alert(1)") * 3 <= plain.html.count(tag)
    data = data_of(page)
    assert data["models"] == [attack]
    assert "".join(b + p for b, p in zip(data["before"], data["pieces"])) == attack
    assert html.escape(attack, quote=False).split(" &amp;")[0] in page.html  # in the title


# --- the page ------------------------------------------------------------------------


def test_the_saved_page_is_complete_and_refers_to_no_other_file(tmp_path):
    page = dualnet.look([a_model(), a_model("lstm")], TEXT, adapt=True, **SGD)
    page.save(tmp_path / "page.html")
    saved = (tmp_path / "page.html").read_text("utf-8")
    assert saved == page.html and saved.endswith("</html>\n")
    assert not re.search(r"https?:|//[a-z]|\bsrc=|<link|@import|url\(|{{|{%", saved)
    for file in ("page.css", "page.js"):
        assert Path(looking.__file__).with_name(file).read_text("utf-8").strip() in saved
    data = data_of(saved)
    assert data["models"] == ["dual_lstm", "lstm"] and len(data["readings"]) == 4
    assert [(r["model"], r["kind"]) for r in data["readings"]] == [
        (0, "fixed"), (0, "learning"), (1, "fixed"), (1, "learning")
    ]  # fmt: skip
    assert "<h1>How dual_lstm and lstm read this text</h1>" in saved


def test_a_notebook_shows_the_page_in_a_frame_of_its_own():
    page = dualnet.look(a_model(), TEXT)
    frame = page._repr_html_()
    source = re.fullmatch(r'<iframe srcdoc="([^"]*)" title="[^"]+" style="[^"]+"></iframe>', frame)
    assert html.unescape(source[1]) == page.html


def test_the_text_can_be_read_on_every_colour():
    style = Path(looking.__file__).with_name("page.css").read_text("utf-8")
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", part))
        for part in style.split("@media (prefers-color-scheme: dark)", 1)
    )

    def luminance(colour):
        parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.03928, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    def contrast(one, two):
        low, high = sorted(map(luminance, (one, two)))
        return (high + 0.05) / (low + 0.05)

    for colours in (light, dark):
        for name in [f"{scale}{k}" for scale in "sd" for k in range(9)]:
            assert contrast(colours[name], colours[f"{name}-ink"]) >= 4.5, name
        for name in ("ink", "muted", "accent"):
            assert contrast(colours[name], colours["card"]) >= 4.5, name


@pytest.mark.slow
def test_models_have_names_that_differ(tmp_path):
    model = a_model("lstm")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        model.save(tmp_path / folder / "one.keras")
    paths = [tmp_path / "a" / "one.keras", str(tmp_path / "b" / "one.keras")]
    names = data_of(dualnet.look([*paths, model, model], "the"))["models"]
    assert names == [str(paths[0]), paths[1], "lstm", "lstm (2)"]
    assert data_of(dualnet.look(paths[0], "the"))["models"] == ["one"]


# --- the command ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with two models, a text, and a file that is none."""
    folder = tmp_path_factory.mktemp("look")
    a_model().save(folder / "dual.keras")
    a_model("lstm", seed=5).save(folder / "plain.keras")
    (folder / "text.txt").write_text(TEXT, "utf-8")
    (folder / "unknown.txt").write_text("zebra\nzebras")
    return folder


@pytest.mark.slow
@once
@pytest.mark.parametrize(
    "arguments",
    [
        "{dual} {plain} --output {page} {text}",
        "--output {page} --text 'The cat, the dog.' --text 'the  Katze läuft \n' {dual} {plain}",
    ],
)
def test_the_command_writes_the_page_of_the_library(arguments, files, tmp_path, cli):
    output = tmp_path / "page.html"
    places = {"dual": files / "dual.keras", "plain": files / "plain.keras", "page": output}
    printed = cli(f"look {arguments.format(text=files / 'text.txt', **places)}")
    page = dualnet.look({"dual": a_model(), "plain": a_model("lstm", seed=5)}, TEXT)
    assert data_of(output.read_text("utf-8")) == data_of(page)
    assert f"perplexity on 9 tokens; the page is {output}" in printed
    for row in page.perplexities:
        assert re.search(rf"^{row['fixed']:.2f} +{row['name']}$", printed, re.MULTILINE)


@pytest.mark.slow
@once
def test_the_command_learns_and_prints_json(files, tmp_path, cli):
    output = tmp_path / "page.html"
    learn = "--adapt --rule sgd --set learning_rate=0.1 sequence_length=10"
    command = f"look {files}/dual.keras --output {output} {learn} --text"
    text = TEXT + "the cat, the dog."
    result = cli.json(f"{command} '{text}'")
    page = dualnet.look({"dual": a_model()}, text, adapt=True, **SGD)
    assert data_of(output.read_text("utf-8")) == data_of(page)
    assert result == {"output": str(output), "tokens": 13, "models": page.perplexities}


@once
def test_the_command_reads_standard_input(files, tmp_path, cli, monkeypatch):
    data = (files / "text.txt").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    cli(f"look {files}/dual.keras - --output {tmp_path}/page.html")
    page = dualnet.look(files / "dual.keras", TEXT)
    assert data_of((tmp_path / "page.html").read_text("utf-8")) == data_of(page)


BAD = commands.REFUSED["looking"]


@once
@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_sentence(words, files, tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = {"dual": files / "dual.keras", "unknown": files / "unknown.txt"}
    command = words.format(page="--output page.html", **places)
    assert BAD[words] in cli.refused(f"look {command}")
    assert not list(tmp_path.iterdir())


def test_models_with_different_tokenisers_do_not_share_a_page():
    models = {name: a_model(tokenizer=tokenizer) for name, tokenizer in TOKENIZERS.items()}
    with pytest.raises(ValueError, match="must have one tokeniser.*'words' with.*'bytes' with"):
        dualnet.look(models, TEXT)
