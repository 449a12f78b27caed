"""What holds an order now, before any rule is asked: the pause, shadow mode, windows, the breaker. Pure.

The guards (guards.py, rules/common.py) judge each step when it is proposed; this tells people beforehand, by the same
switches and the same policy. What only a proposed step can meet (a question to people, a budget) is not foretold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from chalicelib.domain.model.approvals import Guard
from chalicelib.domain.model.codec import Record
from chalicelib.domain.model.switches import ShadowScope, Switches
from chalicelib.domain.policy.document import Policy

POLICY_SHADOW: Final = "policy"  # in `where`, beside the words of ShadowScope


class HoldEffect(StrEnum):
    """What a guard that holds now means for an order."""

    WAITS = "waits"  # it is carried out once the guard lets go
    NOT_DONE = "not_done"  # it is recorded and told, and never carried out
    LATER_STEPS = "later_steps"  # the order is carried out; what Rekindle decides by itself after it waits


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingHold(Record):
    """One guard that holds now.

    `where`: of shadow mode the switches that are on (ShadowScope, or POLICY_SHADOW), of windows their names. `by` and
    `why`: who set it, with their reason, or what the breaker has counted.
    """

    guard: Guard
    effect: HoldEffect
    since: datetime | None = None
    until: datetime | None = None
    by: str = ""
    why: str = ""
    where: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """In words for people."""
        why = f" ({self.why})" if self.why else ""
        if self.guard is Guard.PAUSE:
            named = f"the pause by {self.by or 'a person'}{self._since()}{why}"
            return f"{named} holds it until `rekindle switches unpause`"
        if self.guard is Guard.SHADOW:
            where = ", ".join(_SHADOWED[where] for where in self.where)
            return f"shadow mode ({where}): it is recorded and told, and nothing is done"
        named = f"the fleet-wide breaker is open{self._since()}{why}"
        if self.guard is Guard.WINDOW:
            until = f" until {self.until:%a %H:%M} UTC" if self.until else ""
            named = f"the window {', '.join(self.where)} holds{until}"
        if self.effect is HoldEffect.LATER_STEPS:
            return f"{named}: not this order, but what Rekindle decides by itself after it"
        return f"{named}: it waits for that"

    def _since(self) -> str:
        return f" since {self.since:%Y-%m-%d %H:%M} UTC" if self.since else ""

    def to_wire(self, *, defaults: bool = True) -> dict[str, Any]:
        """With the words for people."""
        return {**Record.to_wire(self, defaults=defaults), "text": self.text}


_SHADOWED: Final = {
    ShadowScope.EVERYWHERE.value: "everywhere",
    ShadowScope.JOB.value: "for this Job",
    ShadowScope.CLUSTER.value: "for this cluster",
    POLICY_SHADOW: "in its policy",
}


def standing_holds(
    switches: Switches,
    policy: Policy,
    *,
    job_id: str | None,
    cluster: str | None,
    now: datetime,
    is_order: bool,
) -> tuple[StandingHold, ...]:
    """What holds a step about this Job, or this cluster's nodes, at `now`.

    is_order: a person orders the step itself, which neither hours nor the breaker hold; else it is Rekindle's own.
    """
    return tuple(_standing(switches, policy, job_id=job_id, cluster=cluster, now=now, is_order=is_order))


def _standing(
    switches: Switches, policy: Policy, *, job_id: str | None, cluster: str | None, now: datetime, is_order: bool
) -> Iterator[StandingHold]:
    if switches.paused:
        yield StandingHold(
            guard=Guard.PAUSE,
            effect=HoldEffect.WAITS,
            since=switches.paused_at,
            by=switches.paused_by,
            why=switches.paused_why,
        )
    scopes = tuple(scope.value for scope in switches.shadow_scopes(job_id=job_id, cluster=cluster))
    where = (*scopes, *((POLICY_SHADOW,) if policy.shadow else ()))
    if where:
        by, since = (switches.shadow_by, switches.shadow_at) if scopes else ("", None)
        yield StandingHold(guard=Guard.SHADOW, effect=HoldEffect.NOT_DONE, since=since, by=by, where=where)
    effect = HoldEffect.LATER_STEPS if is_order else HoldEffect.WAITS
    windows = {row.name: until for row in policy.windows if (until := row.holds_until(now)) is not None}
    if windows:
        yield StandingHold(guard=Guard.WINDOW, effect=effect, until=max(windows.values()), where=tuple(sorted(windows)))
    if switches.breaker.is_open and policy.breaker.incidents:
        yield StandingHold(
            guard=Guard.BREAKER, effect=effect, since=switches.breaker.tripped_at, why=switches.breaker.text
        )
