"""Jobs and their attempts: the registry and what is read of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from chalicelib.domain.model.job import NewestSave, WatchPlan

if TYPE_CHECKING:
    from chalicelib.domain.model.job import Attempt, Job
    from chalicelib.domain.model.known import Maybe
    from chalicelib.domain.model.observation import AttemptStatus
    from chalicelib.domain.model.switches import ShadowScope, Switches


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationBasis:
    """What each observation of an Incident begins with. `job` is None where it is about none."""

    switches: Switches
    job: Job | None


class JobRegistry(Protocol):
    """Jobs, their Attempts, and the switches and the breaker that are true for all of them."""

    def register(self, job: Job, attempt: Attempt) -> Job:
        """Create the Job with its first Attempt, and return `job` itself; if the Job exists, return that as it is."""
        ...

    def get(self, job_id: str) -> Job:
        """Raises UnknownEntity."""
        ...

    def standing(self, job_id: str | None) -> ObservationBasis:
        """The switches, and that Job, as of one call. Raises UnknownEntity."""
        ...

    def known(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """Those of these Jobs that are registered, by their ids; a hundred to a call."""
        ...

    def job_of_attempt(self, attempt_name: str) -> str | None:
        """The job id of a platform name, None if it is not registered."""
        ...

    def add_attempt(self, job: Job, attempt: Attempt, *, now: datetime) -> Job:
        """Make `attempt` the Job's current one, fenced by the Job's version; marks the old one superseded. The run goes
        on by it: the sweep looks after the Job again, and no order halts it any more.

        Adding the attempt that is current already is a no-op. Raises VersionConflict.
        """
        ...

    def update_attempt(self, attempt: Attempt) -> None:
        """Write what is known of an Attempt (status, steps, end)."""
        ...

    def attempts(self, job_id: str) -> tuple[Attempt, ...]:
        """All Attempts in order."""
        ...

    def active(self, *, after: str = "") -> Iterator[Job]:
        """Every Job the sweep looks after, in the order of their ids: an index query, never a scan, read as it goes.

        `after` leaves out the Jobs up to and including that id. A record that cannot be read is logged and left out.
        """
        ...

    def set_watch(self, job_id: str, watch: WatchPlan) -> None:
        """How the Job is watched from now on. Raises UnknownEntity."""
        ...

    def note_save(self, job_id: str, save: NewestSave) -> None:
        """A manifest of the Job has been seen (Job.newest_save). Idempotent. Raises UnknownEntity."""
        ...

    def deactivate(self, job_id: str, *, ended_at: datetime, halted_by: str = "") -> None:
        """The run is over since `ended_at`: the sweep stops looking. Idempotent. `halted_by`: who wants it to stay so;
        once that is known a deactivation without it leaves it as it is.
        """
        ...

    def count_active(self) -> int:
        """How many Jobs the sweep looks after: keys only."""
        ...

    def is_paused(self) -> bool:
        """The global pause."""
        ...

    def set_paused(self, paused: bool, *, who: str, now: datetime, why: str = "") -> None:
        """Set or lift the global pause."""
        ...

    def switches(self) -> Switches:
        """Every switch and the breaker: one strongly consistent read."""
        ...

    def set_shadow(self, scope: ShadowScope, name: str, on: bool, *, who: str, now: datetime) -> None:
        """Put a Job, a cluster or everything into shadow mode, or out of it. `name` counts for the first two."""
        ...

    def will_act(self, incident_id: str, *, now: datetime, since: datetime, group: str = "") -> int:
        """Note that the Incident is about to act, and count the Incidents noted after `since`, this one included.

        Noted before it is counted: of any number that do this at once, the last to be noted counts them all. `group`:
        what else than acting is counted, apart from it.
        """
        ...

    def trip(self, incident_id: str, *, now: datetime, text: str) -> None:
        """Open the breaker, unless it is open already."""
        ...

    def lift(self, *, who: str, now: datetime) -> None:
        """Close the breaker."""
        ...

    def pages_for_breaker(self, incident_id: str) -> bool:
        """True for the first Incident that asks since the breaker tripped, and for it again: people are paged once."""
        ...

    def release_breaker_page(self, incident_id: str) -> None:
        """That Incident is over: where its question was the one that paged, the next Incident that asks pages."""
        ...


class JobListing(Protocol):
    """The platform's states in few calls."""

    def changed(self, since: datetime) -> Maybe[Mapping[str, AttemptStatus]]:
        """Attempts whose state changed after `since`; Unknown where the list cannot be read to its end.

        A list lags, and names no reasons: what it says of an end is to be confirmed by `Scheduler.describe`, and a name
        that it does not hold has not changed, which is never "gone".
        """
        ...


class Saves(Protocol):
    """When a run saved."""

    def saves(self, job: Job) -> Maybe[tuple[tuple[datetime, int], ...]]:
        """When the current attempt's newest checkpoints were completed, oldest first, each with its step; bounded in
        calls and in length.

        Unknown where it cannot be listed, or not to its end.
        """
        ...
