"""BLEU, chrF and ROUGE."""

import json
import math
import sys

import pytest

from dualnet.evaluation import rouge, translation_metrics
from tests.checks import once

pytestmark = once

REFERENCES = ["Ein Mann fährt z. B. ein rot-weißes Rad.", "Zwei Hunde spielen im Schnee!"]


def test_bleu_is_that_of_its_definition():
    # Matches of 1 to 4 words: 4 of 5, 3 of 4, 2 of 3, 1 of 2; brevity 5 to 6.
    result = translation_metrics(["a b c d x"], ["a b c d e f"])
    bleu = math.exp(1 - 6 / 5) * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    assert result["bleu"] == pytest.approx(100 * bleu)
    assert (result["hypothesis_length"], result["reference_length"]) == (5, 6)
    assert json.loads(json.dumps(result)) == result


def test_sacrebleu_is_cased_and_reads_plain_text():
    result = translation_metrics(REFERENCES, REFERENCES)
    assert result["bleu"] == pytest.approx(100) and result["chrf"] == pytest.approx(100)
    assert result["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|")
    assert result["chrf_signature"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|")
    lower = [text.lower() for text in REFERENCES]
    assert translation_metrics(lower, REFERENCES)["bleu"] < 60


def test_multi30k_reads_lower_cased_moses_tokens():
    lower = [text.lower() for text in REFERENCES]
    result = translation_metrics(lower, REFERENCES, protocol="multi30k", language="de")
    assert result["bleu"] == pytest.approx(100)
    # ein mann fährt z. b. ein rot-weißes rad . / zwei hunde spielen im schnee !
    assert result["reference_length"] == 9 + 6
    assert result["bleu_signature"].startswith("nrefs:1|case:lc|eff:no|tok:none|smooth:exp|")
    assert (result["protocol"], result["language"]) == ("multi30k", "de")
    assert "chrf" not in result


def test_a_language_whose_rules_sacremoses_lacks_is_refused():
    with pytest.raises(
        ValueError, match="`language` must be one that sacremoses knows.*de, el, en"
    ):
        translation_metrics(["a"], ["a"], protocol="multi30k", language="xx")


def test_chinese_is_divided_as_sacrebleu_does_by_default():
    texts = ["我爱北京天安门。你好世界。"], ["我爱北京的天安门。你好,世界。"]
    result = translation_metrics(*texts, language="zh")
    assert result["bleu"] > 50 > translation_metrics(*texts)["bleu"]
    assert "|tok:zh|" in result["bleu_signature"]


@pytest.mark.parametrize("language", ["German", "lc.norm.tok.de"])
def test_the_language_of_a_side_is_read_from_its_name(language):
    result = translation_metrics(REFERENCES, REFERENCES, protocol="multi30k", language=language)
    assert (result["language"], result["reference_length"]) == ("de", 9 + 6)


def test_rouge_is_that_of_its_definition():
    result = rouge(["the Cat sat", "x"], ["the cats sat on mats", "x"])
    expected = {  # of the first text; the second one has 1 in words, 0 in pairs of words
        "rouge_1": (3 / 5, 3 / 3, 1),
        "rouge_2": (2 / 4, 2 / 2, 0),
        "rouge_l": (3 / 5, 3 / 3, 1),
    }
    for name, (recall, precision, other) in expected.items():
        f1 = 2 * recall * precision / (recall + precision)
        for key, value in (("recall", recall), ("precision", precision), ("f1", f1)):
            assert result[name][key] == pytest.approx(50 * (value + other)), (name, key)
    assert json.loads(json.dumps(result)) == result
    exact = rouge(["the Cat sat"], ["the cats sat on mats"], stem=False)
    assert exact["rouge_1"]["recall"] == pytest.approx(40)


@pytest.mark.parametrize("metric", [translation_metrics, rouge])
def test_empty_texts_score_zero_and_wrong_numbers_are_refused(metric):
    result = metric([""], ["a word"])
    assert result.get("bleu", result.get("rouge_1", {}).get("f1")) == 0
    with pytest.raises(ValueError, match="1 references for 2 hypotheses"):
        metric(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="`hypotheses` must hold at least one text"):
        metric([], [])


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("sacrebleu", lambda: translation_metrics(["a"], ["a"])),
        ("sacremoses", lambda: translation_metrics(["a"], ["a"], protocol="multi30k")),
        ("rouge_score", lambda: rouge(["a"], ["a"])),
    ],
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, package, call):
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf'{package}.*pip install "dualnet\[translate\]"'):
        call()
