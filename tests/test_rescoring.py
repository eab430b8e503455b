"""N-best lists: their formats, what models say of them, weights that a metric chose."""

import numpy as np
import pytest

import dualnet
from dualnet import zoo
from dualnet.builders import questions, reader_of
from dualnet.evaluation import scoring
from dualnet.extras.rescoring import rescoring
from dualnet.rescoring import (
    Bleu,
    BracketF1,
    Hypothesis,
    NBest,
    Wer,
    compare,
    load_weights,
    read_nbest,
    rescore,
    save_weights,
    tune,
    write_nbest,
)
from dualnet.text import Vocabulary
from tests.checks import assert_same, needed, nll, once, strong, values
from tests.test_translation import losses_of

pytestmark = [once, pytest.mark.usefixtures("without_tracing")]

WORDS = ["the", "a", "cat", "dog", "bird", "sees", "finds"]
VOCABULARY = Vocabulary((*WORDS, "<unk>", "<eos>"))
TEXTS = [
    ["the cat sees a dog", "the cat sees a bird", "the cat sees a bird the dog finds a cat", ""],
    ["a zebra finds the dog", "a dog"],
    ["the", "the cat sees a dog the cat sees a dog", "the"],
]
LISTS = [
    NBest(str(k), tuple(Hypothesis(text, {"tm": -0.5 * i}, -1.0 * i) for i, text in enumerate(row)))
    for k, row in enumerate(TEXTS)
]


@pytest.fixture(scope="module", params=["dual_lstm", "lstm"])
def model(request):
    model = zoo.build(request.param, vocabulary_size=len(VOCABULARY), units=4)
    return strong(model, VOCABULARY)


@pytest.fixture(scope="module")
def translator():
    sizes = {"vocabulary_size": len(VOCABULARY), "units": 4, "depth": 1}
    model = strong(zoo.build("attention_gru", **sizes), VOCABULARY)
    model.source_vocabulary = VOCABULARY
    return model


def column(lists, name):
    return [each.features[name] for nbest in lists for each in nbest.hypotheses]


# --- formats

TREE = "(S (NP (NNS dogs)) (VP (VBP bark)))"
WRITTEN = {
    "moses": [
        NBest("0", (Hypothesis("a cat", {"tm": (-1.5, 2.0), "lm": -1e-7}, -3.25, ("0-0", "x")),)),
        NBest("3", (Hypothesis(""), Hypothesis("the cat", {"tm": 1e300}))),
        NBest("1", (Hypothesis("scored", score=-1.0), Hypothesis("kept", rest=("1-1",)))),
        # Sparse features of any sign; white space beyond ASCII at the ends of a text.
        NBest("2", (Hypothesis("\u00a0a\u2028b\x85", dict.fromkeys(["wt_a/b", "p|y"], 2.0)),)),
    ],
    "jsonl": [
        NBest("a|||b", (Hypothesis("läuft |||", {"a b": (1.0, 2.0)}, 0.0, {"start": [1, None]}),)),
        NBest(7, (Hypothesis(""), Hypothesis("two\nlines \u2028", {"wt_a/b": -2.0, "a=b": 1.0}))),
    ],
    "kaldi": [
        NBest("speaker-1-utt", tuple(Hypothesis(t, {"am": 0.1, "ngram": (1.0, 2.0)}, -1.0, n)
                                     for t, n in (("\u202f猫 は\x1c", 2), ("", 3)))),
        NBest("b", (Hypothesis("the cat", {"am": 5.0, "ngram": (0.0, -1.0)}, 0.5, 1),)),
    ],
    "trees": [
        NBest(0, (Hypothesis("(S (NP dogs )NP (VP bark )VP )S", {}, -1.5, TREE),)),
        NBest(1, (Hypothesis("(NP dogs )NP", rest="( (NP-SBJ (NNS dogs)))"),) * 2),
    ],
}  # fmt: skip


def read_again(path, format):
    scores = [f"{path}.{name}" for name in ("am", "ngram", "score")] if format == "kaldi" else []
    return list(read_nbest(path, format=format, scores=scores))


def test_a_list_without_hypotheses_is_refused_by_a_sentence():
    with pytest.raises(dualnet.ArgumentError, match="`hypotheses` must be at least one"):
        NBest("7", ())


