"""An Incident that a newer version of this service has written, after a rollback to this one. Pure.

What it holds beyond what this version knows may be what the next step depends on: a person gets the Incident, once. It
is read as far as it can be, so that one such record stops neither the sweep nor the listings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from chalicelib.domain.model.errors import MalformedRecord
from chalicelib.domain.model.incident import Incident, Phase

MAX_CHARS: Final = 120


def read_incident(wire: Mapping[str, Any]) -> Incident:
    """The Incident, with `newer` set where the record holds what is not known here.

    Raises: MalformedRecord for a record without an id or a beginning, which no version writes.
    """
    beyond: list[str] = []
    try:
        incident = Incident.from_wire(wire, beyond=beyond)
    except MalformedRecord as err:
        if not isinstance(wire, Mapping):
            raise
        return _as_far_as_known(wire, f"{err}"[:MAX_CHARS])
    return dataclasses.replace(incident, newer=beyond[0][:MAX_CHARS]) if beyond else incident


def _as_far_as_known(wire: Mapping[str, Any], why: str) -> Incident:
    begun = {name: wire[name] for name in ("incident_id", "opened_at") if name in wire}
    incident = Incident.from_wire(
        begun
        | {name: _text(wire, name) for name in ("job_id", "cluster", "node", "attempt")}
        | {"phase": Phase.HOLDING.value, "phase_entered_at": wire.get("opened_at")}
    )
    return dataclasses.replace(
        incident,
        phase=next((phase for phase in Phase if phase.value == wire.get("phase")), Phase.HOLDING),
        policy_name=_text(wire, "policy_name") or "default",
        newer=why,
    )


def _text(wire: Mapping[str, Any], name: str) -> str | None:
    value = wire.get(name)
    return value if isinstance(value, str) else None
