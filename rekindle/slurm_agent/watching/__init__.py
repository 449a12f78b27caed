"""One look at Slurm and what is remembered between looks."""