@pytest.mark.parametrize("format", WRITTEN)
def test_lists_that_are_written_are_read_again(format, tmp_path):
    write_nbest(tmp_path / "list", WRITTEN[format], format=format)
    found = read_again(tmp_path / "list", format)
    assert found == WRITTEN[format]
    write_nbest(tmp_path / "again", found, format=format)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "list").read_bytes()


def test_spellings_of_other_programs_are_read(tmp_path):
    path = tmp_path / "list"
    path.write_bytes(
        b"\xef\xbb\xbf0 ||| a  cat ||| d: 0 -1 lm=-3 ||| -4\r\n\n0 ||| b ||| -1 -2\r\n"
    )
    [nbest] = read_nbest(path)
    first, second = nbest.hypotheses
    assert (first.text, first.features, first.score) == ("a  cat", {"d": (0, -1), "lm": -3}, -4)
    assert second.features == {"features": (-1, -2)} and second.score is None
    path.write_text("u-1\tthe cat\nu-2\n")
    (tmp_path / "lm_cost.txt").write_text("u-1 3.5\nu-2\t4\n")
    [nbest] = read_nbest(path, format="kaldi", scores=[tmp_path / "lm_cost.txt"])
    assert [(each.text, each.features) for each in nbest.hypotheses] == [
        ("the cat", {"lm_cost": 3.5}), ("", {"lm_cost": 4.0}),
    ]  # fmt: skip


def test_lists_of_marian_may_have_alignments_and_scores_of_words(tmp_path):
    path, before = tmp_path / "list", ["0-0 1-1", "WordScores= -1 2"]
    path.write_text(" ||| ".join(["0", "a cat", *before, "F0= -3.5 F1= 2", "-1.25"]))
    lists = list(read_nbest(path))
    [hypothesis] = lists[0].hypotheses
    assert (hypothesis.features, hypothesis.score) == ({"F0": -3.5, "F1": 2}, -1.25)
    assert hypothesis.rest == tuple(before)
    write_nbest(path, lists)
    assert list(read_nbest(path)) == lists


def test_lists_are_read_as_they_come(tmp_path):
    (tmp_path / "list").write_text("0 ||| a\n0 ||| b\n1 ||| c\nbroken\n")
    lists = read_nbest(tmp_path / "list")
    assert [each.text for each in next(lists).hypotheses] == ["a", "b"]
    with pytest.raises(ValueError, match="line 4"):
        next(lists)


GOOD = {"moses": "0 ||| a", "jsonl": '{"id": 0, "text": "a"}', "kaldi": "u-1 a", "trees": TREE}


@pytest.mark.parametrize(
    ("format", "line", "message"),
    [
        ("moses", "0", "must be 'id ||| words"),
        ("moses", "0 ||| a ||| lm= nan", "must be finite"),
        ("moses", "0 ||| \udcff", "must be UTF-8"),
        ("jsonl", "{", "line 2: Expecting property name"),
        ("jsonl", '{"text": "a"}', "an object with `id` and `text`"),
        ("jsonl", '{"id": 0, "text": "a", "features": {"lm": null}}', "line 2: float"),
        ("jsonl", '{"id": 0, "text": "a", "features": [1]}', "line 2: 'list' object"),
        ("trees", "(S", "is never closed"),
    ],
)
def test_a_malformed_line_is_named_with_its_file(format, line, message, tmp_path):
    path = tmp_path / "list"
    text = "\n".join([GOOD[format], line])
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=message) as error:
        list(read_nbest(path, format=format))
    assert str(path) in str(error.value) and f"line {text.count(chr(10)) + 1}" in str(error.value)


def test_lists_whose_hypotheses_stand_apart_or_lack_a_score_are_refused(tmp_path):
    (tmp_path / "list").write_text("0 ||| a\n1 ||| b\n0 ||| c\n")
    with pytest.raises(ValueError, match="the hypotheses of '0' must stand together"):
        list(read_nbest(tmp_path / "list"))
    (tmp_path / "list").write_text("u-1 a\nu-2 b\n")
    (tmp_path / "lm").write_text("u-1 1\nu-3 1\n")
    with pytest.raises(ValueError, match="must be 'utterance-n words'.*'u-2' lm"):
        list(read_nbest(tmp_path / "list", format="kaldi", scores=[tmp_path / "lm"]))


