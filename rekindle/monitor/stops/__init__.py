"""Signals: SIGTERM and others as requests to save, and their termination."""
