"""`rekindle replay`: recorded events through the real ingest and decisions in virtual time."""
