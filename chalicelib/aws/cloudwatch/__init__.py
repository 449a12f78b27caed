"""Alarms and metrics."""
