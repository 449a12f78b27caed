"""Opens and joins Incidents, and starts or wakes the execution that recovers from each."""

from __future__ import annotations

from dataclasses import dataclass

from chalicelib.domain.model.errors import DependencyUnavailable
from chalicelib.domain.model.incident import Incident, Phase, incident_id_for
from chalicelib.domain.model.signal import Signal
from chalicelib.ports.clock import Clock
from chalicelib.ports.incidents import Entry, Executions, IncidentStore, JoinOutcome
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind

MAX_RACES = 4  # an Incident can close and another open meanwhile; more often than this in one event is a bug


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentOpener:
    """Every method is safe to repeat: a Signal is taken once by its key."""

    store: IncidentStore
    executions: Executions
    clock: Clock

    def new(self, signal: Signal, *, scope: str, policy_name: str) -> Incident:
        """An Incident that `signal` would open; nothing is stored yet. scope: a Job, a cluster, or a node."""
        now = self.clock.now()
        return Incident(
            incident_id=incident_id_for(signal, scope=scope),
            job_id=None,
            cluster=signal.cluster,
            opened_at=now,
            phase=Phase.OPEN,
            phase_entered_at=now,
            policy_name=policy_name,
        )

    def open(self, incident: Incident, signal: Signal) -> Outcome:
        """Open it, or join the one that is open for the same.

        Raises:
            DependencyUnavailable: it changed too often meanwhile; the event comes again.
        """
        for _ in range(MAX_RACES):
            entry = self.store.open(incident, signal, now=self.clock.now())
            if entry.outcome is not JoinOutcome.CLOSED:
                return self._woken(entry, signal)
        raise DependencyUnavailable("the Incident was changed by others too often; the event will be retried")

    def join(self, incident_id: str, signal: Signal) -> Outcome | None:
        """Hand the Signal to this Incident; None where it is closed. Raises: UnknownEntity."""
        entry = self.store.join(incident_id, signal, now=self.clock.now())
        return None if entry.outcome is JoinOutcome.CLOSED else self._woken(entry, signal)

    def hand(self, incident_id: str, signal: Signal) -> Outcome:
        """`join`, where a closed Incident drops the Signal. Raises: UnknownEntity."""
        taken = self.join(incident_id, signal)
        return taken or Outcome(what=OutcomeKind.DROPPED, reason="the Incident is closed", incident_id=incident_id)

    def _woken(self, entry: Entry, signal: Signal) -> Outcome:
        """A lost wake costs one timeout, never the recovery; a lost start is healed by redelivery and the sweep.

        A signal without room wakes no Incident: those that fill the inbox did, and a flood must not buy an observation
        each.
        """
        if not entry.is_full:
            if entry.outcome is JoinOutcome.OPENED or entry.callback_id is None:
                self.executions.start(entry.incident_id, generation=entry.generation)
            else:
                self.executions.wake(entry.callback_id, why=signal.kind.value)
        return Outcome(
            what=OutcomeKind.OVERFLOWED if entry.is_full else OutcomeKind(entry.outcome.value),
            reason="the Incident's inbox is full" if entry.is_full else "",
            incident_id=entry.incident_id,
            job_id=signal.job_id,
            signal=signal.kind.value,
        )
