"""Capturing and judging the losses of each step."""
