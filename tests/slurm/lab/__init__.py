"""A real Slurm on one machine, for tests: installed from packages, raised, killed and looked at."""
