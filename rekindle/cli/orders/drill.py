"""`rekindle drill`: rehearse a fault on a running Job. Nothing is done to the Job; the actions are only printed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from rekindle.cli.service.target import connected
from rekindle.cli.terminal.confirm import ordering
from rekindle.cli.terminal.names import Kind, read
from rekindle.cli.terminal.output import answer
from rekindle.cli.views.incident import wrapped
from rekindle.client.api import path
from rekindle.client.errors import Exit, UsageError
from rekindle.client.shapes import member, objects, step, texts, windows, word
from rekindle.client.table import Column, Style, clean, render
from rekindle.protocol.quantities import duration
from rekindle.signatures.words import action_word

_ENDS = {
    "recovered": "it would recover",
    "stopped": "it would be closed without a recovery",
    "handed_over": "a person would be called",
}
_PHASE_COLUMNS = len("checkpointing")


def drill(args: argparse.Namespace) -> int:
    """Rehearse, or show an earlier rehearsal again. Asks nothing: only the rehearsal's own record is made.

    6 where a person would be called, or no end was found.

    Raises:
        UsageError: neither a fault with its Job, nor a drill's id.
    """
    if (args.show is None) == (args.fault is None) or (args.fault is not None and args.job is None):
        raise UsageError("say what to rehearse and on what: rekindle drill FAULT --job JOB; or --show DRILL")
    if args.show is not None:
        with connected(args, only_look=True) as client:
            result = client.get(path("drills", args.show))
    else:
        with ordering(args) as order:
            read(order.client, Kind.JOB, args.job, whole=True)
            order.confirm_at_once()
            result = order.send("POST", path("jobs", args.job, "drills"), {"fault": args.fault})
    answer(args, result, drill_text(result, Style.of(sys.stdout)))
    by_itself = member(result, "outcome", "phase") in ("recovered", "stopped")
    return Exit.OK if by_itself and member(result, "outcome", "finished") is True else Exit.PERSON_NEEDED


def drill_text(result: Mapping[str, Any], style: Style) -> str:
    """The rehearsal as text."""
    blocks = [
        _head(result, style),
        _looks(result, style),
        _guards(result, style),
        _stages(result, style),
        _listed("ASSUMED", texts(result, "assumptions"), style),
    ]
    return "\n\n".join(block for block in blocks if block)


def _head(result: Mapping[str, Any], style: Style) -> str:
    phase = word(result, "outcome", "phase")
    ended = _ENDS.get(phase, "it would not have ended yet")
    facts = [
        ("outcome", f"{ended} (rule {word(result, 'outcome', 'rule')})"),
        ("would do", ", then ".join(map(action_word, texts(result, "would_do"))) or "nothing but tell people"),
        ("resumes", _resume(result)),
        ("lost", _lost(result)),
        ("takes", _known(result, "total_s")),
        (
            "run now",
            f"{word(result, 'seen', 'attempt')} {step(result, 'seen', 'status')}, step "
            f"{step(result, 'seen', 'last_step')}",
        ),
        ("policy", f"{word(result, 'policy', 'name')} ({word(result, 'policy', 'version')})"),
    ]
    title = (
        f"{word(result, 'drill_id')}  {word(result, 'fault')} on {word(result, 'job_id')}, rehearsed: nothing was done"
    )
    lines = [f"  {name:<9}  {clean(value)}" for name, value in facts if value]
    return "\n".join([style.paint(clean(title), "bold"), *lines])


def _resume(result: Mapping[str, Any]) -> str:
    if not isinstance(member(result, "resume"), Mapping):
        return "nothing would be started"
    skipped = windows(member(result, "resume", "skips"))
    text = f"{word(result, 'resume', 'name')} at step {step(result, 'resume', 'step')}, from "
    text += word(result, "resume", "from")
    return text + (f", without the data of {skipped}" if skipped else "")


def _lost(result: Mapping[str, Any]) -> str:
    """Counted from where the run is now; how far it trains on before it is stopped may not be known."""
    if not isinstance(member(result, "resume"), Mapping):
        return ""
    text = f"{step(result, 'resume', 'steps_lost_at_strike')} steps done so far"
    if member(result, "resume", "emergency") is True:
        without = step(result, "resume", "without_emergency", "steps_lost_at_strike")
        text += f" ({without} without the emergency checkpoint)"
    return text


def _known(result: Mapping[str, Any], *names: str) -> str:
    value = member(result, *names, "known")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return duration(value)
    return f"unknown ({word(result, *names, 'unknown')})"


def _looks(result: Mapping[str, Any], style: Style) -> str:
    looks = objects(result, "looks")
    if not looks:
        return ""
    lines = [style.paint("WHAT WOULD HAPPEN", "bold")]
    for look in looks:
        after = member(look, "after_s")
        when = f"+{duration(after)}" if isinstance(after, int | float) else "-"
        phase = clean(word(look, "phase"))
        lines.append(f"  {when:>12}  {phase:<{_PHASE_COLUMNS}}  {style.paint(clean(word(look, 'rule')), 'bold')}")
        lines += wrapped(word(look, "text"), style)
        lines += [
            line
            for action in objects(look, "actions")
            for line in wrapped(f"-> {action_word(word(action, 'action'))}", style)
        ]
    left_out = member(result, "looks_left_out")
    if isinstance(left_out, int) and left_out:
        lines.append(f"  and {left_out} more looks")
    return "\n".join(lines)


def _guards(result: Mapping[str, Any], style: Style) -> str:
    held = [
        f"{word(guard, 'guard')}{' (the rehearsal continued without it)' if member(guard, 'lifted') is True else ''}: "
        f"{word(guard, 'text')}"
        for guard in objects(result, "guards")
    ]
    return _listed("GUARDS THAT WOULD HOLD", held, style)


def _stages(result: Mapping[str, Any], style: Style) -> str:
    stages = objects(result, "stages")
    if not stages:
        return ""
    columns = (Column("stage"), Column("at most", right=True), Column("takes"))
    rows = []
    for stage in stages:
        limit = member(stage, "at_most_s")
        rows.append(
            (word(stage, "phase"), duration(limit) if isinstance(limit, int | float) else "-", _known(stage, "seconds"))
        )
    return render(columns, rows, style)


def _listed(title: str, lines: list[str], style: Style) -> str:
    return "\n".join([style.paint(title, "bold"), *(f"  {clean(line)}" for line in lines)]) if lines else ""
