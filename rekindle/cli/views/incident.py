"""`rekindle show`: one Incident's story, to be skimmed. What was wrong, how we knew, what was done, how it ended."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from rekindle.client.shapes import (
    NOTHING,
    bad_steps,
    day_and_time,
    member,
    moment,
    objects,
    short_step,
    step,
    texts,
    what_was_seen,
    windows,
    word,
)
from rekindle.client.table import TONES, Column, Style, clean, render, width
from rekindle.protocol.quantities import NAMES, duration

READING_WIDTH = 100  # a line of text beyond this is hard to read, and off a terminal there is no width to ask for
INDENT = " " * 12
_PHASE_COLUMNS = len("checkpointing")  # the longest phase; it only aligns
_TAIL_PHASES = {"recovered": "recovered", "stopped": "closed without a recovery", "handed_over": "handed to a person"}


def incident_text(incident: Mapping[str, Any], style: Style) -> str:
    """The whole story as text."""
    blocks = [
        _head(incident, style),
        _block("QUESTIONS", questions(incident), style),
        _block("HELD BACK", held(incident), style),
        _suspects(incident, style),
        _evidence(incident, style),
        _looks(incident, style),
        _tries(incident, style),
        _repairs(incident, style),
    ]
    return "\n\n".join(block for block in blocks if block)


def _head(incident: Mapping[str, Any], style: Style) -> str:
    phase = word(incident, "phase")
    opened_at, closed_at = moment(incident, "opened_at"), moment(incident, "closed_at")
    held = f", {NAMES['open_s']} {duration((closed_at - opened_at).total_seconds())}" if opened_at and closed_at else ""
    ended = clean(_TAIL_PHASES.get(phase, phase)) + held
    title = f"{style.paint(clean(word(incident, 'incident_id')), 'bold')}  {_toned(ended, phase, style)}"
    loss = member(incident, "loss")
    rule, version = word(incident, "fault_rule"), word(incident, "policy_version")
    facts = [
        ("about", f"job {word(incident, 'job_id')}" if member(incident, "job_id") else _cluster(incident)),
        ("fault", word(incident, "fault") + (f", by rule {rule}" if rule != NOTHING else "")),
        ("suspect", str(member(incident, "summary", "suspect") or "")),
        ("opened", day_and_time(incident, "opened_at")),
        ("closed", f"{day_and_time(incident, 'closed_at')} by rule {word(incident, 'outcome')}" if closed_at else ""),
        ("attempt", word(incident, "attempt")),
        ("must pass", f"step {step(incident, 'target_step')}" if member(incident, "target_step") else ""),
        ("bad since", f"step {step(loss, 'onset_step')}" if member(loss, "onset_step", "known") else ""),
        ("skips", windows(member(loss, "skips"))),
        ("not used", _stretches(incident)),
        ("concluded", str(member(incident, "evidence", "conclusion") or "")),
        ("checkpoint", _ask(incident)),
        ("found", _found(incident)),
        ("seen", ", ".join(text for name in ("instance_word", "listed_word") if (text := _of_repair(incident, name)))),
        ("by others", str(member(incident, "repair", "theirs", "what") or "")),
        ("ordered by", word(incident, "order", "who") if member(incident, "order") else ""),
        ("policy", word(incident, "policy_name") + (f" ({version})" if version != NOTHING else "")),
    ]
    return "\n".join([title, *(f"  {name:<10}  {clean(value)}" for name, value in facts if value)])


def _cluster(incident: Mapping[str, Any]) -> str:
    if member(incident, "node"):
        return f"node {word(incident, 'node')} of cluster {word(incident, 'cluster')}"
    return f"cluster {word(incident, 'cluster')} (no Job is known there)"


def _of_repair(incident: Mapping[str, Any], name: str) -> str:
    """What a node's Incident remembers under `name`."""
    return str(member(incident, "repair", name) or "")


def _found(incident: Mapping[str, Any]) -> str:
    """What was found against a node, the newest last."""
    repair = member(incident, "repair")
    findings = objects(repair, "findings") if isinstance(repair, Mapping) else []
    return "; ".join(f"{word(finding, 'kind')} ({word(finding, 'text')})" for finding in findings[-3:])


def _repairs(incident: Mapping[str, Any], style: Style) -> str:
    """Each order to repair a node: of which instance, by which way, and when it was well again."""
    repair = member(incident, "repair")
    steps = objects(repair, "steps") if isinstance(repair, Mapping) else []
    if not steps:
        return ""
    columns = (
        Column("no.", right=True),
        Column("repair"),
        Column("instance"),
        Column("by"),
        Column("ordered"),
        Column("answer"),
        Column("well at"),
    )
    rows = [
        (
            word(item, "number"),
            word(item, "rung"),
            word(item, "instance_id"),
            word(item, "route"),
            day_and_time(item, "at"),
            word(item, "state"),
            day_and_time(item, "back_at") if member(item, "back_at") else NOTHING,
        )
        for item in steps
    ]
    return render(columns, rows, style)


