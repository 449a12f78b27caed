"""The HyperPod cluster of a story: its nodes, its Slurm jobs, and the starts of those jobs."""
