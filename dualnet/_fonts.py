"""Fonts for the labels of figures, in any script."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def all_scripts(figure: Any) -> Iterator[None]:
    """Draw the texts of `figure` with installed fonts that have their characters.

    A character that no font has is drawn as a box, without a warning.
    """
    from matplotlib.text import Text

    logger = logging.getLogger("matplotlib.font_manager")  # tells of fonts without a bold face
    level = logger.level
    with warnings.catch_warnings():
        for message in ("Glyph .* missing from", "Matplotlib currently does not support"):
            warnings.filterwarnings("ignore", message, UserWarning)
        try:
            logger.setLevel(logging.ERROR)
            texts = [text for text in figure.findobj(Text) if text.get_text()]
            families = _fallbacks({ord(x) for text in texts for x in text.get_text()})
            for text in texts if families else []:
                text.set_fontfamily([*text.get_fontfamily(), *families])
            yield
        finally:
            logger.setLevel(level)


def _fallbacks(codes: set[int]) -> list[str]:
    """Return the families of fonts that have the characters that the default font lacks."""
    from matplotlib import font_manager

    default = font_manager.findfont(font_manager.FontProperties())
    missing = codes - {ord("\n")} - font_manager.get_font(default).get_charmap().keys()
    families: list[str] = []
    if not missing:
        return families
    characters: dict[str, set[int]] = {}
    for name in sorted({font.name for font in font_manager.fontManager.ttflist}):
        if not name.startswith("Last Resort"):  # it has a box for every character
            with contextlib.suppress(OSError, RuntimeError):  # a font that cannot be read
                path = font_manager.findfont(font_manager.FontProperties(family=name))
                characters[name] = missing & font_manager.get_font(path).get_charmap().keys()
    while missing and characters:
        family, covered = max(characters.items(), key=lambda item: len(item[1] & missing))
        if not covered & missing:
            break
        families.append(family)
        missing = missing - covered
    return families
