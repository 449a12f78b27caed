"""The hardware ledger, kept and read: the faults of each piece of hardware, across Jobs, clusters and replacements."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from chalicelib.domain.model.errors import RecoveryError
from chalicelib.domain.model.hardware_ledger import (
    SUSPECT_FAULTS,
    SUSPECT_WINDOW,
    HardwareRecord,
    MarkKind,
    mark,
    marks_of,
    suspect_among,
)
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.rules.node.hardware import faults_to_keep
from chalicelib.ports.clock import Clock
from rekindle.protocol.cluster.documents import NodeFacts, NodesDoc
from rekindle.protocol.signals import FaultClass

if TYPE_CHECKING:
    from chalicelib.ports.operator import HardwareLedger

_LOG = logging.getLogger(__name__)

LISTED: Final = 200  # shown to people
SOUGHT: Final = 1000  # by the sweep: the marks of about a hundred hosts; 10 BatchGetItem
SEEN: Final = 8  # of one node, those with the most faults: a look is a durable step's result, and stays small


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareLedgers:
    """Keeps the ledger. What cannot be read is Unknown: neither suspect nor well."""

    ledger: HardwareLedger
    clock: Clock

    def keep(self, incident: Incident) -> None:
        """Add what a closed Incident of a node says about its hardware. The same Incident twice counts once.

        Raises:
            Retryable: the caller's step repeats it.
        """
        for hardware_mark, fault in faults_to_keep(incident):
            self.ledger.add(hardware_mark, fault)

    def records(self, marks: Sequence[str]) -> Maybe[tuple[HardwareRecord, ...]]:
        """What these marks have had."""
        try:
            found = self.ledger.read(marks)
            return Known(tuple(sorted(found, key=lambda record: len(record.faults), reverse=True)[:SEEN]))
        except RecoveryError as err:
            return Unknown(f"the hardware ledger cannot be read: {err}"[:200])

    def listing(self) -> list[dict[str, Any]]:
        """Hardware with faults: with more than one first, then by time; and whether it is suspect."""
        found = self.ledger.listing(limit=LISTED, repeated_only=False)
        return [_shown(record, now=self.clock.now()) for record in found]

    def come_back(self, cluster: str, nodes: NodesDoc) -> Iterator[Signal]:
        """A Signal per node that holds suspect hardware. One fact as long as nothing new is known of it.

        Raises:
            Retryable: the ledger cannot be read.
        """
        marked = [(facts, _marks(facts)) for facts in nodes.nodes]
        if not any(marks for _, marks in marked):
            return  # no source names the hardware, so none can be recognised
        repeated = {record.mark: record for record in self.ledger.listing(limit=SOUGHT, repeated_only=True)}
        claims = Counter(mark for _, marks in marked for mark in marks)
        for facts, marks in marked:
            records = [repeated[mark] for mark in marks if mark in repeated and claims[mark] == 1]
            signal = _signal(cluster, facts, records, now=nodes.seen_at)
            if signal is not None:
                yield signal


def marks_to_ask(
    facts: NodeFacts | None,
    *,
    nodes: Sequence[NodeFacts] = (),
    known: Sequence[str] = (),
    instance_id: str | None = None,
) -> list[str]:
    """The marks to look up for a node: those seen and reported; its instance id only where there is none.

    A piece of hardware stands in one place. What another of `nodes` claims as well is left out: one of the two tells of
    a machine that it had before, and it is unknown which, so neither is taken out for it.
    """
    elsewhere = {mark for other in nodes if facts is not None and other.name != facts.name for mark in _marks(other)}
    seen = _marks(facts) if facts is not None else ()
    marks = [mark for mark in dict.fromkeys((*seen, *known)) if mark not in elsewhere]
    return marks or ([mark(MarkKind.INSTANCE, instance_id)] if instance_id else [])


def _marks(facts: NodeFacts) -> tuple[str, ...]:
    return marks_of(gpus=facts.gpus, serial=facts.serial)


def _text(records: Sequence[HardwareRecord], now: datetime) -> str | None:
    return suspect_among(records, faults=SUSPECT_FAULTS, window=SUSPECT_WINDOW, now=now)


def _signal(cluster: str, facts: NodeFacts, records: Sequence[HardwareRecord], *, now: datetime) -> Signal | None:
    text = _text(records, now)
    if text is None:
        return None
    newest = max(fault.at for record in records for fault in record.faults)
    evidence = {"suspect_hardware": True, "found_by": "sweep", "instance_id": facts.instance_id, "group": facts.group}
    return Signal(
        kind=SignalKind.NODE_SUSPECT,  # speaks of the node alone: no run is disturbed for what may never happen again
        source=SignalSource.SWEEP,
        occurred_at=now,
        dedupe_key=f"suspect:{cluster}:{facts.name}:{facts.instance_id}:{newest:%Y%m%dT%H%M%S}"[:200],
        summary=f"{facts.name} of {cluster}: {text}"[:400],
        cluster=cluster,
        node=facts.name,
        fault=FaultClass.NODE_HARDWARE,
        evidence={
            **{name: value for name, value in evidence.items() if value is not None},
            "marks": [record.mark for record in records][:8],
        },
    )


def _shown(record: HardwareRecord, *, now: datetime) -> dict[str, Any]:
    kind, _, value = record.mark.partition(":")
    return {
        "identity": value,
        "kind": kind,
        "is_suspect": _text((record,), now) is not None,
        "faults_total": record.total,
        "faults_in_window": len(record.within(SUSPECT_WINDOW, now=now)),
        "window_days": SUSPECT_WINDOW.days,
        "faults": [fault.to_wire(defaults=True) for fault in reversed(record.faults)],
    }
