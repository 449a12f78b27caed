"""Saving at an agreed step, sealing what was saved, and resuming from it."""
