"""A run's loss around an Incident, for its page. One GetMetricData; no page waits for more or fails by it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from chalicelib.domain.model.errors import RecoveryError
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.reporting.incident_page import NO_CURVE
from chalicelib.domain.reporting.page_chart import LossCurve, window_of
from chalicelib.services.reporting.curves import MAX_MINUTES, Curves

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
