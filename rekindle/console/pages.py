"""The pages that only look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Any, Final

from rekindle.client.api import path
from rekindle.client.shapes import member, moment, objects
from rekindle.console import curves
from rekindle.console.charts import Chart, Curve, draw
from rekindle.console.markdown import blocks_of
from rekindle.console.reads import Panel, ask
from rekindle.console.site import STATIC, TEXT, NoSuchPage, PageRequest, PageResponse, Route, Site, route, static
from rekindle.drawing.strokes import Axis, Point
from rekindle.prometheus import render
from rekindle.protocol.signals import FaultClass

PAGE: Final = 50
MAX_SEARCHED: Final = 20  # pages of Jobs of 100 each that a search by name goes through; it says where it ended
MAX_ATTEMPTS: Final = 20  # newest attempts of a Job that are listed at once
MAX_TREND_PAGES: Final = 10  # of Incidents, 100 each, that a ledger's trend is drawn from
MAX_LOOKS: Final = 60  # newest looks of a timeline that are drawn at once
# Source: Prometheus documentation, exposition formats
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
STATES: Final = ("open", "closed", "all")
_LEDGER_DAYS: Final = (1, 7, 30, 90)
_FLEET_DAYS: Final = 7


def fleet(site: Site, request: PageRequest) -> PageResponse:
    """The fleet page: everything that is happening now."""
    read = site.read(
        status=ask("/status"),
        approvals=ask("/approvals"),
        switches=ask("/switches"),
        clusters=ask("/clusters"),
        closed=ask("/incidents", state="closed", limit=8),
    )
    return site.page(
        "fleet.html",
        request,
        status_=site.body_of(read["status"], "The service's state"),
        ledger=site.cache.without_waiting(ask("/ledger", days=_FLEET_DAYS)),
        **_rest(read, "status"),
    )


def jobs(site: Site, request: PageRequest) -> PageResponse:
    """Jobs, a page at a time; or those whose name holds a text."""
    wanted = request.query.get("q", "").strip()[:200]
    if wanted:
        found, looked_at, is_cut = _search(site, wanted)
        return site.page(
            "jobs.html", request, jobs=found, q=wanted, cursor=None, looked_at=looked_at, is_cut=is_cut, why=""
        )
    panel = site.read_one(ask("/jobs", limit=PAGE, cursor=request.query.get("cursor")))
    body = site.body_of(panel, "Jobs")
    return site.page(
        "jobs.html",
        request,
        jobs=objects(body, "jobs"),
        q="",
        cursor=member(body, "cursor"),
        looked_at=None,
        is_cut=False,
        why="",
    )


def _search(site: Site, wanted: str) -> tuple[list[Mapping[str, Any]], int, bool]:
    found: list[Mapping[str, Any]] = []
    looked_at, cursor = 0, None
    for _ in range(MAX_SEARCHED):
        body = site.body_of(site.read_one(ask("/jobs", limit=100, cursor=cursor)), "Jobs")
        page = objects(body, "jobs")
        looked_at += len(page)
        found += [job for job in page if wanted.lower() in f"{job.get('name', '')} {job.get('job_id', '')}".lower()]
        cursor = member(body, "cursor")
        if not isinstance(cursor, str):
            return found, looked_at, False
    return found, looked_at, True


def job(site: Site, request: PageRequest, job_id: str) -> PageResponse:
    """One Job: how it trains, what has been done for it, and the orders that it takes."""
    body = site.body_of(site.read_one(ask(path("jobs", job_id))), f"Job {job_id}")
    minutes = _choice(request, "minutes", curves.WINDOWS) or _fitting(site, body)
    read = site.read(
        curves=ask(f"{path('jobs', job_id)}/curves", minutes=minutes),
        ledger=ask(f"{path('jobs', job_id)}/ledger"),
        switches=ask("/switches"),
        holds=ask("/holds", job_id=job_id),
    )
    charts = curves.of_job(read["curves"].body, body) if read["curves"].body is not None else []
    attempts = objects(body, "attempts")[::-1]
    return site.page(
        "job.html",
        request,
        job=body,
        charts=charts,
        attempts=attempts if request.query.get("attempts") == "all" else attempts[:MAX_ATTEMPTS],
        minutes=minutes,
        windows_=curves.WINDOWS,
        curves_=read["curves"],
        why=_why_no_curve(read["curves"], charts),
        ledger=read["ledger"],
        switches=read["switches"],
        holds=read["holds"],
    )


def _fitting(site: Site, body: Mapping[str, Any]) -> int:
    """A young run is shown whole, an older one its last hour."""
    created = moment(body, "created_at")
    return 15 if created is not None and (site.now() - created).total_seconds() < 900 else 60


def _why_no_curve(panel: Panel, charts: list[Chart]) -> str:
    if charts:
        return ""
    return panel.why if panel.body is None else curves.why_not(panel.body, "loss") or "there are no points"


def incidents(site: Site, request: PageRequest) -> PageResponse:
    """Incidents, a page at a time."""
    state = request.query.get("state", "open")
    state = state if state in STATES else "open"
    filters = {name: request.query.get(name, "").strip()[:200] or None for name in ("job_id", "cluster", "fault")}
    panel = site.read_one(ask("/incidents", state=state, limit=PAGE, cursor=request.query.get("cursor"), **filters))
    return site.page(
        "incidents.html",
        request,
        panel=panel,
        incidents=objects(panel.body, "incidents"),
        cursor=panel.get("cursor"),
        state=state,
        states=STATES,
        faults=[fault.value for fault in FaultClass],
        filters={name: value or "" for name, value in filters.items()},
    )


def incident(site: Site, request: PageRequest, incident_id: str) -> PageResponse:
    """One Incident: what was wrong, how we knew, what was done and why, and what it waits for."""
    body = site.body_of(site.read_one(ask(path("incidents", incident_id))), f"Incident {incident_id}")
    questions = {"ledger": ask(f"{path('incidents', incident_id)}/ledger")}
    if not member(body, "closed_at"):
        questions["holds"] = ask("/holds", incident_id=incident_id)
    job_id = member(body, "job_id")
    if isinstance(job_id, str):
        minutes, until = curves.window_of(moment(body, "opened_at"), moment(body, "closed_at"), site.now())
        questions["curves"] = ask(f"{path('jobs', job_id)}/curves", minutes=minutes, until=until)
    read = site.read(**questions)
    drawn = read.get("curves", Panel(why="this Incident is about no Job"))
    timeline = objects(body, "timeline")
    is_whole = request.query.get("looks") == "all" or len(timeline) <= MAX_LOOKS
    return site.page(
        "incident.html",
        request,
        incident=body,
        chart=curves.of_incident(drawn.body, body, "curves are not available" if drawn.is_absent else drawn.why),
        ledger=read["ledger"],
        standing=read.get("holds", Panel(is_absent=True)),
        timeline=list(enumerate(timeline))[0 if is_whole else -MAX_LOOKS :],
        looks=timeline,
        left_out=member(body, "timeline_left_out") or 0,
        is_whole=is_whole,
    )


def postmortem(site: Site, request: PageRequest, incident_id: str) -> PageResponse:
    """The post-mortem as the service wrote it, drawn; with `?as=markdown` its Markdown, as plain text."""
    body = site.body_of(site.read_one(ask(f"{path('incidents', incident_id)}/postmortem")), "The post-mortem")
    markdown = str(member(body, "markdown") or "")
    if request.query.get("as") == "markdown":
        return PageResponse(body=markdown.encode(), kind=TEXT)
    return site.page("postmortem.html", request, id=incident_id, blocks=blocks_of(markdown))


def metrics(site: Site, _: PageRequest) -> PageResponse:
    """The same figures for a program: Prometheus' text format."""
    ledger = site.cache.wait_for(ask("/ledger", days=_FLEET_DAYS))
    status = site.body_of(site.read_one(ask("/status")), "The service's state")
    return PageResponse(body=render(status, ledger.body).encode(), kind=PROMETHEUS)


