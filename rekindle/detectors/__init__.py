"""Streaming detectors: pure, standard library only."""

from rekindle.detectors.hang import HangLimit, HangWatch
from rekindle.detectors.kinds import LossKind
from rekindle.detectors.pace import StragglerWatch, ThroughputWatch
from rekindle.detectors.planned import LearningRates
from rekindle.detectors.points import Evidence, Health, Point, Severity, Trouble, Verdict
from rekindle.detectors.watch import LossWatch

__all__ = [
    "Evidence",
    "HangLimit",
    "HangWatch",
    "Health",
    "LearningRates",
    "LossKind",
    "LossWatch",
    "Point",
    "Severity",
    "StragglerWatch",
    "ThroughputWatch",
    "Trouble",
    "Verdict",
]
