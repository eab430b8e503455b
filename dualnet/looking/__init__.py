"""A page that shows models reading a text."""

from dualnet.looking.page import Page, look

__all__ = ["Page", "look"]
