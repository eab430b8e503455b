"""Unused models are freed: notebooks build and train one model after another."""

import gc
import weakref

import pytest

import dualnet
from dualnet.training import Recipe
from tests.checks import once

pytestmark = once


@pytest.fixture(autouse=True)
def no_earlier_objects():
    """Leave what earlier tests made to itself, which the collector would count again each time."""
    gc.freeze()
    yield
    gc.unfreeze()


def collect():
    for _ in range(2):  # the second time for what the model referred to
        gc.collect()


def use(model, corpus):
    """Train `model` for a step, evaluate it and adapt it."""
    optimizer = Recipe(optimizer="nadam", batch_size=2, sequence_length=5).make_optimizer()
    model.compile(optimizer=optimizer, jit_compile=False)
    model.train_on_batch(*corpus.batches("train", batch_size=2, sequence_length=5)[0])
    dualnet.evaluate(model, corpus.test[:4])
    dualnet.dynamic_evaluation(model, corpus.test[:7], sequence_length=2)


def count_graphs():
    collect()
    return sum(type(thing).__name__ == "FuncGraph" for thing in gc.get_objects())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [("dual_mdlstm", {"rounds": 1, "recurrent_layers": 1}), ("lstm", {"experts": 2})],
)
def test_a_model_that_was_used_leaves_no_graph_behind_and_is_freed(build, corpus, name, options):
    model = build(name, **options)
    use(model, corpus)
    before = count_graphs()
    dualnet.dynamic_evaluation(model, corpus.test[:7], sequence_length=2)
    assert count_graphs() == before
    parts = [model, *model.core.layers]
    parts += [layer.cell for layer in model.core.layers if hasattr(layer, "cell")]
    references = {part.name: weakref.ref(part) for part in parts}
    assert "cell_1" in references and "output" in references
    del model, parts
    collect()
    assert [name for name, part in references.items() if part() is not None] == []
