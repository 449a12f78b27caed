"""How many nodes of a cluster are in repair, and who is ahead in the queue: counted from the Incidents themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.faults.slurm_states import is_lost
from chalicelib.domain.model.errors import RecoveryError
from chalicelib.domain.model.incident import NODE_PHASES, Incident, Phase
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.node import Load, is_in_service
from chalicelib.domain.model.repair import DAY, REPAIR_TAKES, RUN_LIVES, StepState
from chalicelib.domain.model.signal import SignalKind
from chalicelib.ports.incidents import IncidentStore
from rekindle.protocol.cluster.documents import NodesDoc
from rekindle.protocol.signals import FaultClass

_PAGES: Final = 5  # of closed Incidents; a storm of more in one day is bounded by the open ones anyway
_PAGE: Final = 100
AT_ONCE: Final = timedelta(minutes=5)  # within which what hides one node from its cluster hides others


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairLoad:
    """The Incidents that are open, and those closed of late, at `now`. Nothing is booked, so nothing has to be given
    back after a crash.
    """

    opened: Sequence[Incident]
    closed: Sequence[Incident]
    now: datetime

    def beside(self, incident: Incident, listed: Maybe[NodesDoc]) -> Load:
        """What else is in repair, or waits for one before this Incident."""
        now, ticket = self.now, _ticket(incident)
        others, closed = (
            [other for other in incidents if _is_beside(other, incident)] for incidents in (self.opened, self.closed)
        )
        ahead = [other for other in others if _is_ahead(other, incident)]
        ahead += [earlier for earlier in closed if _is_left_in_repair(earlier, listed, now)]
        recent = [*others, *closed]
        group = incident.repair.group if incident.repair else ""
        booked = [other for other in others if _ticket(other) < ticket or (other in ahead and _is_to_order(other))]
        weighing = [other for other in self.opened if _is_weighing(other)]
        lost_at = self._lost_at(incident)
        gone_on = [other for other in self.closed if _has_gone_on(other, since=incident.opened_at)]
        gone_on_beside = [other for other in self.closed if _has_gone_on(other, since=lost_at)]
        lost_with_it = _lost_with(incident, listed)
        return Load(
            ahead=len(ahead),
            last_day=_repairs(recent, now),
            booked=len(booked),
            group_ahead=len(_of_group(ahead, group)) if group else None,
            group_last_day=_repairs(_of_group(recent, group), now) if group else None,
            group_booked=len(_of_group(booked, group)) if group else 0,
            weighed_by=_told_of_a_loss(weighing, incident, {incident.node}),
            outlived_by=_told_of_a_loss(gone_on, incident, {incident.node}),
            doubted_by=_told_of_a_loss([*weighing, *gone_on_beside], incident, lost_with_it, at_once=lost_at),
        )

    def _lost_at(self, incident: Incident) -> datetime:
        """When the cluster lost its node: an earlier Incident of it, closed because its run had gone on, is about the
        same silence.
        """
        same = [other for other in self.closed if (other.cluster, other.node) == (incident.cluster, incident.node)]
        lived = [other.opened_at for other in same if other.outcome == RUN_LIVES]
        return min([incident.opened_at, *lived])

    def nodes_in_repair(self, incident: Incident, listed: Maybe[NodesDoc]) -> frozenset[str]:
        """Nodes of the cluster that a repair of ours has taken down: that they are is no evidence of a dead network."""
        others = [other for other in self.opened if _is_beside(other, incident)]
        closed = [other for other in self.closed if _is_beside(other, incident)]
        mended = [item for item in (incident, *others) if item.repair is not None and item.repair.steps]
        mended += [item for item in closed if _is_left_in_repair(item, listed, self.now)]
        return frozenset(item.node for item in mended if item.node is not None)


def read_repair_load(store: IncidentStore, *, now: datetime) -> Maybe[RepairLoad]:
    """Read once a look."""
    try:
        opened = [incident for incident, _ in store.list_open()]
        return Known(RepairLoad(opened=opened, closed=_closed_of_late(store, now), now=now))
    except RecoveryError as err:
        return Unknown(str(err)[:200])


def _closed_of_late(store: IncidentStore, now: datetime) -> list[Incident]:
    found: list[Incident] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = store.list_closed(limit=_PAGE, cursor=cursor)
        found += page.incidents
        cursor = page.cursor
        # Newest opened first; one opened two days ago may have repaired within the last one, an older hardly.
        if cursor is None or (page.incidents and now - page.incidents[-1].opened_at > 2 * DAY):
            break
    return found


def _is_ahead(other: Incident, incident: Incident) -> bool:
    return _has_claim(other) and (other.phase in NODE_PHASES or _claim(other) < _claim(incident))


def _lost_with(incident: Incident, listed: Maybe[NodesDoc]) -> set[str]:
    """Other nodes that the cluster cannot reach now."""
    nodes = listed.value.nodes if isinstance(listed, Known) else ()
    return {node.name for node in nodes if node.name != incident.node and is_lost(node)}


def _told_of_a_loss(
    runs: Iterable[Incident], incident: Incident, nodes: Collection[str | None], *, at_once: datetime | None = None
) -> tuple[str, ...]:
    """The runs of these Incidents to which the cluster's word was given that it has lost one of the nodes; `at_once`:
    then, or since the newest repair of this Incident's node, of which the same word tells whether it is well.
    """
    told: set[str] = set()
    for run in runs:
        if run.job_id is None or run.cluster != incident.cluster or run.fault is not FaultClass.NODE_LOST:
            continue
        heard = (signal for signal in run.signals if signal.kind is SignalKind.NODE_STATE and signal.node in nodes)
        if any(at_once is None or _is_lost_with(incident, signal.occurred_at, at_once) for signal in heard):
            told.add(run.job_id)
    return tuple(sorted(told))


def _is_lost_with(incident: Incident, at: datetime, lost_at: datetime) -> bool:
    step = incident.repair.step if incident.repair is not None else None
    return abs(at - lost_at) <= AT_ONCE or (step is not None and at >= step.at)


def _is_weighing(incident: Incident) -> bool:
    """It has not decided yet whether its run is dead (rule `defer.confirm`)."""
    return incident.phase is Phase.HOLDING and incident.tracking.watch_at is not None and not incident.approvals


def _has_gone_on(incident: Incident, *, since: datetime) -> bool:
    """Its run has gone on by itself (rule `healed`)."""
    is_healed = incident.phase is Phase.RECOVERED and not incident.resubmission.tries
    return is_healed and incident.closed_at is not None and incident.closed_at >= since


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
