"""The default playbook of each fault class: what a policy document may replace of chalicelib/domain/fault_specs.

docs/policy.md describes playbooks for operators.
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
    """The first response to a fault, and how often it may be repeated without progress.

    `deadline` is how long the run may take to save a checkpoint before it is stopped. `tries` bounds the
    attempts that gain no step; None means the policy's general budget. `source` is where the fault is documented.
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

# Responses that resume from before the fault's onset. For these the deadline is that of the checkpoint that is saved
# for forensics only; with Deadline.NONE no such checkpoint is saved.
ROLL_BACKS: Final = frozenset({Response.ROLL_BACK, Response.WATCH_THEN_ROLL_BACK})
# Responses by which an attempt of ours makes way for one that others have started.
MAKES_WAY: Final = frozenset({Response.CHECKPOINT_THEN_RESTART, Response.RESTART})
