"""Links and pictures of the pages lead somewhere, on GitHub and in the built documentation."""

import re
from pathlib import Path

import pytest

from tests.checks import once

pytestmark = once

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CODE = re.compile(r"^(`{3,}).*?^\1$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^][]*\]\(([^()\s]+)\)")
INCLUDE = re.compile(r"^```{include} (\S+)$", re.MULTILINE)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page):
    """Return the anchors that GitHub and MyST make of the headings of a page."""
    text = page.read_text("utf-8")
    included = {anchor for path in INCLUDE.findall(text) for anchor in anchors(page.parent / path)}
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return included | {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        for heading in HEADING.findall(text)
    }


def broken_links(page):
    """Return the links of a page that lead nowhere; those to other sites are not followed."""
    broken = []
    for link in LINK.findall(CODE.sub("code", page.read_text("utf-8"))):
        path, _, anchor = link.partition("#")
        target = page if not path else (page.parent / path).resolve()
        if re.match(r"\w+:", link):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page):
    assert broken_links(page) == []


@pytest.mark.parametrize("link", ["nowhere.md", "page.md#nowhere", "#nowhere", "images/no.png"])
def test_a_broken_link_is_found(link, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# Some *heading*\n[good](#some-heading), [`code`]({link})\n")
    assert broken_links(page) == [link]