@pytest.mark.parametrize(
    ("format", "hypothesis", "message"),
    [
        ("moses", Hypothesis("a ||| b"), "must fit the format of Moses"),
        ("kaldi", Hypothesis("a", {"tm": 1.0}), "the same features throughout"),
        ("trees", Hypothesis("a )S"), "must hold one tree"),
    ],
)
def test_lists_without_a_place_in_a_format_leave_files_untouched(
    format, hypothesis, message, tmp_path
):
    (tmp_path / "list").write_text("kept")
    good = Hypothesis("(S a )S", {"lm": 1.0})
    with pytest.raises(ValueError, match=message.replace("|", r"\|")):
        write_nbest(tmp_path / "list", [NBest(0, (good, hypothesis))], format=format)
    assert [path.name for path in tmp_path.iterdir()] == ["list"]
    assert (tmp_path / "list").read_text() == "kept"


def test_a_sentence_without_a_tree_is_refused_and_may_have_an_empty_one(tmp_path):
    path = tmp_path / "list"
    path.write_text("0 failed\n\n(NP (NN fish))\n")
    with pytest.raises(ValueError, match=r"list 0 has no tree. Write \(\)"):
        list(read_nbest(path, format="trees"))
    path.write_text("1 failed\n()\n\n(NP (NN fish))\n")
    failed, _ = read_nbest(path, format="trees")
    assert BracketF1().statistics(failed.best.text, "(NP (NN fish))").tolist() == [0, 0, 1]


# --- scores


def test_features_are_the_log_probabilities_of_score(model):
    found = rescore({"lm": model}, LISTS)
    texts = [f"{text}\n" for row in TEXTS for text in row]
    expected = [score.log_probabilities.sum() for score in dualnet.score(model, texts)]
    np.testing.assert_allclose(column(found, "lm"), expected, rtol=1e-5)
    for nbest, old in zip(found, LISTS, strict=True):
        assert nbest.id == old.id
        for each, before in zip(nbest.hypotheses, old.hypotheses, strict=True):
            words = len(each.text.split())
            others = {"tm": before.features["tm"], "base": before.score, "length": words}
            assert each.features == {**others, "lm": each.score} and each.text == before.text


def test_weights_choose_the_best_hypotheses(model):
    weights = {"length": 2.0, "tm": 0.25, "lm": 0.5}
    for nbest in rescore({"lm": model}, LISTS, weights=weights):
        totals = [
            sum(weight * each.features[name] for name, weight in weights.items())
            for each in nbest.hypotheses
        ]
        assert [each.score for each in nbest.hypotheses] == pytest.approx(totals)
        assert nbest.best == nbest.hypotheses[int(np.argmax(totals))]


@pytest.mark.slow
def test_hypotheses_are_scored_as_if_each_were_alone(model):
    together = column(rescore({"lm": model}, LISTS), "lm")
    hypotheses = [NBest(0, (each,)) for nbest in LISTS for each in nbest.hypotheses]
    alone = [column(rescore({"lm": model}, [each]), "lm")[0] for each in hypotheses]
    np.testing.assert_allclose(together, alone, rtol=1e-5)


@pytest.mark.slow
def test_several_models_are_features_side_by_side(model, translator):
    sources = ["dog a", "bird", "the zebra sees"]
    models = [model, translator, model]
    found = rescore(models, LISTS, sources=sources)
    assert column(found, model.name) == column(found, f"{model.name}_2")
    expected = [
        -losses_of(translator, source, text).sum()
        for source, row in zip(sources, TEXTS)
        for text in row
    ]
    np.testing.assert_allclose(column(found, translator.name), expected, rtol=1e-5)
    for nbest in found:
        for each in nbest.hypotheses:
            parts = [each.features[name] for name in (model.name, translator.name, model.name)]
            assert each.score == pytest.approx(sum(parts))


def test_an_empty_source_has_translations(translator):
    scores = column(rescore(translator, LISTS, sources=["", "a", ""]), translator.name)
    assert np.isfinite(scores).all() and max(scores) < 0


SPARSE = [
    NBest(0, (Hypothesis("a", {"x": -3.0}), Hypothesis("b", {"x": -2.0}), Hypothesis("c"))),
    NBest(1, (Hypothesis("c"), Hypothesis("a", {"y": (4.0, 1.0)}, 1.0))),
]


