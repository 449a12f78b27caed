"""Telling people: one module per channel."""
