"""`REKINDLE_DATA=FOLDER make bench ARGS=detectors`: the loss detectors on labelled curves.

Prints recall, precision, false alarms and delay: in total, by group, cross-validated (the constants chosen on all other
groups, measured on the one left out), and rows per second of one core.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

from benchmarks.detectors_scoring import LabelledCurve, Score, data_folder, load, score
from rekindle.detectors import scale, spike
from rekindle.detectors.pace import ThroughputWatch
from rekindle.detectors.points import Point, Severity
from rekindle.detectors.watch import LossWatch

GOALS = (
    "goals: recall 0.95 of the tier act, precision 0.95, 2 false alarms per 100k rows, NaN at its first row, "
    "median delay 2 rows"
)
SPEED_GOAL = 200_000
# What cross-validation chooses from: the three that decide most, each with the value in use first, which stays where
# others do no better.
GRID: dict[str, tuple[float, ...]] = {
    "PEAK_Z": (8.0, 7.0, 9.0),
    "JUMP_WEIGHT": (0.5, 0.4, 0.6),
    "RISE": (0.20, 0.16, 0.25),
}
# Where each stands.
PLACES: dict[str, ModuleType] = {"PEAK_Z": spike, "JUMP_WEIGHT": scale, "RISE": spike}


def alarms(points: Iterable[Point]) -> list[int]:
    """The rows at which `rekindle detect` would print an alarm."""
    loss, throughput = LossWatch(), ThroughputWatch()
    return [
        row
        for row, point in enumerate(points)
        if any(v.severity is Severity.ACT for v in (*loss.update(point), *throughput.update(point)))
    ]


def reported(points: Iterable[Point]) -> list[int]:
    """The rows at which `rekindle detect --watch` would print something of the loss."""
    loss = LossWatch()
    return [row for row, point in enumerate(points) if loss.update(point)]


@contextmanager
def constants(values: Mapping[str, float]) -> Iterator[None]:
    """Other values for the grid's constants, for as long as the block lasts."""
    before = {name: getattr(PLACES[name], name) for name in values}
    for name, value in values.items():
        setattr(PLACES[name], name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(PLACES[name], name, value)


def by_curve(curves: Iterable[LabelledCurve]) -> dict[str, Score]:
    return {curve.name: score(curve, alarms(curve.points)) for curve in curves}


def total(scores: Iterable[Score]) -> Score:
    result = Score()
    for part in scores:
        result.add(part)
    return result


def line(name: str, s: Score, note: str = "") -> str:
    recall = f"{s.recall:6.3f}" if s.recall is not None else "     -"
    precision = f"{s.precision:6.3f}" if s.precision is not None else "     -"
    delay = f"{s.median_delay:3d}" if s.median_delay is not None else "  -"
    events = f"{s.found}/{s.found + s.missed}"
    return (
        f"{name:32} {events:>8} {recall} {precision} {s.false:6d} {s.false_per_100k:8.1f} {delay:>6}  {note}".rstrip()
    )


def grid_runs(curves: list[LabelledCurve]) -> list[dict[str, Score]]:
    """Every curve's score with every combination of the grid."""
    runs = []
    for values in itertools.product(*GRID.values()):
        with constants(dict(zip(GRID, values, strict=True))):
            runs.append(by_curve(curves))
    return runs


def cross_validated(runs: list[dict[str, Score]], curves: list[LabelledCurve], key: str) -> dict[str, Score]:
    """Per part left out: its score with the constants that do best (F1) on all other parts."""
    results = {}
    for part in sorted({getattr(curve, key) for curve in curves}):
        held = [curve.name for curve in curves if getattr(curve, key) == part]
        rest = [curve.name for curve in curves if getattr(curve, key) != part]
        best = max(runs, key=lambda run: total(run[name] for name in rest).f1)
        results[part] = total(best[name] for name in held)
    return results


def speed(rows: int = 100_000) -> float:
    """Rows per second of CPU time through `LossWatch`, on a made-up noisy curve; the best of three."""
    chance = random.Random(1)
    points = [Point(step=i, loss=3 + 8 / (1 + i / 100) + chance.gauss(0, 0.05)) for i in range(rows)]
    best = 0.0
    for _ in range(3):
        watch = LossWatch()
        began = time.process_time()
        for point in points:
            watch.update(point)
        best = max(best, rows / (time.process_time() - began))
    return best


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--details", action="store_true", help="name each miss and each false alarm")
    options = parser.parse_args(arguments if arguments is not None else [])
    print(f"{speed():,.0f} rows a second on one core (goal {SPEED_GOAL:,}), all loss detectors together")
    folder = data_folder()
    if folder is None:
        print("no labelled curves: set REKINDLE_DATA to a folder that holds curves/labels.json")
        return
    curves = load(folder)
    _tables(curves, details=options.details)


def of_tier_act(score: Score) -> str:
    """How many of the events that must be acted on were found."""
    found = score.found - score.seen_found
    return f"{found}/{found + score.missed - score.seen_missed} of the tier act"


def _tables(curves: list[LabelledCurve], *, details: bool) -> None:
    print(f"{'':32} {'found':>8} recall  prec.  false /100k rows  delay")
    ours = by_curve(curves)
    whole = total(ours.values())
    print(line("ours, all curves", whole, f"{of_tier_act(whole)}; NaN late: {whole.late_nan}"))
    seen = total(score(curve, reported(curve.points)) for curve in curves)
    print(line("watch or act, all curves", seen, "all events; goal: recall 0.95, 20 false per 100k rows"))
    for group in sorted({curve.group for curve in curves}):
        print(line(f"  {group}", total(ours[curve.name] for curve in curves if curve.group == group)))
    if details:
        print("\n".join(whole.details))
    runs = grid_runs(curves)
    for key, what in (("group", "groups"), ("source", "repositories")):
        held = cross_validated(runs, curves, key)
        together = total(held.values())
        print(line(f"ours, cross-validated by {what}", together, of_tier_act(together)))
        for part, s in held.items():
            print(line(f"  {part[:30]}", s))
    print(GOALS)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
