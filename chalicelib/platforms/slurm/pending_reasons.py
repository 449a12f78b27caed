"""Why a Slurm job waits: Slurm's reason -> what that means for a recovery that waits for the job. Data.

Source: squeue, JOB REASON CODES, and https://slurm.schedmd.com/job_reason_codes.html; where several reasons hold Slurm
shows one of them, so a reason is looked at again before it is believed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from chalicelib.domain.model.start_view import UNKNOWN_REASON, Wait, Waits


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonRow:
    """One pattern, matched against the whole word; `example` is one that it must match."""

    waits: Waits
    pattern: str
    example: str
    text: str
    source: str
    is_short: bool = False  # it waits for nodes, and for nothing else: fewer might do


_MAN: Final = "squeue, JOB REASON CODES"
_PAGE: Final = "slurm.schedmd.com/job_reason_codes.html"

REASONS: Final[tuple[ReasonRow, ...]] = (
    ReasonRow(
        waits=Waits.HELD,
        pattern=r"JobHeld(User|Admin)",
        example="JobHeldUser",
        text="a user or an administrator holds it",
        source=_MAN,
    ),
    ReasonRow(
        waits=Waits.HELD,
        pattern=r"JobHoldMaxRequeue|MaxRequeue",
        example="JobHoldMaxRequeue",
        text="Slurm holds it after too many requeues (MAX_BATCH_REQUEUE)",
        source=_PAGE,
    ),
    ReasonRow(
        waits=Waits.HELD,
        pattern=r"launch[ _]failed[ _]requeued[ _]held|JobLaunchFailure|Reservation(Deleted|Invalid)"
        r"|job requeued in held state",
        example="launch failed requeued held",
        text="Slurm holds it, because it could not be launched or its reservation is gone or not for it",
        source=f"{_MAN}; slurm source, job_state_reason_string and job_scheduler.c: WAIT_RESV_INVALID is a hold",
    ),
    ReasonRow(
        waits=Waits.NEVER,
        pattern=r"BadConstraints|PartitionConfig|DependencyNeverSatisfied|Invalid(Account|QOS)|(Account|QOS)NotAllowed",
        example="BadConstraints",
        text="as it was asked for it can never start",
        source=_MAN,
    ),
    ReasonRow(
        waits=Waits.NEVER,
        pattern=r"PartitionTimeLimit|DeadLine|InactiveLimit",
        example="PartitionTimeLimit",
        text="its time limit does not fit the partition, or its deadline has passed",
        source=_MAN,
    ),
    ReasonRow(
        waits=Waits.NEVER,
        pattern=r"(AssocMax|QOSMax)\w*Per(Job|Node)\w*|QOSMaxWall\w*|QOSMin\w*|MaxMemPerLimit",
        example="QOSMaxNodePerJobLimit",
        text="it asks for more (or less) than one job may have under its QOS or association",
        source=f"{_PAGE}: a portion of the job request exceeds a limit per job or per node",
    ),
    ReasonRow(
        waits=Waits.DOUBTFUL,
        pattern=r"PartitionNodeLimit",
        example="PartitionNodeLimit",
        text="it asks for more nodes than its partition may give, or needs nodes that are down or drained",
        source=f"{_MAN}: can also indicate that required nodes are DOWN or DRAINED",
    ),
    ReasonRow(
        waits=Waits.DOUBTFUL,
        pattern=r"ReqNodeNotAvail,?[ _]UnavailableNodes:.*",
        example="ReqNodeNotAvail, UnavailableNodes:ip-10-1-2-3",
        text="nodes that it would get are down or drained",
        source=_MAN,
        is_short=True,
    ),
    ReasonRow(
        waits=Waits.DOUBTFUL,
        pattern=r"Nodes[ _]required[ _]for[ _]job[ _]are[ _]DOWN,[ _]DRAINED.*",
        example="Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
        text="too many nodes are down, drained or reserved for other jobs",
        source="seen on Slurm 22.05",
        is_short=True,
    ),
    ReasonRow(
        waits=Waits.DOUBTFUL,
        pattern=r"Partition(Down|Inactive)|NodeDown|Constraints|ReqNodeNotAvail.*|FrontEndDown|SystemFailure|Prolog",
        example="ReqNodeNotAvail, May be reserved for other job",
        text="nodes or a partition that it needs are away",
        source=_MAN,
    ),
    ReasonRow(
        waits=Waits.IN_QUEUE,
        pattern=r"(AssocGrp|QOSGrp)\w*|Association(Job|Resource|Time)Limit|QOS(Job|Resource|Time)Limit|QOSUsageThreshold"
        r"|QOSMax\w*Per(User|Account)\w*|Max\w+Per(User|Account)|AssocMax(Submit)?Jobs?Limit|JobArrayTaskLimit"
        r"|AccountingPolicy",
        example="AssocGrpGRES",
        text="its user, account or QOS has as much as it may have at a time",
        source=f"{_PAGE}; AssocMaxJobsLimit counts jobs at a time: seen on 22.05, 24.11 and 26.05",
    ),
    ReasonRow(
        waits=Waits.IN_QUEUE,
        pattern=r"Resources",
        example="Resources",
        text="it waits for nodes to become free",
        source=_MAN,
        is_short=True,
    ),
    ReasonRow(
        waits=Waits.IN_QUEUE,
        pattern=r"Priority|Dependency|BeginTime|Licenses|Reservation|Cleaning|None|SchedDefer|FedJobLock"
        r"|BurstBuffer\w+|NonZeroExitCode|RaisedSignal|OutOfMemory|TimeLimit|Power(NotAvail|Reserved)|MaxPoweredUpNodes"
        r"|MpiPortsBusy|NvidiaImexChannels|",
        example="Priority",
        text="it waits its turn",
        source=_MAN,
    ),
)


def judge(reason: str) -> ReasonRow | None:
    """The row of a pending job's reason; None for a word that no row knows."""
    word = reason.strip().strip("()")[:500]
    return next((row for row in REASONS if _matches(row.pattern, word)), None)


def wait_of(reason: str) -> Wait:
    """What decisions know of a pending job's reason."""
    row = judge(reason)
    for_jobs = reason.startswith("Dependency")
    if row is None:
        return Wait(word=reason, waits=Waits.DOUBTFUL, text=UNKNOWN_REASON, for_jobs=for_jobs)
    return Wait(word=reason, waits=row.waits, text=row.text, is_short=row.is_short, for_jobs=for_jobs)


def _matches(pattern: str, word: str) -> bool:
    return re.fullmatch(pattern, word, re.IGNORECASE) is not None