def approvals(site: Site, request: PageRequest) -> PageResponse:
    """What people are asked."""
    read = site.read(approvals=ask("/approvals"), holds=ask("/holds"))
    return site.page("approvals.html", request, approvals=read["approvals"], holds=read["holds"])


def ledger(site: Site, request: PageRequest) -> PageResponse:
    """What faults cost, and what recoveries saved."""
    days = _choice(request, "days", dict.fromkeys(_LEDGER_DAYS, "")) or 7
    figures = site.cache.wait_for(ask("/ledger", days=days))
    since = site.now() - timedelta(days=days)
    listed, is_cut = _opened_since(site, since)
    return site.page(
        "ledger.html",
        request,
        ledger=figures,
        days=days,
        choices=_LEDGER_DAYS,
        charts=trend(listed, since=since, until=site.now()),
        is_cut=is_cut,
    )


def _opened_since(site: Site, since: datetime) -> tuple[list[Mapping[str, Any]], bool]:
    """Incidents since then, newest first; True where there are more of them than are read for a page."""
    found: list[Mapping[str, Any]] = []
    cursor = None
    for _ in range(MAX_TREND_PAGES):
        question = ask("/incidents", state="all", limit=100, since=since.isoformat(), cursor=cursor)
        panel = site.cache.wait_for(question) if cursor is None else site.read_one(question)
        found += objects(panel.body, "incidents")
        cursor = panel.get("cursor")
        if not isinstance(cursor, str):
            return found, False
    return found, True


