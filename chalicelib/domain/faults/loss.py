"""A loss that has gone wrong and is still a number: is it over, young, lasting, or out of sight? Pure.

The run's own detectors judge its loss; nothing here looks at a loss. What counts is the newest judgement (the
heartbeat's), and Signals only fill in what it leaves out. A heartbeat without one is no judgement: neither healed nor
still bad.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from chalicelib.domain.fault_specs.faults import LOSS_FAULTS
from chalicelib.domain.model.evidence import MAX_STRETCHES, LossEpisode, Onset, Stretch
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptView
from chalicelib.domain.model.signal import Signal, SignalKind
from rekindle.protocol.signals import FaultClass

if TYPE_CHECKING:
    from chalicelib.domain.policy.document import Policy

# rekindle.detectors.health.Health, as the heartbeat writes it. SPIKING and DIVERGING: bad at the newest judged step.
# WATCH: no longer bad, but not called over yet.
_BAD = {"spiking": FaultClass.LOSS_SPIKE, "diverging": FaultClass.DIVERGENCE}
_WATCH = "watch"
_FINE = ("ok", _WATCH)


class BadLossState(StrEnum):
    """How a episode stands at one observation."""

    HEALED = "healed"
    YOUNG = "young"  # it may still heal by itself
    LASTS = "lasts"  # past the steps in which it may
    UNSEEN = "unseen"  # nothing tells


def bad_fault(view: AttemptView) -> FaultClass | None:
    """What the run's newest judgement of its loss says is wrong, if anything."""
    return _BAD.get(view.loss_health)


def follow(incident: Incident, signals: list[Signal], view: AttemptView | None, *, now: datetime) -> Incident:
    """The Incident with its episode brought up to date. `signals` are those that concern the attempt under care."""
    if incident.attempt is None:
        return incident
    view = view if view is not None and view.name == incident.attempt else None
    episode = incident.loss.episode
    if episode is not None and (episode.attempt != incident.attempt or _is_before_repair(episode.since, incident)):
        episode = None
    reported = [item for item in signals if item.fault in LOSS_FAULTS and item.triggers]
    over_at = _over_between(episode, signals, view)
    if episode is not None and over_at is not None:
        episode = dataclasses.replace(episode, healed_step=over_at)
        incident = marked_healed(incident.changed(episode=episode))
    if episode is None or episode.healed_step is not None:
        episode = _begun(incident, episode, reported, view, now) or episode
    if episode is None:
        return incident if incident.loss.episode is None else incident.changed(episode=None)
    if episode.healed_step is None:
        episode = _followed(_learned(episode, reported, view), signals, view, now)
    return incident if episode == incident.loss.episode else incident.changed(episode=episode)


def _followed(episode: LossEpisode, signals: list[Signal], view: AttemptView | None, now: datetime) -> LossEpisode:
    """Whether it has ended, and since when nothing tells."""
    healed_step = _healed_at(episode, signals, view)
    is_unseen = healed_step is None and (view is None or view.loss_health not in (*_BAD, _WATCH))
    unseen_since = (episode.unseen_since or now) if is_unseen else None
    return dataclasses.replace(episode, healed_step=healed_step, unseen_since=unseen_since)


def _over_between(episode: LossEpisode | None, signals: list[Signal], view: AttemptView | None) -> int | None:
    """Where the episode ended, if what is bad now began after it: it healed, and one began between two observations.

    The run's own judgement keeps one onset for as long as one trouble lasts. Without this, two spikes that each heal
    would count as one that lasts.
    """
    if episode is None or episode.healed_step is not None or view is None or bad_fault(view) is None:
        return None
    first, onset = episode.first_bad, view.onset_step
    if onset is None or not isinstance(first, Known) or onset <= first.value:
        return None
    reported = [_step(item, "healed_step") for item in signals if item.kind is SignalKind.LOSS_RECOVERED]
    return max((step for step in reported if step is not None and first.value <= step < onset), default=onset - 1)


def _is_before_repair(moment: datetime, incident: Incident) -> bool:
    return incident.tracking.repaired_at is not None and moment < incident.tracking.repaired_at


