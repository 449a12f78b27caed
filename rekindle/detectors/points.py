"""What detectors are fed and what they answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rekindle.compat import StrEnum

Evidence = Mapping[str, float | int | str]


class Severity(StrEnum):
    """`watch` is worth a look; `act` is worth a recovery."""

    WATCH = "watch"
    ACT = "act"


class Trouble(StrEnum):
    """What a verdict is about."""

    NON_FINITE = "non_finite"
    LOSS_SPIKE = "loss_spike"
    DIVERGENCE = "divergence"
    RESTART_DISCONTINUITY = "restart_discontinuity"
    HANG = "hang"
    THROUGHPUT_DROP = "throughput_drop"
    STRAGGLER = "straggler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One logged point of a run. `None` is "not logged", which is not "not a number".

    `step_s` is the time of one step, in seconds; `elapsed_s` the time since the run or the attempt began.
    `lr` is the learning rate of the step.
    """

    step: int
    loss: float | None = None
    elapsed_s: float | None = None
    step_s: float | None = None
    is_after_evaluation: bool = False
    lr: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a detector says of a point: which rule spoke, and the figures to check it by hand."""

    kind: Trouble
    severity: Severity
    rule: str
    step: int
    evidence: Evidence
