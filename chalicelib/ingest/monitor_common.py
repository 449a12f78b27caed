"""What all parsers of the monitor's events share: the common fields, and what one event adds to them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from chalicelib.domain.model.signal import SignalKind
from rekindle.protocol.signals import FaultClass

MAX_RANKS: Final = 100_000  # four times the largest published run
MAX_SECONDS: Final = 90 * 86400.0  # above any run's life
MAX_WORD_CHARS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorFields:
    """The fields that every monitor event carries."""

    job_id: str
    attempt: str
    attempt_number: int
    rank: int
    world_size: int
    step: int | None
    at: datetime
    life: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What one kind of event adds: the fact's own parts, and what it means."""

    kind: SignalKind
    summary: str
    facts: tuple[object, ...]
    fault: FaultClass | None
    evidence: dict[str, Any]


def at_step(common: MonitorFields) -> str:
    return f"at step {common.step}" if common.step is not None else "before its first step"
