"""Findings, facts and what all checks read. Pure."""
