"""Jobs as squeue and scontrol show them.

`squeue -O` with markers of ours is the source of nearly everything: one command for all jobs; nothing is cut off; the
markers hold a number that is drawn for each call, so no job's name or comment can forge a column or a row; its
fields are the same from 22.05 to 25.11, and one that a version does not know comes out empty, with status 0 (Source:
slurm src/squeue/opts.c, job_format_add_invalid). JSON is not used: squeue's differs between 22.05, 23.02 and 24.05,
and scontrol has none before 23.02. What squeue has no field for (excluded nodes, the way to submit the job again) is
read from `scontrol -o show job`, for protected jobs that changed; its values are not quoted, so the name and the
comment, which users choose, are handed to the parser as squeue gave them (see `text.fields`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from rekindle.protocol.cluster.documents import OVER, SlurmState
from rekindle.protocol.cluster.orders import MAX_SLURM_JOB
from rekindle.slurm_agent.base.ports import UnknownJob
from rekindle.slurm_agent.reading import text
from rekindle.slurm_agent.reading.run import Unreadable

# Order matters only in `_row`.
COLUMNS: Final = (
    "JobID",
    "RestartCnt",
    "UserID",
    "UserName",
    "GroupID",
    "State",
    "Reason",
    "NodeList",
    "NumNodes",
    "SubmitTime",
    "StartTime",
    "EndTime",
    "TimeLimit",
    "BatchFlag",
    "Requeue",
    "Partition",
    "Dependency",
    "ArrayJobID",
    "ArrayTaskID",
    "HetJobID",
    "HetJobOffset",
    "BatchHost",
    "PriorityLong",
    "STDOUT",
    "STDERR",
    "WorkDir",
    "Command",
    "Name",
    "Comment",
)
# Without what its users alone make long: slurmctld bounds every other field to some kilobytes, and an argument list to
# nothing (seen on 22.05: 120 kB in one).
LEAN_COLUMNS: Final = tuple(name for name in COLUMNS if name != "Command")
UNREAD_COMMAND: Final = "(not read) (not read)"  # found in no state of slurmctld's: its arguments are then not known

CLOCKS_APART: Final = timedelta(seconds=30)  # a time limit is a minute at least, so an expected end lies beyond this

_FLAG: Final = re.compile(r"([A-Z][A-Za-z]+)=(Yes|No)")
_SOME_FLAGS: Final = re.compile(rf"{_FLAG.pattern}(?:,?{_FLAG.pattern})+")
KILL_ON_INVALID: Final = "KillOnInvalidDependent"
CODE_COLUMNS: Final = ("JobID", "DerivedEC")
STEP_COLUMNS: Final = ("StepID", "StepState", "StartTime")

_STATES: Final = {state.value.upper(): state for state in SlurmState}
# Words that squeue shows for flags and that are no base state. Source: squeue(1), JOB STATE CODES.
_OTHERS: Final = {
    "REQUEUED": SlurmState.COMPLETING,  # this start is being taken down; its successor shows with RestartCnt + 1
    "REQUEUE_FED": SlurmState.COMPLETING,
    "REQUEUE_HOLD": SlurmState.PENDING,
    "SPECIAL_EXIT": SlurmState.PENDING,
    "RESV_DEL_HOLD": SlurmState.PENDING,
    "RESIZING": SlurmState.RUNNING,
    "SIGNALING": SlurmState.RUNNING,
    "STAGE_OUT": SlurmState.COMPLETING,
    "POWER_UP_NODE": SlurmState.CONFIGURING,
    "EXPEDITING": SlurmState.PENDING,  # 25.11
}
# Ours, no state of Slurm's; a word of Slurm's must never be read as them.
_NEVER: Final = frozenset({SlurmState.GONE, SlurmState.REQUEUED, SlurmState.UNKNOWN})
ENDED: Final = OVER | {SlurmState.REQUEUED, SlurmState.GONE}
REQUEUED_HELD: Final = "job requeued in held state"  # blanks or `_` between its words, by version
HELD_BY_SLURM: Final = "launch failed requeued"
HELD_BY_ADMIN: Final = "JobHeldAdmin"  # as `state_reason`: what text shows as the reason is kept of the hold before
HELD_REASONS: Final = ("JobHeld", REQUEUED_HELD, HELD_BY_SLURM)


def spaced_reason(reason: str) -> str:
    """A reason with blanks between its words, as some versions write it."""
    return reason.replace("_", " ")


def state_of(word: str) -> SlurmState:
    """A state's word, with or without what follows it (`CANCELLED by 1000`, `RUNNING+STAGE_OUT`)."""
    parts = word.strip().upper().replace("+", " ").split()
    if not parts:
        return SlurmState.UNKNOWN
    base = _STATES.get(parts[0])
    if base is not None and base not in _NEVER:
        return base
    return _OTHERS.get(parts[0], SlurmState.UNKNOWN)


