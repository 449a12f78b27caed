"""What changes anything on the cluster, and what an administrator allows of it."""
