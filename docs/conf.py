"""Configuration of Sphinx. `make docs` builds the pages without a network."""

import functools
import importlib
import importlib.metadata
import os
import re
import shutil
from pathlib import Path

from sphinx.util import inspect

import dualnet

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

project = "dualnet"
author = "the dualnet authors"
copyright = author
release = importlib.metadata.version("dualnet")

extensions = [
    "myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon",
]  # fmt: skip
exclude_patterns = ["_build", "jupyter_execute"]  # which myst_nb writes beside it
templates_path = ["_templates"]
smartquotes = False  # a quotation mark may be a string's, an apostrophe a prime
html_theme = "furo"
html_title = f"dualnet {release}"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# The notebooks of examples/, which docs/examples links to, are run at each build; a cell that fails
# ends it. Their links are resolved from examples/; between pages and notebooks, use {doc}.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_in_temp = True
nb_output_stderr = "remove"  # what TensorFlow logs
nb_merge_streams = True

autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False  # Keras's text on `call` says nothing about a layer of ours
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# Each public name has a page, a file in api/names that is written anew by each build.
NAMES = Path(__file__).parent / "api" / "names"
# A class and a function may differ by one capital only, which some file systems do not tell apart.
autosummary_filename_map = {
    f"dualnet.{name}": f"dualnet.{name}-function"
    for name in ("analysis.rank", "builders.transfer", "evaluation.comparable")
}
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Call arguments", "params_style"), "Weights", "Rules", "Endpoints"]
# The pages are built without a network, hence without the inventories of other projects.
# Annotations name private classes, too.
nitpick_ignore_regex = [("py:.*", r"(?!dualnet\.).*"), ("py:class", ".*")]

ROOMS = (
    "layers", "text", "corpora", "builders", "runs", "zoo", "evaluation", "adaptation",
    "generation", "training", "tuning", "analysis", "looking", "rescoring", "serving", "lm_eval",
    "ray", "devices",
)  # fmt: skip
EQUATION = re.compile(r"[^`.:]{1,40} = ")
ALIGNED = re.compile(r"\S {2,}\S")
CODE = re.compile(r"(`+[^`]+`+)")


@functools.cache
def public_names():
    """Return the full name of each public object by the names that a docstring may use."""
    names, homes = {}, {}
    for room in ROOMS:
        module = importlib.import_module(f"dualnet.{room}")
        top_level = [name for name, home in dualnet._FUNCTIONS.items() if home == room]
        for name in [*getattr(module, "__all__", ()), *top_level]:
            if callable(thing := getattr(module, name)):
                full = homes.setdefault(thing, f"dualnet.{room}.{name}")
                names |= dict.fromkeys([f"dualnet.{room}.{name}", f"{room}.{name}"], full)
                names[f"dualnet.{name}"] = full
                if not name.islower():
                    names.setdefault(name, full)
    return names


def is_formula(rows):
    """Return whether a paragraph is equations or aligned columns, to be kept as it stands."""
    if rows[0].startswith((" ", "- ")):
        return False
    return any(map(ALIGNED.search, rows)) or all(map(EQUATION.match, rows))


def markup(row, own, names):
    """Escape a row's plain text; link `code` that is a public name, and quote other code."""
    pieces = CODE.split(row)
    pieces[::2] = [re.sub(r"([*|\\]|_\b)", r"\\\1", text) for text in pieces[::2]]
    for i, piece in enumerate(pieces[1::2]):
        code = piece.strip("`")
        target = names.get(code, own)
        quoted = f"``{code}``" if target == own else f":py:obj:`{code} <{target}>`"
        pieces[2 * i + 1] = f"\\ {quoted}\\ "  # an escaped space: code may touch a letter
    return "".join(pieces).removesuffix("\\ ")  # it would swallow the end of the line


def to_restructured_text(app, what, name, obj, options, lines):
    """Make a docstring of plain text and backticks into reStructuredText, before napoleon."""
    names = public_names()
    paragraphs = []
    for paragraph in "\n".join(lines).split("\n\n"):
        rows = paragraph.split("\n")
        examples = [i for i, row in enumerate(rows) if row.lstrip().startswith(">>>")]
        start = examples[0] if examples else len(rows)  # an example ends with its paragraph
        if start and is_formula(rows[:start]):
            rows = ["::", "", *(f"    {row}" for row in rows)]
        else:
            rows[:start] = [markup(row, name, names) for row in rows[:start]]
        paragraphs.append("\n".join(rows))
    lines[:] = "\n\n".join(paragraphs).split("\n")


def keras_signature(app, what, name, obj, options, signature, annotation):
    """Show the arguments of `__init__`, which Keras hides behind its own `__new__`."""
    if what == "class" and signature == "(*args, **kwargs)":
        init = inspect.signature(obj.__init__, bound_method=True)
        return inspect.stringify_signature(init, unqualified_typehints=True), annotation
    return None


def skip_of_others(app, what, name, obj, skip, options):
    """Skip the methods and properties that a class inherits from Keras or Python."""
    function = getattr(obj, "fget", None) or getattr(obj, "func", obj)
    return skip or not str(getattr(function, "__module__", project)).startswith(project)


def remove_pages_of_names(app):
    """Remove the pages of names, so that none outlives its name."""
    shutil.rmtree(NAMES, ignore_errors=True)


def setup(app):
    app.connect("builder-inited", remove_pages_of_names, priority=1)  # autosummary writes them
    app.connect("autodoc-skip-member", skip_of_others)
    app.connect("autodoc-process-docstring", to_restructured_text, priority=1)
    app.connect("autodoc-process-signature", keras_signature)
