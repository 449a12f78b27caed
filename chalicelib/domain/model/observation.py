"""What one observation of the world saw. Made by an observe step, read by decide()."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from chalicelib.domain.model.action import ActionResult
from chalicelib.domain.model.codec import Record
from chalicelib.domain.model.evidence import Suspicion
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.node import NodesSeen, NodeView
from chalicelib.domain.model.platform import UNKNOWN_PLATFORM, Platform
from chalicelib.domain.model.signal import Signal
from chalicelib.domain.model.start_view import StartView
from chalicelib.domain.model.switches import Breaker
from rekindle.protocol.signals import FaultClass

if TYPE_CHECKING:
    from chalicelib.domain.model.job import Job


class AttemptStatus(StrEnum):
    """An attempt's state, whatever the platform calls it."""

    STARTING = "starting"  # accepted, not training yet
    RUNNING = "running"
    REPAIRING = "repairing"  # the platform restarts it by itself
    STOPPING = "stopping"
    STOPPED = "stopped"
    EXPIRED = "expired"  # ended by its own run-time limit
    FAILED = "failed"
    COMPLETED = "completed"
    GONE = "gone"  # the platform has never heard of it

    @property
    def has_ended(self) -> bool:
        """The platform will not run it again."""
        return self in _ENDED


# Between a run's last heartbeat and its end as the platform dates it lie one heartbeat and the upload of its output; a
# longer gap is no training time (a stuck run, a slow upload) and must not push the mark beyond what was ever reached.
MAX_UNSEEN_S = 30.0
STARTUP = "startup"  # of one that has not made its first step
NO_SIBLING: Final = Unknown("none that is known")  # looked for, and none lives
STALLED = "stalled"  # the monitor's own word for a run that does not move (rekindle.protocol.mailbox.RunPhase)
TRAINING = "training"  # steps are made, or should be: no evaluation, no save
RESTS: Final = ("evaluation", "saving")  # no step is due
FINISHED = "finished"  # and for one whose training has ended by itself

