"""Settings check and document themselves, without Keras."""

import inspect
import subprocess
import sys

import pytest

import dualnet
from dualnet._fields import Settings, choice, count, field
from dualnet.requests import (
    Drawing,
    DynamicEvaluating,
    Evaluating,
    Exporting,
    Learning,
    Looking,
    Rescoring,
    Surprising,
    Translating,
)


class Layer(Settings):
    """A layer.

    Args:
        units: int, at least 1. Size
            of the output.
        kind: Name of the layer.
    Args (regularisation):
        input_dropout: On the inputs.
        shared: Whether weights are shared.
        limit: Largest value; None for none.
    """

    units: int = 8
    kind: str = choice("dense", ["dense", "sparse"])
    input_dropout: float = 0.0
    shared: bool = False
    limit: float | None = None

    def check(self):
        if self.shared and self.limit:
            raise dualnet.ArgumentError("limit", "must be None for shared weights.")


class WideLayer(Layer):
    """A layer of a class of its own.

    Args:
        units: Number of columns.
        columns: Names of the columns.
        depth: Of the stack.
    """

    columns: list[str] = field([])
    depth: int = count(1, least=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"units": 0}, "`units` must be an integer of at least 1. Received: units=0."),
        ({"units": 1.5}, "`units` must be an integer"),
        ({"kind": "spars"}, "`kind` must be one of .* Did you mean 'sparse'?"),
        ({"input_dropout": 1.0}, "`input_dropout` must be .* below 1 .the fraction to drop"),
        ({"shared": 1}, "`shared` must be a truth value"),
        ({"limit": -1.0}, "`limit` must be a finite number of at least 0"),
        ({"shared": True, "limit": 2.0}, "`limit` must be None for shared weights"),
        ({"unit": 3}, "`unit` must be one of units, kind.* Did you mean 'units'?"),
    ],
)
def test_a_value_is_refused_by_the_name_of_its_field(settings, message):
    with pytest.raises(dualnet.ArgumentError, match=message) as refused:
        Layer.of(settings)
    assert refused.value.argument in settings


def test_fields_are_documented_in_groups_and_a_subclass_adds_to_them():
    assert Layer.groups() == {
        "": {"units": "int, at least 1. Size of the output.", "kind": "Name of the layer."},
        "regularisation": {
            "input_dropout": "On the inputs.",
            "shared": "Whether weights are shared.",
            "limit": "Largest value; None for none.",
        },
    }
    documented = WideLayer.documentation()
    assert documented["units"] == "Number of columns." and documented["kind"].startswith("Name")
    assert WideLayer().columns == [] and WideLayer(depth=2).changed() == {"depth": 2}


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
    ("request_class", "settings", "message"),
    [
        (Drawing, {"beam": 2, "n_best": 3}, "`n_best` must be at most beam"),
        (Drawing, {"beam": 2, "top_k": 3}, "`top_k` cannot be combined with `beam`"),
        (Drawing, {"length_normalization": 1.0}, "`length_normalization` needs `beam`"),
        (
            Evaluating,
            {"window": 3, "batch_size": 2},
            "`batch_size` cannot be combined with `wi",
        ),
        (Evaluating, {"top_k": [0]}, "`top_k` must be an integer of at least 1"),
        (Learning, {"decay": 0.1}, "`decay` is not a setting of the rule 'nadam'"),
        (Surprising, {"rule": "sgd"}, "`rule` needs adapt=True"),
        (Exporting, {"format": "sherpa-onnx"}, "`tokens` must be the file tokens.txt"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(request_class, settings, message):
    with pytest.raises(ValueError, match=message):
        request_class(**settings)


def test_requests_need_no_keras():
    code = "import sys, dualnet.requests; sys.exit('keras' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
