"""Whether a run's own heartbeat denies what an event of the bus claims of it. Pure.

Every role that may put events on the custom bus can name any Job there. The heartbeat lies where the Job's own role
alone may write, and the monitor writes one at the very moment at which it sends such an event. So a claim counts while
no fresh heartbeat denies it: of a run that sends none, or whose heartbeats have stopped, the bus is all there is.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.faults.lives import life_of
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import OF_A_HEARTBEAT, STALLED, AttemptStatus, AttemptView, Observation
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from rekindle.detectors.health import Health
from rekindle.protocol.signals import FaultClass

FRESH: Final = timedelta(seconds=60)  # four heartbeats (rekindle/monitor/base/settings.py, heartbeat_s)
STOPPED: Final = timedelta(minutes=10)  # without a heartbeat: the run's own judgement is not to be had
WAIT: Final = timedelta(seconds=45)  # for the heartbeat that bears a claim out: three of their intervals
_BAD_HEALTH: Final = (Health.SPIKING, Health.DIVERGING, Health.WATCH, Health.NON_FINITE)
# What the heartbeat tells as well. Each other kind of the monitor's is weighed by its own rules, or is mere news.
CLAIMS: Final = frozenset(
    {
        SignalKind.STALL,
        SignalKind.NON_FINITE,
        SignalKind.LOSS_SPIKE,
        SignalKind.DIVERGENCE,
        SignalKind.LOSS_RECOVERED,
        SignalKind.MONITOR_STARTED,
    }
)


def has_fresh_heartbeat(view: AttemptView, *, now: datetime) -> bool:
    """Its newest heartbeat is of now: what it says still holds."""
    return view.heartbeat_at is not None and now - view.heartbeat_at < FRESH


def is_denied(signal: Signal, view: AttemptView | None, *, now: datetime) -> bool:
    """True while the fresh heartbeat of the living attempt that the event names says otherwise. One that does not know
    denies nothing, nor does one of a later life than the event is of: that was so before (lives.py).
    """
    if signal.source is not SignalSource.MONITOR or signal.kind not in CLAIMS:
        return False
    if view is None or view.name != signal.attempt or view.status is not AttemptStatus.RUNNING:
        return False
    if not has_fresh_heartbeat(view, now=now):
        return False
    life = life_of(signal)
    if signal.kind is SignalKind.MONITOR_STARTED:
        return (life or 0) > view.life  # its heartbeats name the life that they are of
    if life is not None and life < view.life:
        return False
    if signal.kind is SignalKind.STALL:
        return view.work not in ("", STALLED)
    if signal.kind is SignalKind.NON_FINITE:
        return view.loss_state == "finite" and view.loss_health != Health.NON_FINITE
    if signal.kind is SignalKind.LOSS_RECOVERED:
        return view.healed_step is None and view.loss_health in _BAD_HEALTH
    return view.loss_health == Health.OK and view.loss_state == "finite" and view.healed_step is None


def as_of_newest_life(incident: Incident, seen: Observation) -> Observation:
    """The look without what a heartbeat of an earlier life of the attempt shows: a start of all its processes since
    has been reported, and nothing is known of them yet.
    """
    view = seen.attempt.value if isinstance(seen.attempt, Known) else None
    if view is None or view.name != incident.attempt or view.status is not AttemptStatus.RUNNING:
        return seen
    newest = max(
        (
            life_of(signal) or 0
            for signal in incident.signals
            if signal.kind is SignalKind.MONITOR_STARTED
            and signal.attempt == view.name
            and not is_denied(signal, view, now=seen.observed_at)
        ),
        default=0,
    )
    if newest <= view.life:
        return seen
    blank = AttemptView(name=view.name, status=view.status)
    anew = replace(view, life=newest, **{name: getattr(blank, name) for name in OF_A_HEARTBEAT})
    return replace(seen, attempt=Known(anew))


def is_beyond_heartbeats(signal: Signal, view: AttemptView) -> bool:
    """The run's metrics count values that are not finite, and its newest heartbeat is from long before: that neither
    bears the claim out nor denies it.
    """
    is_count = signal.kind is SignalKind.STATE_REREAD and signal.fault is FaultClass.NON_FINITE
    return is_count and view.heartbeat_at is not None and signal.occurred_at - view.heartbeat_at >= STOPPED
