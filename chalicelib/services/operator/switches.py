"""What people switch for everything at once: the global pause, shadow mode, and the breaker that tripped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chalicelib.domain.model.errors import AlreadyDone, InvalidRequest
from chalicelib.domain.model.switches import ShadowScope
from chalicelib.ports.clock import Clock
from chalicelib.ports.jobs import JobRegistry
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind

MAX_WHO_CHARS = 128
MAX_WHY_CHARS = 400
MAX_NAME_CHARS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """Each takes effect at the next observation of every Incident, and right before each Action that does anything."""

    registry: JobRegistry
    clock: Clock

    def read(self) -> dict[str, Any]:
        """`{"paused", "paused_by", "paused_at", "paused_why", "shadow": {…}, "breaker": {…}}`."""
        return self.registry.switches().to_wire()

    def set_pause(self, paused: bool, *, who: str, why: str = "") -> Outcome:
        """Set or lift the global pause. Doing it twice changes only who did it last."""
        self.registry.set_paused(paused, who=who[:MAX_WHO_CHARS], now=self.clock.now(), why=why[:MAX_WHY_CHARS])
        text = "paused" if paused else "unpaused"
        return Outcome(
            what=OutcomeKind.SWITCHED, reason=text, facts={"who": who[:MAX_WHO_CHARS], "why": why[:MAX_WHY_CHARS]}
        )

    def set_shadow(self, scope: str, name: str | None, on: bool, *, who: str) -> Outcome:
        """Put `name`, a job id or a cluster, or everything into shadow mode, or out of it.

        Raises:
            InvalidRequest: no such scope; a name is missing, or given where there is none.
            UnknownEntity: no such Job.
        """
        try:
            where = ShadowScope(scope)
        except ValueError:
            raise InvalidRequest("scope", f"must be one of {', '.join(ShadowScope)}") from None
        given = name or ""
        if where is ShadowScope.EVERYWHERE and given:
            raise InvalidRequest("name", "must be left out, because the scope is everywhere")
        if where is not ShadowScope.EVERYWHERE and not 1 <= len(given) <= MAX_NAME_CHARS:
            raise InvalidRequest("name", f"must name the {where}, in 1 to {MAX_NAME_CHARS} characters")
        if where is ShadowScope.JOB and on:
            self.registry.get(given)
        self.registry.set_shadow(where, given, on, who=who[:MAX_WHO_CHARS], now=self.clock.now())
        text = f"shadow mode {'on' if on else 'off'}"
        return Outcome(
            what=OutcomeKind.SWITCHED,
            reason=text,
            job_id=given if where is ShadowScope.JOB else None,
            facts={"who": who[:MAX_WHO_CHARS], "scope": where.value, "name": given},
        )

    def lift_breaker(self, *, who: str) -> Outcome:
        """Let everything go on that the fleet-wide breaker holds.

        Raises:
            AlreadyDone: it is not open.
        """
        if not self.registry.switches().breaker.is_open:
            raise AlreadyDone("the breaker is not open")
        self.registry.lift(who=who[:MAX_WHO_CHARS], now=self.clock.now())
        return Outcome(what=OutcomeKind.SWITCHED, reason="breaker lifted", facts={"who": who[:MAX_WHO_CHARS]})