def nodes(site: Site, request: PageRequest) -> PageResponse:
    """Clusters with their agents, and the nodes that keep failing."""
    return site.page("nodes.html", request, **_rest(site.read(clusters=ask("/clusters"), hardware=ask("/hardware"))))


def cluster(site: Site, request: PageRequest, name: str) -> PageResponse:
    body = site.body_of(site.read_one(ask(path("clusters", name))), f"Cluster {name}")
    return site.page("cluster.html", request, cluster=body, holds=site.read_one(ask("/holds", cluster=name)))


def policies(site: Site, request: PageRequest) -> PageResponse:
    """Policies by name."""
    return site.page("policies.html", request, policies=site.read_one(ask("/policies")))


def policy(site: Site, request: PageRequest, name: str) -> PageResponse:
    """One policy's document."""
    body = site.body_of(site.read_one(ask(path("policies", name))), f"Policy {name}")
    return site.page("policy.html", request, name=name, policy=body)


def file(_: Site, __: PageRequest, name: str) -> PageResponse:
    """A file of ours."""
    if name not in STATIC:
        raise NoSuchPage("There is no such file.")
    return PageResponse(body=static(name), kind=STATIC[name])


def _choice(request: PageRequest, name: str, allowed: Mapping[int, str]) -> int | None:
    text = request.query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 and int(text) in allowed else None


def _rest(read: Mapping[str, Panel], *without: str) -> dict[str, Any]:
    return {name: panel for name, panel in read.items() if name not in without}


ROUTES: Final[tuple[Route, ...]] = (
    (route("/"), fleet),
    (route("/jobs"), jobs),
    (route("/jobs/{job_id}"), job),
    (route("/incidents"), incidents),
    (route("/incidents/{incident_id}"), incident),
    (route("/incidents/{incident_id}/postmortem"), postmortem),
    (route("/metrics"), metrics),
    (route("/approvals"), approvals),
    (route("/ledger"), ledger),
    (route("/nodes"), nodes),
    (route("/clusters/{name}"), cluster),
    (route("/policies"), policies),
    (route("/policies/{name}"), policy),
    (route("/static/{name}"), file),
)


PERIODS: Final = 24  # of one day; longer times have a period per day
DAY_S: Final = 86_400.0


def trend(incidents: Sequence[Mapping[str, Any]], *, since: datetime, until: datetime) -> list[Chart]:
    """Two charts over time; none where no Incident was opened. An Incident that is open has no length yet."""
    begin, end = since.timestamp(), until.timestamp()
    length = DAY_S if end - begin > 2 * DAY_S else (end - begin) / PERIODS
    counts: dict[int, int] = dict.fromkeys(range(max(1, round((end - begin) / length))), 0)
    lengths: dict[int, list[float]] = {}
    for incident in incidents:
        opened, closed = moment(incident, "opened_at"), moment(incident, "closed_at")
        if opened is None or not begin <= opened.timestamp() < end:
            continue
        period = min(len(counts) - 1, int((opened.timestamp() - begin) / length))
        counts[period] += 1
        if closed is not None:
            lengths.setdefault(period, []).append((closed - opened).total_seconds() / 60)
    if not any(counts.values()):
        return []

    def placed(values: Mapping[int, float]) -> list[Point]:
        return [(begin + (period + 1) * length, value) for period, value in sorted(values.items())]

    each = "day" if length == DAY_S else "hour"
    curves = (
        Curve(
            name="opened",
            title=f"Incidents opened per {each}",
            y_title="Incidents",
            axis=Axis.TIME,
            points=placed(counts),
        ),
        Curve(
            name="open-for",
            title=f"Open for, minutes: median of those opened in each {each}",
            y_title="minutes",
            axis=Axis.TIME,
            points=placed({period: median(values) for period, values in lengths.items()}),
        ),
    )
    # One point is no trend.
    return [chart for curve in curves if len(curve.points) > 1 and (chart := draw(curve)) is not None]
