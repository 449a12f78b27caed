"""Keeps an Incident's account (account.py) after every decision. Pure."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Final

from chalicelib.domain.faults.signal_facts import ORDER_KINDS
from chalicelib.domain.model.account import Account, Restart, earliest, onset_of_silence
from chalicelib.domain.model.action import Action, AdoptAttempt, ResubmitJob
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, CheckpointView, Observation
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.policy.document import Policy
from chalicelib.domain.resume.resume_point import choose_resume_point
from rekindle.protocol.manifests import SaveKind

# An attempt that ended so ended because of the fault; one that was stopped or has completed tells nothing of a fault.
_DIED: Final = (AttemptStatus.FAILED, AttemptStatus.EXPIRED)


def with_account(
    before: Incident,
    after: Incident,
    actions: tuple[Action, ...],
    seen: Observation,
    *,
    now: datetime,
    policy: Policy,
) -> Incident:
    """`after` with its account brought up to date; the very same object where nothing is new.

    `before` is the Incident as the look found it: the attempt under care is still the old one there.
    """
    account = after.account
    if account.looked_at is None:
        account = dataclasses.replace(account, looked_at=now)
    account = account.with_phase(after.phase.value, now=now)
    view = seen.attempt.value if isinstance(seen.attempt, Known) else None
    account = _onset(account, before, seen, view)
    if view is not None and view.step_s is not None and account.step_s != Known(view.step_s):
        account = _step_time(account, view.step_s, is_restarting=bool(after.resubmission.tries))
    if view is not None:
        account = _went_on_from(account, view)
    for action in actions:
        if isinstance(action, ResubmitJob | AdoptAttempt):
            account = account.with_restart(_restart(action, before, seen, view, policy))
            if not isinstance(account.own_gap_s, Known) and isinstance(seen.record.own_gap_s, Known):
                account = dataclasses.replace(account, own_gap_s=seen.record.own_gap_s)
    if before.is_open and not after.is_open:
        closed_step = view.last_step if view is not None else Unknown("the run could not be seen when it closed")
        account = dataclasses.replace(account, closed_step=closed_step)
    return after if account == after.account else dataclasses.replace(after, account=account)


def _onset(account: Account, incident: Incident, seen: Observation, view: AttemptView | None) -> Account:
    """Only for the first attempt: what a later one suffers is a consequence, and has its own new start."""
    if incident.resubmission.tries:
        return account
    reported = [_begun(signal) for signal in seen.new_signals if _tells_onset(signal, incident)]
    if view is not None and view.status in _DIED and view.ended_at is not None:
        reported.append((view.ended_at, f"the platform: {view.name} ended"))
    first = earliest(reported)
    return account if first is None else account.with_onset(*first)


def _tells_onset(signal: Signal, incident: Incident) -> bool:
    if signal.fault is None or not signal.triggers:
        return False
    return signal.attempt is None or incident.attempt is None or signal.attempt == incident.attempt


def _begun(signal: Signal) -> tuple[datetime, str]:
    if signal.kind in ORDER_KINDS:
        return signal.occurred_at, f"{signal.source}: the order itself"
    at, less = signal.occurred_at, ""
    if signal.kind is SignalKind.STALL:
        at, less = onset_of_silence(at, signal.evidence.get("silent_s"))
    return at, f"{signal.source}: {signal.kind}{less}"


def _step_time(account: Account, step_s: float, *, is_restarting: bool) -> Account:
    """The old run's own; a new attempt's first steps are slow ones, so they count only where nothing else is known."""
    if is_restarting and isinstance(account.step_s, Known):
        return account
    if isinstance(account.step_s, Known) and abs(account.step_s.value - step_s) < 0.2 * step_s:
        return account  # a median moves a little at each look; that alone is not worth a write
    return dataclasses.replace(account, step_s=Known(step_s))


def _went_on_from(account: Account, view: AttemptView) -> Account:
    """A new start that chose its own resume point shows it by its first step: it resumed from the step before."""
    last = account.restarts[-1] if account.restarts else None
    if last is None or last.name != view.name or isinstance(last.resume_step, Known):
        return account
    if not isinstance(view.first_step, Known):
        return account
    text = dataclasses.replace(last, resume_step=Known(max(view.first_step.value - 1, 0)))
    return dataclasses.replace(account, restarts=(*account.restarts[:-1], text))


def _restart(
    action: ResubmitJob | AdoptAttempt,
    before: Incident,
    seen: Observation,
    view: AttemptView | None,
    policy: Policy,
) -> Restart:
    old = view if view is not None and view.name == action.clone_of else None
    is_ours = isinstance(action, ResubmitJob)
    resume: Maybe[int] = (
        action.resume_step
        if isinstance(action, ResubmitJob)
        else Unknown("the platform started it, and its own script chooses where it continues")
    )
    manifest = action.resume_manifest or action.resume_root if isinstance(action, ResubmitJob) else None
    checkpoints = seen.checkpoints.value if isinstance(seen.checkpoints, Known) else ()
    return Restart(
        number=action.number,
        name=action.name,
        after=action.clone_of,
        furthest=old.last_step_at_most if old is not None else Unknown(f"{action.clone_of} was not seen then"),
        ended_at=old.ended_at if old is not None else None,
        resume_step=resume,
        kind=next(
            (
                checkpoint.kind
                for checkpoint in checkpoints
                if manifest and manifest in (checkpoint.manifest, checkpoint.root)
            ),
            "",
        ),
        periodic_step=_periodic(checkpoints, before, policy) if is_ours else Unknown("no one chose a checkpoint"),
    )


def _periodic(checkpoints: tuple[CheckpointView, ...], incident: Incident, policy: Policy) -> Maybe[int]:
    """Where it would go on without what was saved because of the fault, by the very rules that chose what was taken."""
    others = tuple(checkpoint for checkpoint in checkpoints if checkpoint.kind != SaveKind.EMERGENCY)
    if not others:
        return Unknown("no other checkpoint was seen")
    point = choose_resume_point(others, incident, policy)
    return Unknown("no other checkpoint could have been used") if point is None else point.step
