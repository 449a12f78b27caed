"""`rekindle detect FILE`: where a recovery would have been started on a recorded curve, or (`--watch`) a look taken.

The rows are fed one by one, and an alarm is printed at the row that raised it: nothing looks ahead, so the command can
also follow a run through a pipe.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rekindle.cli.tools.columns import ChosenColumns
from rekindle.cli.tools.curves import points
from rekindle.client.errors import CommandFailed
from rekindle.client.table import Column, Style, clean, render
from rekindle.detectors.kinds import LossKind
from rekindle.detectors.pace import ThroughputWatch
from rekindle.detectors.points import Point, Severity, Verdict
from rekindle.detectors.watch import LossWatch

_COLUMNS = (
    Column("row", right=True),
    Column("step", right=True),
    Column("kind"),
    Column("severity"),
    Column("onset", right=True),
    Column("seen", right=True),
    Column("usual", right=True),
    Column("score", right=True),
    Column("rule"),
)


@dataclass(frozen=True, slots=True)
class Alarm:
    """One verdict, and the row that raised it (counted from 0)."""

    row: int
    verdict: Verdict


class Curve:
    """Reads a file's points through all detectors. Keeps the points only if a plot needs them."""

    def __init__(
        self,
        path: str,
        chosen: ChosenColumns | None = None,
        *,
        loss_kind: LossKind = LossKind.AUTO,
        keeps_points: bool = False,
        tells_watches: bool = False,
    ) -> None:
        self._path = path
        self._chosen = chosen
        self._loss_kind = loss_kind
        self.name = "standard input" if path == "-" else clean(Path(path).name)
        self._keeps_points = keeps_points
        self._shown = tuple(Severity) if tells_watches else (Severity.ACT,)
        self.points: list[Point] = []
        self.rows = 0

    def alarms(self) -> Iterator[Alarm]:
        """The alarms in order, each at its own row."""
        loss, throughput = LossWatch(self._loss_kind), ThroughputWatch()
        for row, point in enumerate(points(self._path, self._chosen)):
            self.rows = row + 1
            if self._keeps_points:
                self.points.append(point)
            for verdict in (*loss.update(point), *throughput.update(point)):
                if verdict.severity in self._shown:
                    yield Alarm(row, verdict)


def register(commands: Any) -> None:
    """Add the command; it needs no service, so it takes none of its options."""
    help_ = "where a recovery would start on a recorded training curve"
    description = (
        "Feed a curve's rows to the detectors, one by one, and print the alarms worth a recovery. "
        "CSV, TSV, trainer_state.json, JSON lines, TensorBoard's and Weights & Biases' exports, MLflow's files, "
        "TensorBoard's event files where it is installed, and the logs of the usual trainers. "
        "Columns: step, loss, and if known seconds, iter_seconds, eval_since_prev. "
        "docs/detection.md tells more."
    )
    parser = commands.add_parser("detect", help=help_, description=description, allow_abbrev=False)
    parser.add_argument("file", metavar="FILE", help="the curve, or the folder of its run; - reads standard input")
    parser.add_argument("--json", action="store_true", help="one object per alarm and line, at once")
    parser.add_argument(
        "--watch",
        dest="tells_watches",  # `watch` is what other commands call being repeated
        action="store_true",
        help="also tell what is worth a look and no recovery",
    )
    parser.add_argument("--plot", type=_picture, metavar="OUT.svg", help="draw the curve and its alarms")
    parser.add_argument(
        "--loss-kind",
        choices=[kind.value for kind in LossKind],
        default=LossKind.AUTO.value,
        help="what the loss is, as for the monitor; by default its rows tell",
    )
    parser.add_argument("--step-column", metavar="NAME", help="which column is the step, where its name is unusual")
    parser.add_argument("--loss-column", metavar="NAME", help="which column is the loss, where its name is unusual")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the alarms of one curve."""
    chosen = ChosenColumns(step=args.step_column, loss=args.loss_column)
    curve = Curve(
        args.file,
        chosen,
        loss_kind=LossKind(args.loss_kind),
        keeps_points=args.plot is not None,
        tells_watches=args.tells_watches,
    )
    alarms = []
    for alarm in curve.alarms():
        alarms.append(alarm)
        if args.json:
            print(json.dumps(as_json(alarm), allow_nan=False), flush=True)
    if not args.json:
        if alarms:
            print(render(_COLUMNS, [_cells(alarm) for alarm in alarms], Style.of(sys.stdout)))
        watches = sum(alarm.verdict.severity is Severity.WATCH for alarm in alarms)
        seen = f" and {_count(watches, 'watch', 'es')}" if args.tells_watches else ""
        print(f"{_count(len(alarms) - watches, 'alarm')}{seen} in {_count(curve.rows, 'row')}")
    if args.plot is not None:
        _plot(curve, alarms, args.plot)
    return 0


def _picture(name: str) -> str:
    if Path(name).suffix.lower() != ".svg":
        raise argparse.ArgumentTypeError("must end in .svg")
    return name


def _plot(curve: Curve, alarms: list[Alarm], path: str) -> None:
    from rekindle.cli.tools.plot import Mark, draw

    marks = [Mark(alarm.row, alarm.verdict.kind) for alarm in alarms]
    try:
        Path(path).write_text(draw(curve.points, marks, curve.name), encoding="utf-8")
    except OSError as err:
        raise CommandFailed(f"{clean(path)}: cannot be written: {err.strerror or err}") from err


def as_json(alarm: Alarm) -> dict[str, Any]:
    """The alarm as one JSON object; numbers that JSON does not have are texts."""
    verdict = alarm.verdict
    evidence = {"rule": verdict.rule, **verdict.evidence}
    return {
        "row": alarm.row,
        "step": verdict.step,
        "kind": verdict.kind.value,
        "severity": verdict.severity.value,
        "evidence": {key: _plain(value) for key, value in evidence.items()},
    }


def _plain(value: float | int | str) -> float | int | str:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _cells(alarm: Alarm) -> tuple[object, ...]:
    verdict, evidence = alarm.verdict, alarm.verdict.evidence
    seen = evidence.get("loss", evidence.get("step_s", ""))
    usual = evidence.get("baseline", evidence.get("best_level", evidence.get("baseline_s", "")))
    score = evidence.get("score", evidence.get("ratio", ""))
    onset = evidence.get("onset_step", verdict.step)
    return (
        alarm.row,
        verdict.step,
        verdict.kind.value,
        verdict.severity.value,
        onset,
        _short(seen),
        _short(usual),
        _short(score),
        verdict.rule,
    )


def _short(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number:,} {what}{'' if number == 1 else plural}"
