"""One reading of Slurm and what is remembered between readings."""
