"""Writes an Incident's page when people are notified of a change. No recovery waits for it or fails by it.

The page is drawn from the stored Incident, as a Slack message is. Notices come in any order and side by side: after it
has been written, the Incident is read once more, and where it stands elsewhere by then the page is written again. So
the last writer leaves the newest state there, whichever began first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from chalicelib.domain.model.errors import RecoveryError, UnknownEntity
from chalicelib.domain.model.incident import Incident, TimelineEntry
from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.reporting.incident_page import NO_CURVE, page_of
from chalicelib.domain.reporting.ledger import IncidentLedger, ledger_of
from chalicelib.domain.reporting.page_chart import LossCurve, window_of
from chalicelib.domain.reporting.prices import NO_PRICES
from chalicelib.domain.reporting.windows import MAX_MINUTES
from chalicelib.ports.clock import Clock
from chalicelib.ports.incidents import IncidentStore
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.notices import IncidentPages
from chalicelib.ports.operator import PriceList
from chalicelib.services.reporting.curves import Curves
from chalicelib.services.reporting.ledgers import job_of, with_job

_LOG = logging.getLogger(__name__)

_NOT_YET: Final = JobSize(gpus=Unknown("it is still open"))
WRITES: Final = 3  # of one notice, where the Incident moves on each time
WRITE_S: Final = 24.0  # what writing may take of the time of the notice's function, with aws.deadline's reserve


_CURVES: Final = ("loss", "non_finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Reads only."""

    curves: Curves

    def of(self, incident: Incident, job: Maybe[Job], *, now: datetime) -> Maybe[LossCurve]:
        """The loss of an Incident's run in the window of its chart; Unknown where nothing tells it, or AWS does not
        answer, and NO_CURVE where it is about no run. `job`: its Job, or why that is not known.
        """
        if incident.job_id is None:
            return NO_CURVE
        if isinstance(job, Unknown):
            return Unknown(f"the run's metrics could not be read: {job.why}"[:200])
        since, until = window_of(incident, now=now)
        minutes = min(MAX_MINUTES, max(1, -(-int((until - since).total_seconds()) // 60)))
        try:
            found = self.curves.of(job.value, minutes=minutes, until=until, only=_CURVES)["curves"]
        except RecoveryError as err:
            return Unknown(f"the run's metrics could not be read: {err}"[:200])
        if "unknown" in found["loss"]:
            return Unknown(str(found["loss"]["unknown"]))
        bad = found["non_finite"].get("known", ())
        return Known(
            LossCurve(
                points=tuple((_moment(at), value) for at, value in found["loss"]["known"]),
                non_finite=tuple(_moment(at) for at, count in bad if count > 0),
            )
        )


def _moment(at_s: Any) -> datetime:
    return datetime.fromtimestamp(float(at_s), UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Draws and stores pages. `within`: keeps the calls of a block within so many seconds."""

    store: IncidentStore
    registry: JobRegistry
    prices: PriceList
    pages: IncidentPages
    clock: Clock
    region: str
    losses: Losses
    within: Callable[[float], AbstractContextManager[None]]

    def write(self, incident_id: str) -> bool:
        """Write the page as the Incident stands now; False where it could not be written, which the log tells."""
        try:
            with self.within(WRITE_S):
                return self._write(incident_id)
        except RecoveryError as err:
            _LOG.warning("a page was not written", extra={"incident_id": incident_id, "error": f"{err}"[:300]})
        except Exception:  # a page that cannot be drawn must not stop the notices
            _LOG.exception("a page could not be drawn", extra={"incident_id": incident_id})
        return False

    def _write(self, incident_id: str) -> bool:
        try:
            for _ in range(WRITES):
                looked, timeline = self.store.load_with_timeline(incident_id)
                self.pages.put(incident_id, self._drawn(looked.incident, timeline))
                if _shown(self.store.load(incident_id).incident) == _shown(looked.incident):
                    break
        except UnknownEntity:
            return False  # a notice about something that is stored nowhere
        return True

    def _ledger(self, incident: Incident, job: Maybe[Job]) -> IncidentLedger:
        """What an open Incident costs is not known, so neither the Job's size nor prices are needed."""
        if incident.is_open:
            return ledger_of(incident, size=_NOT_YET, prices=NO_PRICES, now=self.clock.now())
        found = job.value if isinstance(job, Known) else None
        return with_job(incident, found, prices=self.prices, clock=self.clock)

    def _job(self, incident: Incident) -> Maybe[Job]:
        """The Incident's Job, read once for ledger and chart. A closed one's ledger needs it: no answer is an error."""
        try:
            job = job_of(incident, self.registry)
        except RecoveryError as err:
            if not incident.is_open:
                raise
            return Unknown(f"{err}")
        return Unknown("its Job is not registered") if job is None else Known(job)

    def _drawn(self, incident: Incident, timeline: tuple[TimelineEntry, ...]) -> str:
        job = self._job(incident)
        ledger = self._ledger(incident, job)
        now = self.clock.now()
        curve = self.losses.of(incident, job, now=now)
        return page_of(incident, timeline, ledger, now=now, region=self.region, curve=curve)


def _shown(incident: Incident) -> tuple[object, ...]:
    """The state that people are notified of when it changes (services.perform.stands_elsewhere)."""
    return incident.phase, incident.fault, incident.approvals, incident.holds
