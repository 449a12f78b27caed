"""The scoring rule of the labelled training curves, and the curves themselves.

An alarm is the row at which a detector, fed row by row, says "act". An event that must be found is found by an alarm in
`[start_row - 2, end_row + 3]`. An alarm is false more than 5 rows from every event that is no lone outlier. Alarms
within 50 rows of an earlier one count once; the first 50 rows are not scored; curves under 80 rows are left out.
Precision is found events over found events and false alarms.
Of the events that must be found, those of the tier "act" (it never heals, lasts more than 30 steps, or peaks at 1.5
times the loss before it) need a verdict `act`; for those of the tier "seen" `watch` is enough, and `act` is neither
asked for nor false.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rekindle.detectors.points import Point

MUST = frozenset({"spike_recovered", "divergence", "nan", "restart_discontinuity"})
OUTLIER = "outlier_1pt"
FIRST_ROW, MIN_ROWS, MERGE_ROWS = 50, 80, 50
EARLY, LATE, NEAR = 2, 3, 5


@dataclass(frozen=True, slots=True)
class Event:
    kind: str
    start: int
    end: int
    tier: str = "act"


@dataclass(frozen=True, slots=True)
class LabelledCurve:
    name: str
    group: str
    source: str
    points: tuple[Point, ...]
    events: tuple[Event, ...]


@dataclass(slots=True)
class Score:
    """Counts; ratios of nothing are None, not perfect."""

    found: int = 0
    missed: int = 0
    seen_missed: int = 0  # of the missed: those for which `watch` is enough
    seen_found: int = 0
    false: int = 0
    rows: int = 0
    delays: list[int] = field(default_factory=list)
    late_nan: int = 0
    details: list[str] = field(default_factory=list)

    def add(self, other: Score) -> Score:
        self.found += other.found
        self.missed += other.missed
        self.seen_missed += other.seen_missed
        self.seen_found += other.seen_found
        self.false += other.false
        self.rows += other.rows
        self.late_nan += other.late_nan
        self.delays += other.delays
        self.details += other.details
        return self

    @property
    def recall(self) -> float | None:
        events = self.found + self.missed
        return self.found / events if events else None

    @property
    def precision(self) -> float | None:
        alarms = self.found + self.false
        return self.found / alarms if alarms else None

    @property
    def false_per_100k(self) -> float:
        return self.false / self.rows * 100_000 if self.rows else 0.0

    @property
    def median_delay(self) -> int | None:
        return sorted(self.delays)[len(self.delays) // 2] if self.delays else None

    @property
    def f1(self) -> float:
        total = 2 * self.found + self.missed + self.false
        return 2 * self.found / total if total else 1.0


def data_folder() -> Path | None:
    """`REKINDLE_DATA`: the folder that holds `curves/labels.json`; None where it does not."""
    named = os.environ.get("REKINDLE_DATA")
    folder = Path(named) if named else None
    return folder if folder is not None and (folder / "curves" / "labels.json").is_file() else None


def load(folder: Path) -> list[LabelledCurve]:
    labels = json.loads((folder / "curves" / "labels.json").read_text())
    return [_curve(folder / "curves" / label["file"], name, label) for name, label in labels.items()]


def _curve(path: Path, name: str, label: Mapping[str, object]) -> LabelledCurve:
    with path.open(newline="") as lines:
        points = tuple(_point(row) for row in csv.DictReader(lines))
    events = tuple(
        Event(e["type"], e["start_row"], e["end_row"], e.get("tier") or "act")
        for e in label["events"]  # type: ignore[attr-defined]
    )
    return LabelledCurve(name, str(label["group"]), str(label["repo"]), points, events)


def _point(row: Mapping[str, str]) -> Point:
    def number(column: str) -> float | None:
        text = row.get(column) or ""
        return float(text) if text.strip() else None

    return Point(
        step=int(float(row["step"])),
        loss=number("loss"),
        elapsed_s=number("seconds"),
        step_s=number("iter_seconds"),
        is_after_evaluation=row.get("eval_since_prev") == "1",
    )


def score(curve: LabelledCurve, alarms: Iterable[int]) -> Score:
    """One curve's counts."""
    result = Score()
    if len(curve.points) < MIN_ROWS:
        return result
    result.rows = len(curve.points)
    late = [row for row in alarms if row >= FIRST_ROW]
    for event in curve.events:
        if event.kind not in MUST or event.start < FIRST_ROW:
            continue
        hits = [row for row in late if event.start - EARLY <= row <= event.end + LATE]
        is_seen = event.tier == "seen"
        if hits:
            result.found += 1
            result.seen_found += is_seen
            result.delays.append(hits[0] - event.start)
        else:
            result.missed += 1
            result.seen_missed += is_seen
            result.details.append(f"missed  {curve.name} {event.kind} rows {event.start}-{event.end}")
        if event.kind == "nan" and event.start not in hits:
            result.late_nan += 1
    for row in merged(late):
        if not any(e.start - NEAR <= row <= e.end + NEAR for e in curve.events if e.kind != OUTLIER):
            result.false += 1
            result.details.append(f"false   {curve.name} row {row}")
    return result


def merged(alarms: Iterable[int]) -> list[int]:
    """The alarms that count: those more than 50 rows after the last that counted."""
    kept: list[int] = []
    for row in alarms:
        if not kept or row - kept[-1] > MERGE_ROWS:
            kept.append(row)
    return kept
