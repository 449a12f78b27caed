"""The state of a loss, as detectors see it and heartbeats tell it."""

from __future__ import annotations

from rekindle.compat import StrEnum


class Health(StrEnum):
    """How the loss does now."""

    UNKNOWN = "unknown"  # too few values to say
    OK = "ok"
    WATCH = "watch"
    SPIKING = "spiking"
    DIVERGING = "diverging"
    NON_FINITE = "non_finite"