@pytest.mark.parametrize(
    ("missing", "best", "scores"),
    [("zero", "c", [-3.0, -2.0, 0.0, 0.0, -3.0]), ("lowest", "b", [-3.0, -2.0, -3.0, -3.0, -3.0])],
)
def test_a_feature_that_a_hypothesis_lacks_counts_0_or_the_lowest_of_its_list(
    missing, best, scores
):
    weights = {"x": 1.0, "y_1": -1.0, "base": 1.0, "unused": 0.0}
    found = rescore([], SPARSE, weights=weights, missing=missing)
    assert [each.score for nbest in found for each in nbest.hypotheses] == scores
    assert found[0].best.text == best
    assert "x" not in found[0].hypotheses[2].features  # lists stay as they were
    right = compare(found, [best, "c"], weights, metric=Share(), missing=missing)
    assert right.rescored.value == 100


def test_weights_are_tuned_on_the_numbers_that_missing_features_count():
    lists = [NBest(k, (Hypothesis("no"), Hypothesis("yes", {"lm": -1.0 - k}))) for k in range(3)]
    lists += [NBest(3, (Hypothesis("no", {"lm": -2.0}), Hypothesis("yes", {"lm": -1.0})))]
    lists += [NBest(4, (Hypothesis("no", {"lm": -2.0}), Hypothesis("yes")))]
    shares = {
        missing: compare(lists, ["yes"] * 5, weights, metric=Share(), missing=missing).rescored
        for missing in ("zero", "lowest")
        for weights in [tune(lists, ["yes"] * 5, metric=Share(), missing=missing)]
    }
    assert shares["zero"].value == 60  # a negative weight: less is more
    assert shares["lowest"].value == 20


def test_without_models_old_features_are_weighted():
    [first, *_] = rescore([], LISTS, weights={"base": -1.0})
    assert first.best.text == "" and first.best.score == 3.0


def test_a_carried_state_is_that_of_running_text(model):
    found = rescore({"lm": model}, LISTS, carry=True)
    eos_id = VOCABULARY.eos_id
    running = np.array([eos_id])
    for nbest in found:
        for each in nbest.hypotheses:
            words = VOCABULARY.encode(each.text)
            ids = np.concatenate([running, words, [eos_id]])[None]
            losses = nll(model(ids[:, :-1]), ids[:, 1:])[0]
            lm = -losses[len(running) - 1 :].sum()
            assert each.features["lm"] == pytest.approx(lm, rel=1e-4)
        running = np.concatenate([running, VOCABULARY.encode(nbest.best.text), [eos_id]])


# --- adaptation

RULES = [{"rule": "sgd", "learning_rate": 0.5, "decay": 0.01}, {"learning_rate": 0.05}]
ADDED = ["output_bias", "matrix:2"]  # weights that a model does not have


@pytest.mark.slow
@pytest.mark.parametrize("settings", RULES, ids=["sgd", "nadam"])
def test_a_model_learns_from_each_best_hypothesis_by_the_rules_of_dynamic_evaluation(
    model, settings
):
    before = values(model)
    found = rescore({"lm": model}, LISTS, adapt=True, **settings)
    assert_same(values(model), before)
    best = "".join(f"{nbest.best.text}\n" for nbest in found)
    dynamic = dualnet.dynamic_evaluation(
        model, VOCABULARY.encode(best), by_sentence=True, **settings
    )
    losses = dynamic.segment_losses * dynamic.segment_lengths
    np.testing.assert_allclose([-nbest.best.score for nbest in found], losses, rtol=1e-4)
    # The others are scored by the weights of the same moment.
    first = VOCABULARY.encode(f"{found[0].best.text}\n")
    try:
        dualnet.dynamic_evaluation(model, first, by_sentence=True, keep=True, **settings)
        texts = [f"{text}\n" for text in TEXTS[1]]
        expected = [score.log_probabilities.sum() for score in dualnet.score(model, texts)]
    finally:
        model.set_weights(before)
    np.testing.assert_allclose(column(found[1:2], "lm"), expected, rtol=1e-4)
    static = column(rescore({"lm": model}, LISTS), "lm")
    assert not np.allclose(static[4:], column(found[1:], "lm"), rtol=1e-3)


