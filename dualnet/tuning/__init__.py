"""Searches for the settings of models, their training and their evaluation."""
