"""CloudWatch beyond moto: metrics read in one pass over the stored data, and alarms that are evaluated and ring.

moto 5.2.5 stores alarms and never evaluates them; its GetMetricData goes over all data once per metric and minute, and
takes metrics of other namespaces for one. Here periods begin at whole minutes, as CloudWatch's do.

Alarms are evaluated once a minute over the newest whole periods. CloudWatch looks a little further back where data are
missing, and may ring a few minutes later than this. Evaluated are alarms on one metric, and Metrics Insights queries of
the form SELECT SUM(metric) FROM SCHEMA("namespace", Dimension) GROUP BY Dimension; others (anomaly bands, metric math)
stay in INSUFFICIENT_DATA, as they would without a model.
Source: CloudWatch user guide, alarm-evaluation and cloudwatch-and-eventbridge.
"""

from __future__ import annotations

import json
import re
import statistics
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import moto.cloudwatch.models
from moto.cloudwatch.models import MetricAggregatedDatum, cloudwatch_backends

from localcloud.aws.authorization import ACCOUNT_ID, REGION
from localcloud.aws.clock import Clock, Timer

Publish = Callable[[str, str, dict[str, Any], list[str]], object]
Key = tuple[str, str, frozenset[tuple[str, str]]]
Points = dict[datetime, list[float]]

_READ_ONE_BY_ONE = moto.cloudwatch.models.CloudWatchBackend.get_metric_data
_QUERY: Final = re.compile(r'SELECT SUM\((\w+)\) FROM SCHEMA\("([^"]+)", (\w+)\) GROUP BY (\w+)')
_STATS: Final[Mapping[str, Callable[[list[float]], float]]] = {
    "Sum": sum,
    "Average": statistics.fmean,
    "Minimum": min,
    "Maximum": max,
    "SampleCount": len,
}
_BREACHES: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "GreaterThanOrEqualToThreshold": lambda value, threshold: value >= threshold,
    "GreaterThanThreshold": lambda value, threshold: value > threshold,
    "LessThanThreshold": lambda value, threshold: value < threshold,
    "LessThanOrEqualToThreshold": lambda value, threshold: value <= threshold,
}
_OK, _ALARM, _UNSURE = "OK", "ALARM", "INSUFFICIENT_DATA"


def get_metric_data(
    backend: Any, queries: list[dict[str, Any]], start_time: datetime, end_time: datetime, scan_by: str = ""
) -> list[dict[str, Any]]:
    """In place of moto's own; queries that are expressions are still moto's."""
    if any("MetricStat" not in query for query in queries):
        return _READ_ONE_BY_ONE(backend, queries, start_time, end_time, scan_by)
    start, end = _utc(start_time), _utc(end_time)
    stored = _gathered(backend.metric_data, start, end)
    results = []
    for query in queries:
        stat = query["MetricStat"]
        metric, period = stat["Metric"], timedelta(seconds=int(stat["Period"]))
        dimensions = frozenset((item["Name"], item["Value"]) for item in metric.get("Dimensions") or ())
        points = _periods(stored.get((metric["Namespace"], metric["MetricName"], dimensions), {}), period)
        times = sorted(points, reverse=scan_by == "TimestampDescending")
        results.append(
            {
                "id": query["Id"],
                "label": query.get("Label") or metric["MetricName"],
                "values": [_STATS[stat["Stat"]](points[at]) for at in times],
                "timestamps": times,
                "status_code": "Complete",
            }
        )
    return results


def _gathered(data: Iterable[Any], start: datetime, end: datetime) -> dict[Key, Points]:
    """Every metric's values by time, in one pass."""
    found: dict[Key, Points] = defaultdict(lambda: defaultdict(list))
    for datum in data:
        at = _utc(datum.timestamp)
        if start <= at < end:
            dimensions = frozenset((item.name, item.value) for item in datum.dimensions)
            found[datum.namespace, datum.name, dimensions][at] += _values(datum)
    return found


def _values(datum: Any) -> list[float]:
    if isinstance(datum, MetricAggregatedDatum):
        count = max(int(datum.sample_count), 1)
        return [datum.sum / count] * count
    return [float(datum.value)]