def test_weights_that_are_added_count_in_the_scores_of_the_next_lists(model):
    settings = {"rule": "sgd", "learning_rate": 2.0}
    found = rescore({"lm": model}, LISTS, adapt=True, adapt_weights=ADDED, **settings)
    best = VOCABULARY.encode("".join(f"{nbest.best.text}\n" for nbest in found))
    dynamic = dualnet.dynamic_evaluation(model, best, by_sentence=True, adapt=ADDED, **settings)
    losses = dynamic.segment_losses * dynamic.segment_lengths
    np.testing.assert_allclose([-nbest.best.score for nbest in found], losses, rtol=1e-4)


def test_a_carried_state_is_that_of_the_weights_before_the_step(model):
    settings = RULES[0]
    found = rescore({"lm": model}, LISTS[:2], adapt=True, carry=True, **settings)
    before = values(model)
    best = VOCABULARY.encode(f"{found[0].best.text}\n")
    read = np.append(VOCABULARY.eos_id, best[:-1]).astype("int32")
    states = rescoring.state_after(model, read)
    try:
        dualnet.dynamic_evaluation(model, best, by_sentence=True, keep=True, **settings)
        streams = [
            np.array([VOCABULARY.eos_id, *VOCABULARY.encode(f"{text}\n")]) for text in TEXTS[1]
        ]
        reader = reader_of(model, questions.losses)
        losses = scoring.read(reader, streams, begin=states)["losses"]
    finally:
        model.set_weights(before)
    expected = [-row.sum() for row in losses]
    np.testing.assert_allclose(column(found[1:], "lm"), expected, rtol=1e-4)


