"""Queues: deliveries, and what waits for a person (quarantine, undelivered notices)."""
