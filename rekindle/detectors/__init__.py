"""Streaming detectors: pure, standard library only."""
