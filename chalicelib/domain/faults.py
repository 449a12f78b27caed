"""Fault classes. The vocabulary stands in `rekindle.signatures`, which the training side shares."""

from __future__ import annotations

from rekindle.signatures.faults import FaultClass

__all__ = ["FaultClass"]
