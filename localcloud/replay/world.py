"""The world in which `rekindle replay` plays a recording: in memory, in virtual time, without outside effects.

The recording is taken as the truth about a run: a `Failed` event fails that attempt, a monitor's event advances its
step. Rekindle's actions did not happen in the recording, so they are assumed to succeed:

- every job and cluster that an event names is protected by the policy on trial;
- a requested checkpoint is saved at the last known step, by the next timed observation, unless the recording answers;
- a stopped attempt is stopped at once, and later events about it no longer count;
- a new attempt whose name the recording holds follows its events; any other starts at once and, by the next
  observation, has passed the step at which the old one died.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from chalicelib.domain.model.action import ActionResult, Done, QuarantineCheckpoint, RequestCheckpoint, ResubmitJob
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, CheckpointView, ReplyView
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.policy.document import Policy
from chalicelib.domain.resume.recovery_doubts import OWN_STEPS
from chalicelib.platforms.training_job.platform import TRAINING_JOB
from chalicelib.ports.notices import Notice
from chalicelib.ports.platforms import DiscoveredJob
from localcloud.aws.clock import Clock
from localcloud.replay.history import RecordedView
from rekindle.protocol.launch_orders import AttemptOrder
from rekindle.protocol.manifests import SaveKind
from rekindle.protocol.reports import RankReport, ReportKind

_TIME_LIMITS = frozenset({"MaxRuntimeExceeded", "MaxWaitTimeExceeded"})
_BEFORE_TRAINING = frozenset(
    {"Starting", "LaunchingMLInstances", "PreparingTrainingStack", "Downloading", "DownloadingTrainingImage", "Pending"}
)
_NO_STEP = Unknown("the recording names no step")


@dataclass(slots=True)
class Run:
    """One attempt as the recording, and what was ordered, have left it. `ours` once a virtual order ended it."""

    name: str
    created_at: datetime
    job_id: str | None = None
    status: AttemptStatus = AttemptStatus.RUNNING
    detail: str = ""
    failure_reason: str = ""
    ended_at: datetime | None = None
    first_step: int | None = None
    last_step: int | None = None
    heartbeat_at: datetime | None = None
    loss_state: str = "none"
    ours: bool = False

    def view(self) -> AttemptView:
        """What the platform would say of it."""
        return AttemptView(
            name=self.name,
            status=self.status,
            detail=self.detail,
            failure_reason=self.failure_reason,
            ended_at=self.ended_at,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingIndex:
    """What the whole recording holds, read before it is played.

    attempts: every attempt named; job_of: its Job, where any event names both; answers: ids of answered requests.
    """

    attempts: frozenset[str] = frozenset()
    job_of: Mapping[str, str] = field(default_factory=dict)
    answers: frozenset[str] = frozenset()


@dataclass(slots=True)
class RecordedWorld:
    """Scheduler and Mailbox of a recording. `save_takes` until an answer that is only assumed is there."""

    clock: Clock
    foreknown: RecordingIndex
    policy_name: str
    save_takes: timedelta = timedelta(seconds=5)
    runs: dict[str, Run] = field(default_factory=dict)
    replies: dict[str, tuple[datetime, ReplyView]] = field(default_factory=dict)
    saved: list[CheckpointView] = field(default_factory=list)

    # --- following the recording ---

    def follow(self, signal: Signal) -> None:
        """Bring the attempt that `signal` names to the state it speaks of."""
        if signal.attempt is None:
            return
        run = self.run(signal.attempt, seen_at=signal.occurred_at)
        run.job_id = run.job_id or signal.job_id
        if run.ours:
            return
        if signal.kind is SignalKind.ATTEMPT_STATE:
            _take_state(run, signal)
        elif signal.source is SignalSource.MONITOR:
            self._take_monitor(run, signal)

    def see(self, view: RecordedView) -> None:
        """What a look of a history saw of an attempt that we have not ended ourselves."""
        run = self.run(view.attempt, seen_at=view.at)
        if run.ours:
            return
        _move(run, view.last_step)
        run.heartbeat_at = view.at if view.last_step is not None else run.heartbeat_at
        if run.status.has_ended and not view.status.has_ended:
            return
        run.status, run.failure_reason = view.status, view.failure_reason
        run.ended_at = run.ended_at or (view.at if view.status.has_ended else None)

    def _take_monitor(self, run: Run, signal: Signal) -> None:
        evidence = signal.evidence
        step = _whole(evidence.get("step"))
        if run.status is AttemptStatus.STARTING:
            run.status = AttemptStatus.RUNNING
        run.heartbeat_at = signal.occurred_at
        _move(run, step)
        if signal.kind is SignalKind.NON_FINITE:
            run.loss_state = str(evidence.get("loss_state") or "nan")
        if signal.kind is SignalKind.CHECKPOINT_REPLY and "outcome" in evidence:
            self._take_reply(run, signal)

    def _take_reply(self, run: Run, signal: Signal) -> None:
        evidence = signal.evidence
        reply = ReplyView(
            request_id=str(evidence.get("request_id")),
            outcome=str(evidence["outcome"]),
            step=_whole(evidence.get("saved_step")),
            why=str(evidence.get("why") or ""),
        )
        self.replies[reply.request_id] = (self.clock.now(), reply)
        if reply.outcome == "saved":
            manifest = str(evidence.get("manifest") or reply.request_id)
            self._save(run.name, reply.step, manifest=manifest, at=signal.occurred_at)

    def _save(self, attempt: str, step: int | None, *, manifest: str, at: datetime) -> None:
        if step is not None:
            self.saved.append(
                CheckpointView(
                    step=step,
                    root=manifest,
                    manifest=manifest,
                    attempt=attempt,
                    kind=SaveKind.EMERGENCY,
                    saved_at=at,
                )
            )

    def run(self, name: str, *, seen_at: datetime | None = None) -> Run:
        """The run of this name; one without events so far is taken to be running."""
        if name not in self.runs:
            job_id = self.foreknown.job_of.get(name)
            self.runs[name] = Run(name=name, created_at=seen_at or self.clock.now(), job_id=job_id)
        return self.runs[name]

    # --- Schedulers: one platform ---

    platform = TRAINING_JOB

    def of(self, platform: str) -> RecordedWorld:
        del platform
        return self

    def of_name(self, attempt: str) -> RecordedWorld:
        del attempt
        return self

    def owns(self, attempt: str) -> bool:
        del attempt
        return True

    def restarts_between(self, earlier: str, later: str) -> int | None:
        """See the port: each attempt is a job of its own."""
        del earlier, later
        return None

    def earlier_starts(self, attempt: str) -> tuple[str, ...]:
        """See the port: each attempt is a job of its own."""
        del attempt
        return ()

    # --- Scheduler ---

    def describe(self, attempt: str) -> AttemptView:
        return self.run(attempt).view()

    def discover(self, attempt: str) -> DiscoveredJob | None:
        """Every job that an event names asks for protection."""
        run = self.run(attempt)
        return DiscoveredJob(
            name=run.name,
            policy_name=self.policy_name,
            job_id=run.job_id,
            mailbox="",
            instance_count=1,
            created_at=run.created_at,
            platform=TRAINING_JOB.name,
        )

    def find(self, attempt: str) -> DiscoveredJob | None:
        """As `discover`."""
        return self.discover(attempt)

    def stop(self, attempt: str, *, hold: bool = False, incident_id: str | None = None) -> ActionResult:
        """Stopped at once; there is no queue here to hold it in."""
        del hold, incident_id
        run = self.run(attempt)
        if run.status.has_ended:
            return ActionResult(action="StopJob", done=Done.ALREADY, detail=f"it is {run.status}")
        run.status, run.ended_at, run.ours = AttemptStatus.STOPPED, self.clock.now(), True
        return ActionResult(action="StopJob", done=Done.DONE)

    def siblings(self, job: Job, *, besides: Collection[str], reported: Sequence[str] = ()) -> tuple[str, ...]:  # noqa: ARG002  the port's own names
        """None: only the service starts anything in a replay; what the recording started is met by its name."""
        return ()

    def missed(self, job: Job, *, besides: Collection[str]) -> str | None:  # noqa: ARG002  the port's own names
        """See ports.Scheduler: no recording holds a job submitted by hand, so always empty."""
        return None

    def resubmit(self, action: ResubmitJob, *, job: Job, policy: Policy, incident_id: str) -> ActionResult:  # noqa: ARG002  the port's own names
        """Started at once; from then on the recording's own events move it, where it has any."""
        there = self.runs.get(action.name)
        if there is not None:
            taken = there.job_id not in (None, job.job_id)
            return ActionResult(action="ResubmitJob", done=Done.NAME_TAKEN if taken else Done.ALREADY)
        run = Run(name=action.name, created_at=self.clock.now(), job_id=job.job_id)
        if action.name in self.foreknown.attempts:
            run.status, run.detail = AttemptStatus.STARTING, "Starting"
        else:
            run.first_step = action.resume_step.value if isinstance(action.resume_step, Known) else 0
            steps = [
                run.last_step for run in self.runs.values() if run.job_id == job.job_id or run.name == action.clone_of
            ]
            run.last_step = max([run.first_step, *(step for step in steps if step is not None)]) + OWN_STEPS
            run.loss_state = "finite"
        self.runs[action.name] = run
        return ActionResult(action="ResubmitJob", done=Done.DONE)

    # --- Mailbox ---

    def heartbeat(self, job: Job, attempt: AttemptView) -> AttemptView:  # noqa: ARG002  the port's own names
        run = self.run(attempt.name)
        return replace(
            attempt,
            first_step=_maybe(run.first_step),
            last_step=_maybe(run.last_step),
            heartbeat_at=self.clock.now() if run.ours and run.status is AttemptStatus.RUNNING else run.heartbeat_at,
            loss_state=run.loss_state,
        )

    def ask(self, job: Job, action: RequestCheckpoint, *, incident_id: str, now: datetime) -> ActionResult:  # noqa: ARG002  the port's own names
        """Answered by the recording, or saved at the last step known."""
        if action.request_id not in self.foreknown.answers:
            step = self.run(action.attempt).last_step
            reply = ReplyView(request_id=action.request_id, outcome="saved", step=step, why="assumed by the replay")
            self.replies[action.request_id] = (now + self.save_takes, reply)
            self._save(action.attempt, step, manifest=action.request_id, at=now)
        return ActionResult(action="RequestCheckpoint", done=Done.DONE)

    def reply(self, job: Job, request_id: str) -> Maybe[ReplyView | None]:  # noqa: ARG002  the port's own names
        ready_at, reply = self.replies.get(request_id, (self.clock.now(), None))
        return Known(reply if ready_at <= self.clock.now() else None)

    def checkpoints(
        self,
        job: Job,  # noqa: ARG002  the port's own names
        attempts: Sequence[Attempt],
        *,
        near: Sequence[int] = (),  # noqa: ARG002
    ) -> Known[tuple[CheckpointView, ...]]:
        """Those that the recording names, newest first, and all of them sound."""
        names = {attempt.name for attempt in attempts}
        found = [item for item in self.saved if item.attempt in names]
        return Known(tuple(sorted(found, key=lambda item: (item.step, item.saved_at), reverse=True)))

    def reports(self, job: Job, attempt: str, kind: ReportKind, *, life: int = 0) -> Maybe[tuple[RankReport, ...]]:  # noqa: ARG002  the port's own names
        """A recording holds events, and the ranks' own reports are none."""
        return Unknown("events hold no reports of single ranks")

    def quarantine(self, job: Job, action: QuarantineCheckpoint, *, by: str, now: datetime) -> ActionResult:  # noqa: ARG002  the port's own names
        """Marked: it is found with that problem from now on."""
        problem = f"quarantined: {action.why} ({by})"
        self.saved = [
            replace(item, problems=(problem,)) if item.root == action.root and action.root else item
            for item in self.saved
        ]
        return ActionResult(action="QuarantineCheckpoint", done=Done.DONE, detail=action.root)

    def heartbeat_times(self, job: Job) -> Mapping[str, datetime]:  # noqa: ARG002  the port's own names
        """No run but the recorded one's attempts."""
        return {}

    def plan(self, job: Job, attempt: str, order: AttemptOrder, *, now: datetime) -> None:
        """Nothing is started."""

    def fence(self, job: Job, *, attempt: str, number: int, superseded: Sequence[str], now: datetime) -> None:
        """Nothing to fence: an attempt ended by us no longer writes."""


