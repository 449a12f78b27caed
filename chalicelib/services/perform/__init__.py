"""Carrying out Actions, each idempotent."""
