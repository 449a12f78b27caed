"""What to do about each fault class. Data: one row per fault, each with its source; decide() only reads it.

The rows are the built-in default. A Policy document may replace any row's columns (docs/policy.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rekindle.signatures.faults import FaultClass


class Response(StrEnum):
    """The shape of the first response."""

    RESTART = "restart"  # stop what is left, resume from the newest verified checkpoint
    CHECKPOINT_THEN_RESTART = "checkpoint_then_restart"  # ask for an emergency checkpoint while the run lives
    ROLL_BACK = "roll_back"  # stop, resume from a verified checkpoint before the onset
    WATCH_THEN_ROLL_BACK = "watch_then_roll_back"  # first give it the steps in which it may heal by itself
    CHECKPOINT_THEN_HAND_OVER = "checkpoint_then_hand_over"  # save what can be saved, then a person decides
    TELL = "tell"  # say it, do nothing
    HAND_OVER = "hand_over"  # a person decides


class Deadline(StrEnum):
    """Which of the policy's checkpoint deadlines applies."""

    NONE = "none"
    SHORT = "short"  # the run is probably stuck: do not wait long for an answer
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Playbook:
    """One row: the first response to a fault, and how often it may be repeated without progress.

    `tries` bounds the attempts that gain no step; None means the policy's general budget.
    """

    fault: FaultClass
    response: Response
    deadline: Deadline
    tries: int | None
    source: str


PLAYBOOKS: tuple[Playbook, ...] = (
    Playbook(
        fault=FaultClass.NODE_HARDWARE,
        response=Response.CHECKPOINT_THEN_RESTART,
        deadline=Deadline.FULL,
        tries=None,
        source="DESIGN §5; soft node faults leave the run alive long enough to save (peers §3: half an interval saved)",
    ),
    Playbook(
        fault=FaultClass.NODE_LOST,
        response=Response.RESTART,
        deadline=Deadline.NONE,
        tries=None,
        source="DESIGN §5",
    ),
    Playbook(
        fault=FaultClass.PLATFORM_ERROR,
        response=Response.RESTART,
        deadline=Deadline.NONE,
        tries=None,
        source="SageMaker RetryStrategy covers InternalServerError only until its attempts are spent",
    ),
    Playbook(
        fault=FaultClass.SOFTWARE_CRASH,
        response=Response.RESTART,
        deadline=Deadline.NONE,
        tries=None,
        source="DESIGN §5; HyperPod auto-resume does not cover a software crash",
    ),
    Playbook(
        fault=FaultClass.OUT_OF_MEMORY,
        response=Response.RESTART,
        deadline=Deadline.NONE,
        tries=1,
        source="DESIGN §5: one resubmit, then the owner; memory does not grow by trying again",
    ),
    Playbook(
        fault=FaultClass.HANG,
        response=Response.CHECKPOINT_THEN_RESTART,
        deadline=Deadline.SHORT,
        tries=None,
        source="DESIGN §5; a stuck main thread answers 'cannot' with its stack",
    ),
    Playbook(
        fault=FaultClass.NON_FINITE,
        response=Response.ROLL_BACK,
        deadline=Deadline.NONE,
        tries=None,
        source="DESIGN §5; Megatron rerun machine: the same data once more tells hardware from data",
    ),
    Playbook(
        fault=FaultClass.LOSS_SPIKE,
        response=Response.WATCH_THEN_ROLL_BACK,
        deadline=Deadline.FULL,
        tries=None,
        source="BLOOM: a spike healed alone in about 30 iterations; PaLM: resume about 100 steps before, skip 200-500",
    ),
    Playbook(
        fault=FaultClass.DIVERGENCE,
        response=Response.CHECKPOINT_THEN_HAND_OVER,
        deadline=Deadline.FULL,
        tries=None,
        source="DESIGN §5; BLOOM 104B: two data skips did not cure a divergence",
    ),
    Playbook(
        fault=FaultClass.THROUGHPUT_DROP,
        response=Response.TELL,
        deadline=Deadline.NONE,
        tries=None,
        source="DESIGN §5: notify only by default",
    ),
    Playbook(
        fault=FaultClass.PLANNED_END,
        response=Response.CHECKPOINT_THEN_RESTART,
        deadline=Deadline.FULL,
        tries=None,
        source="DESIGN §5; a Spot warning leaves about two minutes (EC2 user guide), and the deadline ends before them",
    ),
    Playbook(
        fault=FaultClass.BAD_CHECKPOINT,
        response=Response.RESTART,
        deadline=Deadline.NONE,
        tries=None,
        source="DESIGN §5; Megatron #5281: no fall-back, 44 identical cycles",
    ),
    Playbook(
        fault=FaultClass.NO_PROGRESS,
        response=Response.HAND_OVER,
        deadline=Deadline.NONE,
        tries=0,
        source="DESIGN §5; NVRx: three cycles without advance end with 'do not requeue'",
    ),
    Playbook(
        fault=FaultClass.JOB_MISSING,
        response=Response.RESTART,
        deadline=Deadline.NONE,
        tries=None,
        source="DESIGN §5; BLOOM's watchdog alerts when no job is running or queued",
    ),
    Playbook(
        fault=FaultClass.OPERATOR_ORDER,
        response=Response.CHECKPOINT_THEN_RESTART,
        deadline=Deadline.FULL,
        tries=None,
        source="the operator asked",
    ),
    Playbook(
        fault=FaultClass.UNCLEAR,
        response=Response.TELL,
        deadline=Deadline.NONE,
        tries=None,
        source="a wrong action costs more than a missed one",
    ),
)

# Responses that go back before an onset. Under them a deadline is that of the checkpoint kept for forensics; `none`
# keeps none.
ROLL_BACKS = frozenset({Response.ROLL_BACK, Response.WATCH_THEN_ROLL_BACK})

# When several Signals disagree, the lower rank names the fault: a cause outranks its echoes.
# Source: DESIGN §5 and peers §4; a poisoned model outranks a stall: a checkpoint of it must not be resumed from.
FAULT_RANK: dict[FaultClass, int] = {
    fault: rank
    for rank, fault in enumerate(
        (
            FaultClass.NON_FINITE,
            FaultClass.DIVERGENCE,
            FaultClass.NODE_HARDWARE,
            FaultClass.NODE_LOST,
            FaultClass.PLANNED_END,
            FaultClass.OUT_OF_MEMORY,
            FaultClass.BAD_CHECKPOINT,
            FaultClass.HANG,
            FaultClass.SOFTWARE_CRASH,
            FaultClass.PLATFORM_ERROR,
            FaultClass.OPERATOR_ORDER,
            FaultClass.LOSS_SPIKE,
            FaultClass.THROUGHPUT_DROP,
            FaultClass.JOB_MISSING,
            FaultClass.NO_PROGRESS,
            FaultClass.UNCLEAR,
        )
    )
}
