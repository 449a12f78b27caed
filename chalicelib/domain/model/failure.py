"""What a failed attempt failed of."""

from __future__ import annotations

from dataclasses import dataclass

from rekindle.protocol.signals import FaultClass


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureVerdict:
    """What a failure comes to. `rule` names the row; `person_needed`: the same input will fail the same way."""

    fault: FaultClass
    rule: str
    person_needed: bool = False
