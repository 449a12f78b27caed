"""The arithmetic of a rollback: how far back, and which data to leave out. docs/playbooks.md works it through.

Steps number both updates and batches: batch n is the one that update n uses, in every attempt, because a trainer that
skips a step skips its number too (rekindle.protocol.mailbox, ResumePlan).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chalicelib.domain.fault_specs.faults import LOSS_FAULTS
from chalicelib.domain.faults.loss import onset_now
from chalicelib.domain.model.evidence import Onset, SuspicionKind
from chalicelib.domain.model.incident import Incident, SkipWindow
from chalicelib.domain.model.incident_parts import merge_windows
from chalicelib.domain.model.known import Known, Maybe, Unknown
from rekindle.protocol.signals import FaultClass

if TYPE_CHECKING:
    from chalicelib.domain.policy.document import Policy

FINITE_STEPS = 3  # as many finite losses in a row show that the weights are (poisoned ones stay so)


def account_rollback(incident: Incident, policy: Policy) -> Incident:
    """One more rollback of an attempt gone bad: counted, its onset kept, the data to skip and to watch past set.

    Of a healthy attempt: the Incident as it is.
    """
    onset = onset_now(incident)
    if onset is None:
        return incident
    incident = incident.changed(
        rollbacks=incident.loss.rollbacks + 1, onsets=(*incident.loss.onsets, onset), conclusion=""
    )
    incident = incident.changed(conclusion=_concluded(incident))
    skipped = data_rollbacks(incident, policy)
    if is_of_its_checkpoint(incident, onset):
        return incident  # its data are not to blame: none are left out for it
    if skipped < 1 or not isinstance(first_onset(incident), Known):
        return incident
    window = skip_window(incident, policy)
    verify_to: Maybe[int] = Unknown("nothing beyond the target")
    if onset.fault in LOSS_FAULTS:
        verify_to = Known(window.to_step - 1 + policy.loss.spike_heal_steps)
    return incident.changed(skips=merge_windows((*incident.loss.skips, window)), verify_to=verify_to)


def has_skipped_enough(incident: Incident, policy: Policy) -> bool:
    """So much data are left out already, over all Incidents of the Job, that leaving out more is a person's choice."""
    left_out = sum(window.to_step - window.from_step for window in incident.loss.skips)
    return left_out >= policy.loss.skip_steps * policy.budgets.max_skips


def data_rollbacks(incident: Incident, policy: Policy) -> int:
    """How many of the rollbacks accounted for left data out, the one for the attempt under care included.

    A non-finite loss gets the same data once more first: a broken machine does not need its data skipped, and is
    recognized by it. So does every later one while one host alone goes bad, each time somewhere else. A spike's data
    are skipped at once, for it has had its second chance while it was watched.
    """
    of_data = incident.loss.rollbacks - sum(is_of_its_checkpoint(incident, onset) for onset in incident.loss.onsets)
    if incident.loss.onset_fault in LOSS_FAULTS:
        return of_data
    return 0 if host_to_blame(incident) else of_data - policy.loss.same_data_retries


def is_of_its_checkpoint(incident: Incident, onset: Onset) -> bool:
    """Non-finite from the first step after its resume on: what it resumed from was poisoned already."""
    started = next((attempt for attempt in incident.resubmission.tries if attempt.name == onset.attempt), None)
    if started is None or started.is_theirs or onset.fault is not FaultClass.NON_FINITE:
        return False
    if not isinstance(onset.step, Known) or not isinstance(started.resume_step, Known):
        return False
    return onset.step.value <= started.resume_step.value + 1


def resumed_at_last(incident: Incident, policy: Policy) -> int | None:
    """The step that the newest attempt which left data out resumed at, once it went bad all the same.

    Each further rollback begins before it: a distance of zero that grows by a factor stays zero. Not where it had come
    past all earlier onsets: what it saved there is sound, and goes bad elsewhere for the first time.
    """
    if data_rollbacks(incident, policy) < 2 or onset_to_precede(incident) != first_onset(incident):
        return None
    started = next(
        (attempt for attempt in reversed(incident.resubmission.tries) if attempt.name == incident.loss.onset_attempt),
        None,
    )
    step = started.resume_step if started is not None else None
    return step.value if isinstance(step, Known) else None


def rewind_steps(incident: Incident, policy: Policy) -> int:
    """How far before the first onset the resume point must lie at least; 0, just before it, for a non-finite loss."""
    if incident.loss.onset_fault not in LOSS_FAULTS:
        return 0
    return round(policy.loss.spike_rewind_steps * widening_factor(incident, policy))


def widening_factor(incident: Incident, policy: Policy) -> float:
    """1 at the first rollback that leaves data out, growing with each further one."""
    # The exponent is bounded by max_rollbacks (20) and the factor by 10, so this stays a number.
    return float(policy.loss.widen_factor ** max(data_rollbacks(incident, policy) - 1, 0))


