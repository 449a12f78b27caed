"""What a person sees while the demo runs: a live picture on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from localcloud.demo.chart import BROKEN, draw
from localcloud.demo.story import TITLES, AttemptSeen, IncidentSeen, Recovery, StepSeen
from rekindle.protocol.quantities import NAMES, duration

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_red", "bright_green", "bright_yellow")
_PHASE_STYLE = {"recovered": "bold green", "stopped": "bold yellow", "handed_over": "bold red"}
CHART_WIDTH, CHART_HEIGHT = 64, 7
TIMELINE_LINES = 12
ROOMY = 110  # columns from which the last table needs no thrift


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


class View(Protocol):
    """Shows one DemoState after the other."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, picture: DemoState) -> None:
        """Bring what is seen up to date."""
        ...


def view_for(stream: TextIO) -> View:
    """The live view for a terminal, lines for everything else."""
    return LiveView(Console(file=stream)) if stream.isatty() else LineView(stream)


class LineView:
    """One line per thing that happens, and a sign of life every `EVERY_S` seconds."""

    EVERY_S = 5.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._act = ""
        self._shown: dict[str, int] = {}
        self._last_sign: datetime | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

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


class LiveView:
    """A picture that redraws itself in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, redirect_stdout=False, redirect_stderr=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, picture: DemoState) -> None:
        """Redraw."""
        self._live.update(render(picture))


def render(picture: DemoState) -> RenderableType:
    """The whole picture as one renderable."""
    top = Table.grid(padding=(0, 2))
    top.add_row(_attempts(picture), _curve(picture))
    since = (picture.at - picture.started_at).total_seconds()
    act = Text.assemble((f"{since:5.1f}s  ", "dim"), (picture.act, "bold"))
    return Group(act, top, _timeline(picture))


def _colour(number: int) -> str:
    return _COLOURS[(number - 1) % len(_COLOURS)]


def _attempts(picture: DemoState) -> RenderableType:
    table = Table(title="attempts", title_justify="left", box=None, padding=(0, 1))
    for heading in ("#", "state", "resumed at", "steps"):
        table.add_column(heading, justify="left", no_wrap=True)
    for attempt in picture.attempts[-6:]:
        steps = "–" if attempt.first_step is None else f"{attempt.first_step} … {attempt.last_step}"
        resumed = "start" if attempt.resumed_from is None else str(attempt.resumed_from)
        number = Text(str(attempt.number), style=_colour(attempt.number))
        table.add_row(number, attempt.status, resumed, steps)
    workers = Text("workers: ")
    for worker in picture.workers:
        style = {"running": "green", "frozen": "bold blue"}.get(worker.state, "bold red")
        workers.append(f"rank {worker.rank} {worker.state}  ", style=style)
    return Group(table, workers)


def _curve(picture: DemoState) -> RenderableType:
    drawn = draw(picture.steps, width=CHART_WIDTH, height=CHART_HEIGHT)
    text = Text()
    for index, row in enumerate(drawn.rows):
        scale = f"{drawn.high:5.2f} " if index == 0 else f"{drawn.low:5.2f} " if index == CHART_HEIGHT - 1 else " " * 6
        text.append(scale, style="dim")
        for column, cell in zip(drawn.columns, row, strict=True):
            text.append(cell, style="bold red" if cell == BROKEN else _colour(max(1, column.number)))
        text.append("\n")
    text.append(f"      loss over steps 1 … {drawn.last_step}", style="dim")
    return text


def _timeline(picture: DemoState) -> RenderableType:
    if not picture.incidents:
        return Panel(Text("no Incident yet", style="dim"), title="timeline", title_align="left")
    incident = picture.incidents[-1]
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in incident.lines[-TIMELINE_LINES:]:
        since = (line.at - incident.opened_at).total_seconds()
        table.add_row(f"{since:+6.1f}s", Text(line.phase, style=_PHASE_STYLE.get(line.phase, "cyan")), line.text)
    title = f"{incident.incident_id}  {incident.fault}  [{incident.phase}]"
    return Panel(table, title=Text(title, style=_PHASE_STYLE.get(incident.phase, "yellow")), title_align="left")


def results(recoveries: Sequence[Recovery], *, width: int) -> Table:
    """The table at the end; in a narrow terminal only texts wrap, so that no word of a heading is cut."""
    narrow = width < ROOMY
    table = Table(
        title="what was done to the run, and how it came back", title_justify="left", padding=(0, 0 if narrow else 1)
    )
    table.add_column("fault")
    for heading in (*(NAMES[name] for name in ("mttd_s", "mttr_s", "steps_lost")), "resumed at step"):
        table.add_column(heading, justify="right", min_width=max(map(len, heading.split())))
    table.add_column("work saved by the emergency checkpoint", min_width=len("checkpoint"))
    table.add_column("outcome", no_wrap=True, min_width=len("handed_over"))
    for row in recoveries:
        outcome = row.incident.phase if row.incident else "no Incident"
        table.add_row(
            TITLES[row.fault],
            _seconds(row.mttd_s),
            _seconds(row.mttr_s),
            "–" if row.steps_lost is None else str(row.steps_lost),
            "–" if row.resumed_at_step is None else str(row.resumed_at_step),
            str(row.saved),
            Text(outcome, style=_PHASE_STYLE.get(outcome, "bold red")),
        )
    return table


def _seconds(value: float | None) -> str:
    return "–" if value is None else duration(value)


def plain_console(stream: TextIO = sys.stdout) -> Console:
    """Where the table and the closing words go; wide enough for the table where the stream has no width."""
    return Console(file=stream) if stream.isatty() else Console(file=stream, width=150, no_color=True)
