"""Aggregates training steps into CloudWatch metric data. Pure: no threads, no clock, no AWS."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rekindle.monitor.base.values import Captured

NAMESPACE = "Rekindle/Training"
# Source: CloudWatch API reference, PutMetricData: 150 values per metric, within ±2**360, and closer to zero than
# 2**-360 only zero itself
MAX_VALUES_PER_DATUM = 150
MAX_MAGNITUDE = 2.0**360
MIN_MAGNITUDE = 2.0**-360
MAX_NAME_CHARS = 255
# Source: CloudWatch API reference, MetricDatum: a StorageResolution of 1 keeps seconds apart, else minutes are kept
FINE_BELOW_S = 60.0
NON_FINITE = "NonFinite"


@dataclass(slots=True, kw_only=True)
class Sample:
    """What was measured in one step. A value is a float, a device copy that is still pending (see `values`), or None.

    None means not known. Treat it as immutable: it is not frozen only because the constructor of a frozen dataclass
    takes three times as long, in the training thread.
    """

    step: int
    step_s: float | None
    loss: Captured
    grad_norm: Captured = None
    tokens: Captured = None
    extra: Mapping[str, Captured] | None = None
    scale: Captured = None  # the gradient scaler's loss scale


def aggregate(
    samples: Iterable[Sample],
    *,
    at: datetime,
    dimensions: Mapping[str, str],
    is_fine: bool = False,
    has_step: bool = True,
) -> list[dict[str, Any]]:
    """Returns metric data for PutMetricData.

    Equal values become one value with a count; more than 150 different values of a metric become several data.
    Non-finite and out-of-range values are not sent: they are counted in `NonFinite`, and values too close to zero
    are sent as zero. `at`: the timestamp of all data. `is_fine`: store at a resolution of one second, which CloudWatch
    keeps for three hours; for data sent more often than once a minute. `has_step`: include `Step`, which only one rank
    sends.
    """
    values = _count_values(samples, has_step=has_step)
    dims = [{"Name": name, "Value": value} for name, value in dimensions.items()]
    return [
        {
            "MetricName": name,
            "Dimensions": dims,
            "Timestamp": at,
            "Unit": _UNITS.get(name, "None"),
            "Values": [value for value, _ in part],
            "Counts": [float(count) for _, count in part],
            **({"StorageResolution": 1} if is_fine else {}),
        }
        for name in sorted(values)
        for part in _parts(list(values[name].items()))
    ]


def _count_values(samples: Iterable[Sample], *, has_step: bool) -> dict[str, Counter[float]]:
    """How often each value of each metric occurred."""
    values: dict[str, Counter[float]] = defaultdict(Counter)
    seconds = tokens = 0.0
    last_step: int | None = None
    for sample in samples:
        last_step = sample.step
        for name, number in _named(sample):
            if not math.isfinite(number) or abs(number) > MAX_MAGNITUDE:
                values[NON_FINITE][1.0] += 1
            else:
                values[name][0.0 if abs(number) < MIN_MAGNITUDE else number] += 1
        count = sample.tokens
        if sample.step_s is not None and isinstance(count, float) and math.isfinite(count):
            seconds, tokens = seconds + sample.step_s, tokens + count
    if seconds > 0 and tokens / seconds <= MAX_MAGNITUDE:
        values["TokensPerSecond"][tokens / seconds] += 1
    if last_step is not None and has_step:
        values["Step"][float(last_step)] += 1
    return values


_UNITS = {"StepSeconds": "Seconds", "TokensPerSecond": "Count/Second", NON_FINITE: "Count", "Step": "Count"}


def _named(sample: Sample) -> Iterator[tuple[str, float]]:
    """(metric name, value) for each value that is known."""
    own = (("Loss", sample.loss), ("GradNorm", sample.grad_norm), ("StepSeconds", sample.step_s))
    for name, value in (*own, ("LossScale", sample.scale), *(sample.extra or {}).items()):
        if isinstance(value, float):  # all that a device had yet to deliver was read before
            yield name[:MAX_NAME_CHARS], value


def _parts(pairs: list[tuple[float, int]]) -> Iterator[list[tuple[float, int]]]:
    """The (value, count) pairs in lists that each fit one metric datum."""
    for start in range(0, len(pairs), MAX_VALUES_PER_DATUM):
        yield pairs[start : start + MAX_VALUES_PER_DATUM]
