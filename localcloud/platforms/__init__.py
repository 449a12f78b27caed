"""Training jobs and HyperPod clusters: simulated, or backed by real processes."""