def canceller_of(word: str) -> int | None:
    """The uid in sacct's `CANCELLED by 1000`; None for a word without one."""
    parts = word.strip().upper().replace("+", " ").split()
    return int(parts[2]) if parts[:2] == ["CANCELLED", "BY"] and len(parts) > 2 and parts[2].isdecimal() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job of squeue's, a field per column that is asked for (hence their number).

    `node_list` is unexpanded; `array_task` is "" and `het_job` None outside such jobs.

    `is_taken_down`: the record counts the next start already while the one before it still ends. Seen on 22.05: a
    requeued job shows COMPLETING with RestartCnt + 1, and an end that is expected, until its processes are gone.
    """

    job: int
    restart: int
    uid: int | None
    user: str
    gid: int | None
    state: SlurmState
    word: str  # the state as squeue wrote it
    reason: str
    node_list: str
    node_count: int
    submitted: datetime | None
    started: datetime | None
    ends: datetime | None
    limit_s: int | None
    is_batch: bool
    may_requeue: bool
    partition: str
    dependency: str
    array_job: int | None
    array_task: str
    het_job: int | None
    het_offset: int | None
    batch_host: str
    priority: int | None
    stdout: str
    stderr: str
    workdir: str
    command: str
    name: str
    comment: str
    is_taken_down: bool = False

    @property
    def is_held(self) -> bool:
        """It will not start before it is released."""
        return self.state is SlurmState.PENDING and (
            self.priority == 0 or spaced_reason(self.reason).startswith(HELD_REASONS)
        )

    @property
    def step_key(self) -> str:
        """What its steps are listed under: the array's id and the task's, in an array."""
        return f"{self.array_job}_{self.array_task}" if self.is_array_task else str(self.job)

    @property
    def kept_as(self) -> int:
        """Under whose number slurmctld keeps its script and its environment: in an array all have the array's."""
        return self.array_job if self.is_array_task and self.array_job is not None else self.job

    @property
    def is_array_task(self) -> bool:
        return self.array_task != ""

    @property
    def is_lump(self) -> bool:
        """Array tasks that have not started yet and share one record, or a part of a heterogeneous job."""
        return (self.is_array_task and not text.is_number(self.array_task)) or (self.het_offset or 0) > 0

    def nodes(self) -> tuple[str, ...]:
        """Raises: Unreadable."""
        return text.hosts(self.node_list)


class PastStart(NamedTuple):
    """One start, as the accounting or job completion log has it; `step_status` is the highest of its steps, if told."""

    word: str
    status: str
    nodes: str
    step_status: str = ""


def format_of(columns: Sequence[str], mark: str) -> tuple[str, str, str]:
    """The value of `-O`, and the markers between columns and behind rows. `mark` is drawn for each call."""
    between, end = f"|{mark}|", f"|{mark}#"
    parts = [f"{name}:{between}" for name in columns[:-1]] + [f"{columns[-1]}:{end}"]
    return ",".join(parts), between, end


def parse_jobs(output: str, between: str, end: str, now: datetime, columns: Sequence[str] = COLUMNS) -> tuple[Job, ...]:
    """`columns`: COLUMNS or LEAN_COLUMNS. Raises: Unreadable."""
    return tuple(_row(row, now, columns) for row in text.rows(output, between, end, len(columns)))


