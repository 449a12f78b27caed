"""A loss that is not finite: of which attempt, from which step on, and how far an attempt came before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chalicelib.domain.faults.failure_reasons import failure_of
from chalicelib.domain.faults.heartbeat_claims import is_beyond_heartbeats
from chalicelib.domain.faults.lives import is_past, life_of
from chalicelib.domain.faults.loss import with_stretch
from chalicelib.domain.faults.signal_facts import concerns, signal_step
from chalicelib.domain.model.evidence import Stretch, newest_before
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, CheckpointView
from chalicelib.domain.model.signal import Signal, SignalKind
from rekindle.detectors.health import Health
from rekindle.protocol.signals import FaultClass

BAD_LOSS = ("nan", "inf")


def note_poison(incident: Incident, view: AttemptView | None) -> Incident:
    """Which attempt had a non-finite loss, and its first bad step as far as any source reports it: it only ever falls.
    Where none does, the newest step that is known to be good stands for it (`is_onset_later`), until one does.

    Kept apart from the fault: whatever ends a poisoned attempt (a crash, an order, our own stop), and however late or
    out of order the news come, its checkpoints from the onset on are worth nothing.
    """
    bad = [signal for signal in incident.signals if _is_poison(signal, incident, view)]
    late = [signal for signal in bad if signal.attempt is not None and signal.attempt == incident.loss.onset_attempt]
    incident = _lower_onset(incident, late)
    own = [signal for signal in bad if concerns(signal, incident)]
    shown = view if view is not None and view.name == incident.attempt else None
    if not own and (shown is None or not _is_bad(shown)):
        return incident
    if not incident.is_poisoned:
        incident = incident.changed(
            onset_attempt=incident.attempt,
            onset_step=Unknown("nothing reported the first bad step"),
            is_onset_later=False,
            onset_fault=FaultClass.NON_FINITE,
        )
    incident = _lower_onset(incident, own)
    episode = incident.loss.episode
    if episode is not None and episode.healed_step is None and episode.attempt == incident.attempt:
        # It went from bad to worse: its state was bent from the spike's onset on.
        incident = _lower_onset_to(incident, episode.first_bad)
    if shown is not None:
        incident = _lowered_by_heartbeat(incident, shown)
    return _kept_from(incident, _life_of_it(own, shown))


def _life_of_it(bad: Sequence[Signal], shown: AttemptView | None) -> int | None:
    """The life of the attempt whose loss is not finite; None where not all that says so names one."""
    if shown is not None and _is_bad(shown):
        return shown.life
    lives = [life for signal in bad if (life := life_of(signal)) is not None]
    return max(lives) if lives and len(lives) == len(bad) else None


def _is_poison(signal: Signal, incident: Incident, view: AttemptView | None) -> bool:
    """A confirmed claim of a non-finite loss, of a life that the attempt's newest heartbeat has not left behind."""
    if signal.fault is not FaultClass.NON_FINITE or not is_confirmed(signal, incident, view):
        return False
    return view is None or view.name != signal.attempt or not is_past(signal, view)


def _lowered_by_heartbeat(incident: Incident, view: AttemptView) -> Incident:
    incident = _lower_onset_to(incident, _onset_in(view, incident))
    if isinstance(incident.loss.onset_step, Unknown) and isinstance(view.last_step, Known):
        return incident.changed(onset_step=view.last_step, is_onset_later=True)
    return incident


def _is_bad(view: AttemptView) -> bool:
    """Whether the attempt's own heartbeat, or the way it failed, says that its loss is not finite."""
    if view.loss_state in BAD_LOSS:
        return True
    return view.status is AttemptStatus.FAILED and failure_of(view).fault is FaultClass.NON_FINITE


# What counts or prints single values that are not finite. A step that a loss scaler skips, or one bad batch, is news:
# weights that are poisoned stay so. The monitor's own event says that it lasted (rekindle/monitor/base/state.py).
_SINGLE_VALUES = frozenset({SignalKind.TRAINING_LOG, SignalKind.ALARM, SignalKind.STATE_REREAD})
_LASTS = 3  # steps; a claim that names none counts by its minute


def is_confirmed(signal: Signal, incident: Incident, view: AttemptView | None) -> bool:
    """A claim of a loss that is not finite is more than one value: the run's own judgement, or repetition, bears it
    out. Of a run that has died of something else it counts as well, unless a later value was finite.
    """
    if signal.kind not in _SINGLE_VALUES or incident.loss.onset_attempt == signal.attempt:
        return True
    if view is None or view.name != signal.attempt:
        return False
    if view.loss_state in BAD_LOSS or signal.evidence.get("loss_state") in BAD_LOSS:
        return True
    step = signal_step(signal)
    is_later = view.heartbeat_at is not None and view.heartbeat_at >= signal.occurred_at
    if isinstance(step, Known) and isinstance(view.judged_at, Known):
        is_later = is_later or view.judged_at.value > step.value
    if view.loss_state == "finite" and is_later:
        return False
    if view.status is AttemptStatus.FAILED:
        return True
    if signal.kind is not SignalKind.TRAINING_LOG:
        # A count over minutes, of a run that has no judgement of its own, or whose own has not been heard since.
        return view.heartbeat_at is None or is_beyond_heartbeats(signal, view)
    same = [other for other in incident.signals if (other.kind, other.fault) == (signal.kind, signal.fault)]
    marks = {_mark(other) for other in same if other.attempt == signal.attempt}
    return len(marks) >= _LASTS


