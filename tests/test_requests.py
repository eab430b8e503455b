"""Settings check and document themselves, without Keras."""

import inspect
import typing

import pytest

import dualnet
from dualnet import requests
from dualnet.requests import (
    Drawing,
    DynamicEvaluating,
    Evaluating,
    Exporting,
    Looking,
    Rescoring,
    Surprising,
    Translating,
    format_of,
)
from dualnet.training import Recipe
from dualnet.training.recipe import RecipeArguments
from tests.checks import once

pytestmark = once


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be an integer of at least 1. Received: ba"),
        ({"optimizer": "adma"}, "`optimizer` must be one of .* Did you mean 'adam'"),
        ({"beta_1": 1.0}, "`beta_1` must be .* below 1"),
        ({"partial_shuffle": 1}, "`partial_shuffle` must be a truth value"),
        ({"clipnorm": -1.0}, "`clipnorm` must be a finite number of at least 0"),
        ({"batchsize": 3}, "`batchsize` must be one of optimizer, .* Did you mean 'batch_size'"),
    ],
)
def test_a_value_is_refused_by_the_name_of_its_field(settings, message):
    with pytest.raises(dualnet.ArgumentError, match=message) as refused:
        Recipe.of(settings)
    assert refused.value.argument in settings


@pytest.mark.parametrize(
    ("function", "request_class"),
    [
        (dualnet.evaluate, Evaluating),
        (dualnet.dynamic_evaluation, DynamicEvaluating),
        (dualnet.surprisal, Surprising),
        (dualnet.generate, Drawing),
        (dualnet.generation.translations, Translating),
        (dualnet.rescore, Rescoring),
        (dualnet.look, Looking),
        (dualnet.export, Exporting),
    ],
)
def test_a_function_shows_the_settings_that_it_takes(function, request_class):
    parameters = inspect.signature(function).parameters
    for name, text in request_class.documentation().items():
        assert parameters[name].default == getattr(request_class(), name)
        assert f"\n    {name}: {text[:40]}" in function.__doc__
    assert "{arguments}" not in function.__doc__


@pytest.mark.parametrize(
    ("arguments", "request_class"),
    [
        (requests.DrawingArguments, Drawing),
        (requests.TranslationsArguments, Translating),
        (requests.ExportingArguments, Exporting),
        (requests.ReadingCorpusArguments, requests.ReadingCorpus),
        (requests.EvaluatingArguments, requests.Evaluating),
        (requests.DynamicEvaluatingArguments, requests.DynamicEvaluating),
        (requests.LearnerRuleArguments, requests.LearnerRule),
        (requests.SurprisingArguments, requests.Surprising),
        (requests.LookingArguments, requests.Looking),
        (requests.RescoringArguments, requests.Rescoring),
        (RecipeArguments, Recipe),
    ],
)
def test_type_checkers_know_the_settings_that_a_function_takes(arguments, request_class):
    hints, known = (typing.get_type_hints(one) for one in (request_class, arguments))
    expected = {name: hints[name] for name in request_class.names()}
    assert {"n_best": expected.get("n_best"), **known} == {"n_best": None, **expected}


REFUSED = {
    Drawing: [
        ({"beam": 2, "top_k": 3}, "`top_k` cannot be combined with `beam`.*top_k=3, beam=2"),
        ({"n_best": 2}, "`n_best` needs `beam`"),
    ],
    Translating: [({"beam": 2, "n_best": 3}, "`n_best` must be at most beam")],
    Evaluating: [
        ({"by_sentence": True, "window": 9}, "`window` cannot be combined with by_.*window=9"),
        ({"dropout_scale": 0.5}, "`dropout_scale` needs `mc_dropout_samples`"),
        ({"top_k": 3}, "`top_k` must be a list of integers. Received: top_k=3"),
        ({"top_k": [1], "mc_dropout_samples": 2}, "`top_k` cannot be combined with `mc_d"),
    ],
    DynamicEvaluating: [
        ({"rule": "nadam", "decay": 0.1}, "`decay` is not a setting of the rule 'nadam'"),
        ({"by_sentence": True, "sequence_length": 5}, "`sequence_length` cannot be combined wi"),
    ],
    Surprising: [({"learning_rate": 0.1}, "`learning_rate` needs adapt=True")],
    Looking: [({"rule": "sgd"}, "`rule` needs adapt=True")],
    Exporting: [({"format": "sherpa-onnx"}, "`tokens` must be the file tokens.txt")],
}


@pytest.mark.parametrize(
    ("request_class", "settings", "message"),
    [(kind, *row) for kind, rows in REFUSED.items() for row in rows],
)
def test_settings_that_cannot_be_followed_are_refused(request_class, settings, message):
    with pytest.raises(dualnet.ArgumentError, match=message):
        request_class(**settings)


@pytest.mark.parametrize("path", ["x.pt", "model.onx", "runs/x.H5", "x.tflit", "m.safetensors"])
def test_a_suffix_of_another_format_is_refused_and_the_formats_are_listed(path):
    listed = "the formats are .*saved_model, onnx, litert.* Received: path=.*give the format"
    with pytest.raises(dualnet.ArgumentError, match=listed):
        format_of(path)


@pytest.mark.parametrize("path", ["model-1.2", "runs/v1.0", "dual_lstm.english", "a.onnx/1", "."])
def test_a_folder_may_have_a_dot_in_its_name(path):
    assert format_of(path) == "saved_model"