def _row(row: Sequence[str], now: datetime, columns: Sequence[str]) -> Job:
    at = dict(zip(columns, row, strict=True))
    job = text.whole(at["JobID"])
    if job is None or not 0 < job <= MAX_SLURM_JOB:
        raise Unreadable("a job has an id that is none")
    restart = text.whole(at["RestartCnt"])
    if restart is None or restart > 10**6:
        raise Unreadable(f"job {job} has a count of restarts that is none")
    state, ends = state_of(at["State"]), text.moment(at["EndTime"])
    is_task = text.value(at["ArrayTaskID"]) != ""
    # Left empty by newer versions where nothing was asked for. Source: sbatch(1), --output.
    stdout = text.value(at["STDOUT"]) or ("slurm-%A_%a.out" if is_task else "slurm-%j.out")
    is_expected = ends is None or ends > now + CLOCKS_APART
    return Job(
        job=job,
        restart=restart,
        uid=text.whole(at["UserID"]),
        user=at["UserName"].strip(),
        gid=text.whole(at["GroupID"]),
        state=state,
        word=at["State"].strip(),
        reason=text.value(at["Reason"]),
        node_list=text.value(at["NodeList"]),
        node_count=text.whole(at["NumNodes"].partition("-")[0]) or 0,
        submitted=text.moment(at["SubmitTime"]),
        started=text.moment(at["StartTime"]),
        ends=ends,
        limit_s=text.seconds(at["TimeLimit"]),
        is_batch=at["BatchFlag"].strip() not in ("0", ""),
        may_requeue=at["Requeue"].strip() == "1",
        partition=text.value(at["Partition"]),
        dependency=text.value(at["Dependency"]),
        array_job=text.whole(at["ArrayJobID"]),
        array_task=text.value(at["ArrayTaskID"]),
        het_job=text.whole(at["HetJobID"]) or None,
        het_offset=text.whole(at["HetJobOffset"]) if text.whole(at["HetJobID"]) else None,
        batch_host=text.value(at["BatchHost"]),
        priority=text.whole(at["PriorityLong"]),
        stdout=stdout,
        stderr=text.value(at["STDERR"]) or stdout,
        workdir=text.value(at["WorkDir"]),
        command=text.value(at.get("Command", UNREAD_COMMAND)),
        name=at["Name"],
        comment=text.value(at["Comment"]),
        is_taken_down=state is SlurmState.COMPLETING and restart > 0 and is_expected,
    )


def parse_steps(output: str, between: str, end: str) -> dict[str, int]:
    """How many numbered steps run, by `Job.step_key`; batch, extern and interactive are none of the user's ranks."""
    found: dict[str, int] = {}
    for identity, state, _ in text.rows(output, between, end, len(STEP_COLUMNS)):
        job, _, step = identity.strip().partition(".")
        if step[:1].isdigit() and state.strip().upper() in ("RUNNING", "", "N/A"):
            found[job] = found.get(job, 0) + 1
    return found


def parse_codes(output: str, between: str, end: str, job: int) -> tuple[int | None, int | None]:
    """Exit code and signal of the job's steps, the highest; None where it is not shown. Raises: Unreadable."""
    rows = text.rows(output, between, end, len(CODE_COLUMNS))
    return next((text.exit_status(code.strip()) for number, code in rows if number.strip() == str(job)), (None, None))


def parse_why_waiting(output: str, job: int) -> str:
    """`state_reason` of a job in squeue's JSON. Raises: UnknownJob, Unreadable."""
    try:
        found = [str(shown["state_reason"]) for shown in json.loads(output)["jobs"] if shown["job_id"] == job]
    except (ValueError, KeyError, TypeError, RecursionError) as err:
        raise Unreadable(f"squeue --json shows no reason of job {job}") from err
    if not found:
        raise UnknownJob(f"slurmctld does not know job {job}")
    return found[0]


