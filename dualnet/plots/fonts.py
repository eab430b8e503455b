"""Fonts for labels in any script."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def set_fonts(figure: Figure) -> None:
    """Let matplotlib draw the texts of `figure` in installed fonts that have their characters.

    Nothing changes where the default font has them all.
    """
    from matplotlib import rcParams
    from matplotlib.text import Text

    texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    families = fallbacks("".join(text.get_text() for text in texts))
    for text in texts if families else ():
        # Not bold: few of these fonts are, and matplotlib reports each that is not.
        text.set(fontfamily=[*rcParams["font.family"], *families], fontweight="normal")


def fallbacks(text: str) -> list[str]:
    """Return the families of installed fonts for the characters that the default font lacks."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

    default = get_font(findfont(FontProperties()))
    missing = {*map(ord, text)} - {ord("\n")} - default.get_charmap().keys()
    families = []
    for font in fontManager.ttflist if missing else ():
        if not font.name.startswith("Last Resort"):  # it has a box for every character
            with contextlib.suppress(OSError, RuntimeError):  # a font that cannot be read
                characters = get_font(font.fname).get_charmap().keys()
                if missing & characters:
                    families.append(font.name)
                    missing = missing - characters
    return families
