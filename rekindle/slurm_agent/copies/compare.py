"""Whether a copy of a job is the same job: `scontrol show job` of both, field by field. Pure.

A copy waits, held, until it was compared with what its original showed. A field that stands in no row must be equal: a
field of a newer Slurm is rather refused than lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rekindle.compat import StrEnum
from rekindle.protocol.cluster.documents import SlurmState
from rekindle.slurm_agent.copies.capture import LIMITS, UMASK, USER_ENV
from rekindle.slurm_agent.copies.hashes import OF_THIS_PROCESS, ValueHashes, surely_differ
from rekindle.slurm_agent.reading import text
from rekindle.slurm_agent.reading.jobs import Job
from rekindle.slurm_agent.reading.line import SPANK
from rekindle.slurm_agent.reading.options import expand
from rekindle.slurm_agent.reading.run import Unreadable

MAX_VALUE_CHARS: Final = 8192
VERSION: Final = "(Slurm)"  # ours, beside Slurm's own keys
STATE: Final = "(state)"
ASKED_NAME: Final = "(name)"  # as it was submitted, where its name has been changed since
LEFT_OUT: Final = "(left out) "  # before the name of a variable that is not kept: its hash
COMMENT: Final = "Comment"  # kept so that a copy has its user's
FRESH: Final = "waiting"  # it has never had nodes: the figures are those that were asked for


class Rule(StrEnum):
    SAME = "must be equal"
    ASKED = "must be equal where neither has ever had nodes, and the order names no other size"
    HOSTS = "must name the nodes that the order leaves"
    MAY = "may differ"


# Source: slurm src/api/job_info.c at 22.05, 24.11 and 26.05; which figures change when nodes are given was seen on all
# three. (key, rule, why).
ROWS: Final = (
    ("JobId", Rule.MAY, "each has its own"),
    ("JobName", Rule.SAME, ""),
    ("UserId", Rule.SAME, ""),
    ("GroupId", Rule.SAME, ""),
    ("MCS_label", Rule.MAY, "given when a job starts"),
    ("Priority", Rule.MAY, "the copy is held"),
    ("Reason", Rule.MAY, "the copy is held"),
    ("JobState", Rule.MAY, "the copy is held"),
    ("Dependency", Rule.MAY, "what the original waited for may have ended; sbatch refuses one that cannot be"),
    ("Restarts", Rule.MAY, "the copy has none"),
    ("BatchFlag", Rule.MAY, "counts the starts of one job"),
    ("ExitCode", Rule.MAY, "of what has run"),
    ("DerivedExitCode", Rule.MAY, "of what has run"),
    ("RunTime", Rule.MAY, "a time"),
    ("SubmitTime", Rule.MAY, "a time"),
    ("EligibleTime", Rule.MAY, "a time"),
    ("AccrueTime", Rule.MAY, "a time"),
    ("StartTime", Rule.MAY, "a time"),
    ("EndTime", Rule.MAY, "a time"),
    ("SuspendTime", Rule.MAY, "a time"),
    ("SecsPreSuspend", Rule.MAY, "a time"),
    ("PreemptTime", Rule.MAY, "a time"),
    ("PreemptEligibleTime", Rule.MAY, "a time"),
    ("ResizeTime", Rule.MAY, "a time"),
    ("LastSchedEval", Rule.MAY, "a time"),
    ("Scheduler", Rule.MAY, "who looked at it last"),
    ("AllocNode:Sid", Rule.MAY, "where it was submitted"),
    ("ReqNodeList", Rule.HOSTS, "without the nodes that the order excludes"),
    ("ExcNodeList", Rule.HOSTS, "with the nodes that the order excludes"),
    ("NodeList", Rule.MAY, "of what has run"),
    ("SchedNodeList", Rule.MAY, "what the scheduler thinks of"),
    ("NodeListIndices", Rule.MAY, "of what has run"),
    ("BatchHost", Rule.MAY, "of what has run"),
    ("FailedNode", Rule.MAY, "of what has run"),
    ("NumNodes", Rule.ASKED, "what was given takes the place of what was asked for"),
    ("NumCPUs", Rule.ASKED, "what was given takes the place of what was asked for"),
    ("NumTasks", Rule.ASKED, "derived from the number of nodes where tasks were not asked for"),
    ("TRES", Rule.ASKED, "22.05: what was given takes the place of what was asked for"),
    ("ReqTRES", Rule.ASKED, "derived from the other fields, and with --ntasks-per-gpu again at the start"),
    ("AllocTRES", Rule.MAY, "of what has run"),
    ("LicensesAlloc", Rule.MAY, "of what has run"),
    ("GresAlloc", Rule.MAY, "of what has run"),
    ("Command", Rule.MAY, "the script's copy; script and arguments are held word by word"),
    ("SubmitLine", Rule.MAY, "options stand in the fields"),
    (COMMENT, Rule.MAY, "names the Job and the new attempt"),
    ("AdminComment", Rule.MAY, "an administrator's or a plug-in's, about what has run"),
    ("SystemComment", Rule.MAY, "a plug-in's, about what has run"),
    ("StdOut", Rule.SAME, "with its patterns replaced"),
    ("StdErr", Rule.SAME, "with its patterns replaced"),
    ("ContainerID", Rule.MAY, "of what has run"),
    ("BurstBufferState", Rule.MAY, "of what has run"),
    ("ResvPorts", Rule.MAY, "of what has run"),
    ("SegmentList", Rule.MAY, "of what has run"),
)  # fmt: skip
_RULES: Final = {key: rule for key, rule, _ in ROWS}


def shown_of(
    job: Job,
    detail: Mapping[str, str],
    environment: Mapping[str, str] | None,
    version: str,
    hashes: ValueHashes = OF_THIS_PROCESS,
) -> dict[str, str]:
    """What must be found again in a copy, by Slurm's keys and by variables of the submission that slurmd reads. Of a
    plug-in's option a hash: it may be a secret."""
    found = {
        key: _plain(given)
        for key, given in detail.items()
        if key == COMMENT or _RULES.get(key, Rule.SAME) is not Rule.MAY
        if len(given) <= MAX_VALUE_CHARS and given.isprintable()
    }
    found["StdOut"], found["StdErr"] = expand(job.stdout, job), expand(job.stderr, job)
    found[VERSION] = ".".join(version.split(".")[:2])
    # Of the record itself: the job may have started since squeue listed it, and the figures with it.
    is_fresh = job.restart == 0 and detail.get("JobState", job.state.value).upper() == "PENDING"
    found[STATE] = FRESH if is_fresh and job.state is SlurmState.PENDING else SlurmState.RUNNING.value
    for name, given in (environment or {}).items():
        if name.startswith((SPANK, f"SLURM_SPANK_{SPANK}")):
            found[name] = hashes.of(name, given)
        elif _is_read_by_slurmd(name) and len(given) <= MAX_VALUE_CHARS and given.isprintable():
            found[name] = given
    return {key: given for key, given in found.items() if given}


