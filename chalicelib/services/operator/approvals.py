"""Questions to people, and their answers. An answer is a Signal like any other order, so that it is on the record."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from chalicelib.domain.model.approvals import BREAKER_KEY, Approval, ApprovalAnswer
from chalicelib.domain.model.errors import AlreadyDone, DependencyUnavailable, InvalidRequest, UnknownEntity
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.ports.clock import Clock
from chalicelib.ports.incidents import IncidentStore
from chalicelib.ports.jobs import JobRegistry
from chalicelib.services.intake.intake import Intake
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind

MAX_COMMENT_CHARS: Final = 400
_WORDS: Final = {
    "approve": ApprovalAnswer.APPROVED,
    "approved": ApprovalAnswer.APPROVED,
    "deny": ApprovalAnswer.DENIED,
    "denied": ApprovalAnswer.DENIED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Approvals:
    """Accepts answers, and lists what is open. The first answer counts; later ones are refused with that reason."""

    store: IncidentStore
    intake: Intake
    registry: JobRegistry
    clock: Clock

    def answer(
        self, incident_id: str, approval_id: str, *, answer: str, who: str, key: str, comment: str = ""
    ) -> Outcome:
        """Answer one question: "approve" or "deny". `key` makes it idempotent: the same key is the same answer.

        Approving what the fleet-wide breaker holds lifts the breaker, for every Incident.

        Raises:
            InvalidRequest: no such answer.
            UnknownEntity: no such Incident.
            Skip: there is nothing to answer (any more): the reason says why.
            Retryable: the answer could not be kept; give it again.
        """
        if answer not in _WORDS:
            raise InvalidRequest("answer", "must be approve or deny")
        given = _WORDS[answer]
        looked = self.store.load(incident_id)
        digest = hashlib.sha256(key.encode()).hexdigest()[:24]
        dedupe_key = f"order:approval:{incident_id}:{approval_id}:{digest}"[:200]
        waiting = [signal for signal in looked.inbox if _is_about(signal, approval_id)]
        approval = _find(looked.incident, approval_id)
        taken_in = (*waiting, *(signal for signal in looked.incident.signals if _is_about(signal, approval_id)))
        if any(signal.dedupe_key == dedupe_key for signal in taken_in):  # this very answer, once more
            return Outcome(what=OutcomeKind.DUPLICATE, incident_id=incident_id, job_id=looked.incident.job_id)
        _refuse_late(looked.incident, approval_id, waiting, self.clock)
        signal = Signal(
            kind=SignalKind.ORDER_APPROVAL,
            source=SignalSource.OPERATOR,
            occurred_at=self.clock.now(),
            dedupe_key=dedupe_key,
            summary=f"{who} {given}: {approval.what}"[:400],
            triggers=False,
            evidence={
                "approval_id": approval_id,
                "answer": given.value,
                "who": who[:128],
                "comment": comment[:MAX_COMMENT_CHARS],
            },
        )
        if approval.key == BREAKER_KEY and given is ApprovalAnswer.APPROVED:
            self.registry.lift(who=who[:128], now=self.clock.now())
        taken = self.intake.cancel(incident_id, signal)
        if taken.what is OutcomeKind.OVERFLOWED:
            raise DependencyUnavailable("the Incident's inbox is full; answer again in a minute")
        if taken.what is OutcomeKind.DROPPED:
            raise AlreadyDone("the Incident is closed")
        return taken

    def pending(self) -> list[dict[str, Any]]:
        """Every open question of every open Incident, the one that runs out first at the top."""
        found = [
            (approval.deadline_at, {**approval.to_wire(defaults=True), "incident": _brief(incident)})
            for incident, _ in self.store.list_open()
            for approval in incident.approvals
            if approval.is_pending
        ]
        return [wire for _, wire in sorted(found, key=lambda row: row[0])]


def _is_about(signal: Signal, approval_id: str) -> bool:
    return signal.kind is SignalKind.ORDER_APPROVAL and signal.evidence.get("approval_id") == approval_id


def _find(incident: Incident, approval_id: str) -> Approval:
    found = next((approval for approval in incident.approvals if approval.approval_id == approval_id), None)
    if found is None:
        raise UnknownEntity(f"incident {incident.incident_id!r} asks nothing called {approval_id!r}")
    return found


def _refuse_late(incident: Incident, approval_id: str, waiting: list[Signal], clock: Clock) -> None:
    """An answer to a settled question must be refused visibly."""
    approval = _find(incident, approval_id)
    if approval.answer is not None:
        raise AlreadyDone(f"it was {approval.answer} by {approval.by} already")
    if waiting:
        first = waiting[0].evidence
        raise AlreadyDone(f"it was {first.get('answer')} by {first.get('who')} already")
    if not incident.is_open:
        raise AlreadyDone("the Incident is closed")
    if approval.lapsed_at is not None:
        raise AlreadyDone("it is not asked any more: things have changed since")
    if incident.paused_since is None and clock.now() > approval.deadline_at:
        raise AlreadyDone(f"its deadline has passed, so the policy's answer counts: {approval.default}")


def _brief(incident: Incident) -> dict[str, Any]:
    return {
        "incident_id": incident.incident_id,
        "job_id": incident.job_id,
        "cluster": incident.cluster,
        "node": incident.node,
        "fault": incident.fault.value,
        "phase": incident.phase.value,
        "opened_at": incident.opened_at.isoformat(),
    }
