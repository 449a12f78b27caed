"""What is true of the runs: attempts, steps, poisoned weights, checkpoints. The judge sees this and nothing else."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from localcloud.aws.sagemaker import Phase
from localcloud.platforms.simulated_run import Platform
from rekindle.protocol.launch_orders import ResumePlan
from rekindle.protocol.mailbox import LossState, RunPhase
from simulation.stories.story import Run, Trouble

MISSES_NOTHING = timedelta(seconds=60)
"""What has been so for less than this, the service cannot be blamed for not knowing: its sources are that slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One checkpoint as it truly is. `root` is its folder."""

    step: int
    root: str
    attempt: str
    at: datetime
    is_poisoned: bool
    is_whole: bool
    looks_poisoned: bool  # its manifest says so
    is_spiking: bool = False  # saved after the onset of a rise of the loss that lasts
    life: int = 0  # of its attempt

    @property
    def is_good(self) -> bool:
        return self.is_whole and not self.is_poisoned


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpan:
    """How an attempt is from `at` on, until the next one: at step `base` then, and on if it `moves`."""

    at: datetime
    base: int
    moves: bool
    phase: RunPhase
    loss: LossState = LossState.NONE
    health: str = "unknown"
    onset: int | None = None
    healed: int | None = None
    pace: float = 1.0  # how many times as long a step takes as it should
    life: int = 0  # which start of all processes of the attempt this is of
    first_step: int = 1  # of that life
    is_mute: bool = False  # its processes are stopped, or gone: no monitor writes


@dataclass(slots=True, kw_only=True)
class ActiveTrouble:
    """Something that is wrong with a run, from `since` to `until`."""

    kind: str  # dead, hung, poisoned, spiking, slow
    since: datetime
    turned_at: datetime  # since when it is of a kind that something is to be done about
    became_at: datetime  # since when it is of this kind
    until: datetime | None = None
    is_notified: bool = False  # people were, with a warning or a page
    is_counted: bool = False
    reached: int = 0  # the step before it


class Start(Protocol):
    """What a platform runs for an attempt: a training job, or one start of a Slurm job. Phases are a training job's."""

    name: str
    created_at: datetime
    phase: Phase
    ended_at: datetime | None
    failure_reason: str | None

    @property
    def environment(self) -> dict[str, str]: ...

    @property
    def instance_count(self) -> int: ...

    @property
    def is_terminal(self) -> bool: ...


