"""Searches for settings, and the size of a model that has a given number of weights."""