def first_onset(incident: Incident) -> Maybe[int]:
    """The earliest onset that this Incident was rolled back for, the attempt's under care included.

    Attempts that go bad again while the Incident is open go bad in or near the window: it is the same trouble.
    """
    steps = [item.step.value for item in incident.loss.onsets if isinstance(item.step, Known)]
    if incident.is_poisoned and isinstance(incident.loss.onset_step, Known):
        steps.append(incident.loss.onset_step.value)
    return Known(min(steps)) if steps else Unknown("no onset is known")


def onset_to_precede(incident: Incident) -> Maybe[int]:
    """Before which onset the resume point has to lie.

    The earliest, but of a non-finite loss: an attempt whose loss was finite past earlier onsets has shown that what it
    saved there holds nothing of them. What goes bad then goes bad for the first time, and again where it is repeated
    within a few steps.
    """
    now, earlier = (
        incident.loss.onset_step,
        [onset.step for onset in incident.loss.onsets if onset.attempt != incident.loss.onset_attempt],
    )
    is_of_numbers = incident.loss.onset_fault is FaultClass.NON_FINITE and all(
        onset.fault is FaultClass.NON_FINITE for onset in incident.loss.onsets
    )
    if is_of_numbers and incident.is_poisoned and isinstance(now, Known):
        steps = [step.value for step in earlier if isinstance(step, Known)]
        if len(steps) == len(earlier):
            first = now.value
            for step in sorted(steps, reverse=True):
                first = min(first, step) if first <= step + FINITE_STEPS else first
            return Known(first)
    return first_onset(incident)


def skip_window(incident: Incident, policy: Policy) -> SkipWindow:
    """From the margin before the first onset, at least `skip_steps` wide; on recurrence also beyond the newest onset.

    The newest bad step always lies in it, whatever the policy's width: a window that ends before the batch that did it
    would cost a rollback and cure nothing. Needs a known onset.
    """
    first, newest = first_onset(incident), incident.loss.onset_step
    assert isinstance(first, Known)  # noqa: S101  account_rollback has asked
    factor = widening_factor(incident, policy)
    margin, width = round(policy.loss.skip_margin_steps * factor), round(policy.loss.skip_steps * factor)
    last = newest.value if isinstance(newest, Known) else first.value
    to_step = max(max(last - margin, 0) + width, last + 1)
    return SkipWindow(from_step=max(first.value - margin, 0), to_step=to_step)


def host_to_blame(incident: Incident) -> str | None:
    """The one host whose rank went non-finite first in two attempts or more, each time at another step.

    No data do that.
    """
    onsets = [item for item in incident.loss.onsets if item.fault is FaultClass.NON_FINITE]
    steps = {item.step.value for item in onsets if isinstance(item.step, Known)}
    if len(onsets) < 2 or len(steps) < len(onsets):
        return None
    hosts = [set(hosts_of(incident, item.attempt)) for item in onsets]
    common = set.intersection(*hosts)
    return min(common) if len(common) == 1 else None


def hosts_of(incident: Incident, attempt: str) -> tuple[str, ...]:
    """The hosts that the ranks of an attempt blame for its non-finite loss."""
    return next(
        (
            item.hosts
            for item in incident.evidence.suspicions
            if item.attempt == attempt and item.kind is SuspicionKind.NON_FINITE and item.ranks
        ),
        (),
    )


def concluded_on_recovery(incident: Incident) -> Incident:
    """A non-finite loss that the same data did not bring back was no matter of the data."""
    onsets = [item for item in incident.loss.onsets if item.fault is FaultClass.NON_FINITE]
    if not onsets or incident.loss.skips or len(onsets) != len(incident.loss.onsets):
        return incident
    hosts = hosts_of(incident, onsets[-1].attempt)
    blamed = f"flaky hardware on {', '.join(hosts)}" if hosts else "flaky hardware, on a host that nothing names"
    return incident.changed(conclusion=f"{blamed}: the same data did not go non-finite again")


def _concluded(incident: Incident) -> str:
    """What the repetition says about a non-finite loss, in words; empty while there is nothing to compare."""
    onsets = [item for item in incident.loss.onsets if item.fault is FaultClass.NON_FINITE]
    if len(onsets) < 2:
        return ""
    before, now = onsets[-2:]
    host = host_to_blame(incident)
    if host is not None:
        return f"{host}'s hardware: its rank went non-finite first in {len(onsets)} attempts, each time at another step"
    if not isinstance(now.step, Known) or before.step != now.step:
        return "not distinguished: non-finite again, but not at the same step"
    was, is_now = set(hosts_of(incident, before.attempt)), set(hosts_of(incident, now.attempt))
    if was and was == is_now:
        return f"not distinguished: step {now.step.value} again, and on {', '.join(sorted(was))} again"
    return f"the data or the model: non-finite at step {now.step.value} again" + (" on another host" if was else "")
