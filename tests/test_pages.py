"""The code on the pages of the documentation runs.

Blocks of `bash` and `python` run in the order of their page; a block of `toml` whose first line
is a comment with a file name is written to that file. Blocks of `console` are not run: they need
a corpus to download, other machines or hours. Their `dualnet` commands must parse. The embedded
corpus has a part of its lines here: what the pages say is tried, not how well they learn.
"""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from dualnet import zoo
from dualnet.cli import main
from dualnet.cli.command import command_of, parser_of
from dualnet.corpora import python_reference
from tests.checks import once
from tests.searches import in_this_process

pytestmark = [once, pytest.mark.slow, pytest.mark.usefixtures("short_fits_are_not_traced")]

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(bash|python|toml|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if BLOCK.search(path.read_text("utf-8"))
)
# Pages that read RUN folders of another one.
NEEDS = {
    page: ["docs/quickstart.md"]
    for page in PAGES
    if page.startswith("docs/guides/") and "runs/dual" in (ROOT / page).read_text("utf-8")
}
NEEDS["docs/guides/surprisal.md"] = ["docs/quickstart.md", "docs/guides/combining.md"]
SHARED = {*NEEDS, *(page for needed in NEEDS.values() for page in needed)}


@pytest.fixture(scope="module", autouse=True)
def short_text():
    """Make the embedded corpus short, for searches too, whose trials run in this process."""
    texts = python_reference.split_texts()
    kept = {"train": 32, "valid": 36, "test": 36}  # every 32nd line, and so on
    short = {split: "".join(texts[split].splitlines(True)[::n]) for split, n in kept.items()}
    with pytest.MonkeyPatch.context() as patch, in_this_process():
        patch.setattr(python_reference, "split_texts", lambda: short)
        yield


def blocks(page):
    return BLOCK.findall((ROOT / page).read_text("utf-8"))


def lines(code):
    """Return the lines of `code`; a backslash at the end of one continues it on the next."""
    return code.replace("\\\n", " ").splitlines()


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A folder for the pages that share RUN folders, and the pages that have run there."""
    return tmp_path_factory.mktemp("pages"), set()


def run_page(page):
    names = {}
    for kind, code in blocks(page):
        if kind == "bash":
            for command in lines(code):
                program, *arguments = shlex.split(command, comments=True)
                assert (program, main(arguments)) == ("dualnet", 0), command
        elif kind == "python":
            exec(compile(code, page, "exec"), names)
        elif kind == "toml" and (file := re.match(r"# (\S+\.toml)\n", code)):
            Path(file[1]).write_text(code)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page, workspace, tmp_path, monkeypatch):
    shared, done = workspace
    monkeypatch.chdir(shared if page in SHARED else tmp_path)
    for needed in [*NEEDS.get(page, []), page]:
        if needed not in done:
            run_page(needed)
            done.add(needed)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_are_known(page):
    for kind, code in blocks(page):
        for line in lines(code) if kind == "console" else []:
            if command := re.search(r"(?:^\$|\|)(?: \w+=\S+)* +dualnet (.*)", line):
                words = shlex.split(command[1], comments=True)
                name = command_of(words)
                _, rest = parser_of(name).parse_known_intermixed_args(words[len(name.split()) :])
                assert not rest


def test_the_page_for_other_libraries_has_the_names_that_errors_suggest():
    page = (ROOT / "docs" / "coming_from.md").read_text("utf-8")
    libraries = tomllib.loads((ROOT / "dualnet" / "synonyms.toml").read_text("utf-8"))
    for library, names in libraries.items():
        rows = [
            f"| `{name}` | {', '.join(map('`{}`'.format, ours))} |" for name, ours in names.items()
        ]
        assert "\n".join([f"### {library}\n\n| there | here |\n|---|---|", *rows]) + "\n" in page


def test_the_readme_is_short_and_counts_the_cards():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 110
    assert f"{len(zoo.list_models())} cards hold" in text
