"""HyperPod on Slurm: orders to the cluster's agent, and what it reports of each attempt."""
