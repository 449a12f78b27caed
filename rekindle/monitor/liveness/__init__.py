"""Stalls, phases, peers and each rank's own reports."""
