"""Counts and ratios, never timed assertions: `make bench`."""