_ENDED = frozenset(
    {AttemptStatus.STOPPED, AttemptStatus.EXPIRED, AttemptStatus.FAILED, AttemptStatus.COMPLETED, AttemptStatus.GONE}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureVerdict:
    """What a failure comes to. `rule` names the row; `person_needed`: the same input will fail the same way."""

    fault: FaultClass
    rule: str
    person_needed: bool = False


# What of an AttemptView a process itself has written, and only that process.
OF_A_HEARTBEAT: Final = (
    "first_step",
    "last_step",
    "heartbeat_at",
    "is_heartbeat_last",
    "died_of",
    "loss_state",
    "work",
    "step_s",
    "loss_health",
    "onset_step",
    "healed_step",
    "loss_baseline",
    "judged_step",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView(Record):
    """One attempt as the platform and its own heartbeat show it: one flat record, because rules weigh both at once.

    `first_step`, `last_step` come from the heartbeat in the mailbox; Unknown without a monitor.
    `loss_state` is finite, nan, inf or none; `work` is the monitor's own phase word. `step_s` is the run's own median
    step time, None where it is not known. `loss_health` is the run's own judgement of its loss (unknown, ok, watch,
    spiking, diverging, non_finite): "unknown" where nothing judges it, which is neither ok nor spiking. `onset_step` is
    the first bad step of the newest trouble, `healed_step` the step at which that trouble was seen to be over,
    `loss_baseline` the loss it is measured against, `judged_step` the newest step whose loss has been judged.
    `is_heartbeat_unread`: there is a mailbox, and it could not be read: the absence of a heartbeat is then no evidence.
    `is_heartbeat_last`: the process wrote its heartbeat as it ended, and made no step after it. `died_of` is the error
    that ended it, by its own word. `life`: which start of all processes within the attempt wrote it.
    `training_since` is when the platform began to run its script, `stopping_since` when it began to end it, and
    `interrupted_since` when it last took its nodes for others, by the platform's clock; None where that is unknown.
    `seen_ended_at`: where the platform dates its end later than it was seen, when that was; None elsewhere.
    `failure` is what its agent found that it failed of; None where nothing but `failure_reason` says it.
    `successor` is the attempt that has taken its place in the same submission, ours or not; `start` is what
    only a platform with an agent or a queue of its own tells.
    """

    name: str
    status: AttemptStatus
    detail: str = ""
    failure_reason: str = ""
    failure: FailureVerdict | None = None
    ended_at: datetime | None = None
    seen_ended_at: datetime | None = None
    training_since: datetime | None = None
    stopping_since: datetime | None = None
    interrupted_since: datetime | None = None
    first_step: Maybe[int] = Unknown("no heartbeat")
    last_step: Maybe[int] = Unknown("no heartbeat")
    heartbeat_at: datetime | None = None
    is_heartbeat_unread: bool = False
    is_heartbeat_last: bool = False
    life: int = 0
    died_of: str = ""
    loss_state: str = "none"
    work: str = ""
    step_s: float | None = None
    loss_health: str = "unknown"
    onset_step: int | None = None
    healed_step: int | None = None
    loss_baseline: float | None = None
    judged_step: int | None = None
    successor: str | None = None
    start: StartView | None = None

    @property
    def may_train(self) -> bool:
        """It runs, and nothing says that it stands or that its loss is no number. Of one without a monitor nothing says
        so while it runs.
        """
        stands = self.work in (STARTUP, STALLED) or self.loss_state in ("nan", "inf")
        return self.status is AttemptStatus.RUNNING and not stands

    @property
    def is_finishing(self) -> bool:
        """Its training is over: its own heartbeat says so, or SageMaker uploads what its script has left."""
        return self.work == FINISHED or self.detail.startswith("InProgress/Uploading")

    @property
    def waits_for_jobs(self) -> bool:
        """It is queued until other jobs have ended: a link of a chain."""
        return self.start is not None and self.start.is_queued and self.start.wait.for_jobs

    @property
    def will_train(self) -> bool:
        """It trains, or begins as soon as there are nodes: no link that waits for the one before it, and not held."""
        return not (self.status.has_ended or self.is_held or self.waits_for_jobs)

    @property
    def is_held(self) -> bool:
        """It stays in the queue until someone releases it."""
        return self.start is not None and self.start.is_queued and self.start.held

    @property
    def waits_for_spot(self) -> bool:
        """SageMaker has interrupted it, and starts it again once there is capacity: its user's own
        MaxWaitTimeInSeconds bounds that."""
        return self.status is AttemptStatus.REPAIRING and self.detail.startswith("InProgress/Interrupted")

    @property
    def judged_at(self) -> Maybe[int]:
        """The newest step whose loss has been judged; the newest step of all where the run does not say."""
        return self.last_step if self.judged_step is None else Known(self.judged_step)

    @property
    def made_no_step(self) -> bool:
        """It has ended, and its last heartbeat, shortly before, shows no step yet."""
        if self.work not in (STARTUP, TRAINING) or isinstance(self.last_step, Known) or not self.status.has_ended:
            return False
        return self.heartbeat_at is not None and self.ended_at is not None and not self.has_ended_unseen

    @property
    def has_ended_unseen(self) -> bool:
        """It ended long after its last heartbeat, and may have made steps meanwhile.

        The end of a failed attempt is when its platform detects the failure.
        """
        unseen_s = self._unseen_s
        return unseen_s is not None and not self.is_heartbeat_last and unseen_s > MAX_UNSEEN_S

    @property
    def _unseen_s(self) -> float | None:
        """From its last heartbeat to its end. The two are dated by different clocks."""
        ended_at = self.seen_ended_at or self.ended_at
        if self.heartbeat_at is None or ended_at is None:
            return None
        return max((ended_at - self.heartbeat_at).total_seconds(), 0.0)

    @property
    def last_step_at_most(self) -> Maybe[int]:
        """How far an ended attempt may have come: the last heartbeat, and the steps that fit in after it.

        A process that ends by an exception writes a heartbeat that says it is the last: no step follows it. A killed
        process writes none; what it did in the meantime was done, and is lost.
        """
        unseen_s = self._unseen_s
        if not isinstance(self.last_step, Known) or unseen_s is None or not self.step_s or not self.status.has_ended:
            return self.last_step
        if self.work == STALLED or self.is_heartbeat_last:
            return self.last_step
        return Known(self.last_step.value + int(min(unseen_s, MAX_UNSEEN_S) / self.step_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView(Record):
    """One checkpoint, newest first in an observation. `problems` empty means verified; `attempt` wrote it.

    `fenced` is True for one written by an attempt after it had been superseded: never resumed from. `loss_unread`: the
    loss could not be read as it was saved, so that whether its weights are finite is not known. `life`: of the attempt,
    as its manifest says.
    """

    step: int
    root: str
    manifest: str
    attempt: str
    kind: str
    saved_at: datetime
    problems: tuple[str, ...] = ()
    fenced: bool = False
    loss_unread: bool = False
    life: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyView:
    """The monitor's answer to the open request."""

    request_id: str
    outcome: str
    step: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord(Record):
    """The Job's attempts, over all Incidents; the defaults are those of a Job whose attempts were not needed.

    What they reached. `best_before` is the furthest step that any earlier attempt is known to have ended at, or the
    step to which a later one, or this one, went back on purpose; `fruitless_before` is how many attempts in a row,
    the newest of them included, ended without passing what had been reached before them: a Job that dies again
    right after each "recovery" is seen to gain nothing, though every Incident of its own looks fresh.
    `furthest_saved` is the newest sealed save that was ever seen on the way to where the run is now, whatever has
    become of it. `resumed_at` are the steps that the newest attempts resumed at, the newest last, and `came_to` how
    far each came; None where that is not known. `began_again` counts the newest attempts of ours in a row that
    began no further on than the one before them, or died before a step, of those of which that is known.
    `began_before` is the first step of the attempt before this one. `had_checkpoints`: a manifest of the Job has been
    seen, or an attempt of it has resumed from a checkpoint or has answered that it saved one, so that an observation
    which finds none has found them gone.

    How often it was started. `ran` names the newest that was submitted by a person, and those of ours since that
    have begun. `restarts_of_an_hour`, `restarts_of_last_hours` (run/job_record.py) and `restarts_of_a_day` count
    those of ours that began within that time, over all Incidents, and `rollbacks_of_a_day` those of them that went
    back on purpose. `capped` counts the newest attempts in a row that their own run-time limit ended. `own_gap_s`
    is the median time from an attempt's death to the next start, before Rekindle started any. `trained` is the
    share of the last hours that the steps gained in them took.

    What it ran on. `died_on` are the nodes of the attempts of the last day that hung or died of hardware in other
    Incidents, of which none was named, the newest last; `left_out` those that the newest start of the day was kept
    away from for such deaths.
    """

    best_before: Maybe[int] = Unknown("not needed yet")
    fruitless_before: int = 0
    furthest_saved: Maybe[int] = Unknown("not needed yet")
    resumed_at: tuple[int | None, ...] = ()
    came_to: tuple[int | None, ...] = ()
    began_again: int = 0
    began_before: Maybe[int] = Unknown("not needed yet")
    had_checkpoints: bool = False
    ran: tuple[str, ...] = ()
    started_by_others: int = 0
    restarts_of_an_hour: int = 0
    restarts_of_last_hours: int = 0
    restarts_of_a_day: int = 0
    rollbacks_of_a_day: int = 0
    capped: int = 0
    own_gap_s: Maybe[float] = Unknown("not needed yet")
    trained: Maybe[float] = Unknown("not needed yet")
    died_on: tuple[tuple[str, ...], ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation(Record):
    """One observation: a field for each thing that is read, each of which may be Unknown without the others.

    `attempt` is the attempt under care. `checkpoints` are read only when a resume point is needed soon, else
    Unknown. `reply` is Known(None) when the mailbox was read and holds no answer yet. `suspicion` is what the
    ranks' own reports say, read when the Incident needs them. `next_number` is the attempt number a resubmission
    would take. `has_job` is False for a cluster-only Incident. `record` is what outlives Incidents
    (run/job_record.py). `platform` is what the Job runs on, and `cluster` where there; a node's Incident has
    neither. Where the platform puts attempts back: `current` is the attempt that the registry holds for the newest,
    empty where that was not read; `successor` is what has taken the attempt's place in the same submission; `nodes`
    are those that it ran on and those that the Incident holds to be broken, as the platform shows them. `shadow`
    says which switch has put the run or node into shadow mode, empty: none. `breaker` is the fleet-wide breaker
    while it is open, `breaker_lifted_at` when it was lifted last. `back_at` is when the service ran again after it
    had not for a while (recovery/workflow.py). `gpus`, `node_count`: how big the run is. `sibling` is an attempt of
    the Job that lives and is not registered, looked for while a submission waits, ours is queued, or a Signal names
    one that lives beside ours; a queued one's may ask for no protection, and be known by its heartbeats alone.
    `is_ours`: an Incident has submitted the attempt. `next_link` is an attempt that another Job protects and that
    continues the run once the attempt under care has ended.
    """

    observed_at: datetime
    has_job: bool
    paused: bool
    job_name: str = ""
    attempt: Maybe[AttemptView] = Unknown("not looked at")
    checkpoints: Maybe[tuple[CheckpointView, ...]] = Unknown("not needed yet")
    reply: Maybe[ReplyView | None] = Unknown("nothing asked")
    suspicion: Maybe[Suspicion] = Unknown("not asked for")
    new_signals: tuple[Signal, ...] = ()
    next_number: int = 1
    record: JobRecord = field(default_factory=JobRecord)
    current: str = ""
    successor: Maybe[AttemptView] = Unknown("none that is known")
    nodes: Maybe[NodesSeen] = Unknown("not needed")
    results: tuple[ActionResult, ...] = ()
    node: Maybe[NodeView] = Unknown("not about a node")
    shadow: str = ""
    breaker: Breaker | None = None
    breaker_lifted_at: datetime | None = None
    back_at: datetime | None = None
    sibling: Maybe[str] = NO_SIBLING
    is_ours: bool = False
    next_link: Maybe[str] = NO_SIBLING
    gpus: Maybe[int] = Unknown("not looked at")
    node_count: Maybe[int] = Unknown("not looked at")
    platform: Platform = UNKNOWN_PLATFORM
    cluster: str = ""


def node_count(job: Job, seen: Maybe[AttemptView]) -> Maybe[int]:
    """On how many nodes the run is, as the platform says now, else as it was registered."""
    start = seen.value.start if isinstance(seen, Known) else None
    if start is not None and (start.nodes or start.node_count):
        return Known(len(start.nodes) or start.node_count)
    total = sum(count for _, count in job.size.instances)
    return Known(total) if total else Unknown("on how many nodes it runs is not known")