def parse_detail(output: str, job: Job | None = None) -> dict[str, str]:
    """The pairs of `scontrol -o show job <id>`; for more than one record (an array), the asked one's.

    `job`: as squeue gave it, for the values that its user chose. Raises: Unreadable where it shows no job.
    """
    known = {} if job is None else {"JobName": job.name, "Comment": job.comment}
    # The record of a job that is no part of another reaches to the end, whatever its user has put on a line of its own.
    is_alone = job is not None and not job.is_array_task and job.het_job is None
    lines = [line for line in ([output] if is_alone else _records(output)) if line.startswith("JobId=")]
    for line in lines:
        if job is None or line.startswith(f"JobId={job.job} "):
            return _flags(text.fields(line, known if job is None else known | _submit_line(line, job)))
    raise Unreadable("scontrol shows no job")


def parse_details(output: str, jobs: Sequence[Job]) -> dict[int, dict[str, str]]:
    """Of `scontrol -o show job` about all jobs: the records of those that have exactly one.

    Values are not quoted, so a user may write what looks like another job's record into his own, on a line of its own.
    Then that job has two, and neither counts; nor does the one that he has cut. An ended job, which may have gone
    meanwhile, is left out for that reason.
    """
    own: dict[str, list[str]] = {}
    for record in _records(output):
        own.setdefault(record.partition(" ")[0], []).append(record)
    found = {}
    for job in jobs:
        records = own.get(f"JobId={job.job}", [])
        is_cut = "\n" in job.name + job.comment + job.workdir + job.command
        if len(records) == 1 and job.state not in ENDED and not is_cut:
            try:
                found[job.job] = parse_detail(records[0], job)
            except Unreadable:
                continue
    return found


def _flags(at: Mapping[str, str]) -> dict[str, str]:
    """Up to 25.05 some flags share one value: `GresEnforceBind=Yes,KillOInInvalidDependent=YesSpreadJob=Yes`."""
    found: dict[str, str] = {}
    for key, given in at.items():
        if "=" in given and _SOME_FLAGS.fullmatch(f"{key}={given}"):
            found.update(_FLAG.findall(f"{key}={given}"))
        else:
            found[key] = given
    if "KillOInInvalidDependent" in found:  # as it is spelt there
        found[KILL_ON_INVALID] = found.pop("KillOInInvalidDependent")
    return found


def _submit_line(line: str, job: Job) -> dict[str, str]:
    """The line of the submission, which 25.11 and newer show unquoted between the script's path and the work folder."""
    shown = line.partition(f" Comment={job.comment}")[0] if job.comment else line
    _, found, rest = shown.partition(f" Command={job.command} SubmitLine=")
    stated, cut, _ = rest.rpartition(f" WorkDir={job.workdir}")
    return {"SubmitLine": stated} if found and cut else {}


def _records(output: str) -> Iterator[str]:
    """A job's record starts at a line with `JobId=`; a name or comment with a line break in it continues over lines."""
    kept: list[str] = []
    for line in output.split("\n"):
        if line.startswith("JobId=") and kept:
            yield "\n".join(kept)
            kept = []
        kept.append(line)
    if kept:
        yield "\n".join(kept)


def dependencies(expression: str) -> tuple[tuple[str, int | None, str], ...]:
    """The parts of Slurm's expression as (kind, job id, its own text without the state in brackets)."""
    found = []
    for part in expression.replace("?", ",").split(","):
        plain = part.partition("(")[0].strip()
        kind, _, rest = plain.partition(":")
        number = text.whole(rest.partition("+")[0].partition("_")[0])
        if plain:
            found.append((kind, number, plain))
    return tuple(found)


def plain_dependency(expression: str) -> str:
    """The expression as sbatch and scontrol update take it: without the states in brackets."""
    glue = "?" if "?" in expression else ","
    return glue.join(part for _, _, part in dependencies(expression))


def repointed(expression: str, job: int, other: int) -> str | None:
    """The expression with one job in place of the other; None where it does not name it."""
    glue = "?" if "?" in expression else ","
    parts, is_changed = [], False
    for kind, number, plain in dependencies(expression):
        if number == job:
            tail = plain.partition(":")[2][len(str(job)) :]
            plain, is_changed = f"{kind}:{other}{'' if tail.startswith('_') else tail}", True
        parts.append(plain)
    return glue.join(parts) if is_changed else None