def _mark(signal: Signal) -> object:
    step = signal_step(signal)
    return step.value if isinstance(step, Known) else signal.occurred_at.replace(second=0, microsecond=0)


def _onset_in(view: AttemptView, incident: Incident) -> Maybe[int]:
    """The onset by the heartbeat, for an event that got lost. Where it is bad and names none, its newest step is
    the latest that the onset can be, and counts only where nothing else is known.
    """
    if view.loss_health == Health.NON_FINITE and view.onset_step is not None:
        return Known(view.onset_step)
    is_unnamed = isinstance(incident.loss.onset_step, Unknown) or incident.loss.is_onset_later
    return view.last_step if view.loss_state in BAD_LOSS and is_unnamed else incident.loss.onset_step


def _kept_from(incident: Incident, life: int | None) -> Incident:
    """What it has saved since its onset is not resumed from in later Incidents either, however they start the Job."""
    onset = incident.loss.onset_step
    if incident.loss.onset_attempt is None or incident.loss.onset_fault is not FaultClass.NON_FINITE:
        return incident
    if not isinstance(onset, Known):
        return incident
    first = newest_before(onset.value) + 1
    known = [
        stretch.from_step
        for stretch in incident.loss.stretches
        if stretch.attempt == incident.loss.onset_attempt and stretch.to_step is None
    ]
    if known and min(known) <= first:
        return incident
    return with_stretch(incident, Stretch(attempt=incident.loss.onset_attempt, from_step=first, life=life))


def as_begun(incident: Incident, view: AttemptView) -> Incident:
    """The Incident whose newest try is recorded with what it began from, where its trainer has loaded a newer
    checkpoint than its plan names: what the plan names has not failed.
    """
    last, first = incident.resubmission.pending, view.first_step
    if last is None or last.name != view.name or not isinstance(first, Known):
        return incident
    if not isinstance(last.resume_step, Known) or first.value <= last.resume_step.value + 1:
        return incident
    begun = replace(last, resume_step=Known(first.value - 1), resume_root=None, resume_manifest=None)
    return incident.changed(tries=(*incident.resubmission.tries[:-1], begun))


def without_loaded(incident: Incident, view: AttemptView, checkpoints: Sequence[CheckpointView]) -> Incident:
    """The Incident with what the attempt began from as well, where its loss was not finite from its first step on.

    That is an earlier attempt's checkpoint: what its plan names, else the newest one of that step.
    """
    loss, first = incident.loss, view.first_step
    if loss.onset_attempt != view.name or loss.onset_fault is not FaultClass.NON_FINITE:
        return incident
    if not isinstance(loss.onset_step, Known) or not isinstance(first, Known) or loss.onset_step.value > first.value:
        return incident
    loaded = [
        checkpoint
        for checkpoint in checkpoints
        if checkpoint.step == first.value - 1 and checkpoint.attempt not in ("", view.name)
    ]
    if not loaded:
        return incident
    own = next((attempt for attempt in incident.resubmission.tries if attempt.name == view.name), None)
    planned = [checkpoint for checkpoint in loaded if own is not None and checkpoint.root == own.resume_root]
    bad = max(planned or loaded, key=lambda checkpoint: checkpoint.saved_at)
    if any(stretch.holds(bad.attempt, bad.step, bad.life) for stretch in loss.stretches):
        return incident
    return with_stretch(incident, Stretch(attempt=bad.attempt, from_step=bad.step, to_step=bad.step + 1, life=bad.life))


def _lower_onset(incident: Incident, bad: list[Signal]) -> Incident:
    steps = [step.value for step in map(signal_step, bad) if isinstance(step, Known)]
    return _lower_onset_to(incident, Known(min(steps))) if steps else incident


def _lower_onset_to(incident: Incident, step: Maybe[int]) -> Incident:
    """The first bad step is this one, where none before it is known. What only stood for it gives way."""
    kept, loss = incident.loss.onset_step, incident.loss
    if not isinstance(step, Known) or step == kept:
        return incident
    if isinstance(kept, Known) and kept.value < step.value:
        if not loss.is_onset_later:
            return incident
        other_stretches = (
            stretch
            for stretch in loss.stretches
            if stretch.attempt != loss.onset_attempt or stretch.to_step is not None
        )
        incident = incident.changed(stretches=tuple(other_stretches))
    return incident.changed(onset_step=step, is_onset_later=False)


def died_at(incident: Incident, view: AttemptView) -> Maybe[int]:
    """The last good step of an attempt that has ended: steps after a non-finite loss are worth nothing."""
    if incident.loss.onset_attempt == view.name and isinstance(incident.loss.onset_step, Known):
        if isinstance(view.last_step, Known):
            return Known(min(view.last_step.value, incident.loss.onset_step.value))
        return incident.loss.onset_step
    return view.last_step


def died_at_most(incident: Incident, view: AttemptView) -> Maybe[int]:
    """The furthest step an ended attempt may have come to; a non-finite loss bounds it at its onset."""
    if incident.loss.onset_attempt == view.name and isinstance(incident.loss.onset_step, Known):
        return died_at(incident, view)
    return view.last_step_at_most
