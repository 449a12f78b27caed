"""What a simulated attempt does, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from localcloud.aws.clock import Timer
from localcloud.aws.sagemaker import Phase, TrainingJob
from localcloud.platforms.simulated_trouble import Fault, LossJudge
from rekindle.protocol.launch_orders import ResumePlan
from rekindle.protocol.mailbox import LossState, ReplyOutcome, RunPhase
from rekindle.protocol.wire import Place


class Platform(Protocol):
    """Where attempts run."""

    def enter(self, name: str, phase: Phase, *, failure_reason: str | None = None) -> bool:
        """Move the attempt to that phase, as its platform does without a request; False where it cannot any more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How one attempt behaves, a field per thing that a test may change (hence their number). Times are virtual.

    unloadable: checkpoint steps that this attempt cannot load; it then dies before its first step, with `load_error`.
    hosts: the names of its ranks' hosts; by default they are named after the attempt. log_every: steps between two
    losses that its detectors get to see. own_folder: it saves to a folder of its own, beside the mailbox.
    """

    starting: timedelta = timedelta(seconds=90)
    downloading: timedelta = timedelta(seconds=60)
    startup: timedelta = timedelta(seconds=60)
    step: timedelta = timedelta(seconds=10)
    steps: int = 100_000
    checkpoint_every: int | None = 100
    save: timedelta = timedelta(seconds=20)
    stopping: timedelta = timedelta(seconds=30)
    saves_on_sigterm: bool = False
    uploading: timedelta = timedelta(seconds=10)
    heartbeat: timedelta = timedelta(seconds=15)
    has_monitor: bool = True
    reply: ReplyOutcome | None = ReplyOutcome.SAVED
    reply_after: timedelta = timedelta(seconds=5)
    stall_limit: timedelta = timedelta(seconds=120)
    lacks_capacity: bool = False
    ignores_stop: bool = False
    unloadable: tuple[int, ...] = ()
    load_error: str = "PytorchStreamReader failed reading zip archive: failed finding central directory"
    hosts: tuple[str, ...] = ()
    log_every: int = 1
    own_folder: bool = False
    faults: tuple[Fault, ...] = ()


@dataclass(slots=True, kw_only=True)
class Run:
    """One attempt as it runs; tests read it and may disturb it through `Simulated`."""

    job: TrainingJob
    script: Script
    job_id: str
    attempt_number: int
    place: Place | None
    bus: str | None
    plan: ResumePlan
    first_step: int
    step: int
    phase: RunPhase = RunPhase.STARTUP
    loss_state: LossState = LossState.NONE
    is_live: bool = True
    timers: dict[str, Timer] = field(default_factory=dict)
    saved_steps: list[int] = field(default_factory=list)
    judge: LossJudge = field(default_factory=LossJudge)
    frozen_by: Fault | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """One rank to a host."""
        named = self.script.hosts
        return named or tuple(f"{self.job.name}-algo-{number + 1}" for number in range(self.job.instance_count))

    @property
    def bucket(self) -> str:
        """Of its mailbox; simulated runs have theirs in S3 or none."""
        return (self.place.bucket if self.place is not None else None) or ""

    @property
    def is_moving(self) -> bool:
        return self.is_live and self.phase is not RunPhase.STALLED