def _take_state(run: Run, signal: Signal) -> None:
    """Source of the words: botocore, sagemaker TrainingJobStatus and SecondaryStatus."""
    evidence = signal.evidence
    secondary = str(evidence.get("secondary") or "")
    status = _status(str(evidence.get("status")), secondary, repairing=bool(evidence.get("repairing")))
    if status is None:
        return
    if run.status.has_ended and not status.has_ended:
        return  # events come unordered; an ended job does not run again
    run.status, run.detail = status, secondary
    run.failure_reason = str(evidence.get("failure_reason") or "")
    run.ended_at = signal.occurred_at if status.has_ended else None


def _status(status: str, secondary: str, *, repairing: bool) -> AttemptStatus | None:
    match status:
        case "Failed":
            return AttemptStatus.FAILED
        case "Stopped" | "Completed" if secondary in _TIME_LIMITS:
            return AttemptStatus.EXPIRED
        case "Stopped":
            return AttemptStatus.STOPPED
        case "Completed":
            return AttemptStatus.COMPLETED
        case "Stopping":
            return AttemptStatus.STOPPING
        case "InProgress" if repairing or secondary == "Interrupted":
            return AttemptStatus.REPAIRING
        case "InProgress":
            return AttemptStatus.STARTING if secondary in _BEFORE_TRAINING else AttemptStatus.RUNNING
        case _:
            return None


def _move(run: Run, step: int | None) -> None:
    if step is None:
        return
    run.first_step = step if run.first_step is None else min(run.first_step, step)
    run.last_step = step if run.last_step is None else max(run.last_step, step)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _maybe(step: int | None) -> Maybe[int]:
    return _NO_STEP if step is None else Known(step)


class ProtectedClusters:
    """ClusterReader: every cluster is protected; what the envelope left out stays unknown."""

    def __init__(self, policy_name: str) -> None:
        self._policy_name = policy_name

    def describe_event(self, cluster: str, event_id: str) -> Mapping[str, Any] | None:  # noqa: ARG002  the port's own names
        """Not in a recording."""
        return None

    def groups_in_motion(self, cluster: str) -> bool | None:  # noqa: ARG002  the port's own names
        """Unknown: a recording does not show it."""
        return None

    def policy_of(self, cluster: str) -> str | None:  # noqa: ARG002  the port's own names
        """Protected."""
        return self._policy_name


class NoNotices:
    """Announcer without an audience."""

    def announce(self, notice: Notice) -> None:
        """Nothing."""
