"""Commands that change something in the service or at a run."""