def differences(
    before: Mapping[str, str], copy: Mapping[str, str], *, hosts: Mapping[str, frozenset[str]], is_resized: bool
) -> tuple[str, ...]:
    """Which fields differ, one line each; none: it is the same job.

    hosts: what `Rule.HOSTS` fields must name in the copy. is_resized: the order names another number of nodes.
    """
    keys = before.keys() | copy.keys()
    if before.get(VERSION) != copy.get(VERSION):  # Slurm was upgraded meanwhile: what both versions show
        keys = {key for key in keys if key in before and key in copy}
    keys |= hosts.keys()
    was_fresh = {before.get(STATE), copy.get(STATE)} == {FRESH} and not is_resized
    found = []
    for key in sorted(key for key in keys - {VERSION, STATE, ASKED_NAME} if not key.startswith(LEFT_OUT)):
        old, new, rule = before.get(key, ""), copy.get(key, ""), _RULES.get(key, Rule.SAME)
        if rule is Rule.HOSTS:
            if hosts_of(new) != hosts.get(key, frozenset()):
                found.append(f"{key} is {_short(new)}, and should be {_short(','.join(sorted(hosts.get(key, ()))))}")
        elif rule is Rule.SAME or (rule is Rule.ASKED and was_fresh):
            if SPANK in key:
                if surely_differ(old, new):
                    found.append(f"{key.partition(SPANK)[2]}, an option of a SPANK plug-in, is not the same")
            elif old != new:
                found.append(f"{key} was {_short(old)}, and would be {_short(new)}")
    return tuple(dict.fromkeys(found))


def _is_read_by_slurmd(name: str) -> bool:
    """A variable that changes how slurmd starts the job: limits, umask, the user's login environment."""
    return name in (UMASK, USER_ENV) or name.startswith(LIMITS)


def _plain(given: str) -> str:
    """`gres:gpu:2` (22.05) is `gres/gpu:2`; a range of one is its number."""
    found = text.value(given).replace("gres:", "gres/")
    low, dash, high = found.partition("-")
    return low if dash and low == high and text.is_number(low) else found


def hosts_of(written: str) -> frozenset[str]:
    """The nodes of a list; what cannot be read as one counts as one."""
    try:
        return frozenset(text.hosts(written))
    except Unreadable:
        return frozenset({written})


def _short(given: str) -> str:
    return repr(given[:80]) if given else "nothing"
