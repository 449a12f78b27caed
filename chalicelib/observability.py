"""One structured line and the metrics for every outcome. The log is a projection of a tested value."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from chalicelib.aws.errors import drain_unlisted
from chalicelib.channels.quiet import quieten
from chalicelib.services.reporting import outcome as facts
from chalicelib.services.reporting.outcome import OutcomeKind

if TYPE_CHECKING:
    from chalicelib.services.reporting.outcome import Outcome
    from chalicelib.services.sweep.round import SweepFigures

NAMESPACE = "Rekindle"
# Every metric the service emits. Only low-cardinality dimensions: the service's name, and of what has closed the fault
# and how it ended.
EVENTS_TAKEN = "EventsTaken"
EVENTS_DROPPED = "EventsDropped"
EVENTS_QUARANTINED = "EventsQuarantined"
INBOX_OVERFLOW = "InboxOverflow"
INCIDENTS_OPENED = "IncidentsOpened"
DECISIONS = "Decisions"
INCIDENTS_CLOSED = "IncidentsClosed"
MTTD = "MTTD"
MTTR = "MTTR"
GPU_HOURS_LOST = "GpuHoursLost"
GPU_HOURS_SAVED = "GpuHoursSaved"
STUCK_EXECUTIONS = "StuckExecutions"
SWEEPS = "Sweeps"
JOBS_UNREAD = "JobsUnread"
JOBS_LEFT = "JobsLeft"  # a sweep's time was not enough for them; the next one begins there
METRICS_UNKNOWN = "MetricsUnknown"
NOTICES_DELIVERED = "NoticesDelivered"
DELIVERIES_POSTPONED = "DeliveriesPostponed"
NOTICES_UNDELIVERED = "NoticesUndelivered"
UNLISTED_ERRORS = "UnlistedAwsErrors"  # codes that the adapters' table does not hold: each deserves a row

# What each one says, in the words of docs/reference/metrics.md.
MEANINGS: Mapping[str, str] = {
    EVENTS_TAKEN: "events that joined an Incident, repeated one, or registered a Job",
    EVENTS_DROPPED: "events that led to nothing: noise, news, or not about a protected Job",
    EVENTS_QUARANTINED: "events that could not be read",
    INBOX_OVERFLOW: "events that found an Incident's inbox full",
    INCIDENTS_OPENED: "Incidents opened",
    DECISIONS: "decisions taken by recoveries",
    INCIDENTS_CLOSED: "Incidents closed, by fault and outcome",
    MTTD: "from the onset to the first observation",
    MTTR: "from the onset to a run that makes progress",
    GPU_HOURS_LOST: "GPU-hours lost to the Incident",
    GPU_HOURS_SAVED: "GPU-hours that an emergency checkpoint kept",
    STUCK_EXECUTIONS: "open Incidents without a running execution that a sweep found; an alarm watches it",
    SWEEPS: "sweeps that ended",
    JOBS_UNREAD: "Jobs that a sweep could not read",
    JOBS_LEFT: "Jobs that a sweep had no time for; the next one begins there. Sent only above zero",
    METRICS_UNKNOWN: "Jobs whose metrics a sweep could not read. Sent only above zero",
    NOTICES_DELIVERED: "notices delivered, one per channel",
    DELIVERIES_POSTPONED: "deliveries that are tried again later",
    NOTICES_UNDELIVERED: "notices given up; `rekindle dead-letters notices` lists and sends them again",
    UNLISTED_ERRORS: "AWS error codes that the service does not know; each deserves a report",
}

# Keys of a log line that no fact may have. Source: Python's logging, Logger.makeRecord.
TAKEN = frozenset(
    {*vars(logging.makeLogRecord({})), "message", "asctime", "what", "reason", "incident_id", "job_id", "signal"}
)

_METRIC_OF = {
    OutcomeKind.OPENED: INCIDENTS_OPENED,
    OutcomeKind.JOINED: EVENTS_TAKEN,
    OutcomeKind.OVERFLOWED: INBOX_OVERFLOW,
    OutcomeKind.DUPLICATE: EVENTS_TAKEN,
    OutcomeKind.DROPPED: EVENTS_DROPPED,
    OutcomeKind.QUARANTINED: EVENTS_QUARANTINED,
    OutcomeKind.REGISTERED: EVENTS_TAKEN,
    OutcomeKind.DECIDED: DECISIONS,
    OutcomeKind.DELIVERED: NOTICES_DELIVERED,
    OutcomeKind.POSTPONED: DELIVERIES_POSTPONED,
    OutcomeKind.UNDELIVERED: NOTICES_UNDELIVERED,
}

# Of a closed Incident, where it is known; "Outcome" is the phase that it ended in.
CLOSED_DIMENSIONS = ("Fault", "Outcome")
CLOSED: tuple[tuple[str, str, MetricUnit], ...] = (
    (MTTD, facts.MTTD_S, MetricUnit.Seconds),
    (MTTR, facts.MTTR_S, MetricUnit.Seconds),
    (GPU_HOURS_LOST, facts.GPU_HOURS_LOST, MetricUnit.NoUnit),
    (GPU_HOURS_SAVED, facts.GPU_HOURS_SAVED, MetricUnit.NoUnit),
)


class Observability:
    """Logger and metrics of one function. Powertools binds stdout when made, so it is made once, in bootstrap."""

    def __init__(self, *, service: str, level: str) -> None:
        quieten()
        self.logger = Logger(service=service, level=level)
        self.metrics = Metrics(namespace=NAMESPACE, service=service)

    def record(self, outcome: Outcome) -> None:
        """One line, one count."""
        keys: dict[str, Any] = {
            "what": outcome.what.value,
            "reason": outcome.reason,
            "incident_id": outcome.incident_id,
            "job_id": outcome.job_id,
            "signal": outcome.signal,
            **_logged(outcome.facts),
        }
        level = (
            "warning"
            if outcome.what in (OutcomeKind.QUARANTINED, OutcomeKind.OVERFLOWED, OutcomeKind.UNDELIVERED)
            else "info"
        )
        getattr(self.logger, level)(f"outcome {outcome.what}", extra=_present(keys))
        metric = _METRIC_OF.get(outcome.what)
        if metric:
            self._count(metric, 1)
        if outcome.what is OutcomeKind.CLOSED:
            self._measure(outcome.facts)
        for code, count in drain_unlisted().items():
            self.logger.warning("unlisted AWS error code", extra={"code": code, "count": count})
            self._count(UNLISTED_ERRORS, count)

    def record_sweep(self, swept: SweepFigures) -> None:
        """One line per sweep, and what the alarms on Rekindle itself watch."""
        facts = {
            "jobs": swept.jobs,
            "unread": swept.unread,
            "left": swept.left,
            "unknown": swept.unknown,
            "opened": swept.reopened,
            "restarted": swept.restarted,
            "woken": swept.woken,
            "stuck": swept.stuck,
        }
        self.logger.info("outcome swept", extra={"what": OutcomeKind.SWEPT.value, **facts})
        self._count(SWEEPS, 1)
        self._count(STUCK_EXECUTIONS, swept.stuck)
        self._count(JOBS_UNREAD, swept.unread)
        for name, value in ((JOBS_LEFT, swept.left), (METRICS_UNKNOWN, swept.unknown)):
            if value:  # each custom metric is paid for by the hours in which it is sent
                self._count(name, value)
        for outcome in swept.outcomes:
            self.record(outcome)

    def _measure(self, facts: Mapping[str, Any]) -> None:
        """One closed Incident. A quantity that is not known is not sent: zero would be a lie."""
        metrics = EphemeralMetrics(namespace=NAMESPACE, service=self.metrics.service)  # its dimensions go with it
        for name, value in zip(CLOSED_DIMENSIONS, (facts["fault"], facts["phase"]), strict=True):
            metrics.add_dimension(name=name, value=str(value))
        metrics.add_metric(name=INCIDENTS_CLOSED, unit=MetricUnit.Count, value=1)
        for name, fact, unit in CLOSED:
            if fact in facts:
                metrics.add_metric(name=name, unit=unit, value=facts[fact])
        metrics.flush_metrics()

    def _count(self, name: str, value: int) -> None:
        self.metrics.add_metric(name=name, unit=MetricUnit.Count, value=value)
        self.metrics.flush_metrics()


def _logged(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts under keys that a log line can carry: one that is taken gets `fact_` before it.

    `logging` raises for the names of a record's own attributes, and a fact must not hide what the outcome itself says.
    """
    return {f"fact_{key}" if key in TAKEN else key: value for key, value in facts.items()}


def _present(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None and value != ""}
