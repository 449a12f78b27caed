"""How each source goes wrong: what stands between the truth and the service. The kinds are in `kinds.py`.

A share is drawn from the story's seed and the number of the event or call that may be struck, so that the same story is
the same each time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from botocore.exceptions import ReadTimeoutError

from chalicelib.domain.model.errors import Throttled
from localcloud.aws.clock import Clock
from simulation.cloud.store import refused
from simulation.stories.kinds import REFUSALS
from simulation.stories.story import SourceFault, Story

STAGES: Final = frozenset({"dev_beside", "prod_beside"})  # they hold for the whole story


class SourceFaults:
    """Asked by the world whenever the service looks or is spoken to."""

    def __init__(self, story: Story, clock: Clock) -> None:
        self._story = story
        self._kinds = frozenset(source_fault.kind for source_fault in story.source_faults)
        self._clock = clock
        self._began_at = clock.now()
        self._events = 0
        self._calls = 0
        self.lost = 0  # events so far

    def _now_s(self, moment: datetime | None = None) -> float:
        return ((moment or self._clock.now()) - self._began_at).total_seconds()

    def _active(self, *kinds: str, run: str = "", at: datetime | None = None) -> Iterator[tuple[int, SourceFault]]:
        if self._kinds.isdisjoint(kinds):
            return
        now_s = self._now_s(at)
        for index, source_fault in enumerate(self._story.source_faults):
            if (
                source_fault.kind in kinds
                and source_fault.from_s <= now_s < source_fault.to_s
                and source_fault.run in ("", run)
            ):
                yield index, source_fault

    def _strikes(self, source_fault: SourceFault, *what: object) -> bool:
        return source_fault.share >= 1.0 or draw(self._story.seed, source_fault.kind, *what) < source_fault.share

    # ---- calls -----------------------------------------------------------------------------------------------------

    def check(self, service: str, operation: str) -> None:
        """Raises: ClientError where the story has this call of the service's refused."""
        for _, source_fault in self._active(*REFUSALS):
            of, operations, code = REFUSALS[source_fault.kind]
            if of == service and (not operations or operation in operations):
                self._calls += 1
                if self._strikes(source_fault, operation, self._calls):
                    raise refused(operation, code, status=403 if "Denied" in code else 503)

    def lose_answer(self, operation: str) -> None:
        """Raises: ReadTimeoutError where the call has taken effect and its answer never arrives."""
        for _, source_fault in self._active("answers_lost"):
            self._calls += 1
            if self._strikes(source_fault, operation, self._calls):
                raise ReadTimeoutError(endpoint_url="https://aws.invalid")

    def is_away(self, service: str) -> bool:
        """Every call of this service's is refused now."""
        kinds = [kind for kind, (of, operations, _) in REFUSALS.items() if of == service and not operations]
        return any(source_fault.share >= 1.0 for _, source_fault in self._active(*kinds))

    def refuses(self, service: str, operation: str) -> bool:
        """Every such call of the service's is refused now."""
        of_service = ((kind, names) for kind, (of, names, _) in REFUSALS.items() if of == service)
        kinds = [kind for kind, names in of_service if not names or operation in names]
        return any(source_fault.share >= 1.0 for _, source_fault in self._active(*kinds))

    def check_tables(self, operation: str) -> None:
        """Raises: Throttled."""
        for _, source_fault in self._active("tables_throttled"):
            self._calls += 1
            if self._strikes(source_fault, operation, self._calls):
                raise Throttled(f"{operation}: as the story has it")

    # ---- events ----------------------------------------------------------------------------------------------------

    def arrivals(self, event: Mapping[str, Any]) -> list[timedelta]:
        """When the copies of an event arrive from now on; none where it is lost."""
        del event
        self._events += 1
        number = self._events
        delays = [1.0]
        for _, source_fault in self._active("events_lost", "events_late", "events_doubled", "events_reordered"):
            if not self._strikes(source_fault, number):
                continue
            if source_fault.kind == "events_lost":
                self.lost += 1
                return []
            if source_fault.kind == "events_late":
                delays = [delay + source_fault.by_s for delay in delays]
            if source_fault.kind == "events_doubled":
                delays.append(1.0 + source_fault.by_s)
            if source_fault.kind == "events_reordered":
                delays = [
                    delay + source_fault.by_s * draw(self._story.seed, "order", number, delay) for delay in delays
                ]
        return [timedelta(seconds=delay) for delay in delays]

    def event_delay(self) -> timedelta:
        """How late an event that is sent now may arrive."""
        kinds = ("events_late", "events_reordered")
        return timedelta(seconds=max((source_fault.by_s for _, source_fault in self._active(*kinds)), default=0.0))

    def loses_events(self) -> bool:
        """Some of the events never arrive now."""
        return any(True for _ in self._active("events_lost"))

    def told_until(self, now: datetime) -> datetime | None:
        """Of which time every event has arrived; None where some never do."""
        return None if self.loses_events() else now - self.event_delay()

    # ---- signs of life ---------------------------------------------------------------------------------------------

    def seen_at(self, run: str, now: datetime) -> datetime | None:
        """As of when the run's heartbeat was shown at `now`; None where it could not be found then."""
        shown = now
        for _, source_fault in self._active("heartbeats_frozen", "heartbeats_lost", "heartbeats_late", run=run, at=now):
            if source_fault.kind == "heartbeats_lost":
                return None
            if source_fault.kind == "heartbeats_frozen":
                shown = min(shown, self._began_at + timedelta(seconds=source_fault.from_s))
            if source_fault.kind == "heartbeats_late":
                shown = min(shown, now - timedelta(seconds=source_fault.by_s))
        return shown

    def tears_heartbeat(self, run: str, at: datetime | None = None) -> bool:
        """What is read of the run's heartbeat, now or at `at`, ends in the middle."""
        return any(True for _ in self._active("heartbeats_torn", run=run, at=at))

    def loses_report(self, run: str, attempt: str, rank: int) -> bool:
        """The rank's report never appears."""
        return any(
            self._strikes(source_fault, attempt, rank) for _, source_fault in self._active("reports_lost", run=run)
        )

    def hides_metric(self, run: str, minute: datetime) -> bool:
        """No data point of this minute arrived."""
        return any(True for _ in self._active("metrics_down", run=run, at=minute))

    def metric_delay(self) -> timedelta:
        """How late a data point arrives."""
        return timedelta(
            seconds=max((source_fault.by_s for _, source_fault in self._active("metrics_late")), default=0.0)
        )

    # ---- the head node of a Slurm cluster --------------------------------------------------------------------------

    def head_is_away(self) -> bool:
        """The agent does nothing now."""
        return any(True for _ in self._active("head_away"))

    def was_away(self, since: datetime) -> bool:
        """The agent did nothing for a while since then."""
        now_s, since_s = self._now_s(None), self._now_s(since)
        away = (source_fault for source_fault in self._story.source_faults if source_fault.kind == "head_away")
        return any(source_fault.from_s <= now_s and source_fault.to_s >= since_s for source_fault in away)

    def head_seen(self, now: datetime) -> datetime:
        """As of when the agent's heartbeat is shown."""
        away = [source_fault.from_s for _, source_fault in self._active("head_away")]
        return min(now, self._began_at + timedelta(seconds=min(away))) if away else now

    def head_late(self) -> timedelta:
        """How old what the agent writes of Slurm is."""
        return timedelta(seconds=max((source_fault.by_s for _, source_fault in self._active("head_late")), default=0.0))

    def slurm_clock(self) -> timedelta:
        """How far off Slurm's own times are."""
        return timedelta(seconds=sum(source_fault.by_s for _, source_fault in self._active("slurm_clock")))

    def head_changes(self) -> list[timedelta]:
        """When what the head node shows begins or ends to be wrong, after the story's beginning."""
        kinds = ("head_away", "head_late", "nodes_hidden")
        ends = [
            at
            for source_fault in self._story.source_faults
            if source_fault.kind in kinds
            for at in (source_fault.from_s, source_fault.to_s)
        ]
        return [timedelta(seconds=at) for at in sorted(set(ends)) if at <= self._story.length_s]

    def hides_node(self, name: str) -> bool:
        """Slurm shows it as down."""
        return any(self._strikes(source_fault, name) for _, source_fault in self._active("nodes_hidden"))

    def false_health(self, nodes: tuple[str, ...]) -> list[tuple[timedelta, str, timedelta]]:
        """(when, which node, until when) a well node is condemned."""
        found = []
        for index, source_fault in enumerate(self._story.source_faults):
            if source_fault.kind == "health_false":
                node = nodes[int(draw(self._story.seed, "health", index) * len(nodes))]
                found.append(
                    (timedelta(seconds=source_fault.from_s), node, timedelta(seconds=min(source_fault.to_s, 1e8)))
                )
        return found

    def false_notices(self, nodes: tuple[str, ...]) -> list[tuple[timedelta, str, float]]:
        """(when, which node, how long before its end) is announced although nothing comes of it."""
        found = []
        for index, source_fault in enumerate(self._story.source_faults):
            if source_fault.kind == "notice_false":
                node = nodes[int(draw(self._story.seed, "notice", index) * len(nodes))]
                found.append((timedelta(seconds=source_fault.from_s), node, source_fault.by_s))
        return found

    def order_copies(self) -> int:
        """How often an order arrives."""
        return 2 if any(True for _ in self._active("orders_doubled")) else 1

    # ---- functions -------------------------------------------------------------------------------------------------

    def hold(self) -> timedelta:
        """For how long no function runs from now on."""
        ends = [source_fault.to_s for _, source_fault in self._active("functions_throttled")]
        return timedelta(seconds=max(ends) - self._now_s()) if ends else timedelta(0)

    def roll_backs(self) -> list[timedelta]:
        """When the service goes back to an older version, after the story's beginning."""
        return [
            timedelta(seconds=source_fault.from_s)
            for source_fault in self._story.source_faults
            if source_fault.kind == "rolled_back"
        ]

    def losses(self) -> list[timedelta]:
        """When all executions are lost, after the story's beginning."""
        return [
            timedelta(seconds=source_fault.from_s)
            for source_fault in self._story.source_faults
            if source_fault.kind == "executions_lost"
        ]

    def outage_until(self) -> datetime | None:
        """The end of what keeps the service from seeing or acting now; None where nothing does."""
        kinds: tuple[str, ...] = (
            "s3_away",
            "listing_away",
            "sagemaker_away",
            "sagemaker_throttled",
            "create_throttled",
        )
        kinds = (*kinds, "s3_denied", "sagemaker_denied", "answers_lost")
        kinds = (*kinds, "no_quota", "rolled_back", "head_away", "head_late", "nodes_hidden", "nodes_throttled")
        ends = [
            source_fault.to_s for _, source_fault in self._active(*kinds, "tables_throttled", "functions_throttled")
        ]
        return self._began_at + timedelta(seconds=min(max(ends), 1e8)) if ends else None


def draw(*parts: object) -> float:
    """A number in [0, 1) that is the same whenever the same is asked."""
    return zlib.crc32("|".join(map(str, parts)).encode()) / 2**32
