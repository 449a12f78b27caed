"""The items of an Incident: what stands in them, within DynamoDB's limits. docs/storage.md lists them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

from chalicelib.aws.dynamodb import items
from chalicelib.aws.dynamodb.items import Item
from chalicelib.aws.dynamodb.newer_version import read_incident
from chalicelib.domain.model.errors import Permanent
from chalicelib.domain.model.incident import Incident, TimelineEntry
from chalicelib.domain.model.signal import Signal
from chalicelib.ports.incidents import Entry, JoinOutcome, StoredIncident

MAX_SIGNAL_BYTES: Final = 1200
MAX_ENTRY_BYTES: Final = 8 * 1024
MAX_ENTRY_TEXT_CHARS: Final = 2000


def scope_key(incident: Incident) -> Item:
    """The item that points at the open Incident: its Job's, else its node's, else its cluster's."""
    if incident.job_id is not None:
        return items.key(items.job_pk(incident.job_id))
    scope = incident.scope
    if scope is None:
        raise Permanent(f"incident {incident.incident_id!r} names neither a job nor a cluster")
    return items.key(items.cluster_pk(scope))


def index_row(incident: Incident) -> Item:
    """The row under which a Job, a node, or a cluster lists this Incident."""
    scope = scope_key(incident)["pk"]
    sk = items.incident_sk(incident.opened_at, incident.incident_id)
    return {"pk": scope, "sk": items.text(sk), "incident_id": items.text(incident.incident_id)}


def owner_of(mark: Item) -> str:
    """The Incident for which a Signal is marked."""
    return str(mark["incident_id"]["S"])


def holds(stored: Item, signal: Signal) -> bool:
    """True where the Incident has taken this Signal."""
    return items.mark_of(signal.dedupe_key) in stored.get("marks", {}).get("SS", ())


def entry_of(outcome: JoinOutcome, stored: Item) -> Entry:
    """What became of a Signal, with the Incident as it is stored."""
    return Entry(
        outcome=outcome,
        incident_id=stored["pk"]["S"].removeprefix("INC#"),
        generation=items.read_number(stored, "generation", 1),
        callback_id=items.read_text(stored, "callback_id"),
    )


def incident_of(stored: Item) -> Incident:
    incident = read_incident(items.unpack(stored["state"]))
    return replace(
        incident,
        version=items.read_number(stored, "version"),
        generation=items.read_number(stored, "generation", 1),
    )


def looked_of(stored: Item) -> StoredIncident:
    """The Incident and its inbox. An inbox of a newer version is empty, and the Incident says so."""
    incident = incident_of(stored)
    try:
        inbox = tuple(Signal.from_wire(items.unpack(packed)) for packed in stored.get("inbox", {}).get("L", ()))
    except (KeyError, TypeError, ValueError) as err:  # of a newer version, like what `newer` says of the Incident
        return StoredIncident(incident=replace(incident, newer=incident.newer or f"inbox: {err}"[:120]), inbox=())
    return StoredIncident(incident=incident, inbox=inbox)


def pack_signal(signal: Signal) -> Item:
    """The inbox form; evidence that would not fit gives way to its size, everything else stays."""
    packed = items.pack(signal.to_wire())
    if items.packed_bytes(packed) <= MAX_SIGNAL_BYTES:
        return packed
    wire = signal.to_wire(defaults=True)
    tight = items.squeeze(wire)
    if items.packed_bytes(tight) <= MAX_SIGNAL_BYTES:
        return tight
    dropped = len(json.dumps(wire["evidence"]))
    kept = {name: value for name, value in wire["evidence"].items() if len(json.dumps(value)) <= 100}
    slim = items.squeeze(wire | {"evidence": kept | {"evidence_dropped_bytes": dropped}})
    if items.packed_bytes(slim) <= MAX_SIGNAL_BYTES:
        return slim
    return items.squeeze(wire | {"evidence": {"evidence_dropped_bytes": dropped}})


def pack_line(entry: TimelineEntry) -> Item:
    """A line of the timeline; facts that would not fit give way to their size."""
    wire = {"facts": {}} | entry.to_wire()
    wire["text"] = wire["text"][:MAX_ENTRY_TEXT_CHARS]
    packed = items.pack(wire)
    if items.packed_bytes(packed) > MAX_ENTRY_BYTES:
        packed = items.pack(wire | {"facts": {"facts_dropped_bytes": len(json.dumps(wire["facts"]))}})
    return {"line": packed}
