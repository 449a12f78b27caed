"""Many metrics of CloudWatch in few calls.

Source of the limits: CloudWatch API reference, GetMetricData: 500 queries and 100,800 data points per call, the rest by
NextToken; each result carries its own StatusCode (Complete, InternalError, PartialData, Forbidden). `PartialData` on a
page with a NextToken only says that more of it follows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from chalicelib.aws.errors import call
from chalicelib.domain.model.errors import RecoveryError
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.ports.sweep import MetricQuery, Series

_LOG = logging.getLogger(__name__)

MAX_QUERIES: Final = 500
_MAX_PAGES: Final = 20  # 500 metrics of three hours fit one; a call that never ends must not hold the sweep


class CloudWatchMetrics:
    """ports.Metrics; `client` is a boto3 CloudWatch client."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def series_of(
        self, queries: Sequence[MetricQuery], *, since: datetime, until: datetime
    ) -> Mapping[str, Maybe[Series]]:
        found: dict[str, Maybe[Series]] = {}
        for start in range(0, len(queries), MAX_QUERIES):
            batch = queries[start : start + MAX_QUERIES]
            try:
                found |= self._read_batch(batch, since=since, until=until)
            except RecoveryError as err:
                _LOG.warning("metrics cannot be read", extra={"metrics": len(batch), "error": str(err)[:300]})
                found |= dict.fromkeys((query.key for query in batch), Unknown(f"not read: {err}"[:200]))
        return found

    def _read_batch(
        self, batch: Sequence[MetricQuery], *, since: datetime, until: datetime
    ) -> dict[str, Maybe[Series]]:
        points: list[list[tuple[datetime, float]]] = [[] for _ in batch]
        status = ["no result"] * len(batch)
        complete = False
        for page in self._pages(batch, since=since, until=until):
            for result in page.get("MetricDataResults", ()):
                index = int(result["Id"][1:])
                points[index] += zip(map(_utc, result.get("Timestamps", ())), result.get("Values", ()), strict=False)
                status[index] = result.get("StatusCode", "no status")
            complete = not page.get("NextToken")
        found: dict[str, Maybe[Series]] = {}
        for query, series, state in zip(batch, points, status, strict=True):
            if state == "Complete" and complete:
                found[query.key] = Known(tuple(sorted(series)))
            else:
                found[query.key] = Unknown(
                    f"GetMetricData: {state}" if complete else "GetMetricData: more pages than read"
                )
        return found

    def _pages(self, batch: Sequence[MetricQuery], *, since: datetime, until: datetime) -> Iterator[Mapping[str, Any]]:
        request: dict[str, Any] = {
            "MetricDataQueries": [_query(index, query) for index, query in enumerate(batch)],
            "StartTime": since.replace(second=0, microsecond=0),
            "EndTime": until,
            "ScanBy": "TimestampAscending",
        }
        for _ in range(_MAX_PAGES):
            page = call(self._client.get_metric_data, **request)
            yield page
            if not page.get("NextToken"):
                return
            request["NextToken"] = page["NextToken"]


def _query(index: int, query: MetricQuery) -> dict[str, Any]:
    name, value = query.dimension
    metric = {"Namespace": query.namespace, "MetricName": query.name, "Dimensions": [{"Name": name, "Value": value}]}
    return {"Id": f"m{index}", "MetricStat": {"Metric": metric, "Period": query.period_s, "Stat": query.stat}}


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)