def _begun(
    incident: Incident, old: LossEpisode | None, reported: list[Signal], view: AttemptView | None, now: datetime
) -> LossEpisode | None:
    """A episode that is news: none was followed, or the one that was is over and this began after it."""
    over_at = old.healed_step if old is not None else None
    fresh = [item for item in reported if over_at is None or _is_after(_onset_of(item), over_at)]
    fault = bad_fault(view) if view is not None else None
    if fault is not None and view is not None and not _is_after(_as_step(view.onset_step), over_at):
        fault = None
    if not fresh and fault is None:
        return None
    faults = [fault] if fault is not None else [item.fault for item in fresh if item.fault is not None]
    return LossEpisode(
        attempt=incident.attempt or "",
        fault=FaultClass.DIVERGENCE if FaultClass.DIVERGENCE in faults else FaultClass.LOSS_SPIKE,
        since=now,
        reported_step=_first_reported(fresh, view if fault is not None else None),
        after_step=over_at,
    )


def _first_reported(reported: list[Signal], view: AttemptView | None) -> Maybe[int]:
    """The lowest step that was reported; else the one at which the run's own judgement was made."""
    steps = [step.value for step in map(_step_reported_by, reported) if isinstance(step, Known)]
    if steps:
        return Known(min(steps))
    return view.judged_at if view is not None else Unknown("nothing reported the step")


def _is_after(step: Maybe[int], over_at: int | None) -> bool:
    """An unreported onset may be anywhere; it counts as news only where there was none before."""
    return over_at is None or (isinstance(step, Known) and step.value > over_at)


def _learned(episode: LossEpisode, reported: list[Signal], view: AttemptView | None) -> LossEpisode:
    """Its onset only sinks: several ranks and detectors may tell of it, in any order."""
    floor = -1 if episode.after_step is None else episode.after_step
    onsets = [step.value for step in map(_onset_of, reported) if isinstance(step, Known) and step.value > floor]
    if isinstance(episode.onset_step, Known):
        onsets.append(episode.onset_step.value)
    if view is not None and bad_fault(view) is not None:
        if view.onset_step is not None:
            onsets.append(view.onset_step)
        if bad_fault(view) is FaultClass.DIVERGENCE:
            episode = dataclasses.replace(episode, fault=FaultClass.DIVERGENCE)
    if onsets and episode.onset_step != Known(min(onsets)):
        episode = dataclasses.replace(episode, onset_step=Known(min(onsets)))
    return episode


def _healed_at(episode: LossEpisode, signals: list[Signal], view: AttemptView | None) -> int | None:
    """Where it was seen to end. A signal older than the heartbeat proves nothing about a relapse in the heartbeat."""
    steps = [view.healed_step] if view is not None and view.loss_health in _FINE else []
    steps += [_step(item, "healed_step") for item in signals if item.kind is SignalKind.LOSS_RECOVERED]
    if view is not None and bad_fault(view) is not None:
        judged = view.judged_at
        steps = [step for step in steps if step is not None and isinstance(judged, Known) and step > judged.value]
    since = episode.first_bad
    known = [step for step in steps if step is not None and isinstance(since, Known) and step >= since.value]
    return max(known, default=None)


def turn_of(episode: LossEpisode, view: AttemptView, policy: Policy) -> BadLossState:
    """How the episode stands. LASTS takes steps beyond the healing time AND a later verdict than the first.

    A job that logs one loss per 100 steps has passed 30 steps at its next value; one value alone would then stop it.
    """
    if episode.healed_step is not None:
        return BadLossState.HEALED
    if view.loss_health == _WATCH:
        return BadLossState.YOUNG
    judged, since = view.judged_at, episode.first_bad
    if (
        isinstance(judged, Known)
        and isinstance(episode.reported_step, Known)
        and judged.value < episode.reported_step.value
    ):
        return BadLossState.YOUNG  # the heartbeat is older than the word
    if bad_fault(view) is None or not isinstance(judged, Known) or not isinstance(since, Known):
        return BadLossState.UNSEEN
    is_second = not isinstance(episode.reported_step, Known) or judged.value > episode.reported_step.value
    return (
        BadLossState.LASTS
        if is_second and judged.value > since.value + policy.loss.spike_heal_steps
        else BadLossState.YOUNG
    )