@pytest.mark.slow
def test_each_model_has_its_own_statistics_for_rms(model):
    tokens = np.arange(len(VOCABULARY)).repeat(3)
    statistics = dualnet.gradient_statistics(model, tokens, batch_size=1)
    settings = {"adapt": True, "rule": "rms", "learning_rate": 0.01}
    one = rescore({"lm": model}, LISTS, statistics=statistics, **settings)
    several = rescore({"lm": model}, LISTS, statistics={"lm": statistics}, **settings)
    assert column(several, "lm") == column(one, "lm")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": {"lengt": 1.0}}, "of features of the lists.*Did you mean 'length'"),
        ({"sources": ["a"] * 3}, "`sources` must be given if a model translates, else not"),
        ({"name": "tm"}, "must have names that no feature of the lists has"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_anything_is_scored(
    model, arguments, message, monkeypatch
):
    monkeypatch.setattr(rescoring.scoring, "read", None)  # not called
    arguments = dict(arguments)
    with pytest.raises(ValueError, match=message):
        rescore({arguments.pop("name", "lm"): model}, LISTS, **arguments)


# --- metrics

ENGLISH = ["The cat, it sees a dog.", "a cat", "a b c d e f g", "x", "no such words at all here"]
REFERENCES = ["The cat sees a dog.", "a cat", "a b c x d e f g h", "a longer one", "ja"]


def summed(metric, hypotheses, references):
    rows = [metric.statistics(*pair) for pair in zip(hypotheses, references)]
    return metric.value(sum(rows))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_sums_of_sentences_are_the_bleu_and_the_wer_of_the_corpus(count):
    sacrebleu, jiwer = needed("rescore", "sacrebleu", "jiwer")
    ours, theirs = ENGLISH[:count], REFERENCES[:count]
    bleu = sacrebleu.corpus_bleu(ours, [theirs]).score
    assert summed(Bleu(), ours, theirs) == pytest.approx(bleu)
    assert summed(Wer(), ours, theirs) == pytest.approx(100 * jiwer.wer(theirs, ours))


# --- weights


class Share:
    """The share of lists whose hypothesis is the right one: a metric of one's own."""

    higher_is_better = True

    def statistics(self, hypothesis, reference):
        return np.array([hypothesis == reference, 1.0])

    def value(self, sums):
        return 100 * sums[0] / sums[1]


TRUE = {"a": 0.6, "b": -0.3, "c": 0.1}


def made_up(count=40, size=6, noise=0.0):
    """Return lists whose right hypothesis is the one that known weights choose."""
    numbers = np.random.default_rng(5)
    lists, references = [], []
    for k in range(count):
        rows = numbers.normal(size=(size, 3))
        totals = rows @ list(TRUE.values()) + noise * numbers.normal(size=size)
        hypotheses = tuple(
            Hypothesis(f"w{i}", dict(zip(TRUE, row.tolist()))) for i, row in enumerate(rows)
        )
        lists.append(NBest(k, hypotheses))
        references.append(f"w{totals.argmax()}")
    return lists, references


def test_known_weights_are_found_again():
    lists, references = made_up()
    weights = tune(lists, references, metric=Share(), starts=3)
    assert sum(map(abs, weights.values())) == pytest.approx(1)
    assert weights == pytest.approx(TRUE, abs=0.1)
    assert compare(lists, references, weights, metric=Share()).rescored.value == 100


def test_a_feature_that_is_the_same_in_each_list_has_no_weight():
    lists, references = made_up(count=20)
    for k, nbest in enumerate(lists):
        for each in nbest.hypotheses:
            each.features["same"] = 1234.1 * k
    weights = tune(lists, references, metric=Share(), starts=3)
    assert weights.pop("same") == 0 and weights == pytest.approx(TRUE, abs=0.1)


def test_weights_never_do_worse_than_the_order_of_the_lists():
    first = [NBest(0, (Hypothesis("right", {"a": 1.0}), Hypothesis("wrong", {"a": 1.0})))]
    assert tune(first, ["right"], metric=Share()) == {"a": 0.0}


@pytest.mark.parametrize("metric", ["bleu", "wer", "f1"])
def test_weights_are_tuned_on_each_metric(metric):
    needed("rescore", "sacrebleu", "jiwer")
    right, wrong = {
        "f1": ("(S (NP a b )NP c d )S", "(S a (NP b c d )NP )S"),
    }.get(metric, ("a b c d e", "a x c d"))
    bad = [Hypothesis(wrong, {"lm": -2.0, "tm": float(k)}) for k in range(4)]
    good = Hypothesis(right, {"lm": -1.0, "tm": 0.0})
    lists = [NBest(k, (each, good)) for k, each in enumerate(bad)]
    reference = "(S (NP (D a) (N b)) (V c) (R d))" if metric == "f1" else right
    references = [reference] * 4
    found = compare(lists, references, tune(lists, references, metric=metric), metric=metric)
    assert found.rescored.value == found.oracle.value == (0 if metric == "wer" else 100)
    assert found.base.value != found.rescored.value
    assert found.difference.value == pytest.approx(found.rescored.value - found.base.value)


@pytest.mark.parametrize("metric", ["wer", "bleu"])
def test_no_choice_is_better_than_the_oracle(metric):
    needed("rescore", "sacrebleu", "jiwer")
    numbers = np.random.default_rng(2)
    words = [" ".join(numbers.choice(WORDS, size=6)) for _ in range(60)]
    lists = [
        NBest(k, tuple(Hypothesis(text, {"a": float(numbers.normal())}) for text in words[k::10]))
        for k in range(10)
    ]
    references = [" ".join(numbers.choice(WORDS, size=6)) for _ in lists]
    found = compare(lists, references, {"a": 1.0}, metric=metric)
    again = compare(lists, references, {"a": -1.0}, metric=metric)
    sign = 1 if metric == "bleu" else -1
    for figures in (found, again):
        assert sign * figures.oracle.value >= sign * figures.rescored.value
        for figure in (figures.base, figures.rescored, figures.oracle):
            assert figure.low <= figure.value <= figure.high
    assert found.oracle == again.oracle and found.base == again.base
    assert found == compare(lists, references, {"a": 1.0}, metric=metric)
    if metric == "wer":
        best = [min(Wer().statistics(each.text, reference)[0] for each in nbest.hypotheses)
                for nbest, reference in zip(lists, references)]  # fmt: skip
        assert found.oracle.value == pytest.approx(100 * sum(best) / 60)


def test_weights_are_kept_in_a_file(tmp_path):
    path = tmp_path / "weights.toml"
    save_weights(path, {"lm": 0.1, "tm_1": -1e-9, "a.b c": np.float32(2)}, metric="wer", seed=3)
    assert load_weights(path) == {"lm": 0.1, "tm_1": -1e-9, "a.b c": 2.0}
    assert path.read_text().startswith('metric = "wer"\nseed = 3\n\n[weights]\n')


def test_lists_without_references_or_features_are_refused(tmp_path):
    with pytest.raises(ValueError, match="2 references for 3 lists"):
        tune(LISTS, ["a", "b"], metric=Share())
    (tmp_path / "weights.toml").write_text("weights = 3")
    with pytest.raises(ValueError, match=r"weights.toml"):
        load_weights(tmp_path / "weights.toml")
