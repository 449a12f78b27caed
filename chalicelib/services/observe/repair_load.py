"""How many nodes of a cluster are in repair, and who is ahead in the queue: counted from the Incidents themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
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
    """The open Incidents, and those closed of late, at `now`. `services/observe/nodes.py` asks it once per observation.

    The load is counted from the Incidents and reserved nowhere, so nothing has to be given back after a crash.
    """

    opened: Sequence[Incident]
    closed: Sequence[Incident]
    now: datetime

    def load_for(self, incident: Incident, listed: Maybe[NodesDoc]) -> Load:
        """What else is in repair, or waits for a repair before this Incident of a node, and which runs doubt its claim.

        `listed`: what the cluster's agent says of all its nodes.
        """
        others, closed = self._of_other_nodes(incident)
        ahead = [other for other in others if _is_ahead(other, incident)]
        booked = [
            other
            for other in others
            if _order_queue_key(other) < _order_queue_key(incident) or (other in ahead and _is_to_order(other))
        ]
        ahead += [other for other in closed if _is_left_in_repair(other, listed, self.now)]
        recent = [*others, *closed]
        weighed_by, outlived_by, doubted_by = self._doubting_runs(incident, listed)
        load = Load(
            ahead=len(ahead),
            last_day=_repairs(recent, self.now),
            booked=len(booked),
            weighed_by=weighed_by,
            outlived_by=outlived_by,
            doubted_by=doubted_by,
        )
        group = incident.repair.group if incident.repair else ""
        if not group:
            return load
        return replace(
            load,
            group_ahead=len(_of_group(ahead, group)),
            group_last_day=_repairs(_of_group(recent, group), self.now),
            group_booked=len(_of_group(booked, group)),
        )

    def _of_other_nodes(self, incident: Incident) -> tuple[list[Incident], list[Incident]]:
        """The open and the closed Incidents of nodes of its cluster, without itself."""
        return (
            [other for other in self.opened if _is_of_another_node(other, incident)],
            [other for other in self.closed if _is_of_another_node(other, incident)],
        )

    def _doubting_runs(
        self, incident: Incident, listed: Maybe[NodesDoc]
    ) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """The runs of `Load.weighed_by`, `Load.outlived_by` and `Load.doubted_by`."""
        weighing = [other for other in self.opened if _is_weighing(other)]
        lost_at = self._lost_at(incident)
        gone_on = [other for other in self.closed if _has_gone_on(other, since=incident.opened_at)]
        gone_on_since_loss = [other for other in self.closed if _has_gone_on(other, since=lost_at)]
        lost_with_it = _lost_with(incident, listed)
        return (
            _runs_on_lost_nodes(weighing, incident, {incident.node}),
            _runs_on_lost_nodes(gone_on, incident, {incident.node}),
            _runs_on_lost_nodes([*weighing, *gone_on_since_loss], incident, lost_with_it, at_once=lost_at),
        )

    def _lost_at(self, incident: Incident) -> datetime:
        """When the cluster lost its node. An earlier Incident of it, closed because its run had gone on, is about the
        same silence: its opening counts.
        """
        same_node = [other for other in self.closed if (other.cluster, other.node) == (incident.cluster, incident.node)]
        opened_earlier = [other.opened_at for other in same_node if other.outcome == RUN_LIVES]
        return min([incident.opened_at, *opened_earlier])

    def nodes_in_repair(self, incident: Incident, listed: Maybe[NodesDoc]) -> frozenset[str]:
        """Nodes of the cluster that a repair of ours has taken down: that they are is no evidence of a dead network.
        One that was lost at once with this Incident's node, before its repair, is.
        """
        others, closed = self._of_other_nodes(incident)
        repaired = [other for other in others if other.repair is not None and other.repair.steps]
        repaired += [other for other in closed if _is_left_in_repair(other, listed, self.now)]
        lost_at = self._lost_at(incident)
        taken_down = {other.node for other in repaired if not _was_lost(other, at_once=lost_at)}
        if incident.repair is not None and incident.repair.steps:
            taken_down.add(incident.node)
        return frozenset(node for node in taken_down if node is not None)


def read_repair_load(store: IncidentStore, *, now: datetime) -> Maybe[RepairLoad]:
    """The Incidents that are open or closed of late; Unknown, with the reason, where they cannot be read."""
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
        # Newest opened first. An Incident that was opened more than two days ago has hardly repaired
        # anything within the last day.
        if cursor is None or (page.incidents and now - page.incidents[-1].opened_at > 2 * DAY):
            break
    return found


def _is_ahead(other: Incident, incident: Incident) -> bool:
    """Whether its node is in repair, or waits for one since before this Incident does."""
    if other.phase in NODE_PHASES:
        return True
    is_waiting = other.repair is not None and other.repair.wanted_at is not None
    return is_waiting and _repair_queue_key(other) < _repair_queue_key(incident)


def _lost_with(incident: Incident, listed: Maybe[NodesDoc]) -> set[str]:
    """Other nodes that the cluster cannot reach now."""
    nodes = listed.value.nodes if isinstance(listed, Known) else ()
    return {node.name for node in nodes if node.name != incident.node and is_lost(node)}


def _runs_on_lost_nodes(
    runs: Iterable[Incident], incident: Incident, nodes: Collection[str | None], *, at_once: datetime | None = None
) -> tuple[str, ...]:
    """The Jobs of those of `runs` to which the cluster reported that it has lost one of `nodes`.

    With `at_once` only reports about that time count, or since the newest repair of this Incident's node: whether that
    repair helped is told by the same reports.
    """
    job_ids: set[str] = set()
    for run in runs:
        if run.job_id is None or run.cluster != incident.cluster or run.fault is not FaultClass.NODE_LOST:
            continue
        reports = (signal for signal in run.signals if signal.kind is SignalKind.NODE_STATE and signal.node in nodes)
        if any(at_once is None or _is_lost_with(incident, signal.occurred_at, at_once) for signal in reports):
            job_ids.add(run.job_id)
    return tuple(sorted(job_ids))


def _is_lost_with(incident: Incident, at: datetime, lost_at: datetime) -> bool:
    step = incident.repair.step if incident.repair is not None else None
    return abs(at - lost_at) <= AT_ONCE or (step is not None and at >= step.at)


def _was_lost(repaired: Incident, *, at_once: datetime) -> bool:
    """Whether the cluster reported about that time, and before its first repair, that it has lost its node."""
    began_at = repaired.repair.steps[0].at if repaired.repair is not None and repaired.repair.steps else None
    reports = (signal for signal in repaired.signals if signal.kind is SignalKind.NODE_STATE)
    return any(
        signal.fault is FaultClass.NODE_LOST and abs(signal.occurred_at - at_once) <= AT_ONCE
        for signal in reports
        if began_at is None or signal.occurred_at < began_at
    )


def _is_weighing(incident: Incident) -> bool:
    """Whether it has not decided yet that its run is dead (rule `defer.confirm`)."""
    return incident.phase is Phase.HOLDING and incident.tracking.watch_at is not None and not incident.approvals


def _has_gone_on(incident: Incident, *, since: datetime) -> bool:
    """Whether it was closed, at `since` or later, because its run has gone on by itself (rule `healed`)."""
    is_healed = incident.phase is Phase.RECOVERED and not incident.resubmission.tries
    return is_healed and incident.closed_at is not None and incident.closed_at >= since


def _of_group(incidents: Iterable[Incident], group: str) -> list[Incident]:
    return [incident for incident in incidents if incident.repair is not None and incident.repair.group == group]


def _is_left_in_repair(closed: Incident, listed: Maybe[NodesDoc], now: datetime) -> bool:
    """Whether it was closed (handed over, cancelled) while a repair was under way, and the node is not back yet as far
    as is known.
    """
    step = closed.repair.step if closed.repair is not None and closed.phase is not Phase.RECOVERED else None
    if step is None or step.state is StepState.REFUSED or step.back_at is not None or now - step.at >= REPAIR_TAKES:
        return False
    if not isinstance(listed, Known):
        return True
    facts = next((node for node in listed.value.nodes if node.name == closed.node), None)
    return facts is None or not is_in_service(facts)


def _is_to_order(incident: Incident) -> bool:
    """Whether its first repair is still to be ordered, and will then count among the day's."""
    return incident.is_open and (incident.repair is None or not incident.repair.steps)


def _order_queue_key(incident: Incident) -> tuple[str, str]:
    """Sorts Incidents by when each began to wait to order a repair, its first or another; last, if for none."""
    repair = incident.repair
    waits_since = None
    if repair is not None and incident.is_open:
        if repair.another is not None:
            waits_since = repair.another.at
        elif not repair.steps:
            waits_since = repair.wanted_at
    return _oldest_first(waits_since, incident)


def _oldest_first(since: datetime | None, incident: Incident) -> tuple[str, str]:
    return (since.isoformat() if since is not None else "~", incident.incident_id)


def _repairs(incidents: Iterable[Incident], now: datetime) -> int:
    """Orders to repair within the last day."""
    return sum(now - step.at < DAY for incident in incidents if incident.repair for step in incident.repair.steps)


def _repair_queue_key(incident: Incident) -> tuple[str, str]:
    """Sorts Incidents by when they first wanted a repair; last, where it never did."""
    return _oldest_first(incident.repair.wanted_at if incident.repair else None, incident)


def _is_of_another_node(other: Incident, incident: Incident) -> bool:
    is_other = other.incident_id != incident.incident_id
    return other.node is not None and other.cluster == incident.cluster and is_other
