"""What people order about a node, as its Incident remembers it; and the rungs of the ladder, which an order names."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from chalicelib.domain.model.codec import Record
from chalicelib.domain.model.signal import Signal, SignalKind


class Rung(StrEnum):
    """One step of the ladder, in this order; above it stands a person."""

    REBOOT = "reboot"
    REPLACE = "replace"

    def covers(self, other: Rung) -> bool:
        """This one covers `other`: a replaced node needs no reboot."""
        return self is other or self is Rung.REPLACE


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOrder(Record):
    """An order to repair a node, given by `who` at `at`. `force` passes over the budgets of repairs, and over nothing
    else.
    """

    rung: Rung
    who: str
    at: datetime
    why: str = ""
    force: bool = False

    @property
    def text(self) -> str:
        """For people: what, who, why."""
        return f"a {_NOUNS[self.rung]} was ordered by {self.who}" + (f" ({self.why})" if self.why else "")


_NOUNS = {Rung.REBOOT: "reboot", Rung.REPLACE: "replacement"}


def node_order_of(signal: Signal) -> NodeOrder | None:
    """The order in a Signal; None for any other Signal, and for an order that names no rung."""
    stated = signal.evidence
    if signal.kind is not SignalKind.ORDER_NODE or stated.get("do") not in list(Rung):
        return None
    return NodeOrder(
        rung=Rung(str(stated["do"])),
        who=str(stated.get("who") or "an operator")[:128],
        at=signal.occurred_at,
        why=str(stated.get("why") or "")[:300],
        force=stated.get("force") is True,
    )
