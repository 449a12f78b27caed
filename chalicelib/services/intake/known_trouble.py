"""What the Job's previous Incident says about a new Signal: trouble that a person is handling already opens no Incident
and asks no one again, and a new Incident takes over what was learned of the run.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.fault_specs.faults import LOSS_FAULTS, POISONS
from chalicelib.domain.faults.signal_facts import STATE_KINDS, signal_step
from chalicelib.domain.faults.stalls import is_past_stall
from chalicelib.domain.model.approvals import BREAKER_KEY, POLICY, Approval
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.node_findings import Finding, finding_of, instance_of
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.resume.earlier_attempts import left_in_vain
from chalicelib.domain.run.alerts import is_alert, left_by_alerts_alone
from rekindle.protocol.signals import FaultClass

MAX_EARLIER_FAILURES: Final = 8  # of the attempts of the previous Incident; each new one adds its own
HANDED_OVER_RESPITE: Final = timedelta(hours=1)  # about what a called person needs to see and to say something
NODE_RESPITE: Final = timedelta(hours=24)  # a node has no attempts whose end would end what was said of it
_ENDS: Final = frozenset({"Failed", "Stopped", "Gone", "Completed"})  # what events and the sweep call it
CLUSTER_DRAINED: Final = "node.cluster_drained"  # rules/node/beginning.py
DENIED: Final = "guard.denied"
LEFT_ALONE: Final = frozenset({"order.cancel", DENIED})  # a person has said what shall not be done


def is_in_hand(before: Incident, signal: Signal, job: Job, *, now: datetime) -> bool:
    """True for more of what the Job's newest Incident has just left to a person: the same trouble of the same attempt.

    Each rank of a stuck run reports its own stall; one page is enough. What was cancelled stays so while the attempt
    lives, because a person may be looking into it with a debugger, and so does what was denied, unless the run has gone
    on and stands again; what was handed over may be notified again after a while.
    """
    if signal.source is SignalSource.OPERATOR or before.attempt != job.current_attempt or before.fault != signal.fault:
        return False
    if is_confirmed(before, signal) or _has_ended_since(before, signal) or is_new_poison(before, signal):
        return False
    if before.phase is Phase.HANDED_OVER and not is_known(before, signal):
        return False
    if is_left_alone(before, signal):
        return True
    is_fresh = before.closed_at is not None and now - before.closed_at < HANDED_OVER_RESPITE
    return before.phase is Phase.HANDED_OVER and is_fresh


def is_left_alone(before: Incident, signal: Signal) -> bool:
    """A person has said what shall not be done about this trouble. A denial of a run that has moved since says nothing
    of where it stands now: that is told, and not asked again (`standing_denials`).
    """
    if before.outcome == DENIED and _stands_elsewhere(before, signal):
        return False
    return before.outcome in LEFT_ALONE


def standing_denials(before: Incident, signal: Signal, job: Job) -> tuple[Approval, ...]:
    """What a person has not allowed to be done to the current attempt: other trouble of it is no reason to ask again.

    `before` is the Job's newest Incident, which has those of the Incidents before it.
    """
    if before.attempt != job.current_attempt or is_confirmed(before, signal) or is_new_poison(before, signal):
        return ()
    denied = (item for item in before.approvals if item.forbids and item.by != POLICY and item.key != BREAKER_KEY)
    return tuple(replace(item, approval_id=f"a{number}") for number, item in enumerate(denied, start=1))


def is_new_poison(before: Incident, signal: Signal) -> bool:
    """The attempt was well when it was left to a person, whatever that Incident had begun with: now its loss is not.

    One that was left because it continues from what an earlier Job left may have been well, too: nothing of its own is
    among the stretches of steps with a bad loss.
    """
    loss = before.loss
    was_poisoned = loss.onset_attempt == before.attempt and loss.onset_fault is FaultClass.NON_FINITE
    is_inherited = isinstance(loss.onset_step, Known) and not any(
        stretch.attempt == before.attempt for stretch in loss.stretches
    )
    return signal.fault is FaultClass.NON_FINITE and (is_inherited or not was_poisoned)


def is_known(before: Incident, signal: Signal) -> bool:
    """What that Incident left to a person was this very trouble of this very attempt, as far as its record tells.

    Its fault may be an earlier attempt's: a new attempt that is left running, because its plan was ignored or its steps
    were not seen, and hangs afterwards is in trouble that no person has heard of.
    """
    if _stands_elsewhere(before, signal):
        return False
    if before.signals_seen > len(before.signals) or signal.fault is FaultClass.UNCLEAR or signal.kind in STATE_KINDS:
        return True  # what was said first has given way; or it is what any look at the run shows (_has_ended_since)
    if any(earlier.fault is signal.fault and earlier.attempt == signal.attempt for earlier in before.signals):
        return True
    if before.fault is signal.fault and (not before.resubmission.tries or before.fault_rule == "verify.silent"):
        return True
    is_bent = before.loss.episode is not None and before.loss.episode.attempt == before.attempt
    is_of_its_loss = signal.fault in POISONS
    return is_of_its_loss and (is_bent or before.loss.onset_attempt == before.attempt)


def _stands_elsewhere(before: Incident, signal: Signal) -> bool:
    """A stall at a later step than the one that was left to a person: the run has moved since, and stands again."""
    is_same_attempt = signal.attempt is not None and signal.attempt == before.attempt
    return signal.kind is SignalKind.STALL and is_same_attempt and is_past_stall(before, signal_step(signal))


def _has_ended_since(before: Incident, signal: Signal) -> bool:
    """The platform reports the end of a run that lived when that Incident was closed: all earlier reports were about a
    living run. Where its state could not be read then, an end that is dated later is new.
    """
    if signal.kind not in STATE_KINDS or signal.evidence.get("status") not in _ENDS:
        return False
    status = before.tracking.seen_as.removeprefix(f"{before.attempt}:")
    if status not in set(AttemptStatus):
        return before.closed_at is not None and signal.occurred_at > before.closed_at
    return not AttemptStatus(status).has_ended


def is_told_already(before: Incident, signal: Signal, *, now: datetime) -> bool:
    """True for more of what the cluster itself drained a node for, within NODE_RESPITE of the Incident that told it."""
    if signal.fault is not None or before.is_open or before.outcome != CLUSTER_DRAINED or before.closed_at is None:
        return False
    return now - before.closed_at < NODE_RESPITE


def is_node_left_alone(before: Incident, signal: Signal, *, now: datetime) -> bool:
    """True for more of what a person has denied or cancelled about the node, within NODE_RESPITE.

    `before` is the node's newest Incident. Anything that was not known then is new: a fault of another kind, another
    machine under the same name, one more attempt of a run that accuses it. An order is never refused.
    """
    found = finding_of(signal)
    if before.is_open or before.outcome not in LEFT_ALONE or found is None or signal.source is SignalSource.OPERATOR:
        return False
    if before.closed_at is None or now - before.closed_at >= NODE_RESPITE or is_confirmed(before, signal):
        return False
    instance, known = instance_of(signal), before.repair.instance_id if before.repair is not None else None
    if instance is not None and known is not None and instance != known:
        return False
    if signal.kind is SignalKind.NODE_SUSPECT:
        return any(
            _accuser(earlier) == _accuser(signal)
            for earlier in before.signals
            if earlier.kind is SignalKind.NODE_SUSPECT
        )
    findings = before.repair.findings if before.repair is not None else ()
    heard = (finding_of(earlier) for earlier in before.signals)
    return _fault(found) in {_fault(finding) for finding in (*findings, *heard) if finding is not None}


def is_confirmed(before: Incident, signal: Signal) -> bool:
    """So far only alerts of other monitoring reported it; now the run or the node does."""
    return left_by_alerts_alone(before) and not is_alert(signal)


def _accuser(signal: Signal) -> tuple[object, ...]:
    return tuple(signal.evidence.get(name) for name in ("job_id", "attempt"))


def _fault(finding: Finding) -> tuple[str, str]:
    return finding.kind.value, finding.key


def with_history(incident: Incident, previous: Incident, signal: Signal, job: Job) -> Incident:
    """The new Incident with what the Job's previous one has learned of the run."""
    incident = replace(incident, approvals=standing_denials(previous, signal, job)).changed(
        # What was saved in a bad stretch is never resumed from, also where it has healed since.
        stretches=previous.loss.stretches,
        fruitless_before=left_in_vain(previous, incident.attempt),
        # How its attempts ended before tells whether one more end is the checkpoint's doing (load_failures.py).
        failures=previous.resubmission.failures[-MAX_EARLIER_FAILURES:],
    )
    if previous.loss.onset_attempt == job.current_attempt and previous.loss.onset_fault not in LOSS_FAULTS:
        # The previous Incident closed with this run poisoned (cancelled, say): what it saved since is no better.
        incident = incident.changed(onset_attempt=previous.loss.onset_attempt, onset_step=previous.loss.onset_step)
    return incident