@dataclass(slots=True, kw_only=True)
class TrueNode:
    """The true state of one node. `cure`: what repairs it (reboot, replace) while it is broken.

    A dead one runs nothing, a sick one fails what runs on it. `condemned`: HyperPod's own health agent has reported it
    as broken, and has not taken that back.
    """

    name: str
    instance_id: str
    broken_since: datetime | None = None
    is_dead: bool = False
    cure: str = ""
    repaired_at: datetime | None = None
    condemned: bool = False
    condemned_until: datetime | None = None
    is_acquittal_lost: bool = False  # the event of its withdrawal was lost
    unreachable_since: datetime | None = None  # for Slurm; the machine itself is well
    runs_unseen: bool = False  # Slurm does not reach its slurmd, and what ran there runs on
    reachable_since: datetime | None = None  # again, after it was not
    in_our_repair: bool = False
    is_ordered: bool = False  # a person has ordered its repair, which has not come yet
    announced_at: datetime | None = None  # when AWS announced that it takes the instance away
    leaves_at: datetime | None = None  # when it does; None where nothing is announced, or it is over

    @property
    def is_broken(self) -> bool:
        return self.broken_since is not None

    def is_announced(self, now: datetime) -> bool:
        """AWS has announced that it takes the instance away, and the time for that has not passed for long."""
        return self.leaves_at is not None and now < self.leaves_at + MISSES_NOTHING

    def breaks(self, now: datetime, *, is_dead: bool, cure: str) -> None:
        """From now on."""
        self.broken_since, self.is_dead, self.cure = now, is_dead, cure

    def repaired(self, now: datetime, *, by: str) -> None:
        """It was rebooted or replaced; a reboot does not help against everything."""
        if by == "replace":
            self.condemned = False
        if self.is_broken and (by == "replace" or self.cure == "reboot"):
            self.broken_since, self.is_dead, self.cure, self.repaired_at = None, False, "", now
            self.condemned = False


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One training job, or one start of a Slurm job, as it truly is: one field per fact (hence their number)."""

    job: Start
    platform: Platform
    run: TrueRun
    nodes: tuple[TrueNode, ...] = ()
    number: int
    plan: ResumePlan
    is_ours: bool
    is_tagged: bool  # it asks for our care, by a tag or by a Slurm job's comment
    is_by_hand: bool = False  # a person submitted it
    is_link: bool = False  # a later one of its run's chain, which Slurm has begun by itself
    is_persons: bool = False  # a person ordered it of the service: what it gains is theirs to judge
    ordered_at: datetime | None = None  # when the service wanted it; None: when it was submitted
    loaded: Saved | None = None
    first_step: int = 1
    trains_since: datetime | None = None
    stretches: list[TrainingSpan] = field(default_factory=list)
    life: int = 0  # how often its processes have all been started again in it
    life_since: datetime | None = None  # when they last were
    in_vain: int = 0  # of these starts, the newest in a row that gained no checkpoint
    is_poisoned: bool = False
    bad_update: int | None = None  # the step whose update poisoned the weights; first_step - 1 where it was loaded so
    first_bad_loss: int | None = None
    is_frozen: bool = False
    mute: frozenset[int] = frozenset()  # instances whose ranks report nothing
    is_counted: bool = False
    has_pushed_bad: bool = False
    was_preempted: bool = False  # another job has its nodes, and it waits for them
    suspended_at: datetime | None = None  # its processes are stopped, or gone for a while, since then
    waits_for_itself: bool = False  # its platform runs it again, in this attempt: Spot, or --auto-resume
    collapsed_at: int | None = None  # the first update that a collapsed gradient scale has left out
    slow_from: int | None = None  # its steps take longer from there on
    fast_from: int | None = None  # and are as fast as before from here on
    reported_at: list[datetime] = field(default_factory=list)  # when its monitor sent events
    spikes_on: bool = False
    is_done: bool = False  # its script has ended well
    is_silent_crash: bool = False  # its training has crashed, and its script ended with 0
    struck: set[Trouble] = field(default_factory=set)  # once each

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def world_size(self) -> int:
        return self.job.instance_count * self.run.spec.ranks

    @property
    def is_live(self) -> bool:
        return not self.job.is_terminal

    @property
    def is_on_bad_node(self) -> bool:
        """Whether one of its nodes is broken, or reported as broken by HyperPod's own health agent."""
        return any(node.is_broken or node.condemned for node in self.nodes)

    @property
    def is_training(self) -> bool:
        return self.job.phase is Phase.TRAINING

    def at(self, moment: datetime) -> TrainingSpan | None:
        """How it was then; None before it trained."""
        index = bisect_right(self.stretches, moment, key=lambda span: span.at)
        return self.stretches[index - 1] if index else None

    def step_at(self, moment: datetime) -> int:
        """The newest finished step; `first_step - 1` before the first."""
        stretch = self.at(moment)
        if stretch is None:
            return self.first_step - 1
        if not stretch.moves:
            return stretch.base
        end = min(moment, self.job.ended_at) if self.job.ended_at is not None else moment
        return stretch.base + int((end - stretch.at).total_seconds() / (self.run.spec.step_s * stretch.pace) + 1e-6)


