"""Every public name has a docstring with an example, and every example runs."""

import doctest
import functools
import importlib
import inspect
import pkgutil
import re

import pytest

import dualnet
from tests.checks import PAGES, UNTRACED, documented_names, once, resolve

pytestmark = [*UNTRACED, once, pytest.mark.slow]

ROOMS = (
    "dualnet", "dualnet.adaptation", "dualnet.analysis", "dualnet.builders", "dualnet.cards",
    "dualnet.corpora", "dualnet.devices", "dualnet.evaluation", "dualnet.generation",
    "dualnet.layers", "dualnet.learners", "dualnet.lm_eval", "dualnet.looking",
    "dualnet.ray", "dualnet.rescoring", "dualnet.runs", "dualnet.serving", "dualnet.text",
    "dualnet.training", "dualnet.tuning", "dualnet.zoo",
)  # fmt: skip
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(dualnet.__path__, "dualnet.")
    # What PyTorch alone imports is tried in its own test.
    if not module.name.endswith(("__main__", ".transformers"))
)


@functools.cache
def public_objects():
    """Return the public classes and functions by the room and name that users write."""
    homes = {}
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                homes.setdefault(thing, f"{room}.{name}")
    return {home: thing for thing, home in homes.items()}


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    report = []
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        runner.run(example, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)
    assert not list(tmp_path.iterdir())  # an example leaves no files behind


def test_every_public_name_has_a_docstring_with_an_example():
    parse = doctest.DocTestParser().get_examples
    docstrings = {name: (thing.__doc__ or "").strip() for name, thing in public_objects().items()}
    assert all(docstrings.values()), docstrings
    # The example of a function shows its result.
    missing = {name for name, docstring in docstrings.items()
               if not parse(docstring) and not docstring.startswith("The result of `")}  # fmt: skip
    assert not missing, "write a `>>>` example in their docstrings"


def test_every_public_name_is_listed_on_one_page_of_the_documentation():
    listed = documented_names()
    things = [resolve(name) for name in listed]
    assert len(set(listed)) == len(listed) and len(set(things)) == len(things)
    assert set(things) >= set(public_objects().values())
    constants = {
        name for room in ROOMS for name in getattr(importlib.import_module(room), "__all__", ())
        if not callable(thing := getattr(importlib.import_module(room), name))
        and not inspect.ismodule(thing)
    }  # fmt: skip
    pages = "".join(page.read_text("utf-8") for page in PAGES)
    assert constants <= set(re.findall(r"^\.\. py:data:: .*\.(\w+)$", pages, re.MULTILINE))
