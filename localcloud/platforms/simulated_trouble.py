"""Faults of a simulated run, and what its ranks and detectors report of them. Data and small pure functions only.

The loss itself is not simulated, only the detectors' verdict on it, step by step, as a real monitor puts it into its
heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from rekindle.detectors.health import Health
from rekindle.protocol.mailbox import CheckpointReply, CheckpointRequest, ReplyOutcome
from rekindle.protocol.manifests import Manifest
from rekindle.protocol.reports import RankReport, ReportKind

_SITE = "/opt/conda/lib/python3.11/site-packages/torch"
_LOOP = ("/opt/ml/code/train.py", "<module>"), ("/opt/ml/code/train.py", "main")
WAITING = (*_LOOP, (f"{_SITE}/distributed/distributed_c10d.py", "all_reduce"))
STUCK = (*_LOOP, ("/opt/ml/code/train.py", "augment"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong, at `step`; in the data of `span` steps from there where `in_data` is set, so that an attempt
    which leaves those out is spared; else in this attempt, whatever its data.

    kind: crash (the container exits), freeze (no rank moves any more), nan (the loss is NaN from here on), spike and
    diverge (it is bad and still a number), hardware (SageMaker repairs the cluster itself and starts the container
    again). A zombie is a property of stopping.
    rank: whose fault it is, for freeze and nan; its ranks then write their reports. is_mute: that one writes none.
    heals_after: steps after which a spike is seen to be over.
    """

    kind: str
    step: int
    in_data: bool = False
    span: int = 1
    exit_code: int = 1
    text: str = "RuntimeError: training failed"
    rank: int | None = None
    is_mute: bool = False
    heals_after: int | None = None

    def holds(self, step: int) -> bool:
        """The step uses its data."""
        return self.step <= step < self.step + self.span


@dataclass(slots=True, kw_only=True)
class LossJudge:
    """The detectors' verdict on a run's loss, fed step by step; a job that logs every n steps is judged every n steps.

    `trouble` is the fault that affects the loss now.
    """

    log_every: int = 1
    health: Health = Health.UNKNOWN
    trouble: Fault | None = None
    bad_since: int | None = None
    onset_step: int | None = None
    healed_step: int | None = None
    judged_step: int | None = None

    def bend(self, fault: Fault, step: int) -> None:
        """From this step on the loss is bad."""
        if self.trouble is None:
            self.trouble, self.bad_since = fault, step

    def judge(self, step: int) -> str | None:
        """Take a step's loss in, where it is logged; the news in it: spike, diverge, recovered or none."""
        if step % self.log_every:
            return None
        self.judged_step = step
        fault, since = self.trouble, self.bad_since
        if fault is None or since is None:
            self.health = Health.OK
            return None
        if fault.heals_after is not None and step >= since + fault.heals_after:
            self.trouble, self.bad_since = None, None
            was_bad = self.health in (Health.SPIKING, Health.DIVERGING)
            self.health = Health.OK
            self.healed_step = step if was_bad else self.healed_step
            return "recovered" if was_bad else None
        now = Health.DIVERGING if fault.kind == "diverge" else Health.SPIKING
        if self.health is now:
            return None
        if self.health not in (Health.SPIKING, Health.DIVERGING):
            self.onset_step, self.healed_step = step, None
        self.health = now
        return fault.kind


def ranks_reports(
    kind: ReportKind,
    fault: Fault,
    *,
    job_id: str,
    attempt: str,
    hosts: tuple[str, ...],
    step: int,
    at: datetime,
    silent_s: float | None = None,
) -> Iterator[RankReport]:
    """One report per rank, one rank to a host. A NaN of one rank reaches the others one step later."""
    for rank, host in enumerate(hosts):
        is_its = rank == fault.rank
        if is_its and fault.is_mute:
            continue
        yield RankReport(
            kind=kind,
            job_id=job_id,
            attempt=attempt,
            rank=rank,
            world_size=len(hosts),
            host=host,
            at=at,
            step=step + (kind is ReportKind.NON_FINITE and not is_its and fault.rank is not None),
            phase="training",
            silent_s=silent_s,
            metric="loss" if kind is ReportKind.NON_FINITE else None,
            stacks=_stacks(STUCK if is_its else WAITING) if kind is ReportKind.STALL else "",
        )


def reply_to(
    request: CheckpointRequest,
    outcome: ReplyOutcome,
    why: str,
    manifest: Manifest | None,
    *,
    job_id: str,
    attempt: str,
    at: datetime,
    save: timedelta,
) -> CheckpointReply:
    """A monitor's answer; `manifest` is that of what it saved, which took `save`."""
    return CheckpointReply(
        request_id=request.request_id,
        job_id=job_id,
        attempt=attempt,
        outcome=outcome,
        why=why,
        replied_at=at,
        step=manifest.step if manifest else None,
        manifest=manifest.key if manifest else None,
        bytes=manifest.total_bytes if manifest else None,
        took_s=save.total_seconds() if manifest else None,
    )


def _stacks(frames: tuple[tuple[str, str], ...]) -> str:
    lines = "".join(f'  File "{file}", line {10 + number}, in {name}\n' for number, (file, name) in enumerate(frames))
    return f"Thread MainThread:\n{lines}"
