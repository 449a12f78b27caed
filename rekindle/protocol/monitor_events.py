"""The events that the monitor sends: the one list of their names, for the monitor, the bus's rules, and the parsers.

chalicelib/ingest/monitor.py says what each carries.
"""

from __future__ import annotations

from typing import Final

from rekindle.compat import StrEnum

SOURCE: Final = "rekindle.monitor"


class EventType(StrEnum):
    """An event's detail-type."""

    STARTED = "Rekindle Monitor Started"
    NON_FINITE = "Rekindle Non-Finite Loss"
    STALL = "Rekindle Stall"
    RESUMED = "Rekindle Progress Resumed"
    SAVE_FAILED = "Rekindle Save Failed"
    REPLY = "Rekindle Checkpoint Reply"
    FINISHED = "Rekindle Monitor Finished"
    LOSS_SPIKE = "Rekindle Loss Spike"
    DIVERGENCE = "Rekindle Loss Divergence"
    LOSS_RECOVERED = "Rekindle Loss Recovered"
    THROUGHPUT_DROP = "Rekindle Throughput Drop"
    STRAGGLER = "Rekindle Straggler"
