"""How many nodes of a cluster are in repair, and who is ahead in the queue: counted from the Incidents themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from chalicelib.domain.model.errors import RecoveryError
from chalicelib.domain.model.incident import NODE_PHASES, Incident, Phase
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.node import Load, is_in_service
from chalicelib.domain.model.repair import DAY, REPAIR_TAKES, StepState
from chalicelib.domain.model.signal import SignalKind
from chalicelib.ports.clock import Clock
from chalicelib.ports.incidents import IncidentStore
from rekindle.protocol.cluster.documents import NodesDoc
from rekindle.protocol.signals import FaultClass

_PAGES: Final = 5  # of closed Incidents; a storm of more in one day is bounded by the open ones anyway
_PAGE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairLoad:
    """Nothing is booked, so nothing has to be given back after a crash."""

    store: IncidentStore
    clock: Clock

    def beside(self, incident: Incident, listed: Maybe[NodesDoc]) -> Maybe[Load]:
        """What else is in repair, or waits for one before this Incident."""
        now, mine = self.clock.now(), _claim(incident)
        ticket = _ticket(incident)
        try:
            opened = [other for other, _ in self.store.list_open()]
            others = [other for other in opened if _is_beside(other, incident)]
            ahead = [
                other for other in others if _has_claim(other) and (other.phase in NODE_PHASES or _claim(other) < mine)
            ]
            late = self._closed_of_late()
            closed = [other for other in late if _is_beside(other, incident)]
            ahead += [earlier for earlier in closed if _is_left_in_repair(earlier, listed, now)]
            recent = [*others, *closed]
        except RecoveryError as err:
            return Unknown(str(err)[:200])
        group = incident.repair.group if incident.repair else ""
        booked = [other for other in others if _ticket(other) < ticket or (other in ahead and _is_to_order(other))]
        return Known(
            Load(
                ahead=len(ahead),
                last_day=_repairs(recent, now),
                booked=len(booked),
                group_ahead=len(_of_group(ahead, group)) if group else None,
                group_last_day=_repairs(_of_group(recent, group), now) if group else None,
                group_booked=len(_of_group(booked, group)) if group else 0,
                weighed_by=tuple(sorted(other.job_id or "" for other in opened if _weighs_loss(other, incident))),
                outlived_by=tuple(sorted({other.job_id or "" for other in late if _outlived_loss(other, incident)})),
            )
        )

    def nodes_in_repair(self, incident: Incident, listed: Maybe[NodesDoc]) -> frozenset[str]:
        """Nodes of the cluster that a repair of ours has taken down: that they are is no evidence of a dead network."""
        try:
            others = [other for other, _ in self.store.list_open() if _is_beside(other, incident)]
            closed = [other for other in self._closed_of_late() if _is_beside(other, incident)]
        except RecoveryError:
            return frozenset()  # then more nodes count as down, and less is done
        now = self.clock.now()
        mended = [item for item in (incident, *others) if item.repair is not None and item.repair.steps]
        mended += [item for item in closed if _is_left_in_repair(item, listed, now)]
        return frozenset(item.node for item in mended if item.node is not None)

    def _closed_of_late(self) -> list[Incident]:
        found: list[Incident] = []
        cursor: str | None = None
        for _ in range(_PAGES):
            page = self.store.list_closed(limit=_PAGE, cursor=cursor)
            found += page.incidents
            cursor = page.cursor
            # Newest opened first; one opened two days ago may have repaired within the last one, an older hardly.
            if cursor is None or (page.incidents and self.clock.now() - page.incidents[-1].opened_at > 2 * DAY):
                break
        return found


def _is_of_its_loss(one: Incident, incident: Incident) -> bool:
    """A run's own Incident to which the cluster's word that it has lost this node was given."""
    is_of_a_run = one.job_id is not None and one.cluster == incident.cluster and one.fault is FaultClass.NODE_LOST
    return is_of_a_run and any(
        signal.kind is SignalKind.NODE_STATE and signal.node == incident.node for signal in one.signals
    )


def _weighs_loss(one: Incident, incident: Incident) -> bool:
    """It has not decided yet whether the run is dead (rule `defer.confirm`)."""
    is_weighing = one.is_open and one.phase is Phase.HOLDING and one.tracking.watch_at is not None
    return is_weighing and not one.approvals and _is_of_its_loss(one, incident)


def _outlived_loss(one: Incident, incident: Incident) -> bool:
    """The run has gone on by itself since the node was reported lost (rule `healed`)."""
    is_healed = one.phase is Phase.RECOVERED and not one.resubmission.tries
    is_of_now = one.closed_at is not None and one.closed_at >= incident.opened_at
    return is_healed and is_of_now and _is_of_its_loss(one, incident)


def _of_group(incidents: Iterable[Incident], group: str) -> list[Incident]:
    return [incident for incident in incidents if incident.repair is not None and incident.repair.group == group]


def _is_left_in_repair(one: Incident, listed: Maybe[NodesDoc], now: datetime) -> bool:
    """Its Incident was closed (handed over, cancelled) while a repair was under way, and the node is not back yet as
    far as is known.
    """
    step = one.repair.step if one.repair is not None and one.phase is not Phase.RECOVERED else None
    if step is None or step.state is StepState.REFUSED or step.back_at is not None or now - step.at >= REPAIR_TAKES:
        return False
    if not isinstance(listed, Known):
        return True
    facts = next((item for item in listed.value.nodes if item.name == one.node), None)
    return facts is None or not is_in_service(facts)


def _is_to_order(one: Incident) -> bool:
    """It has ordered no repair yet: its own will be among the day's when it has."""
    return one.is_open and (one.repair is None or not one.repair.steps)


def _ticket(one: Incident) -> tuple[str, str]:
    """Since when it waits to order its first repair, or one more; no one's is older where it waits for none."""
    repair = one.repair
    if repair is None or not one.is_open:
        at = None
    elif repair.another is not None:
        at = repair.another.at
    else:
        at = None if repair.steps else repair.wanted_at
    return (at.isoformat() if at is not None else "~", one.incident_id)


def _repairs(incidents: Iterable[Incident], now: datetime) -> int:
    """Orders to repair within the last day."""
    return sum(now - step.at < DAY for incident in incidents if incident.repair for step in incident.repair.steps)


def _claim(incident: Incident) -> tuple[str, str]:
    """Its place in the queue for repair."""
    wanted_at = incident.repair.wanted_at if incident.repair else None
    return (wanted_at.isoformat() if wanted_at else "~", incident.incident_id)


def _has_claim(incident: Incident) -> bool:
    return incident.phase in NODE_PHASES or (incident.repair is not None and incident.repair.wanted_at is not None)


def _is_beside(one: Incident, incident: Incident) -> bool:
    is_other = one.incident_id != incident.incident_id
    return one.node is not None and one.cluster == incident.cluster and is_other
