"""Slurm's commands and output, read. No state."""
