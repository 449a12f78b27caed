"""Is this set-up ready for the next fault? The stack, the API, the protected Jobs and their clusters, all looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol
from urllib.parse import quote

from rekindle.doctor.aws.account import Account
from rekindle.doctor.aws.run_reads import bucket_of, read_run
from rekindle.doctor.aws.stack_reads import read_bucket, read_stack
from rekindle.doctor.base.checks import OURS, Area, check
from rekindle.doctor.base.findings import Finding, error, in_order, unknown, warning
from rekindle.doctor.cluster.live import cluster_exists
from rekindle.doctor.examine import ExamineInputs, examine
from rekindle.doctor.stack.rules import StackFacts, bucket_findings, stack_findings, stack_status
from rekindle.doctor.stack.runs import run_findings, run_mailbox

MAX_JOBS: Final = 200  # each costs a few calls; a check is for a person who waits for it
_PAGE: Final = 100
ON_THIS_MACHINE: Final = "the service is an embedded cloud on this machine, not an AWS account"


class ServiceRefused(Exception):
    """The API gave no usable answer; the message says why. `is_absent`: it does not know what was asked for."""

    def __init__(self, message: str, *, is_absent: bool = False) -> None:
        super().__init__(message)
        self.is_absent = is_absent


class Service(Protocol):
    """The REST API, read only."""

    def __call__(self, route: str, **query: str | int | None) -> dict[str, Any]:
        """GET. Raises ServiceRefused."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What to look at. `service` None: the API was not to be reached, for the reason in `why_no_service`.

    `is_local`: the service is on this machine, and there is no stack to look at. `clusters` are looked at beside those
    that the service knows.
    """

    now: datetime
    stack: str
    service: Service | None
    why_no_service: str = ""
    is_local: bool = False
    clusters: tuple[str, ...] = ()


def look_at(setup: Setup, account: Account, *, progress: Callable[[str], None] = lambda _: None) -> list[Finding]:
    """Every finding, errors first. `progress` is called with what is being checked."""
    return in_order(_looked(setup, account, progress))


def _looked(setup: Setup, account: Account, progress: Callable[[str], None]) -> Iterator[Finding]:
    known: frozenset[str] = frozenset()
    if setup.is_local:
        yield stack_status.row.unknown(f"stack {setup.stack}", ON_THIS_MACHINE)
    else:
        progress(f"stack {setup.stack}")
        stack = read_stack(account, setup.stack, now=setup.now)
        yield from stack_findings(setup.stack, stack)
        known = frozenset(stack.buckets) if isinstance(stack, StackFacts) else known
    if setup.service is None:
        yield from _api(f"the API does not answer: {setup.why_no_service}")
        names = setup.clusters
    else:
        yield from _switches(setup.service)
        yield from _jobs(setup, setup.service, account, known, progress)
        listed, findings = _clusters(setup.service)
        yield from findings
        names = tuple(dict.fromkeys((*setup.clusters, *listed)))
    for name in names:
        progress(f"cluster {name}")
        yield from examine(ExamineInputs(now=setup.now, live=name, stack=setup.stack), account)


@check("stack-api", Area.STACK, OURS)
def _api(problem: str) -> Iterator[Finding]:
    """The API answers you, with your credentials.

    Without the API you cannot pause, cancel or approve.
    """
    yield error("api", problem)


@check("stack-switches", Area.STACK, OURS)
def _switches(service: Service) -> Iterator[Finding]:
    """No global pause, no shadow mode everywhere.

    Rekindle takes no action while a pause is left on.
    """
    try:
        status = service("/status")
    except ServiceRefused as err:
        yield from _api(f"the API does not answer as it should: {err}")
        return
    if status.get("paused") is True:
        yield warning("api", "a global pause is set: nothing is done anywhere (rekindle switches unpause)")
    try:
        shadow = service("/switches").get("shadow")
    except ServiceRefused as err:
        yield unknown("api", f"whether shadow mode is on was not looked at: {err}")
        return
    if isinstance(shadow, dict) and shadow.get("everywhere") is True:
        yield warning("api", "shadow mode is on everywhere: it decides and tells, and does nothing")


def _jobs(
    setup: Setup, service: Service, account: Account, known: frozenset[str], progress: Callable[[str], None]
) -> Iterator[Finding]:
    try:
        jobs, is_cut = _active(service)
    except ServiceRefused as err:
        yield run_mailbox.row.unknown("jobs", f"the Jobs were not looked at: {err}")
        return
    if is_cut:
        yield run_mailbox.row.unknown("jobs", f"there are more active Jobs; {MAX_JOBS} were looked at")
    policies: dict[str, str] = {}
    buckets: dict[str, None] = {}
    for job in jobs:
        job_id, policy = str(job.get("job_id")), str(job.get("policy") or "default")
        progress(f"job {job_id}")
        if policy not in policies:
            policies[policy] = _policy_problem(service, policy)
        try:
            whole = service(f"/jobs/{_quoted(job_id)}")
        except ServiceRefused as err:
            yield run_mailbox.row.unknown(f"job {job_id}", f"was not looked at: {err}")
            continue
        run = read_run(account, whole, policy_problem=policies[policy])
        if run is None:
            yield run_mailbox.row.unknown(f"job {job_id}", "the API's answer cannot be read")
            continue
        yield from run_findings(run, now=setup.now)
        bucket = bucket_of(run.mailbox)
        if bucket is not None and bucket not in known:
            buckets[bucket] = None
    yield from bucket_findings("mailboxes", {name: read_bucket(account, name) for name in buckets})


def _active(service: Service) -> tuple[list[Mapping[str, Any]], bool]:
    """The active Jobs, at most MAX_JOBS; True if there are more."""
    found: list[Mapping[str, Any]] = []
    cursor: str | None = None
    while True:
        page = service("/jobs", limit=_PAGE, cursor=cursor)
        rows = page.get("jobs")
        jobs = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        found += [job for job in jobs if job.get("active") is True]
        cursor = page.get("cursor") if isinstance(page.get("cursor"), str) else None
        # Active ones come first: a page that ends with an ended one is the last that matters.
        if len(found) > MAX_JOBS or cursor is None or (jobs and jobs[-1].get("active") is not True):
            return found[:MAX_JOBS], len(found) > MAX_JOBS


def _policy_problem(service: Service, name: str) -> str:
    """Why the policy cannot be used, as the API says it; empty where it can, or where the API does not tell."""
    try:
        service(f"/policies/{_quoted(name)}")
    except ServiceRefused as err:
        return f"{err}" if err.is_absent and "polic" in f"{err}" else ""
    return ""


def _clusters(service: Service) -> tuple[tuple[str, ...], list[Finding]]:
    try:
        rows = service("/clusters").get("clusters")
    except ServiceRefused as err:
        return (), [cluster_exists.row.unknown("clusters", f"the clusters were not looked at: {err}")]
    names = [row.get("cluster") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return tuple(str(name) for name in names if name), []


def _quoted(name: str) -> str:
    return quote(name, safe="")
