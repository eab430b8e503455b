"""Fonts for labels in any script."""

import contextlib
from typing import Any


def set_fonts(figure: Any) -> None:
    """Let matplotlib draw the texts of `figure` in installed fonts that have their characters.

    Nothing changes where the default font has them all.
    """
    from matplotlib import rcParams
    from matplotlib.text import Text

    texts = figure.findobj(Text)
    families = fallbacks("".join(text.get_text() for text in texts))
    for text in texts if families else ():
        # Not bold: few of these fonts are, and matplotlib reports each that is not.
        text.set(fontfamily=[*rcParams["font.family"], *families], fontweight="normal")


def fallbacks(text: str) -> list[str]:
    """Return the families of installed fonts for the characters that the default font lacks."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

    default = get_font(findfont(FontProperties()))
    missing = {*map(ord, text)} - {ord("\n")} - default.get_charmap().keys()
    found: dict[str, set[int]] = {}
    for font in fontManager.ttflist if missing else ():
        if not font.name.startswith("Last Resort"):  # it has a box for every character
            with contextlib.suppress(OSError, RuntimeError):  # a font that cannot be read
                found[font.name] = missing & get_font(font.fname).get_charmap().keys()
    families = []
    for name in sorted(found, key=lambda name: (-len(found[name]), name)):
        if found[name] & missing:
            families.append(name)
            missing = missing - found[name]
    return families
