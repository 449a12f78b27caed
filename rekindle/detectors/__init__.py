"""Streaming detectors: pure, standard library only."""

from rekindle.detectors.points import Evidence, Health, Point, Severity, Trouble, Verdict
from rekindle.detectors.watch import LossWatch

__all__ = ["Evidence", "Health", "LossWatch", "Point", "Severity", "Trouble", "Verdict"]
