"""What leaves for AWS without anyone waiting: events for the bus, samples for CloudWatch."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from rekindle.monitor.base.metrics import FINE_BELOW_S, NAMESPACE, Sample, aggregate
from rekindle.monitor.base.run import Run
from rekindle.monitor.base.state import BadStretch
from rekindle.monitor.base.worker import Worker
from rekindle.protocol.signals import MONITOR_SOURCE, EventType

MAX_EVENTS_WAITING = 200  # an hour without AWS must not eat memory; the oldest are dropped and counted
MAX_SAMPLES_WAITING = 20_000
MAX_DATA_WAITING = 5_000
MAX_TRIES = 20  # per event, for an event that AWS answers but does not take
# Of 150 values each, which are 20 KB where the client writes them as a query; a call is 1 MB at most.
DATA_PER_CALL = 40
FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 60.0
HOLD_LOOK_S = 0.3  # while another process may hold the run
# Ranks that speak of what all ranks see. Rank 0 may be the one that hangs, so it is not the only one; all of them would
# be thousands of Signals for one fact. Every rank leaves its own report in the mailbox anyway.
SPEAKERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    detail_type: EventType
    detail: Mapping[str, Any]
    queued_at: float  # on the monotonic clock
    tries: int = 0


class Outbox:
    """Bounded queues, and the turns that empty them, each on its own thread. To push and to sample never waits."""

    def __init__(
        self,
        run: Run,
        *,
        bus: str | None,
        sends_metrics: bool,
        on_event: Callable[[str, dict[str, Any]], object] | None = None,
    ) -> None:
        self._run = run
        self._clients, self._clock, self._trouble = run.clients, run.clock, run.trouble
        self._bus = bus
        self._sends_metrics = sends_metrics
        self._is_muted = False
        self._metrics_s = run.config.metrics_s
        self._on_event = on_event
        self._untold: deque[tuple[str, dict[str, Any]]] = deque(maxlen=MAX_EVENTS_WAITING)
        self._events: deque[_Waiting] = deque(maxlen=MAX_EVENTS_WAITING)
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES_WAITING)
        self._data: deque[dict[str, Any]] = deque()
        self._flushed_at = run.clock.monotonic()
        self._events_backoff_s = 0.0
        self._metrics_backoff_s = 0.0
        self._eventing = Worker("events", self.turn_events, run.trouble, is_done=lambda: self.has_sent_events)
        self._metering = Worker(
            "metrics", self._turn_metrics, run.trouble, is_done=lambda: not self._data and not self._samples
        )
        self.workers = [self._eventing] * (bus is not None or on_event is not None) + [self._metering] * sends_metrics

    def push(self, detail_type: EventType, *, at_step: int | None = None, **more: Any) -> None:
        """Queue one event, in the common shape. Raises: ValueError, TypeError for what is no JSON."""
        run, identity = self._run, self._run.identity
        if identity.holding.lost_to is not None and detail_type is not EventType.FINISHED:
            return  # of an earlier life: what it sees is no news of the run
        detail = {
            "v": 1,
            "job_id": identity.job_id,
            "attempt": identity.attempt,
            "attempt_number": identity.attempt_number,
            "life": identity.life,
            "rank": identity.rank,
            "world_size": identity.world_size,
            "step": at_step if at_step is not None else run.state.step,
            "at": run.clock.now().isoformat(),
        } | more
        if self._on_event is not None:
            self._untold.append((detail_type.value, dict(detail)))
        if self._bus is not None:
            self._queue(detail_type, detail)
        self._eventing.wake()

    def push_as_one_of_many(self, detail_type: EventType, **more: Any) -> None:
        """Say what every rank sees at about the same time: only the first few ranks do."""
        if self._run.identity.rank < SPEAKERS:
            self.push(detail_type, **more)

    def push_bad_stretch(self, stretch: BadStretch, *, is_judge: bool) -> None:
        """Say that values of this rank stay not finite: the first few ranks do, and the one that judges the loss."""
        push = self.push if is_judge else self.push_as_one_of_many
        push(
            EventType.NON_FINITE,
            at_step=stretch.step,
            loss_state=stretch.loss_state.value,
            metric=stretch.metric,
            own=stretch.own,
            alone=stretch.alone,
        )

    def _queue(self, detail_type: EventType, detail: Mapping[str, Any]) -> None:
        _json(detail)
        if len(self._events) == MAX_EVENTS_WAITING:
            self._trouble.count("events_dropped")
        self._events.append(_Waiting(detail_type=detail_type, detail=detail, queued_at=self._clock.monotonic()))

    def sample(self, sample: Sample) -> None:
        if not self._sends_metrics or self._is_muted:
            return
        if len(self._samples) == MAX_SAMPLES_WAITING:
            self._trouble.count("samples_dropped")
        self._samples.append(sample)

    def mute_metrics(self) -> None:
        """A superseded attempt must not draw into its successor's curves."""
        self._is_muted = True
        self._samples.clear()

    def discard(self) -> None:
        """What waits is not this run's to tell."""
        self.mute_metrics()
        self._events.clear()
        self._untold.clear()
        self._data.clear()

    def unmute_metrics(self) -> None:
        """It is the Job's own attempt after all."""
        self._is_muted = False

    def turn_events(self) -> float:
        """Send the waiting events. Returns seconds until there is something to do again, unless woken before."""
        if self._is_withheld():
            return HOLD_LOOK_S
        self._tell_script()
        worked = self._send_events()
        self._events_backoff_s = _backoff(self._events_backoff_s, worked=worked)
        return MAX_BACKOFF_S if worked else self._events_backoff_s

    def _is_withheld(self) -> bool:
        """The run may be another process's; where it is, what waits is about to be discarded."""
        holding = self._run.identity.holding
        return holding.is_open or bool(holding.refusal)

    def _tell_script(self) -> None:
        while self._untold and self._on_event is not None:
            try:
                self._on_event(*self._untold.popleft())
            except Exception as err:  # the script's own function
                self._trouble.inner("on_event", err)

    def _turn_metrics(self) -> float:
        """Send the samples gathered so far, when they are due. Returns seconds until the next turn."""
        if self._is_withheld():
            return HOLD_LOOK_S
        now = self._clock.monotonic()
        if now - self._flushed_at >= self._metrics_s or self._metering.is_stopping:
            self._flushed_at = now
            self._collect()
        worked = self._send_data()
        self._metrics_backoff_s = _backoff(self._metrics_backoff_s, worked=worked)
        until_flush = max(0.0, self._metrics_s - (now - self._flushed_at))
        return until_flush if worked else min(self._metrics_backoff_s, until_flush)

    @property
    def has_sent_events(self) -> bool:
        return not self._events and not self._untold

    def end(self, until: float) -> None:
        """Send what waits, until `until` by the process's monotonic clock."""
        for worker in (self._eventing, self._metering):
            worker.stop()
        for worker in (self._eventing, self._metering):
            worker.end(until)

    def _collect(self) -> None:
        taken = [self._samples.popleft() for _ in range(len(self._samples))]
        if not taken:
            return
        data = aggregate(
            taken,
            at=self._clock.now(),
            dimensions={"JobId": self._run.identity.job_id},
            is_fine=self._metrics_s < FINE_BELOW_S,
            has_step=self._run.is_first,
        )
        self._data.extend(data)
        while len(self._data) > MAX_DATA_WAITING:
            self._data.popleft()
            self._trouble.count("metrics_dropped")

    def _send_data(self) -> bool:
        while self._data:
            batch = list(islice(self._data, DATA_PER_CALL))
            try:
                self._clients.get("cloudwatch").put_metric_data(Namespace=NAMESPACE, MetricData=batch)
            except Exception as err:  # whatever AWS or the network does, training continues
                self._trouble.aws("PutMetricData", err)
                return False
            for _ in batch:
                self._data.popleft()
        return True

    def _send_events(self) -> bool:
        """Whether all that waited have left. Each is one call: they are few, and a refused one holds up no other."""
        worked = True
        for _ in range(len(self._events)):
            try:
                item = self._events.popleft()
            except IndexError:  # they were discarded meanwhile
                break
            try:
                [answer] = self._clients.get("events").put_events(Entries=[self._entry(item)])["Entries"]
            except Exception as err:  # whatever AWS or the network does, training continues
                self._trouble.aws("PutEvents", err)
                if len(self._events) < MAX_EVENTS_WAITING:  # else there are newer ones
                    self._events.appendleft(item)
                return False
            if answer.get("ErrorCode"):
                worked = False
                self._trouble.once("events_refused", "EventBridge did not take an event: %s", answer["ErrorCode"])
                if item.tries + 1 < MAX_TRIES:
                    self._events.append(replace(item, tries=item.tries + 1))
        return worked

    def _entry(self, item: _Waiting) -> dict[str, Any]:
        """Without a time, so that EventBridge dates it by its own clock; `age_s` tells how long it waited here."""
        age_s = round(max(0.0, self._clock.monotonic() - item.queued_at), 3)
        return {
            "Source": MONITOR_SOURCE,
            "DetailType": item.detail_type.value,
            "Detail": _json({**item.detail, "age_s": age_s}),
            "EventBusName": self._bus,
        }


def _json(detail: Mapping[str, Any]) -> str:
    return json.dumps(detail, allow_nan=False, separators=(",", ":"))


def _backoff(before_s: float, *, worked: bool) -> float:
    return 0.0 if worked else min(MAX_BACKOFF_S, max(FIRST_BACKOFF_S, 2 * before_s))