@dataclass(slots=True, kw_only=True)
class TrueRun:
    """One run over all its attempts."""

    spec: Run
    attempts: dict[str, Attempt] = field(default_factory=dict)
    saved: list[Saved] = field(default_factory=list)
    struck: dict[Trouble, int] = field(default_factory=dict)
    refused: int = 0
    owner_stopped_at: datetime | None = None  # since then its owner wants it to stay stopped
    stop_orders: int = 0  # of its owner, through Rekindle, which therefore knows of them; less those it has refused
    stop_ordered_at: datetime | None = None  # when the newest of these orders was given
    stopped_job: str = ""  # the Job that the newest of these orders names
    stopped_by_hand: tuple[str, ...] = ()  # the attempts that its owner has stopped in the console, the last time
    resubmission_ordered_at: datetime | None = None  # by a person, the last time
    stopped_before_order_at: datetime | None = None  # what `owner_stopped_at` was when its resubmission was ordered
    is_unprotected: bool = False  # its owner has resubmitted it without any tag of ours
    owner_took_it: bool = False  # its owner has resubmitted, or has cancelled our care of it
    cancelled_at: datetime | None = None  # when a person cancelled an Incident about it, and was told what is left
    denied_at: datetime | None = None  # when a person did not allow a step that was asked about
    is_ordered: bool = False  # a person has ordered its resubmission, which has not come yet
    is_another_stages: bool = False  # a person has submitted it with another stage's tags, and that stage is there
    is_finished: bool = False
    ills: list[ActiveTrouble] = field(default_factory=list)
    job_ids: set[str] = field(default_factory=set)  # names of its Slurm jobs
    # Plain ones of another experiment under its root: the step, and whether they were there before it.
    foreign_files: dict[str, tuple[int, bool]] = field(default_factory=dict)

    @property
    def is_stop_ordered(self) -> bool:
        """Whether an order of its owner's to stop it stands."""
        return self.stop_orders > 0

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def owner_stopped(self) -> bool:
        return self.owner_stopped_at is not None

    @property
    def first_name(self) -> str:
        """The name of its first attempt, by which the service knows it."""
        return next(iter(self.attempts), self.name)

    @property
    def live(self) -> list[Attempt]:
        """Attempts whose training job has not ended."""
        return [attempt for attempt in self.attempts.values() if attempt.is_live]

    @property
    def ill(self) -> ActiveTrouble | None:
        """What is wrong now."""
        return self.ills[-1] if self.ills and self.ills[-1].until is None else None

    @property
    def furthest(self) -> int:
        """The furthest step that any attempt has made and that is not poisoned."""
        ends = [
            min(attempt.stretches[-1].base, (attempt.bad_update or 10**9) - 1)
            for attempt in self.attempts.values()
            if attempt.stretches
        ]
        return max(ends, default=0)

    def best(self, *, before_step: int | None = None, by: datetime | None = None) -> Saved | None:
        """The good checkpoint of the highest step, of those that are the run's own Job's or that it continues."""
        found = [
            save
            for save in self.saved
            if save.is_good and (before_step is None or save.step < before_step) and (by is None or save.at <= by)
            if not self._is_of_another_job(save) and not self._is_left(save) and not self._is_superseded(save)
        ]
        return max(found, key=lambda save: save.step, default=None)

    def _is_of_another_job(self, saved: Saved) -> bool:
        """A Slurm job without our comment is a Job of its own to its monitor, regardless of who submitted it."""
        attempt = self.attempts.get(saved.attempt)
        return self.spec.platform == "slurm" and attempt is not None and not attempt.is_tagged

    def _is_superseded(self, saved: Saved) -> bool:
        """Processes of an attempt that was over saved it, and the next attempt was there."""
        wrote = self.attempts.get(saved.attempt)
        if wrote is None or wrote.job.ended_at is None or saved.at <= wrote.job.ended_at:
            return False
        return any(other.job.created_at <= saved.at for other in self.attempts.values() if other.number > wrote.number)

    def _is_left(self, saved: Saved) -> bool:
        """A person has submitted the run again on Slurm since, as a Job of its own, which began below it."""
        names = list(self.attempts)
        since = names.index(saved.attempt) + 1 if saved.attempt in names else 0
        return self.spec.platform == "slurm" and any(
            attempt.is_by_hand and attempt.trains_since is not None and attempt.first_step <= saved.step
            for attempt in (self.attempts[name] for name in names[since:])
        )

    def saved_at_root(self, root: str | None) -> Saved | None:
        """The checkpoint in that folder: what was written there last."""
        return next((save for save in reversed(self.saved) if root and save.root.rstrip("/") == root.rstrip("/")), None)

    def falls_ill(self, kind: str, now: datetime, *, reached: int) -> None:
        """Something is wrong from now on; what was wrong before is over with it."""
        if self.owner_stopped or self.is_finished:
            return
        there = self.ill
        if there is not None:
            if there.kind == kind or kind == "slow":  # whatever else is wrong is worse
                return
            there.turned_at = now if there.kind in ("spiking", "slow") else there.turned_at
            there.became_at = now
            there.kind = kind  # one trouble leads to another: it is one illness until the run trains on
            return
        self.ills.append(ActiveTrouble(kind=kind, since=now, turned_at=now, became_at=now, reached=reached))

    def is_not_stopped_after_all(self, now: datetime) -> None:
        """Its owner wanted it stopped, and knows that it was not; what is wrong with it counts again."""
        if not self.owner_stopped:
            return
        self.owner_stopped_at = None
        for attempt in self.live:
            if attempt.is_poisoned or attempt.is_frozen:
                self.falls_ill("poisoned" if attempt.is_poisoned else "hung", now, reached=attempt.step_at(now))

    def is_well_again(self, now: datetime) -> None:
        """Nothing is wrong any more."""
        there = self.ill
        if there is not None:
            there.until = now
