"""The world of a rehearsal: the real run as it was last read, and what is assumed of it from the fault on.

Nothing here reaches anything. What was ordered is assumed to succeed; how long it takes is the Job's own figure where
there is one. Where there is none a value is assumed, so that the play can go on, and the stretch of time is marked:
whatever lies in it is Unknown in the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from chalicelib.domain.drills.catalogue import DrillRow, StageTimes
from chalicelib.domain.fault_specs.spec import Effect
from chalicelib.domain.model.action import (
    Action,
    ActionResult,
    Done,
    RequestCheckpoint,
    ResubmitJob,
    StopJob,
    action_name,
)
from chalicelib.domain.model.evidence import FORENSIC, is_forensic
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import STALLED, AttemptStatus, AttemptView, CheckpointView, ReplyView
from chalicelib.domain.model.start_view import StartState, Submission
from chalicelib.domain.run.submission import requeued_name
from rekindle.protocol.cluster.documents import EndedBy

ASSUMED_STOP_S = 120.0  # SIGTERM, and 120 s to end by itself: StopTrainingJob
ASSUMED_START_S = 300.0  # a start with warm instances; only moves the play on, never reported as a figure
ASSUMED_STEP_S = 1.0
DRILL_ROOT = "drill://never-written"  # stands for the checkpoint that the run would have saved


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedSpan:
    """A stretch of time whose length is assumed, not known."""

    began: datetime
    ended: datetime
    why: str


@dataclass(slots=True, kw_only=True)
class DrillWorld:
    """One Job's run under a fault that never happened. `run` is as at `since`; `view` brings it up to a moment.

    `coming` is what becomes of it, and when, in order.
    """

    row: DrillRow
    stage_times: StageTimes
    run: AttemptView
    since: datetime
    coming: list[tuple[datetime, AttemptView]] = field(default_factory=list)
    guessed: list[AssumedSpan] = field(default_factory=list)
    saved: list[CheckpointView] = field(default_factory=list)
    started: int = 0
    reply: ReplyView | None = None
    reply_at: datetime | None = None
    successor: AttemptView | None = None

    @classmethod
    def begin(cls, row: DrillRow, run: AttemptView, stage_times: StageTimes, *, now: datetime) -> DrillWorld:
        """The fault strikes now."""
        run = replace(run, heartbeat_at=now if run.heartbeat_at is not None else None)
        onset = run.last_step.value if isinstance(run.last_step, Known) else None
        match row.effect:
            case Effect.DIES | Effect.DIES_AGAIN:
                run = _died(run, row, now)
            case Effect.VANISHES:
                run = replace(run, status=AttemptStatus.GONE, detail="drill: no such job", start=None)
            case Effect.FREEZES:
                run = replace(run, work=STALLED)
            case Effect.NAN:
                run = replace(run, loss_state="nan", loss_health="non_finite", onset_step=onset)
            case Effect.SPIKES:
                run = replace(run, loss_health="spiking", onset_step=onset, healed_step=None)
            case Effect.DIVERGES:
                run = replace(run, loss_health="diverging", onset_step=onset, healed_step=None)
            case Effect.LIVES:
                pass
        return cls(row=row, stage_times=stage_times, run=run, since=now)

    # --- what is seen ---

    def view(self, now: datetime) -> AttemptView:
        while self.coming and self.coming[0][0] <= now:
            self.since, self.run = self.coming.pop(0)
        return self._trained(now)

    def _trained(self, now: datetime) -> AttemptView:
        """The run at `now`, where nothing else becomes of it before."""
        run, last = self.run, self.run.last_step
        if run.status not in (AttemptStatus.RUNNING, AttemptStatus.STOPPING) or run.heartbeat_at is None:
            return run
        if isinstance(last, Known) and run.work != STALLED:
            gone_s = max((now - self.since).total_seconds(), 0.0)
            last = Known(last.value + int(gone_s / (run.step_s or ASSUMED_STEP_S)))
        return replace(run, last_step=last, heartbeat_at=now, judged_step=None)

    def answer(self, now: datetime) -> Maybe[ReplyView | None]:
        """The run's answer to the request for a checkpoint, once it is there."""
        is_there = self.reply is not None and self.reply_at is not None and now >= self.reply_at
        return Known(self.reply if is_there else None)

    def next_event(self, now: datetime) -> datetime | None:
        """When the simulated world next changes without an action; an event would wake the Incident then."""
        coming = [self.reply_at, *(at for at, _ in self.coming)]
        return min((at for at in coming if at is not None and at > now), default=None)

    # --- what is done to it ---

    def act(self, actions: Sequence[Action], now: datetime) -> tuple[ActionResult, ...]:
        """Every order is assumed to be taken. Nothing is sent."""
        for action in actions:
            match action:
                case RequestCheckpoint():
                    self._asked(action, now)
                case StopJob() if action.attempt == self.run.name:
                    self._stop(action, now)
                case ResubmitJob():
                    self._start(action, now)
                case _:
                    pass
        return tuple(ActionResult(action=action_name(action), done=Done.DONE, detail="drill") for action in actions)

    def _asked(self, action: RequestCheckpoint, now: datetime) -> None:
        run = self.view(now)
        if run.status is not AttemptStatus.RUNNING or run.heartbeat_at is None:
            return  # no monitor that is known to listen: the deadline passes
        if run.work == STALLED:
            self.reply = ReplyView(
                request_id=action.request_id, outcome="cannot", step=None, why="drill: its main thread is stuck"
            )
            self.reply_at = now + timedelta(seconds=1)
            return
        step = run.last_step
        if not isinstance(step, Known):
            return
        limit_s = max((action.deadline_at - now).total_seconds() - 1, 0.0)
        took_s = self._takes(self.stage_times.save_s, limit_s, "saving", now)
        if took_s > limit_s:
            return  # it needs longer than it has: late, as it would be
        self.reply_at = now + timedelta(seconds=took_s)
        self.reply = ReplyView(request_id=action.request_id, outcome="saved", step=step.value, why="")
        self.saved.append(
            CheckpointView(
                step=step.value,
                root=f"{DRILL_ROOT}/step-{step.value}",
                manifest=f"{DRILL_ROOT}/step-{step.value}/manifest.json",
                attempt=run.name,
                kind=FORENSIC if is_forensic(action.request_id) else "emergency",
                saved_at=self.reply_at,
            )
        )

    def _stop(self, action: StopJob, now: datetime) -> None:
        run = self.view(now)
        if run.status.has_ended or run.status is AttemptStatus.STOPPING:
            return
        self.run, self.since = replace(run, status=AttemptStatus.STOPPING), now
        at = now + timedelta(seconds=self._takes(self.stage_times.stop_s, ASSUMED_STOP_S, "stopping", now))
        ended = replace(self._trained(at), status=AttemptStatus.STOPPED, ended_at=at, detail="drill: stopped")
        start = ended.start
        if start is not None and action.hold:
            name = requeued_name(ended.name, start)
            waiting = replace(start, state=StartState.QUEUED, held=True, restart=start.restart + 1, nodes=())
            self.successor = AttemptView(name=name, status=AttemptStatus.STARTING, detail="held", start=waiting)
            over = replace(start, state=StartState.PUT_BACK, requeued_by=EndedBy.AGENT)
            ended = replace(ended, successor=name, start=over)
        elif start is not None:
            ended = replace(ended, start=replace(start, state=StartState.ENDED, ended_by=EndedBy.AGENT))
        self.coming = [(at, ended)]

    def _start(self, action: ResubmitJob, now: datetime) -> None:
        if action.name == self.run.name:
            return  # the same order again
        self.started += 1
        old, start = self.run, self.run.start
        if start is not None:
            restart = start.restart + 1 if action.how is Submission.REQUEUE else 0
            start = replace(start, state=StartState.RUNNING, held=False, restart=restart, exclude=action.exclude)
        is_seen = old.heartbeat_at is not None
        at = now + timedelta(seconds=self._takes(self.stage_times.start_s, ASSUMED_START_S, "starting", now))
        begun = AttemptView(
            name=action.name,
            status=AttemptStatus.RUNNING,
            first_step=action.resume_step if is_seen else Unknown("no heartbeat"),
            last_step=action.resume_step if is_seen else Unknown("no heartbeat"),
            heartbeat_at=at if is_seen else None,
            loss_state="finite" if is_seen else "none",
            loss_health="ok" if old.loss_health != "unknown" else "unknown",
            step_s=old.step_s,
            start=start,
        )
        self.run = AttemptView(
            name=action.name,
            status=AttemptStatus.STARTING,
            detail="drill: starting",
            first_step=begun.first_step,
            last_step=Unknown("no step yet" if is_seen else "no heartbeat"),
            step_s=old.step_s,
            start=start,
        )
        self.since, self.successor, self.reply, self.reply_at = now, None, None, None
        self.coming = [(at, begun)]
        if self.row.effect is Effect.DIES_AGAIN:
            dies_at = at + timedelta(seconds=1)
            self.coming.append((dies_at, _died(begun, self.row, dies_at)))

    def _takes(self, figure: Maybe[float], assumed_s: float, what: str, now: datetime) -> float:
        """The figure; where it is Unknown the assumed value, with the stretch marked."""
        if isinstance(figure, Known):
            return figure.value
        ended = now + timedelta(seconds=assumed_s)
        self.guessed.append(AssumedSpan(began=now, ended=ended, why=f"how long {what} takes: {figure.why}"))
        return assumed_s


def _died(run: AttemptView, row: DrillRow, at: datetime) -> AttemptView:
    start = run.start
    if start is not None:
        by = EndedBy.SLURM if row.by_platform else EndedBy.ITSELF
        start = replace(start, state=row.start_state, ended_by=by)
    reason = row.reason_there if start is not None else row.failure_reason
    return replace(run, status=AttemptStatus.FAILED, failure_reason=reason, ended_at=at, start=start)
