"""The fleet-wide breaker: how many Incidents act at once, counted when a step is decided, and again when it is late.

Noted first and counted then, so that of any number at once no more get through than may. What people order is theirs,
however much of it: it neither counts nor trips.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.guards.guards import was_ordered
from chalicelib.domain.model.action import Action, ActionResult, Done, ResubmitJob, StopJob, action_name
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.policy.document import Policy
from chalicelib.ports.jobs import JobRegistry

COUNTED_FOR: Final = timedelta(seconds=60)
"""A step that is carried out within this time of its decision was counted with it; a later one is counted again."""


def one_too_many(
    registry: JobRegistry, incident_id: str, policy: Policy, *, now: datetime, lifted_at: datetime | None
) -> str | None:
    """Note that the Incident is about to act. What the breaker has tripped for, which it then does; None: go on.

    lifted_at: when a person last lifted the breaker; what acted before does not count.
    """
    if not policy.breaker.incidents:
        return None
    since = now - policy.breaker.window - COUNTED_FOR
    since = max(since, lifted_at) if lifted_at is not None else since
    acting = registry.will_act(incident_id, now=now, since=since)
    if acting <= policy.breaker.incidents:
        return None
    active = registry.count_active()
    if acting * 100 <= policy.breaker.percent * active:
        return None
    minutes = policy.breaker.window.total_seconds() / 60
    text = f"{acting} Incidents would have acted within {minutes:.0f} min, over {active} active Jobs"
    registry.trip(incident_id, now=now, text=text)
    return text


def held_at_last(
    action: Action, incident: Incident, policy: Policy, *, registry: JobRegistry, now: datetime
) -> ActionResult | None:
    """A stop or a submission that has been tried for long takes effect beside others than it was counted with.

    It is counted again before each such try, and held while the breaker is open: for the next observation it is an
    order that never arrived. None: it may be carried out.
    """
    decided_at = _decided_at(action, incident)
    if decided_at is None or now - decided_at <= COUNTED_FOR or was_ordered(incident, incident):
        return None
    breaker = registry.switches().breaker
    is_held = breaker.is_open and policy.breaker.incidents > 0
    stated = (
        breaker.text
        if is_held
        else one_too_many(registry, incident.incident_id, policy, now=now, lifted_at=breaker.lifted_at)
    )
    if stated is None:
        return None
    detail = f"the fleet-wide breaker is open: {stated}"
    return ActionResult(action=action_name(action), done=Done.UNAVAILABLE, detail=detail[:400])


def _decided_at(action: Action, incident: Incident) -> datetime | None:
    match action:
        case ResubmitJob():
            return incident.resubmission.pending.at if incident.resubmission.pending is not None else None
        case StopJob():
            return incident.halt.stop_begun_at if action.attempt in incident.halt.stopped_attempts else None
        case _:
            return None
