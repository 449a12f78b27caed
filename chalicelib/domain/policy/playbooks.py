"""The default playbook of each fault class: what a policy document may replace of chalicelib/domain/fault_specs,
and its field `playbooks`, by which it does.

docs/policy.md describes playbooks for operators.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from chalicelib.domain.fault_specs.faults import FAULTS, LOSS_FAULTS
from chalicelib.domain.fault_specs.spec import Deadline as Deadline
from chalicelib.domain.fault_specs.spec import Response as Response
from chalicelib.domain.model.errors import InvalidPolicy
from chalicelib.domain.policy.fields import declared, member_path, read_record
from chalicelib.domain.policy.kinds import Bare, Count, OneOf, OrNone, words_of
from rekindle.protocol.signals import FaultClass

_ASKS: Final = (Response.CHECKPOINT_THEN_RESTART, Response.CHECKPOINT_THEN_HAND_OVER)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaybookRow:
    """The columns of a row that a document may replace. The defaults stand for no fault: each row has its own."""

    response: Response = declared(Response.TELL, OneOf(words_of(Response)), "what is done first")
    deadline: Deadline = declared(
        Deadline.NONE,
        OneOf(words_of(Deadline)),
        "how long a checkpoint is waited for: `none`, `short` (`timing.hang_deadline_s`) or `full` "
        "(`timing.checkpoint_deadline_s`)",
    )
    tries: int | None = declared(
        None,
        OrNone(Count(0, 100, "attempts")),
        "how many attempts without progress this fault is worth, never more than `budgets.max_no_progress`; "
        "`null` is `budgets.max_no_progress` itself",
    )


class PlaybookTable(Bare):
    """An object of fault and row; faults and columns that are left out keep the built-in ones."""

    def read(self, path: str, value: Any) -> tuple[Playbook, ...]:
        if not isinstance(value, Mapping):
            raise InvalidPolicy(path, f"must be an object of fault and row, not {type(value).__name__}")
        table = {row.fault: row for row in PLAYBOOKS}
        for name, row in value.items():
            at = member_path(path, str(name))
            if name not in FaultClass.__members__.values():
                raise InvalidPolicy(at, f"is not a fault; faults are {', '.join(FaultClass)}")
            fault = FaultClass(name)
            table[fault] = _row(at, table[fault], row)
        return tuple(table[row.fault] for row in PLAYBOOKS)

    def write(self, value: tuple[Playbook, ...]) -> dict[str, Any]:
        return {
            row.fault.value: {"response": row.response.value, "deadline": row.deadline.value, "tries": row.tries}
            for row in value
        }


def _row(path: str, base: Playbook, given: Any) -> Playbook:
    read = read_record(PlaybookRow, path, given)
    row = dataclasses.replace(base, **{column: getattr(read, column) for column in given})
    if row.response in _ASKS and row.deadline is Deadline.NONE:
        raise InvalidPolicy(f"{path}.deadline", f"must be short or full, because the response is {row.response}")
    if row.response is Response.WATCH_THEN_ROLL_BACK and base.fault not in LOSS_FAULTS:
        raise InvalidPolicy(f"{path}.response", "can be watched only for loss_spike and divergence")
    return row if row == base else dataclasses.replace(row, source="policy document")