def _stretches(incident: Mapping[str, Any]) -> str:
    """Steps whose checkpoints are never resumed from, because the loss was bad there."""
    reported = [
        f"{attempt} steps {low}" + (f"-{high - 1}" if high is not None else " and later")
        for attempt, low, high in bad_steps(incident)
    ]
    return f"checkpoints of {', '.join(reported)}" if reported else ""


def _suspects(incident: Mapping[str, Any], style: Style) -> str:
    """Whom the ranks' own reports point at, on what grounds, and where the reports with their stacks lie."""
    suspicions = objects(incident, "evidence", "suspicions")
    if not suspicions:
        return ""
    lines = [style.paint("SUSPECTS", "bold")]
    for item in suspicions:
        named, hosts = ", ".join(texts(item, "ranks")), texts(item, "hosts")
        where = f" on {', '.join(hosts)}" if hosts else ""
        who = f"rank {named}{where}" if named else "no rank in particular"
        lines.append(
            f"  {clean(word(item, 'attempt'))}  {clean(word(item, 'kind'))}: {style.paint(clean(who), 'bold')}"
        )
        confidence, reports, world = member(item, "confidence"), member(item, "reports"), member(item, "world_size")
        grounds = f"{word(item, 'text')} (rule {word(item, 'rule')}"
        grounds += f", confidence {confidence:.1f}" if isinstance(confidence, int | float) and named else ""
        grounds += f", {reports} of {world} ranks reported)" if reports else ")"
        lines += wrapped(grounds, style)
        if member(item, "kept_at"):
            lines += wrapped(f"reports and stacks: {word(item, 'kept_at')}", style)
    return "\n".join(lines)


def _ask(incident: Mapping[str, Any]) -> str:
    ask = member(incident, "halt", "ask")
    if not isinstance(ask, Mapping):
        return ""
    outcome = member(ask, "outcome")
    if outcome is None:
        return f"asked for, answer due by {day_and_time(ask, 'deadline_at')}"
    at_step = f" at step {ask['step']}" if member(ask, "step") is not None else ""
    why = f" ({word(ask, 'why')})" if member(ask, "why") else ""
    return f"{outcome}{at_step}{why}"


def _block(title: str, found: Iterator[tuple[str, str]], style: Style) -> str:
    """Lines, each with the words that belong to it; nothing where there are none."""
    lines = []
    for line, text in found:
        lines.append(f"  {clean(line)}")
        lines += wrapped(text, style) if text else []
    return "\n".join([style.paint(title, "bold"), *lines]) if lines else ""


def _toned(text: str, phase: str, style: Style) -> str:
    return style.paint(text, TONES[phase]) if phase in TONES else text


def _evidence(incident: Mapping[str, Any], style: Style) -> str:
    """What spoke of a fault or ordered something; mere news is counted only, for it is what the looks saw."""
    signals = [*objects(incident, "signals"), *objects(incident, "inbox")]
    if not signals:
        return ""
    shown = [signal for signal in signals if _is_fault_or_order(signal)] or signals
    lines = [style.paint("EVIDENCE", "bold")]
    for signal in shown:
        when = _clock(moment(signal, "occurred_at"))
        lines.append(f"  {when}  {clean(word(signal, 'kind'))} from {clean(word(signal, 'source'))}")
        lines += wrapped(word(signal, "summary"), style)
    seen = member(incident, "signals_seen")
    total = max(seen if isinstance(seen, int) else 0, len(objects(incident, "signals"))) + len(
        objects(incident, "inbox")
    )
    if total > len(shown):
        lines.append(f"  and {total - len(shown)} more; --json has those that were kept")
    return "\n".join(lines)


def _is_fault_or_order(signal: Mapping[str, Any]) -> bool:
    return member(signal, "fault") is not None or word(signal, "kind").startswith("order_")


def _looks(incident: Mapping[str, Any], style: Style) -> str:
    entries = objects(incident, "timeline")
    if not entries:
        return ""
    opened_at = moment(incident, "opened_at")
    lines = [style.paint("STORY", "bold")]
    seen_before = ""
    for index, entry in enumerate(entries):
        after = entries[index + 1] if index + 1 < len(entries) else {}
        seen = what_was_seen(entry)
        lines += _look(entry, after, opened_at, style, news=seen if seen != seen_before else "")
        seen_before = seen
    return "\n".join(lines)


