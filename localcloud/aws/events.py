"""EventBridge delivery to the app's handlers: real pattern matching, at least once, and as unkind as one asks for.

Source of the rules: docs/facts-sagemaker.md#event-delivery (best effort, duplicates, no order, retries, then the DLQ).
"""

from __future__ import annotations

import itertools
import json
import logging
import random
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from moto.events.models import EventPattern

from localcloud.aws.authorization import ACCOUNT_ID, REGION
from localcloud.aws.clock import Clock, Timer

logger = logging.getLogger(__name__)

DEFAULT_BUS = "default"
_KEPT_DELIVERIES = 20_000


def matches(pattern: str, event: dict[str, Any]) -> bool:
    """Whether an event fits an EventBridge pattern (JSON text), by moto's implementation of the pattern language."""
    envelope: Any = event
    return bool(EventPattern.load(pattern).matches_event(envelope))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An EventBridge rule with one function behind it."""

    function: str
    bus: str
    pattern: Mapping[str, Any]

    def matches(self, bus: str, event: dict[str, Any]) -> bool:
        """Whether EventBridge would deliver."""
        return bus == self.bus and matches(json.dumps(self.pattern), event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A rule with a rate instead of a pattern (the minute sweep)."""

    function: str
    every: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Chaos:
    """How unkind delivery is; shares from 0 to 1, all drawn from one seed. The default is a perfect day.

    jitter: up to this much later, drawn per copy, which is what reorders events.
    drop applies to best-effort sources only; monitors and alarms are durable in AWS.
    """

    seed: int = 0
    duplicate: float = 0.0
    drop: float = 0.0
    jitter: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One attempt to hand an event to a function."""

    at: datetime
    function: str
    event: dict[str, Any]
    attempt: int
    error: str | None


_LATENCY = timedelta(milliseconds=500)  # of every delivery
# Sources whose events may be lost: EventBridge events reference, event-delivery-level.
_BEST_EFFORT = frozenset({"aws.sagemaker", "aws.ec2"})


class Throttled(Exception):
    """As many invocations as are reserved for the function are under way: none has begun, and the event is kept."""


class EventBridge:
    """Buses, rules and deliveries.

    invoke: hands (function, event) to a handler; an exception means that the delivery is tried again. attempts_of: how
    often a function is tried. kept: takes what was given up, as an on-failure destination does.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        invoke: Callable[[str, dict[str, Any]], object],
        chaos: Chaos | None = None,
        retry_after: timedelta = timedelta(seconds=30),
        attempts_of: Callable[[str], int] = lambda _: 3,  # Source: Lambda guide, invocation-async
        kept: Callable[[Delivery], None] = lambda _: None,
    ) -> None:
        self._clock = clock
        self._invoke = invoke
        self._retry_after, self._attempts_of, self._kept = retry_after, attempts_of, kept
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._schedules: list[Timer] = []
        self.rules: list[Rule] = []
        self.put: list[tuple[str, dict[str, Any]]] = []
        self.deliveries: list[Delivery] = []
        self.dead_letters: list[Delivery] = []
        self.set_chaos(chaos or Chaos())

    def set_chaos(self, chaos: Chaos) -> None:
        """Change the weather from now on; draws begin again from its seed."""
        self.chaos = chaos
        self._random = random.Random(chaos.seed)

    def publish(self, source: str, detail_type: str, detail: dict[str, Any], resources: list[str]) -> dict[str, Any]:
        """An event of AWS's own, on the default bus. Returns the envelope."""
        return self.accept(DEFAULT_BUS, source, detail_type, detail, resources)

    def accept(
        self, bus: str, source: str, detail_type: str, detail: dict[str, Any], resources: list[str]
    ) -> dict[str, Any]:
        """Wrap a detail in EventBridge's envelope and send it to every rule that matches."""
        event = {
            "version": "0",
            "id": str(uuid.uuid4()),
            "detail-type": detail_type,
            "source": source,
            "account": ACCOUNT_ID,
            "time": self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
            "region": REGION,
            "resources": resources,
            "detail": json.loads(json.dumps(detail)),
        }
        self.send(bus, event)
        return event

    def send(self, bus: str, event: dict[str, Any]) -> None:
        """Send a whole event (a recorded one, say) to every rule of the bus that matches."""
        with self._lock:
            self.put.append((bus, event))
            del self.put[:-_KEPT_DELIVERIES]
        for rule in self.rules:
            if rule.matches(bus, event):
                for delay in self._copies(event):
                    self._deliver_after(delay, rule.function, event, 1)

    def start_schedule(self, schedule: Schedule) -> None:
        """Call a function at a rate, for as long as the cloud runs."""

        def tick() -> None:
            self._schedules.append(self._clock.after(schedule.every, tick, label=f"schedule {schedule.function}"))
            event = {
                "version": "0",
                "id": str(uuid.uuid4()),
                "detail-type": "Scheduled Event",
                "source": "aws.events",
                "account": ACCOUNT_ID,
                "time": self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
                "region": REGION,
                "resources": [f"arn:aws:events:{REGION}:{ACCOUNT_ID}:rule/{schedule.function}"],
                "detail": {},
            }
            self._deliver(schedule.function, event, 1)

        self._schedules.append(self._clock.after(schedule.every, tick, label=f"schedule {schedule.function}"))

    def stop_schedules(self) -> None:
        """No scheduled call begins any more."""
        for timer in self._schedules:
            timer.cancel()
        self._schedules.clear()

    def _copies(self, event: dict[str, Any]) -> list[timedelta]:
        """When each copy arrives; an empty list where the event is lost."""
        with self._lock:
            chaos, draw = self.chaos, self._random
            if event["source"] in _BEST_EFFORT and draw.random() < chaos.drop:
                return []
            count = 1 + (draw.random() < chaos.duplicate)
            return [_LATENCY + chaos.jitter * draw.random() for _ in range(count)]

    def _deliver_after(self, delay: timedelta, function: str, event: dict[str, Any], attempt: int) -> None:
        label = f"{event['detail-type']} to {function}"
        self._clock.after(delay, lambda: self._deliver(function, event, attempt), label=label)

    def _deliver(self, function: str, event: dict[str, Any], attempt: int) -> None:
        error: str | None = None
        try:
            # Each delivery is a copy: a handler that changes its event must not change a duplicate's.
            self._invoke(function, json.loads(json.dumps(event)))
        except Throttled:
            self._deliver_after(self._retry_after, function, event, attempt)
            return
        except Exception as err:  # a Lambda that raises is retried, whatever it raised
            error = f"{type(err).__name__}: {err}"
            logger.warning("delivery failed", extra={"function": function, "error": error, "attempt": attempt})
        delivery = Delivery(at=self._clock.now(), function=function, event=event, attempt=attempt, error=error)
        with self._lock:
            self.deliveries.append(delivery)
            del self.deliveries[:-_KEPT_DELIVERIES]
            is_dead = error is not None and attempt >= self._attempts_of(function)
            if is_dead:
                self.dead_letters.append(delivery)
        if is_dead:
            self._kept(delivery)
        if error is not None and not is_dead:
            self._deliver_after(self._retry_after * 2 ** (attempt - 1), function, event, attempt + 1)


