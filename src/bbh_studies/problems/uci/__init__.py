"""Regression on nine UCI sets, with their canonical splits."""
