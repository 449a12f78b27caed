"""What to do about each fault class, as a policy knows it: the columns of chalicelib/domain/fault_specs that a document
may replace (docs/policy.md). decide() only reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chalicelib.domain.fault_specs.faults import FAULTS
from chalicelib.domain.fault_specs.spec import Deadline as Deadline
from chalicelib.domain.fault_specs.spec import Response as Response
from rekindle.protocol.signals import FaultClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Playbook:
    """One row: the first response to a fault, and how often it may be repeated without progress.

    `tries` bounds the attempts that gain no step; None means the policy's general budget.
    """

    fault: FaultClass
    response: Response
    deadline: Deadline
    tries: int | None
    source: str


PLAYBOOKS: Final[tuple[Playbook, ...]] = tuple(
    Playbook(fault=spec.fault, response=spec.response, deadline=spec.deadline, tries=spec.tries, source=spec.source)
    for spec in FAULTS
)

# Responses that go back before an onset. Under them a deadline is that of the checkpoint kept for forensics; `none`
# keeps none.
ROLL_BACKS: Final = frozenset({Response.ROLL_BACK, Response.WATCH_THEN_ROLL_BACK})
