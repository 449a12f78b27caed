"""Fault classes: the one vocabulary of what is wrong with a run, for the service and for what runs beside the training.

`rekindle.signatures.faults` re-exports it.
"""

from __future__ import annotations

from rekindle.compat import StrEnum


class FaultClass(StrEnum):
    """What is wrong with a run (DESIGN §5)."""

    NODE_HARDWARE = "node_hardware"
    NODE_LOST = "node_lost"
    PLATFORM_ERROR = "platform_error"
    SOFTWARE_CRASH = "software_crash"
    OUT_OF_MEMORY = "out_of_memory"
    HANG = "hang"
    NON_FINITE = "non_finite"
    LOSS_SPIKE = "loss_spike"
    DIVERGENCE = "divergence"
    THROUGHPUT_DROP = "throughput_drop"
    PLANNED_END = "planned_end"
    BAD_CHECKPOINT = "bad_checkpoint"
    NO_PROGRESS = "no_progress"
    JOB_MISSING = "job_missing"
    OPERATOR_ORDER = "operator_order"
    UNCLEAR = "unclear"
