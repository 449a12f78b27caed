"""Commands that read: status, jobs, incidents, show, quarantine list. Each may be watched (terminal/watch.py)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rekindle.cli.service.target import connected
from rekindle.cli.terminal.names import Kind, read
from rekindle.cli.terminal.output import answer, table
from rekindle.cli.terminal.watch import finish_if
from rekindle.cli.views.incident import incident_text
from rekindle.client.api import Client
from rekindle.client.shapes import NOTHING, day_and_time, member, objects, short_step, texts, windows, word
from rekindle.client.table import Column, Style, clean, render

PAGE = 100  # the API's largest page
CLOSED_BESIDE = 10  # closed Incidents shown below the open ones: how yesterday ended
CLOSED_ALONE = 50
MAX_PAGES = 1_000  # 100,000 rows; a cursor that never ends must not hold a terminal for ever


def status(args: argparse.Namespace) -> int:
    """What is happening now."""
    with connected(args, only_look=True) as client:
        body = client.get("/status")
    style = Style.of(sys.stdout)
    paused = member(body, "paused") is True
    asked = member(body, "approvals_pending")
    text = (
        f"protection  {style.paint('paused', 'yellow') if paused else 'on'}\n"
        f"jobs        {clean(word(body, 'jobs_active'))} active\n"
        f"incidents   {clean(word(body, 'incidents_open'))} open"
        + (f"\napprovals   {clean(asked)} waiting: rekindle approvals" if asked else "")
    )
    if objects(body, "incidents"):
        text += "\n\n" + incident_table(objects(body, "incidents"), style)
    return answer(args, body, text)


def jobs(args: argparse.Namespace) -> int:
    """All Jobs, or one with its Attempts and Incidents."""
    if args.job is not None:
        return _one_job(args)
    with connected(args, only_look=True) as client:
        only = {"active": "true"} if args.active else {}
        found = [job for page in _pages(client, "/jobs", **only) for job in objects(page, "jobs")]
    titles = ["job", "state", "attempt", "running as", "policy", "incident"]
    rows = [_job_row(job) for job in found]
    if args.wide:
        titles += ["alarms", "silent for", "metrics"]
        rows = [(*row, *_watch_row(job)) for row, job in zip(rows, found, strict=True)]
    nothing = (
        "No Jobs. A training job is protected by its tag rekindle:policy, a Slurm job by --comment=rekindle, "
        "either by `rekindle register`."
    )
    return table(args, {"jobs": found}, [Column(title) for title in titles], rows, nothing)


def _watch_row(job: Mapping[str, Any]) -> Sequence[str]:
    """How it is watched from outside."""
    minutes = member(job, "hang_minutes")
    return (_alarms(job), f"{minutes} min" if isinstance(minutes, int) else NOTHING, _metrics(job))


def _alarms(job: Mapping[str, Any]) -> str:
    state = member(job, "alarms_state")
    return word(job, "alarms") + (f" ({state})" if state else "")


def _metrics(job: Mapping[str, Any]) -> str:
    found = member(job, "metrics")
    pairs = found.items() if isinstance(found, Mapping) else ()
    return " ".join(f"{role}={named}" for role, named in pairs) or NOTHING


def _job_row(job: Mapping[str, Any]) -> Sequence[str]:
    state = "active" if member(job, "active") is True else "over"
    attempt, name = word(job, "attempt_number"), word(job, "current_attempt")
    return (word(job, "job_id"), state, attempt, name, word(job, "policy"), word(job, "open_incident"))


def _one_job(args: argparse.Namespace) -> int:
    with connected(args, only_look=True) as client:
        args.job, job = read(client, Kind.JOB, args.job)
    style = Style.of(sys.stdout)
    facts = (
        ("state", "active" if member(job, "active") is True else "over"),
        ("runs on", word(job, "platform")),
        ("policy", word(job, "policy")),
        ("mailbox", word(job, "mailbox")),
        ("known since", day_and_time(job, "created_at")),
        ("alarms", _alarms(job)),
        ("silent for", f"{word(job, 'hang_minutes')} min, then its hang alarm"),
        ("metrics", _metrics(job)),
        ("incident", word(job, "open_incident")),
    )
    parts = [
        "\n".join([style.paint(clean(word(job, "job_id")), "bold"), *(f"  {k:<11}  {clean(v)}" for k, v in facts)])
    ]
    if limits := texts(job, "limits"):
        parts.append("\n".join([style.paint("LIMITS", "bold"), *(f"  {clean(limit)}" for limit in limits)]))
    attempts = objects(job, "attempts")
    if attempts:
        parts.append(_attempt_table(attempts, style))
    if objects(job, "incidents"):
        parts.append(incident_table(objects(job, "incidents"), style))
    return answer(args, job, "\n\n".join(parts))


def _attempt_table(attempts: Sequence[Mapping[str, Any]], style: Style) -> str:
    columns = (
        Column("attempt", right=True),
        Column("name"),
        Column("submitted"),
        Column("status"),
        Column("resumed at", right=True),
        Column("first step", right=True),
        Column("last step", right=True),
        Column("skips"),
    )
    rows = [
        (
            word(item, "number"),
            word(item, "name"),
            day_and_time(item, "submitted_at"),
            word(item, "status"),
            short_step(item, "resume_step"),
            short_step(item, "first_step"),
            short_step(item, "last_step"),
            windows(member(item, "skips")) or "-",
        )
        for item in attempts
    ]
    return render(columns, rows, style)


def incidents(args: argparse.Namespace) -> int:
    """Open Incidents, then closed ones, newest first."""
    found: list[Mapping[str, Any]] = []
    limit = args.limit or (MAX_PAGES * PAGE if args.all else CLOSED_ALONE if args.closed else CLOSED_BESIDE)
    more = False
    only = {"job_id": args.job, "cluster": args.cluster, "fault": args.fault, "since": args.since}
    with connected(args, only_look=True) as client:
        if not args.closed:
            pages = _pages(client, "/incidents", state="open", **only)
            found += [incident for page in pages for incident in objects(page, "incidents")]
        if not args.open:
            closed, more = _closed(client, limit, only)
            found += closed
        if not found and args.job is not None:
            read(client, Kind.JOB, args.job, whole=True)  # no Incidents, or no such Job?
    nothing = "No open Incidents." if args.open else "No closed Incidents." if args.closed else "No Incidents."
    answer(args, {"incidents": found}, incident_table(found, Style.of(sys.stdout)) if found else nothing)
    if more:
        how = "a larger --limit" if args.all else "--limit or --all"
        print(f"rekindle: only the newest {limit} closed ones; {how} shows more", file=sys.stderr)
    return 0


def _closed(client: Client, limit: int, only: Mapping[str, str | None]) -> tuple[list[Mapping[str, Any]], bool]:
    """The newest closed Incidents, and whether there are more."""
    closed: list[Mapping[str, Any]] = []
    for page in _pages(client, "/incidents", state="closed", **only):
        closed += objects(page, "incidents")
        if len(closed) >= limit:
            return closed[:limit], len(closed) > limit or bool(member(page, "cursor"))
    return closed, False


def incident_table(found: Sequence[Mapping[str, Any]], style: Style) -> str:
    """Incidents in rows."""
    columns = (
        Column("incident"),
        Column("about"),
        Column("fault"),
        Column("phase"),
        Column("opened"),
        Column("tries", right=True),
        Column("ended by"),
    )
    rows = [
        (
            word(item, "incident_id"),
            _about(item),
            word(item, "fault"),
            word(item, "phase"),
            day_and_time(item, "opened_at"),
            word(item, "tries"),
            word(item, "outcome"),
        )
        for item in found
    ]
    return render(columns, rows, style)


def _about(item: Mapping[str, Any]) -> str:
    if member(item, "job_id"):
        return word(item, "job_id")
    cluster = word(item, "cluster")
    return f"{cluster}/{word(item, 'node')}" if member(item, "node") else cluster


def show(args: argparse.Namespace) -> int:
    """One Incident's story."""
    with connected(args, only_look=True) as client:
        args.incident, incident = read(client, Kind.INCIDENT, args.incident)
    shown = answer(args, incident, incident_text(incident, Style.of(sys.stdout)))
    finish_if(args, over=member(incident, "closed_at") is not None)
    return shown


def quarantine_list(args: argparse.Namespace) -> int:
    """Events that could not be read."""
    with connected(args, only_look=True) as client:
        body = client.get("/quarantine", limit=10)
    titles = ("since", "function", "field", "error")
    rows = [(day_and_time(item, "at"), *(word(item, name) for name in titles[1:])) for item in objects(body, "events")]
    return table(args, body, [Column(title) for title in titles], rows, "Nothing is in quarantine.")


def _pages(client: Client, route: str, **query: str | None) -> Iterator[Mapping[str, Any]]:
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = client.get(route, limit=PAGE, cursor=cursor, **query)
        yield page
        following = member(page, "cursor")
        if not isinstance(following, str) or following == cursor:
            return
        cursor = following