def put_events_answer(bridge: EventBridge, request: dict[str, Any], known_buses: frozenset[str]) -> dict[str, Any]:
    """PutEvents: entries fail one by one, and `aws.*` sources are AWS's own. Source: EventBridge API."""
    answers: list[dict[str, Any]] = []
    for entry in request["Entries"]:
        bus = str(entry.get("EventBusName") or DEFAULT_BUS).rpartition("/")[2]
        problem = _entry_problem(entry, bus, known_buses)
        if problem is not None:
            answers.append({"ErrorCode": problem[0], "ErrorMessage": problem[1]})
            continue
        event = bridge.accept(
            bus, entry["Source"], entry["DetailType"], json.loads(entry["Detail"]), list(entry.get("Resources") or [])
        )
        answers.append({"EventId": event["id"]})
    return {"FailedEntryCount": sum("ErrorCode" in answer for answer in answers), "Entries": answers}


def _entry_problem(entry: dict[str, Any], bus: str, known_buses: frozenset[str]) -> tuple[str, str] | None:
    for name in ("Source", "DetailType", "Detail"):
        if not entry.get(name):
            return "InvalidArgument", f"Parameter {name} is not valid. Reason: {name} is a required argument."
    if str(entry["Source"]).startswith("aws."):
        return "NotAuthorizedForSourceException", "Not authorized for the source."
    try:
        if not isinstance(json.loads(entry["Detail"]), dict):
            return "MalformedDetail", "Detail is malformed."
    except ValueError:
        return "MalformedDetail", "Detail is malformed."
    if bus not in known_buses:
        return "InvalidArgument", f"Event bus {bus} does not exist."
    return None
