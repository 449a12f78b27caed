"""The outbox and the publisher of the cluster state."""
