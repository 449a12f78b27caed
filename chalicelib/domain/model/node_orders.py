"""What people order about a node, as its Incident remembers it; and the rungs of the ladder, which an order names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from chalicelib.domain.model.signal import Signal, SignalKind


class Rung(StrEnum):
    """One step of the ladder, in this order; above it stands a person."""

    REBOOT = "reboot"
    REPLACE = "replace"

    def covers(self, other: Rung) -> bool:
        """Whoever wanted `other` has got it with this one: a replaced node needs no reboot."""
        return self is other or self is Rung.REPLACE


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOrder:
    """An order to repair a node, given by `who` at `at`. `force` passes over the budgets of repairs, and over nothing
    else.
    """

    rung: Rung
    who: str
    at: datetime
    why: str = ""
    force: bool = False

    @property
    def said(self) -> str:
        """For people: what, who, why."""
        return f"a {_NOUNS[self.rung]} was ordered by {self.who}" + (f" ({self.why})" if self.why else "")

    def to_wire(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "rung": self.rung.value,
            "who": self.who,
            "at": self.at.isoformat(),
            "why": self.why,
            "force": self.force,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> NodeOrder:
        """Inverse of `to_wire`."""
        return cls(
            rung=Rung(wire["rung"]),
            who=wire["who"],
            at=datetime.fromisoformat(wire["at"]),
            why=wire["why"],
            force=bool(wire["force"]),
        )


_NOUNS = {Rung.REBOOT: "reboot", Rung.REPLACE: "replacement"}


def node_order_of(signal: Signal) -> NodeOrder | None:
    """The order in a Signal; None for any other Signal, and for an order that names no rung."""
    said = signal.evidence
    if signal.kind is not SignalKind.ORDER_NODE or said.get("do") not in list(Rung):
        return None
    return NodeOrder(
        rung=Rung(str(said["do"])),
        who=str(said.get("who") or "an operator")[:128],
        at=signal.occurred_at,
        why=str(said.get("why") or "")[:300],
        force=said.get("force") is True,
    )
