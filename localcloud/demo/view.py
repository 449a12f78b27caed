"""What a person sees while the demo runs: a line for each thing that happens, and a table at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TextIO

from localcloud.demo.story import TITLES, AttemptSeen, IncidentSeen, Recovery, StepSeen
from rekindle.client.table import Column, Style, render
from rekindle.protocol.quantities import NAMES, duration


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeen:
    """One worker process: `state` is running, frozen, dead or gone."""

    rank: int
    pid: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoState:
    """Everything there is to show at one moment."""

    started_at: datetime
    at: datetime
    act: str
    attempts: tuple[AttemptSeen, ...] = ()
    workers: tuple[WorkerSeen, ...] = ()
    steps: Sequence[StepSeen] = field(default_factory=tuple)
    incidents: tuple[IncidentSeen, ...] = ()


class LineView:
    """One line per thing that happens, and a sign of life every `EVERY_S` seconds."""

    EVERY_S = 5.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._act = ""
        self._shown: dict[str, int] = {}
        self._last_sign: datetime | None = None

    def show(self, picture: DemoState) -> None:
        """Say what is new since the last picture."""
        for incident in picture.incidents:
            reported = self._shown.get(incident.incident_id, 0)
            for line in incident.lines[reported:]:
                self._say(picture, f"    {line.phase} | {line.rule} | {line.text}")
            self._shown[incident.incident_id] = len(incident.lines)
        if picture.act != self._act:
            self._act = picture.act
            self._say(picture, f">>> {picture.act}")
        due = self._last_sign is None or (picture.at - self._last_sign).total_seconds() >= self.EVERY_S
        if due and picture.attempts:
            self._last_sign = picture.at
            attempt = picture.attempts[-1]
            loss = f", loss {picture.steps[-1].loss:.3f}" if picture.steps else ""
            states = " ".join(f"rank {worker.rank} {worker.state}" for worker in picture.workers)
            step = "no step yet" if attempt.last_step is None else f"step {attempt.last_step}{loss}"
            self._say(picture, f"attempt {attempt.number} {attempt.status}: {step} ({states or 'no worker'})")

    def _say(self, picture: DemoState, text: str) -> None:
        """What is printed has the time at which it is seen, so that the times never run backwards."""
        since = max(0.0, (picture.at - picture.started_at).total_seconds())
        print(f"{since:6.1f}s {text}", file=self._stream, flush=True)


def results(recoveries: Sequence[Recovery], style: Style) -> str:
    """The table at the end: what was done to the run, and how it came back."""
    columns = [Column("fault"), *(Column(NAMES[name], right=True) for name in ("mttd_s", "mttr_s", "steps_lost"))]
    columns += [Column("resumed at step", right=True), Column("outcome"), Column("saved by the emergency checkpoint")]
    rows = [
        (
            TITLES[row.fault],
            _seconds(row.mttd_s),
            _seconds(row.mttr_s),
            "-" if row.steps_lost is None else row.steps_lost,
            "-" if row.resumed_at_step is None else row.resumed_at_step,
            row.incident.phase if row.incident else "no Incident",
            row.saved,
        )
        for row in recoveries
    ]
    return render(columns, rows, style)


def _seconds(value: float | None) -> str:
    return "-" if value is None else duration(value)