def _look(
    entry: Mapping[str, Any], after: Mapping[str, Any], opened_at: datetime | None, style: Style, *, news: str
) -> Iterator[str]:
    """One observation; `news` is what it showed, where that differs from the previous one."""
    at = moment(entry, "at")
    since = f"+{duration((at - opened_at).total_seconds())}" if at and opened_at else ""
    phase = clean(word(entry, "phase"))
    rule = style.paint(clean(word(entry, "rule")), "bold")
    gap = " " * max(_PHASE_COLUMNS - width(phase), 0)
    yield f"  {_clock(at)}  {_toned(phase, phase, style)}{gap}  {rule}  {style.paint(since, 'dim')}".rstrip()
    yield from wrapped(word(entry, "text"), style)
    if news:
        yield from wrapped(f"saw: {news}", style)
    # An Action's answer is read by the look after it, so it stands in the next line of the timeline.
    answers = objects(after, "facts", "results")
    for index, action in enumerate(texts(entry, "actions")):
        answer = answers[index] if index < len(answers) and answers[index].get("action") == action else None
        yield from wrapped(f"-> {action}{_answer(answer)}", style)
    if word(entry, "rule") == "notified":
        for answer in objects(entry, "facts", "results"):
            yield from wrapped(f"-> {word(answer, 'action')}{_answer(answer)}", style)


def _answer(answer: Mapping[str, Any] | None) -> str:
    if answer is None:
        return ""
    detail = word(answer, "detail")
    return f": {word(answer, 'done')}" + (f" ({detail})" if detail != NOTHING else "")


def wrapped(text: str, style: Style) -> list[str]:
    columns = min(style.columns or READING_WIDTH, READING_WIDTH)
    wide = max(columns - len(INDENT), 40)
    lines = textwrap.wrap(clean(text), width=wide, break_on_hyphens=False) or [""]
    hanging = "   " if text.startswith("-> ") else ""
    return [f"{INDENT}{hanging if index else ''}{line}" for index, line in enumerate(lines)]


def _tries(incident: Mapping[str, Any], style: Style) -> str:
    tries = objects(incident, "resubmission", "tries")
    if not tries:
        return ""
    columns = (
        Column("attempt", right=True),
        Column("name"),
        Column("submitted"),
        Column("resumed at", right=True),
        Column("reached", right=True),
        Column("gained"),
    )
    rows = [
        (
            word(item, "number"),
            word(item, "name"),
            day_and_time(item, "at"),
            short_step(item, "resume_step"),
            short_step(item, "last_step") if member(item, "ended") else NOTHING,
            word(item, "gained") if member(item, "ended") else NOTHING,
        )
        for item in tries
    ]
    table = render(columns, rows, style).splitlines()
    return "\n".join([style.paint("RESUBMITTED", "bold"), *(f"  {line}" for line in table)])


def _clock(at: datetime | None) -> str:
    return f"{at:%H:%M:%S}" if at is not None else "--:--:--"


MAX_OVER: Final = 5  # holds that are over, the newest; the story below has each with its time


def held(incident: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A line and the words under it per hold: what holds now comes first."""
    holds = objects(incident, "holds")
    now = [hold for hold in holds if not member(hold, "until")]
    over = [hold for hold in holds if member(hold, "until")][-MAX_OVER:]
    for hold in [*now, *reversed(over)]:
        actions = texts(hold, "actions")
        names = f": {', '.join(actions)} not done" if actions else ""
        until = f" until {day_and_time(hold, 'until')}" if member(hold, "until") else ", and still does"
        yield f"{word(hold, 'guard')} since {day_and_time(hold, 'since')}{until}{names}", word(hold, "text")
    left = len(holds) - len(now) - len(over)
    if left > 0:
        yield f"and {left} more before; --json has them", ""


def questions(incident: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A line and the words under it per question, the newest first: an open one with the commands that answer it."""
    for approval in reversed(objects(incident, "approvals")):
        name = word(approval, "approval_id")
        if member(approval, "answer"):
            comment = f" ({word(approval, 'comment')})" if word(approval, "comment") != NOTHING else ""
            answered_at = day_and_time(approval, "answered_at")
            ended = f"{word(approval, 'answer')} by {word(approval, 'by')} at {answered_at}{comment}"
        elif member(approval, "lapsed_at"):
            ended = f"not asked any more since {day_and_time(approval, 'lapsed_at')}"
        else:
            order = f"{word(incident, 'incident_id')} {name}"
            ended = (
                f"WAITS FOR AN ANSWER until {day_and_time(approval, 'deadline_at')}, then {word(approval, 'default')}: "
                f"`rekindle approvals approve {order}` or `rekindle approvals deny {order}`"
            )
        yield f"{name}  {word(approval, 'what')}: {ended}", word(approval, "why")
