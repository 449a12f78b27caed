"""Checks of a batch script."""
