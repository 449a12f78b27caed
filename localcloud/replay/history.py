"""Exported Incidents as recordings: the output of `rekindle show ID --json`, one a file or several in a list.

An Incident keeps its newest forty Signals and its timeline; the replay is built from these. At the time of each
observation the replayed world shows the run as it was observed. Checkpoints from which the run resumed exist from the
beginning, except emergency ones, which the replay saves again where they are requested.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.domain.model.account import Restart
from chalicelib.domain.model.incident import Incident, TimelineEntry
from chalicelib.domain.model.known import Known, Maybe
from chalicelib.domain.model.observation import AttemptStatus, CheckpointView
from chalicelib.domain.model.signal import Signal, SignalKind
from rekindle.protocol.manifests import SaveKind

# Orders about one Incident by its id; the replay opens an Incident of its own, with another id.
_ORDERS_BY_INCIDENT: Final = (SignalKind.ORDER_CANCEL, SignalKind.ORDER_APPROVAL)
_BEFORE_OPENING: Final = timedelta(seconds=1)  # a known checkpoint was saved at least this long before


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedView:
    """The state of an attempt in one recorded observation. `last_step` is None where it was unknown."""

    at: datetime
    attempt: str
    status: AttemptStatus
    last_step: int | None
    failure_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedIncident:
    """What the replay uses of one exported Incident. `dropped` says why it is not replayed; None if it is."""

    incident: Incident
    signals: tuple[Signal, ...] = ()
    views: tuple[RecordedView, ...] = ()
    checkpoints: tuple[CheckpointView, ...] = ()
    dropped: str | None = None


def is_export(raw: object) -> bool:
    """Whether an object looks like an Incident as the API returns it."""
    return isinstance(raw, Mapping) and "incident_id" in raw and "signals" in raw and "phase" in raw


def read_export(raw: Mapping[str, Any]) -> ExportedIncident:
    """Read an exported Incident.

    Raises:
        ValueError: names the field that is missing or cannot be read.
    """
    unknown_fields: list[str] = []  # added by the API, or by another version of the service: ignored
    try:
        incident = Incident.from_wire(raw, beyond=unknown_fields)
        timeline = [TimelineEntry.from_wire(line, beyond=unknown_fields) for line in raw.get("timeline") or ()]
        inbox = tuple(Signal.from_wire(signal, beyond=unknown_fields) for signal in raw.get("inbox") or ())
        views = tuple(_recorded_views(timeline))
    except KeyError as err:
        raise ValueError(f"{err.args[0]}: missing") from err
    except (TypeError, ValueError, AttributeError) as err:
        raise ValueError(f"incident: cannot be read: {err}") from err
    if incident.node is not None:
        return ExportedIncident(incident=incident, dropped="a node's own Incident: nodes are not replayed")
    kept = [signal for signal in (*incident.signals, *inbox) if signal.kind not in _ORDERS_BY_INCIDENT]
    signals = [
        signal if signal.job_id or incident.job_id is None else replace(signal, job_id=incident.job_id)
        for signal in kept
    ]
    return ExportedIncident(
        incident=incident,
        signals=tuple(signals),
        views=views,
        checkpoints=tuple(_checkpoints(incident)),
        dropped=None if signals else "holds no Signal that could be played",
    )


def _recorded_views(timeline: list[TimelineEntry]) -> Iterator[RecordedView]:
    for entry in timeline:
        seen = entry.facts.get("attempt")
        if not isinstance(seen, Mapping) or "name" not in seen:
            continue
        step = seen.get("last_step")
        known = step.get("known") if isinstance(step, Mapping) else None
        yield RecordedView(
            at=entry.at,
            attempt=str(seen["name"]),
            status=AttemptStatus(seen["status"]),
            last_step=known if isinstance(known, int) else None,
            failure_reason=str(entry.facts.get("failure_reason") or ""),
        )


def _checkpoints(incident: Incident) -> Iterator[CheckpointView]:
    """The periodic checkpoints that are known to have existed when the Incident was opened."""
    for restart in incident.account.restarts:
        steps: list[Maybe[int]] = [restart.periodic_step]
        if restart.kind != SaveKind.EMERGENCY:
            steps.append(restart.resume_step)
        yield from (_checkpoint(step.value, restart, incident) for step in steps if isinstance(step, Known))


def _checkpoint(step: int, restart: Restart, incident: Incident) -> CheckpointView:
    place = f"{restart.after}/step-{step}"
    return CheckpointView(
        step=step,
        root=place,
        manifest=place,
        attempt=restart.after,
        kind=SaveKind.PERIODIC,
        saved_at=incident.opened_at - _BEFORE_OPENING,
    )
