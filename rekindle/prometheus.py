"""Rekindle's figures as Prometheus text (exposition format 0.0.4). A pure function of two of the API's answers.

Every metric is a gauge over the fleet ledger's window, which stands in the label `days`: what leaves the window leaves
the figure, so none of them may be called a counter. A quantity that is not known has no sample; it is never zero.

Source of the format: prometheus.io/docs/instrumenting/exposition_formats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rekindle.protocol.quantities import range_of

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# Of the fleet's ledger: metric, what it is, the ledger's own name. Each is a sum with how many it leaves out.
SUMS: Final = (
    ("rekindle_steps_lost", "Steps that had to be trained again", "steps_lost"),
    ("rekindle_steps_saved", "Steps that emergency checkpoints kept", "steps_saved"),
    ("rekindle_lost_seconds", "Time in which runs got nowhere because of Incidents", "lost_s"),
    ("rekindle_gpu_hours_lost", "GPU-hours lost to Incidents", "gpu_hours_lost"),
    ("rekindle_gpu_hours_saved", "GPU-hours that emergency checkpoints kept", "gpu_hours_saved"),
    ("rekindle_dollars_lost", "USD lost to Incidents", "dollars_lost"),
    ("rekindle_dollars_saved", "USD that emergency checkpoints kept", "dollars_saved"),
)
# Ranges: a sample for each end, with the baseline in the label `against`.
RANGES: Final = (
    ("rekindle_dollars_spared", "USD spared: an estimate (docs/ledger.md), not a measurement", "spared_dollars"),
    (
        "rekindle_gpu_hours_spared",
        "GPU-hours spared: an estimate (docs/ledger.md), not a measurement",
        "spared_gpu_hours",
    ),
)
SPREADS: Final = (
    ("rekindle_mttd_seconds", "From the onset to the first observation", "mttd_s"),
    ("rekindle_mttr_seconds", "From the onset to the end of a recovery", "mttr_s"),
)


@dataclass(slots=True)
class _Page:
    lines: list[str] = field(default_factory=list)
    named: set[str] = field(default_factory=set)

    def add(self, name: str, text: str, value: object, **labels: str) -> None:
        """One sample; none for what is no number."""
        if isinstance(value, bool):
            value = int(value)
        if not isinstance(value, int | float) or not math.isfinite(value):
            return
        if name not in self.named:
            self.named.add(name)
            self.lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        inside = ",".join(f'{key}="{_escaped(label)}"' for key, label in sorted(labels.items()))
        self.lines.append(f"{name}{{{inside}}} {value}" if inside else f"{name} {value}")


def render(status: Mapping[str, Any], fleet: Mapping[str, Any] | None) -> str:
    """The page: `status` is the answer of GET /status, `fleet` that of GET /ledger, None where it could not be read.

    Empty ones give an empty page.
    """
    page = _Page()
    page.add("rekindle_paused", "1 while the global pause is set", status.get("paused"))
    page.add("rekindle_jobs_active", "Protected Jobs that are watched", status.get("jobs_active"))
    page.add("rekindle_incidents_open", "Incidents that are open", status.get("incidents_open"))
    if fleet is None or fleet:
        text = "0 where the ledger could not be read: then its figures are missing, and not zero"
        page.add("rekindle_ledger_read", text, fleet is not None)
    fleet = fleet or {}
    days = {"days": str(fleet["days"])} if isinstance(fleet.get("days"), int) else {}
    page.add("rekindle_ettr_ratio", "Productive time by wall time of the active Jobs", fleet.get("ettr"), **days)
    page.add("rekindle_ledger_truncated", "1 where not all Incidents were counted", fleet.get("truncated"), **days)
    for outcome, count in _pairs(fleet.get("incidents")):
        if outcome != "all":
            page.add("rekindle_incidents", "Incidents by how they ended", count, outcome=outcome, **days)
    _add_figures(page, fleet, days)
    for stage, seconds in _pairs(fleet.get("lost_by_stage_s")):
        page.add("rekindle_lost_by_stage_seconds", "Lost time by stage", seconds, stage=stage, **days)
    for fault, seconds in _pairs(fleet.get("lost_by_fault_s")):
        page.add("rekindle_lost_by_fault_seconds", "Lost time by fault", seconds, fault=fault, **days)
    return "".join(f"{line}\n" for line in page.lines)


def _add_figures(page: _Page, fleet: Mapping[str, Any], days: Mapping[str, str]) -> None:
    for name, text, key in SPREADS:
        spread = fleet.get(key)
        if isinstance(spread, Mapping):
            page.add(name, text, spread.get("median"), quantile="0.5", **days)
            page.add(name, text, spread.get("p90"), quantile="0.9", **days)
    for name, text, key in SUMS:
        total = fleet.get(key)
        if isinstance(total, Mapping) and total.get("counted"):  # a sum of nothing is no zero
            page.add(name, text, total.get("sum"), **days)
    for name, text, key in RANGES:
        total = fleet.get(key)
        ends = range_of(total.get("sum")) if isinstance(total, Mapping) and total.get("counted") else None
        for against, end in zip(("requeue", "person"), ends or (), strict=False):
            page.add(name, text, end, against=against, **days)
    for _, _, key in (*SPREADS, *SUMS, *RANGES):
        total = fleet.get(key)
        if isinstance(total, Mapping):
            text = "Incidents that a figure leaves out because an input is not known"
            page.add("rekindle_not_counted", text, total.get("not_counted"), figure=key, **days)


def _pairs(given: object) -> list[tuple[str, object]]:
    return [(str(key), value) for key, value in given.items()] if isinstance(given, Mapping) else []


def _escaped(label: str) -> str:
    """In a label's value a backslash, a quote and a line feed are written with a backslash."""
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
