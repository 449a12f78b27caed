"""Exported Incidents as recordings: the output of `rekindle show ID --json`, one a file or several in a list.

An Incident keeps its newest forty Signals and its timeline; the replay is built from these. Each observation's view of
the run is set in the world at the time of that observation. Checkpoints that were resumed from exist from the
beginning, except emergency ones, which are saved again where they are requested. An optional member `ledger` in the
same object, as printed by `rekindle ledger --incident ID --json`, gives the run's size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.domain.model.account import Restart
from chalicelib.domain.model.incident import Incident, TimelineEntry
from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptStatus, CheckpointView
from chalicelib.domain.model.signal import Signal, SignalKind
from rekindle.protocol.mailbox import SaveKind

# About one Incident, by its id; in another story they would mean nothing.
_TO_AN_INCIDENT: Final = (SignalKind.ORDER_CANCEL, SignalKind.ORDER_APPROVAL)
_A_MOMENT: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedView:
    """An attempt as one recorded observation showed it."""

    at: datetime
    attempt: str
    status: AttemptStatus
    last_step: int | None
    failure_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """One Incident of a history, read. `dropped` says why nothing of it is played."""

    incident: Incident
    signals: tuple[Signal, ...] = ()
    sights: tuple[RecordedView, ...] = ()
    checkpoints: tuple[CheckpointView, ...] = ()
    size: JobSize | None = None
    dropped: str | None = None


def is_export(raw: object) -> bool:
    """An object that looks like an Incident as the API gives it."""
    return isinstance(raw, Mapping) and "incident_id" in raw and "signals" in raw and "phase" in raw


def read_export(raw: Mapping[str, Any]) -> Exported:
    """Raises ValueError, which names what is wrong with it."""
    beside: list[str] = []  # what the API adds to the record, and what another version of the service wrote
    try:
        incident = Incident.from_wire(raw, beyond=beside)
        timeline = [TimelineEntry.from_wire(line, beyond=beside) for line in raw.get("timeline") or ()]
        inbox = tuple(Signal.from_wire(signal, beyond=beside) for signal in raw.get("inbox") or ())
        sights = tuple(_sights(timeline))
        reported = (raw.get("ledger") or {}).get("instances")
        size = JobSize.of_instances([(str(kind), int(count)) for kind, count in reported]) if reported else None
    except KeyError as err:
        raise ValueError(f"{err.args[0]}: missing") from err
    except (TypeError, ValueError, AttributeError) as err:
        raise ValueError(f"incident: cannot be read: {err}") from err
    if incident.node is not None:
        return Exported(incident=incident, dropped="a node's own Incident: nodes are not replayed")
    kept = [signal for signal in (*incident.signals, *inbox) if signal.kind not in _TO_AN_INCIDENT]
    signals = [
        signal if signal.job_id or incident.job_id is None else replace(signal, job_id=incident.job_id)
        for signal in kept
    ]
    return Exported(
        incident=incident,
        signals=tuple(signals),
        sights=sights,
        checkpoints=tuple(_checkpoints(incident)),
        size=size,
        dropped=None if signals else "holds no Signal that could be played",
    )


def _sights(timeline: list[TimelineEntry]) -> Iterator[RecordedView]:
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
        saved_at=incident.opened_at - _A_MOMENT,
    )


def reported_size(raw: Mapping[str, Any]) -> tuple[str, JobSize] | None:
    """The attempt's name and size in a Training Job State Change, which repeats the job's ResourceConfig."""
    detail = raw.get("detail")
    resources = detail.get("ResourceConfig") if isinstance(detail, Mapping) else None
    if not isinstance(resources, Mapping) or not isinstance(detail, Mapping):
        return None
    kind, count, name = resources.get("InstanceType"), resources.get("InstanceCount"), detail.get("TrainingJobName")
    if not (isinstance(kind, str) and isinstance(count, int) and isinstance(name, str)):
        return None
    return name, JobSize.of_instances(((kind, count),))


UNSIZED: Final = JobSize(gpus=Unknown("the recording does not tell how big the run is; --gpus N assumes it"))