def marked_bad(incident: Incident) -> Incident:
    """The Incident with its episode marked bad: the attempt's state since the onset is not to be used again."""
    episode = incident.loss.episode
    if episode is None or episode.attempt != incident.attempt or episode.healed_step is not None:
        return incident
    if isinstance(episode.first_bad, Known):
        incident = with_stretch(incident, Stretch(attempt=episode.attempt, from_step=episode.first_bad.value))
    if incident.is_poisoned:
        return incident
    return incident.changed(onset_attempt=episode.attempt, onset_step=episode.first_bad, onset_fault=episode.fault)


def noted_bad(incident: Incident) -> Incident:
    """The Incident with its episode noted before a run is saved, stopped or replaced.

    Where that is done for the loss, it is taken for what it is. Where it is done for another reason (a hang, a broken
    node, an order), the spike may yet have healed: what was saved in it is not used, but nothing is rolled back for it.
    """
    bad = marked_bad(incident)
    return bad if incident.fault in LOSS_FAULTS else incident.changed(stretches=bad.loss.stretches)


def marked_healed(incident: Incident) -> Incident:
    """The Incident with its episode over: what was saved in it stays unused, what is saved from now on is good."""
    episode = incident.loss.episode
    if episode is None or episode.healed_step is None:
        return incident
    if isinstance(episode.first_bad, Known):
        whole = Stretch(attempt=episode.attempt, from_step=episode.first_bad.value, to_step=episode.healed_step)
        incident = with_stretch(incident, whole)
    if incident.loss.onset_attempt == episode.attempt and incident.loss.onset_fault in LOSS_FAULTS:
        incident = incident.changed(
            onset_attempt=None, onset_step=Unknown("healed without help"), onset_fault=FaultClass.NON_FINITE
        )
    return incident


def with_stretch(incident: Incident, stretch: Stretch) -> Incident:
    """Add it, in place of one of the same attempt and start. One that is still open ends where a later one starts, and
    is part of one that starts before it.
    """
    if stretch in incident.loss.stretches:
        return incident
    kept = (_beside(item, stretch) for item in incident.loss.stretches)
    return incident.changed(stretches=(*(item for item in kept if item is not None), stretch)[-MAX_STRETCHES:])


def _beside(item: Stretch, added: Stretch) -> Stretch | None:
    """What is left of it."""
    is_later = added.to_step is not None and added.to_step <= item.from_step
    is_beyond = added.life is not None and (item.life is None or item.life > added.life)  # it holds what that does not
    if item.attempt != added.attempt or is_later or is_beyond:
        return item
    if item.to_step is not None:
        return item if item.from_step != added.from_step else None
    return dataclasses.replace(item, to_step=added.from_step) if item.from_step < added.from_step else None


def ends_open_stretches(incident: Incident, view: AttemptView | None) -> Incident:
    """A stretch that an earlier Incident left open ends where the run says that its loss was well again."""
    if view is None or view.healed_step is None or view.loss_health not in _FINE:
        return incident
    for item in incident.loss.stretches:
        if item.attempt == view.name and item.to_step is None and view.healed_step >= item.from_step:
            ended = dataclasses.replace(item, to_step=view.healed_step)
            incident = with_stretch(incident, ended)
    return incident


def onset_now(incident: Incident) -> Onset | None:
    """The onset of the attempt under care, once it is marked."""
    if incident.loss.onset_attempt is None or not incident.is_poisoned:
        return None
    return Onset(attempt=incident.loss.onset_attempt, fault=incident.loss.onset_fault, step=incident.loss.onset_step)


def _onset_of(signal: Signal) -> Maybe[int]:
    return _as_step(_step(signal, "onset_step"))


def _step_reported_by(signal: Signal) -> Maybe[int]:
    return _as_step(_step(signal, "step"))


def _step(signal: Signal, name: str) -> int | None:
    step = signal.evidence.get(name)
    return step if isinstance(step, int) and not isinstance(step, bool) else None


def _as_step(step: int | None) -> Maybe[int]:
    return Unknown("no step was named") if step is None else Known(step)
