"""The rest of the world in memory: clock, platform, mailbox, policies, executions, quarantine, people, clusters."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from chalicelib.domain.model.action import ActionResult, Done, QuarantineCheckpoint, RequestCheckpoint, ResubmitJob
from chalicelib.domain.model.errors import UnknownEntity, VersionConflict
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import (
    OF_A_HEARTBEAT,
    AttemptStatus,
    AttemptView,
    CheckpointView,
    ReplyView,
)
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.domain.resume.resume_point import is_attempt_name
from chalicelib.platforms.training_job.platform import TRAINING_JOB
from chalicelib.ports.notices import Notice
from chalicelib.ports.platforms import DiscoveredJob
from rekindle.protocol.launch_orders import AttemptOrder
from rekindle.protocol.reports import RankReport, ReportKind

START = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)


class FakeClock:
    """Time that passes only when told to."""

    def __init__(self, at: datetime = START) -> None:
        self._at = at

    def now(self) -> datetime:
        return self._at

    def advance(self, span: timedelta) -> None:
        self._at += span


@dataclass
class _Run:
    view: AttemptView
    found: DiscoveredJob
    tags: dict[str, str] = field(default_factory=dict)
    action: ResubmitJob | None = None


class FakeScheduler:
    """A platform whose runs change state only when told to, but stop and start when asked; ports.Schedulers as well,
    where there is no other.
    """

    platform = TRAINING_JOB

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.runs: dict[str, _Run] = {}
        self.stops: list[str] = []
        self.discovered = 0  # how often it was asked whether a name asks for protection
        self.submitted: list[ResubmitJob] = []
        self.unlisted: set[str] = set()  # live runs that the platform's list does not show yet
        self.refuse_with: deque[ActionResult] = deque()

    def of(self, platform: str) -> FakeScheduler:
        assert platform == self.platform.name, platform
        return self

    def of_name(self, attempt: str) -> FakeScheduler:
        return self

    def owns(self, attempt: str) -> bool:
        return True

    def restarts_between(self, earlier: str, later: str) -> int | None:
        return None

    def earlier_starts(self, attempt: str) -> tuple[str, ...]:
        return ()

    def put(
        self,
        name: str,
        status: AttemptStatus = AttemptStatus.RUNNING,
        *,
        policy_name: str = "default",
        mailbox: str = "",
        job_id: str | None = None,
        failure_reason: str = "",
        user: str = "",
    ) -> None:
        """Set what the platform shows for `name`, making the run if there is none."""
        ended_at = self._clock.now() if status.has_ended else None
        view = AttemptView(name=name, status=status, failure_reason=failure_reason, ended_at=ended_at)
        if name in self.runs:
            self.runs[name].view = replace(view, stopping_since=self.runs[name].view.stopping_since)
            return
        found = DiscoveredJob(
            name=name,
            policy_name=policy_name,
            job_id=job_id,
            mailbox=mailbox,
            instance_count=2,
            created_at=self._clock.now(),
            user=user,
            platform=self.platform.name,
        )
        self.runs[name] = _Run(view=view, found=found)

    @property
    def live(self) -> list[str]:
        """Names of runs that have not ended. For invariants."""
        return [name for name, run in self.runs.items() if not run.view.status.has_ended]

    def describe(self, attempt: str) -> AttemptView:
        run = self.runs.get(attempt)
        return run.view if run else AttemptView(name=attempt, status=AttemptStatus.GONE)

    def discover(self, attempt: str) -> DiscoveredJob | None:
        self.discovered += 1
        found = self.find(attempt)
        return found if found is not None and (found.policy_name or found.job_id) else None

    def find(self, attempt: str) -> DiscoveredJob | None:
        run = self.runs.get(attempt)
        return run.found if run else None

    def stop(self, attempt: str, *, hold: bool = False, incident_id: str | None = None) -> ActionResult:
        view = self.describe(attempt)
        if view.status.has_ended or view.status is AttemptStatus.STOPPING:
            return ActionResult(action="StopJob", done=Done.ALREADY)
        self.stops.append(attempt)
        self.runs[attempt].view = replace(view, status=AttemptStatus.STOPPING, stopping_since=self._clock.now())
        return ActionResult(action="StopJob", done=Done.DONE)

    def siblings(self, job: Job, *, besides: Collection[str], reported: Sequence[str] = ()) -> tuple[str, ...]:
        for name in reported:
            if name not in besides and name in self.live and self._is_sibling(name, job):
                return (name,)
        return tuple(
            name for name in self.live if name not in {*besides, *self.unlisted} and self._is_sibling(name, job)
        )

    def missed(self, job: Job, *, besides: Collection[str]) -> str | None:
        since = job.attempt_started_at or job.created_at
        ended = [
            (run.found.created_at, name)
            for name, run in self.runs.items()
            if name not in {*besides, *self.unlisted} and run.view.status.has_ended and run.found.created_at > since
        ]
        return next((name for _, name in sorted(ended, reverse=True) if self._is_sibling(name, job)), None)

    def _is_sibling(self, name: str, job: Job) -> bool:
        found = self.runs[name].found
        if job.mailbox and found.mailbox == job.mailbox:
            return True
        if found.job_id is not None:
            return found.job_id == job.job_id
        return not found.mailbox and is_attempt_name(name, job.name)

    def resubmit(self, action: ResubmitJob, *, job: Job, policy: Policy, incident_id: str) -> ActionResult:
        source = self.runs.get(action.clone_of)
        if source is None:
            return ActionResult(action="ResubmitJob", done=Done.REFUSED, detail="nothing to clone")
        ours = {"rekindle:incident": incident_id, "rekindle:attempt": str(action.number)}
        if action.name in self.runs:
            if self.runs[action.name].tags == ours:
                return ActionResult(action="ResubmitJob", done=Done.ALREADY)
            if action.name in self.live and self._is_sibling(action.name, job):
                return ActionResult(action="ResubmitJob", done=Done.SIBLING, attempt=action.name)
            return ActionResult(action="ResubmitJob", done=Done.NAME_TAKEN)
        if self.refuse_with:
            return self.refuse_with.popleft()
        self.submitted.append(action)
        self.put(
            action.name,
            AttemptStatus.STARTING,
            policy_name=job.policy_name,
            mailbox=source.found.mailbox,
            job_id=job.job_id,
        )
        self.runs[action.name].tags = ours
        self.runs[action.name].action = action
        return ActionResult(action="ResubmitJob", done=Done.DONE)


class FakeMailbox:
    """A mailbox whose contents the test writes: `beats`, `replies`, `stored`."""

    def __init__(self) -> None:
        self.heartbeats: dict[str, AttemptView] = {}
        self.roots: dict[str, str] = {}  # attempt -> the mailbox that it beats in; of any Job where it is not named
        self.requests: dict[str, RequestCheckpoint] = {}
        self.replies: dict[str, ReplyView] = {}
        self.stored: list[CheckpointView] = []
        self.fences: dict[str, tuple[str, int, tuple[str, ...]]] = {}
        self.told: list[RankReport] = []
        self.marks: dict[str, str] = {}  # root -> the problem that the mark reads as
        self.plans: dict[str, AttemptOrder] = {}

    def heartbeat(self, job: Job, attempt: AttemptView) -> AttemptView:
        seen = self.heartbeats.get(attempt.name)
        if seen is None:
            return attempt
        return replace(attempt, life=seen.life, **{name: getattr(seen, name) for name in OF_A_HEARTBEAT})

    def reports(self, job: Job, attempt: str, kind: ReportKind, *, life: int = 0) -> Maybe[tuple[RankReport, ...]]:
        if not job.mailbox:
            return Unknown("the run has no mailbox")
        mine = [report for report in self.told if report.attempt == attempt]
        spoken = {report.rank for report in mine if report.kind is kind}
        return Known(tuple(report for report in mine if report.kind is kind or report.rank not in spoken))

    def ask(self, job: Job, action: RequestCheckpoint, *, incident_id: str, now: datetime) -> ActionResult:
        if not job.mailbox:
            return ActionResult(action="RequestCheckpoint", done=Done.REFUSED, detail="the run has no mailbox")
        there = self.requests.setdefault(action.request_id, action)
        if there is action:
            return ActionResult(action="RequestCheckpoint", done=Done.DONE)
        done = Done.ALREADY if there.attempt == action.attempt else Done.REFUSED
        return ActionResult(action="RequestCheckpoint", done=done)

    def reply(self, job: Job, request_id: str) -> Maybe[ReplyView | None]:
        if not job.mailbox:
            return Unknown("the run has no mailbox")
        return Known(self.replies.get(request_id))

    def checkpoints(
        self, job: Job, attempts: Sequence[Attempt], *, near: Sequence[int] = ()
    ) -> Known[tuple[CheckpointView, ...]]:
        by_name = {attempt.name: attempt for attempt in attempts}
        views = [
            replace(
                view,
                fenced=view.fenced or _is_fenced(view, by_name),
                problems=(*view.problems, *([self.marks[view.root]] if view.root in self.marks else [])),
            )
            for view in self.stored
        ]
        return Known(tuple(sorted(views, key=lambda view: (view.step, view.attempt), reverse=True)))

    def quarantine(self, job: Job, action: QuarantineCheckpoint, *, by: str, now: datetime) -> ActionResult:
        if not job.mailbox:
            return ActionResult(action="QuarantineCheckpoint", done=Done.REFUSED, detail="the run has no mailbox")
        if action.root in self.marks:
            return ActionResult(action="QuarantineCheckpoint", done=Done.ALREADY, detail=action.root)
        self.marks[action.root] = f"quarantined: {action.why} ({by})"
        return ActionResult(action="QuarantineCheckpoint", done=Done.DONE, detail=action.root)

    def heartbeat_times(self, job: Job) -> Mapping[str, datetime]:
        if not job.mailbox:
            return {}
        return {
            name: seen.heartbeat_at
            for name, seen in self.heartbeats.items()
            if seen.heartbeat_at is not None and self.roots.get(name, job.mailbox) == job.mailbox
        }

    def plan(self, job: Job, attempt: str, order: AttemptOrder, *, now: datetime) -> None:
        if job.mailbox:
            self.plans[attempt] = order

    def fence(self, job: Job, *, attempt: str, number: int, superseded: Sequence[str], now: datetime) -> None:
        if not job.mailbox:
            return
        _, there, older = self.fences.get(job.job_id, ("", 0, ()))
        if there > number:
            raise VersionConflict("the fence names a newer attempt")
        names = dict.fromkeys([*older, *superseded])
        self.fences[job.job_id] = (attempt, number, tuple(name for name in names if name != attempt))


def _is_fenced(view: CheckpointView, attempts: Mapping[str, Attempt]) -> bool:
    writer = attempts.get(view.attempt)
    return writer is None or (writer.superseded_at is not None and view.saved_at > writer.superseded_at)


class FakePolicies:
    """Policies by name; "default" always exists."""

    def __init__(self, *policies: Policy) -> None:
        self.stored = {policy.name: policy for policy in policies}

    def load(self, name: str) -> Policy:
        if name in self.stored:
            return self.stored[name]
        if name == "default":
            return DEFAULT_POLICY
        raise UnknownEntity(name)


class FakeQuarantine:
    """A queue in a list. What is taken stays hidden until it is dropped or `time_passes`."""

    def __init__(self) -> None:
        self._events: dict[str, Mapping[str, Any]] = {}
        self._hidden: set[str] = set()
        self._ids = itertools.count(1)

    def put(self, *, raw: str, function: str, error: str, field: str, at: datetime) -> None:
        key = f"q-{next(self._ids)}"
        self._events[key] = {
            "id": key,
            "raw": raw,
            "function": function,
            "error": error,
            "field": field,
            "at": at.isoformat(),
        }

    def peek(self, *, limit: int) -> tuple[Mapping[str, Any], ...]:
        return tuple(event for key, event in self._events.items() if key not in self._hidden)[:limit]

    def take(self, *, limit: int) -> Iterator[tuple[Mapping[str, Any], str]]:
        for _ in range(limit):  # as a queue: what is put while this runs may be met as well
            events = self.peek(limit=1)
            if not events:
                return
            self._hidden.add(events[0]["id"])
            yield events[0], events[0]["id"]

    def drop(self, receipt: str) -> None:
        self._events.pop(receipt, None)
        self._hidden.discard(receipt)

    def time_passes(self) -> None:
        """Long enough for what was taken and not dropped to come back."""
        self._hidden.clear()


class FakeAnnouncer:
    """Remembers what people were told."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []

    def announce(self, notice: Notice) -> None:
        self.notices.append(notice)


class FakeClusterReader:
    """Clusters as the test describes them."""

    def __init__(self) -> None:
        self.events: dict[tuple[str, str], Mapping[str, Any]] = {}
        self.moving: dict[str, bool] = {}
        self.policies: dict[str, str] = {}

    def describe_event(self, cluster: str, event_id: str) -> Mapping[str, Any] | None:
        return self.events.get((cluster, event_id))

    def groups_in_motion(self, cluster: str) -> bool | None:
        return self.moving.get(cluster)

    def policy_of(self, cluster: str) -> str | None:
        return self.policies.get(cluster)
