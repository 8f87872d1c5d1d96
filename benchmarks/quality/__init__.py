"""Scores of recipes."""