def _periods(points: Mapping[datetime, list[float]], period: timedelta) -> Points:
    found: Points = defaultdict(list)
    seconds = period.total_seconds()
    for at, values in points.items():
        found[datetime.fromtimestamp(at.timestamp() // seconds * seconds, UTC)] += values
    return found


class Alarms:
    """Evaluates moto's alarms once a minute of the cloud's clock, and publishes what changes."""

    def __init__(self, *, clock: Clock, publish: Publish) -> None:
        self._clock = clock
        self._publish = publish
        self._states: dict[tuple[str, str], str] = {}  # (alarm, contributor), the alarm itself under ""
        self._timer: Timer | None = None

    def start(self) -> None:
        """Evaluate once a minute from now on."""
        self._timer = self._clock.after(timedelta(minutes=1), self._again, label="evaluate alarms")

    def stop(self) -> None:
        """Evaluate no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _again(self) -> None:
        self.evaluate()
        self.start()

    def evaluate(self) -> None:
        """Evaluate every alarm now."""
        backend = cloudwatch_backends[ACCOUNT_ID][REGION]
        now = self._clock.now()
        for gone in [key for key in self._states if key[0] not in backend.alarms]:
            del self._states[gone]
        if not backend.alarms:
            return
        stored = _gathered(backend.metric_data, now - timedelta(days=1), now)
        for alarm in list(backend.alarms.values()):
            if alarm.metric_name:
                key = (
                    alarm.namespace,
                    alarm.metric_name,
                    frozenset((str(dimension.name), str(dimension.value)) for dimension in alarm.dimensions),
                )
                self._evaluate_one(alarm, stored.get(key, {}), stat=alarm.statistic, period_s=int(alarm.period))
            elif len(alarm.metric_data_queries) == 1:
                self._evaluate_query(alarm, alarm.metric_data_queries[0], stored)

    def _evaluate_query(self, alarm: Any, query: Any, stored: Mapping[Key, Points]) -> None:
        match = _QUERY.match(query.expression or "")
        if match is None:
            return
        name, namespace, dimension, _ = match.groups()
        for (space, metric, dimensions), points in stored.items():
            if (space, metric) == (namespace, name) and [item for item, _ in dimensions] == [dimension]:
                contributor = dict(dimensions)
                self._evaluate_one(alarm, points, stat="Sum", period_s=int(query.period), contributor=contributor)

    def _evaluate_one(
        self, alarm: Any, points: Points, *, stat: str, period_s: int, contributor: Mapping[str, str] | None = None
    ) -> None:
        period = timedelta(seconds=period_s)
        end = datetime.fromtimestamp(self._clock.now().timestamp() // period_s * period_s, UTC)
        by_period = _periods(points, period)
        newest = [end - period * back for back in range(1, int(alarm.evaluation_periods) + 1)]
        values = [_STATS[stat](by_period[at]) if at in by_period else None for at in newest]
        mark = "" if contributor is None else json.dumps(contributor, sort_keys=True)
        before = self._states.get((alarm.name, mark), _UNSURE)
        after = _state(alarm, values, before)
        if after == before:
            return
        self._states[alarm.name, mark] = after
        self._send_state_change(alarm, before, after, values, stat=stat, period_s=period_s, contributor=contributor)

    def _send_state_change(
        self,
        alarm: Any,
        before: str,
        after: str,
        values: list[float | None],
        *,
        stat: str,
        period_s: int,
        contributor: Mapping[str, str] | None,
    ) -> None:
        now = self._clock.now()
        known = [value for value in values if value is not None]
        reason = f"Threshold Crossed: {len(values)} datapoints were evaluated, {len(values) - len(known)} missing."
        data = {
            "version": "1.0",
            "queryDate": _stamp(now),
            "statistic": stat,
            "period": period_s,
            "recentDatapoints": known,
            "threshold": float(alarm.threshold),
        }
        alarm.update_state(reason, json.dumps(data), after)
        detail: dict[str, Any] = {
            "alarmName": alarm.name,
            "previousState": {"value": before, "reason": "", "timestamp": _stamp(now)},
            "state": {"value": after, "reason": reason, "timestamp": _stamp(now), "reasonData": json.dumps(data)},
            "configuration": {"description": alarm.description or "", "metrics": _configured(alarm, stat, period_s)},
        }
        detail_type = "CloudWatch Alarm State Change"
        if contributor is not None:
            detail_type = "CloudWatch Alarm Contributor State Change"
            mark = zlib.crc32(json.dumps(contributor, sort_keys=True).encode())
            detail["alarmContributor"] = {"id": f"{mark:016x}", "attributes": contributor}
        self._publish("aws.cloudwatch", detail_type, detail, [alarm.alarm_arn])


def _state(alarm: Any, values: list[float | None], before: str) -> str:
    """What the newest periods make of the alarm."""
    missing = alarm.treat_missing_data or "missing"
    if all(value is None for value in values) and missing in ("missing", "ignore"):
        return before if missing == "ignore" else _UNSURE
    breaches = _BREACHES[alarm.comparison_operator]
    bad = sum(missing == "breaching" if value is None else breaches(value, float(alarm.threshold)) for value in values)
    return _ALARM if bad >= int(alarm.datapoints_to_alarm or alarm.evaluation_periods) else _OK


def _configured(alarm: Any, stat: str, period_s: int) -> list[dict[str, Any]]:
    if not alarm.metric_name:
        query = alarm.metric_data_queries[0]
        return [{"id": query.id, "expression": query.expression, "returnData": True, "period": period_s}]
    metric = {
        "namespace": alarm.namespace,
        "name": alarm.metric_name,
        "dimensions": {dimension.name: dimension.value for dimension in alarm.dimensions},
    }
    return [{"id": "m1", "returnData": True, "metricStat": {"period": period_s, "stat": stat, "metric": metric}}]


def _stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.000+0000")


def _utc(at: datetime) -> datetime:
    """moto's times are sometimes naive, always UTC."""
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at
