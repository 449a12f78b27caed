"""Ledgers and post-mortems: what Incidents cost and saved; of one, of a Job, of the fleet. Reads, within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

from chalicelib.domain.model.errors import InvalidRequest, UnknownEntity
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Unknown
from chalicelib.domain.reporting.ledger import IncidentLedger, ledger_of
from chalicelib.domain.reporting.postmortem import postmortem_of
from chalicelib.domain.reporting.prices import Prices
from chalicelib.domain.reporting.sums import fleet_ettr, job_sums, sums_of
from chalicelib.domain.reporting.windows import MAX_DAYS
from chalicelib.ports.clock import Clock
from chalicelib.ports.incidents import IncidentStore, Listings
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.operator import PriceList

PAGE: Final = 100
MAX_INCIDENTS: Final = 1000  # of the fleet, closed; as many open ones; a page of 100 is two calls
MAX_OF_JOB: Final = 200
MAX_JOBS: Final = 1000
_OF_NO_RUN: Final = JobSize(gpus=Unknown("it is about no run"))
_NOBODYS: Final = JobSize(gpus=Unknown("its Job is not registered"))


def job_of(incident: Incident, registry: JobRegistry) -> Job | None:
    """The Job that an Incident is about; None where it is about none, or its Job is not registered."""
    if incident.job_id is None:
        return None
    try:
        return registry.get(incident.job_id)
    except UnknownEntity:
        return None


def with_job(incident: Incident, job: Job | None, *, prices: PriceList, clock: Clock) -> IncidentLedger:
    """The ledger of an Incident in hand, with its Job as `job_of` gives it."""
    size = _OF_NO_RUN if incident.job_id is None else _NOBODYS if job is None else job.size
    return ledger_of(incident, size=size, prices=prices.load(), now=clock.now())


def incident_ledger(incident: Incident, *, registry: JobRegistry, prices: PriceList, clock: Clock) -> IncidentLedger:
    """What one Incident took and cost, its Job read from the registry."""
    return with_job(incident, job_of(incident, registry), prices=prices, clock=clock)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledgers:
    """Every answer is JSON; an unknown quantity is `{"unknown": why}`."""

    store: IncidentStore
    registry: JobRegistry
    listings: Listings
    prices: PriceList
    clock: Clock

    def incident(self, incident_id: str) -> dict[str, Any]:
        """One Incident's ledger. Raises UnknownEntity."""
        return self.of(self.store.load(incident_id).incident).to_wire()

    def of(self, incident: Incident) -> IncidentLedger:
        return incident_ledger(incident, registry=self.registry, prices=self.prices, clock=self.clock)

    def postmortem(self, incident_id: str) -> str:
        """The post-mortem of one Incident, in Markdown. Raises UnknownEntity."""
        looked, timeline = self.store.load_with_timeline(incident_id)
        job = job_of(looked.incident, self.registry)
        ledger = with_job(looked.incident, job, prices=self.prices, clock=self.clock)
        return postmortem_of(looked.incident, timeline, ledger, job_name=job.name if job else "")

    def job(self, job_id: str) -> dict[str, Any]:
        """A Job's ledger over its newest Incidents, with its ETTR. Raises UnknownEntity."""
        job = self.registry.get(job_id)
        attempts = self.registry.attempts(job_id)
        incidents = self.store.list_for_job(job_id, limit=MAX_OF_JOB + 1)
        prices = self.prices.load()
        ledgers = [self._ledger(incident, job.size, prices) for incident in incidents[:MAX_OF_JOB]]
        wire = job_sums(job, attempts, ledgers, now=self.clock.now())
        truncated = len(incidents) > MAX_OF_JOB
        return {
            **wire,
            "prices": prices.to_wire(defaults=True),
            "truncated": truncated,
            "text": f"only the newest {MAX_OF_JOB} Incidents are counted" if truncated else "",
        }

    def fleet(self, days: int) -> dict[str, Any]:
        """All Incidents that opened within so many days, the newest first if they are too many.

        Raises:
            InvalidRequest: `days` is not from 1 to 366.
        """
        if not 1 <= days <= MAX_DAYS:
            raise InvalidRequest("days", f"must be a whole number from 1 to {MAX_DAYS}")
        now = self.clock.now()
        since = now - timedelta(days=days)
        incidents, all_incidents = self._since(since)
        jobs, all_jobs = self._ran_since(since)
        others = {incident.job_id for incident in incidents if incident.job_id is not None} - {
            job.job_id for job in jobs
        }
        known = [*jobs, *self.registry.known(sorted(others)).values()]
        sizes: dict[str | None, JobSize] = {None: _OF_NO_RUN, **{job.job_id: job.size for job in known}}
        prices = self.prices.load()
        ledgers = [self._ledger(incident, sizes.get(incident.job_id, _NOBODYS), prices) for incident in incidents]
        lines = [] if all_incidents else [f"only the newest {MAX_INCIDENTS} closed or open Incidents are counted"]
        if not all_jobs:
            lines.append(f"the ETTR is over the Jobs among the first {MAX_JOBS} only, active ones first")
        return {
            "days": days,
            "since": since.isoformat(),
            "until": now.isoformat(),
            **fleet_ettr(jobs, ledgers, since=since, now=now),
            **sums_of(ledgers),
            "prices": prices.to_wire(defaults=True),
            "truncated": bool(lines),
            "text": "; ".join(lines),
        }

    def _ran_since(self, since: datetime) -> tuple[list[Job], bool]:
        """The Jobs that are active or ended since then, and whether these are all."""
        found: list[Job] = []
        cursor: str | None = None
        for _ in range(MAX_JOBS // PAGE):
            page, cursor = self.listings.jobs(active=None, limit=PAGE, cursor=cursor)
            found += [job for job in page if job.active or (job.ended_at is not None and job.ended_at >= since)]
            if cursor is None:
                return found, True
        return found, False

    def _since(self, since: datetime) -> tuple[Sequence[Incident], bool]:
        """Those that opened since then, and whether these are all."""
        is_whole = True
        found = [incident for incident, _ in islice(self.store.list_open(), MAX_INCIDENTS + 1)]
        if len(found) > MAX_INCIDENTS:
            found, is_whole = found[:MAX_INCIDENTS], False
        cursor: str | None = None
        closed = 0
        while True:
            page = self.store.list_closed(limit=PAGE, cursor=cursor)
            fresh = [incident for incident in page.incidents if incident.opened_at >= since]
            found += fresh
            closed += len(page.incidents)
            cursor = page.cursor
            if cursor is None or len(fresh) < len(page.incidents):
                break
            if closed >= MAX_INCIDENTS:
                is_whole = False
                break
        return [incident for incident in found if incident.opened_at >= since], is_whole

    def _ledger(self, incident: Incident, size: JobSize, prices: Prices) -> IncidentLedger:
        return ledger_of(incident, size=size, prices=prices, now=self.clock.now())
