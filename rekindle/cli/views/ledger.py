"""What Incidents cost and saved: ledger (of the fleet, a Job, an Incident), postmortem."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any, Final

from rekindle.cli.service.target import connected
from rekindle.cli.terminal.names import Kind, read
from rekindle.cli.terminal.output import answer
from rekindle.client.errors import CommandFailed
from rekindle.client.shapes import day_and_time, member, objects, texts, word
from rekindle.client.table import Column, Style, clean, render
from rekindle.protocol.quantities import NAMES, amount, between, duration, range_of

DEFAULT_DAYS: Final = 7
_COUNTS: Final = ("steps_lost", "steps_saved", "gpu_hours_lost", "gpu_hours_saved", "dollars_lost", "dollars_saved")
_SPARED: Final = ("spared_gpu_hours", "spared_dollars")
_TITLE_COLUMNS: Final = max(map(len, NAMES.values())) + 2
_SHOWN_STAGES: Final = 8


def ledger(args: argparse.Namespace) -> int:
    """Of one Incident, of one Job, or of the fleet."""
    with connected(args, only_look=True) as client:
        if args.incident is not None:
            _, body = read(client, Kind.INCIDENT, args.incident, "ledger")
        elif args.job is not None:
            _, body = read(client, Kind.JOB, args.job, "ledger")
        else:
            body = client.get("/ledger", days=args.days or DEFAULT_DAYS)
    style = Style.of(sys.stdout)
    return answer(args, body, incident_lines(body, style) if args.incident is not None else _sums(body, style))


def postmortem(args: argparse.Namespace) -> int:
    """One Incident's post-mortem, in Markdown."""
    with connected(args, only_look=True) as client:
        _, body = read(client, Kind.INCIDENT, args.incident, "postmortem")
    text = member(body, "markdown")
    if not isinstance(text, str):
        raise CommandFailed("the service's answer holds no post-mortem")
    # Line by line: its line breaks are its own, everything else in it is cleaned as any text from outside.
    return answer(args, body, "\n".join(clean(line) for line in text.split("\n")).rstrip("\n"))


def incident_lines(body: Mapping[str, Any], style: Style) -> str:
    """One Incident's ledger, as the service answers it, for people."""
    heading = f"{word(body, 'incident_id')}  {word(body, 'fault')}, {word(body, 'phase')}"
    facts = [
        *((NAMES[name], _amount(body, name)) for name in ("mttd_s", "mttr_s", "lost_s", *_COUNTS)),
        *((NAMES[name], _amount(body, "counterfactual", name)) for name in ("spared_s", *_SPARED)),
        ("", str(member(body, "counterfactual", "assumes") or "")),
    ]
    blocks = [_facts(heading, facts, style)]
    stages = objects(body, "stages")
    if stages:
        columns = (Column("stage"), Column("began"), Column("after", right=True), Column(NAMES["seconds"], right=True))
        rows = [
            (word(stage, "phase"), day_and_time(stage, "at"), _amount(stage, "after_s"), _amount(stage, "seconds"))
            for stage in stages
        ]
        blocks.append(render(columns, rows, style))
    lines = texts(body, "assumptions")
    if lines:
        blocks.append("\n".join([style.paint("ASSUMED", "bold"), *(f"  {clean(line)}" for line in lines)]))
    return "\n\n".join(blocks)


def _sums(body: Mapping[str, Any], style: Style) -> str:
    heading = word(body, "job_id") if member(body, "job_id") else f"the last {word(body, 'days')} days"
    counts = member(body, "incidents")
    counted = (
        ", ".join(f"{clean(name)} {value}" for name, value in counts.items()) if isinstance(counts, Mapping) else "-"
    )
    facts = [
        ("incidents", counted),
        *((NAMES[name], _amount(body, name)) for name in ("ettr", "ettr_at_most")),
        *((NAMES[name], _spread(body, name)) for name in ("mttd_s", "mttr_s")),
        *((NAMES[name], _total(body, name)) for name in ("lost_s", *_COUNTS, *_SPARED)),
        ("", str(member(body, "spared_assumes") or "")),
    ]
    blocks = [_facts(heading, facts, style)]
    for name, title in (("lost_by_fault_s", "fault"), ("lost_by_stage_s", "stage")):
        parts = member(body, name)
        if isinstance(parts, Mapping) and parts:
            rows = [
                (key, duration(value))
                for key, value in list(parts.items())[:_SHOWN_STAGES]
                if isinstance(value, int | float)
            ]
            blocks.append(render((Column(f"lost by {title}"), Column("time", right=True)), rows, style))
    if member(body, "text"):
        blocks.append(clean(word(body, "text")))
    return "\n\n".join(blocks)


def _facts(heading: str, facts: list[tuple[str, str]], style: Style) -> str:
    lines = [f"  {title:<{_TITLE_COLUMNS}}{clean(value)}" for title, value in facts if value]
    return "\n".join([style.paint(clean(heading), "bold"), *lines])


def _value(body: Any, *names: str) -> tuple[float | None, str]:
    """The number, or the words of why there is none."""
    value = member(body, *names)
    if isinstance(value, Mapping):
        known = value.get("known")
        if isinstance(known, int | float) and not isinstance(known, bool):
            return float(known), ""
        return None, f"unknown ({value.get('unknown', 'no reason given')})"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value), ""
    return None, "-"


def _amount(body: Any, *names: str, of: str = "") -> str:
    """The number under `names`, written as the quantity `of` (by default the last name), or why it is unknown."""
    ends = range_of(member(body, *names))
    if ends is not None:
        return between(of or names[-1], *ends)
    number, why = _value(body, *names)
    return amount(of or names[-1], number) if number is not None else why


def _total(body: Any, name: str) -> str:
    """A sum over many values, with the number of values that are unknown. Where all are unknown there is no sum."""
    if member(body, name, "counted") == 0 and member(body, name, "not_counted"):
        return f"not known ({word(body, name, 'not_counted')} Incidents)"
    return _amount(body, name, "sum", of=name) + _missing(body, name)


def _spread(body: Any, name: str) -> str:
    median, high = (_amount(body, name, part, of=name) for part in ("median", "p90"))
    return f"median {median}, p90 {high}{_missing(body, name)}"


def _missing(body: Any, name: str) -> str:
    missing = member(body, name, "not_counted")
    return f"; {missing} not known" if isinstance(missing, int) and missing else ""
