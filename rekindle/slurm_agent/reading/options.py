"""From what Slurm shows of a job to the sbatch options that ask for the same again. Pure.

Two sources. Slurm's record, for what is the same for every user (partition, account, limits, nodes). The job's
environment at submission, for what Slurm's record shows as a derived figure too: sbatch puts SLURM_NTASKS there only
where a number of tasks was asked for, and giving `--ntasks` to a job that did not ask changes what its srun does.
The script's own `#SBATCH` lines are read again by sbatch; an option given here counts more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rekindle.protocol.cluster.documents import SlurmState
from rekindle.slurm_agent.reading import text
from rekindle.slurm_agent.reading.jobs import KILL_ON_INVALID, Job
from rekindle.slurm_agent.reading.line import options_to_repeat

# (key of scontrol show job, sbatch's option). Source: scontrol(1), sbatch(1); slurm src/api/job_info.c.
_SAME: Final = (
    ("Account", "account"),
    ("QOS", "qos"),
    ("Reservation", "reservation"),
    ("Features", "constraint"),
    ("Prefer", "prefer"),
    ("Licenses", "licenses"),
    ("Network", "network"),
    ("ReqNodeList", "nodelist"),
    ("ExcNodeList", "exclude"),
    ("MailUser", "mail-user"),
    ("MailType", "mail-type"),
    ("TimeMin", "time-min"),
    ("WCKey", "wckey"),
    ("Container", "container"),
    ("BurstBuffer", "bb"),
    ("Switches", "switches"),
    ("CpusPerTres", "cpus-per-gpu"),
    ("MemPerTres", "mem-per-gpu"),
)
# (variable that sbatch sets, option). Source: sbatch(1), OUTPUT ENVIRONMENT VARIABLES.
_ASKED: Final = (
    ("SLURM_NTASKS", "ntasks"),
    ("SLURM_NTASKS_PER_NODE", "ntasks-per-node"),
    ("SLURM_NTASKS_PER_SOCKET", "ntasks-per-socket"),
    ("SLURM_NTASKS_PER_CORE", "ntasks-per-core"),
    ("SLURM_NTASKS_PER_GPU", "ntasks-per-gpu"),
    ("SLURM_CPUS_PER_TASK", "cpus-per-task"),
    ("SLURM_GPUS", "gpus"),
    ("SLURM_GPUS_PER_NODE", "gpus-per-node"),
    ("SLURM_GPUS_PER_TASK", "gpus-per-task"),
    ("SLURM_GPUS_PER_SOCKET", "gpus-per-socket"),
    ("SLURM_GPU_BIND", "gpu-bind"),
    ("SLURM_GPU_FREQ", "gpu-freq"),
    ("SLURM_CPUS_PER_GPU", "cpus-per-gpu"),
    ("SLURM_MEM_PER_GPU", "mem-per-gpu"),
    ("SLURM_DISTRIBUTION", "distribution"),
    ("SLURM_HINT", "hint"),
    ("SLURM_THREADS_PER_CORE", "threads-per-core"),
    ("SLURM_PROFILE", "profile"),
)
# What `OverSubscribe` says where there is no `Exclusive` beside it (on 26.05 there is, and it says NO for all jobs).
_SHARING: Final = {
    "NO": ("exclusive", None),
    "USER": ("exclusive", "user"),
    "MCS": ("exclusive", "mcs"),
    "TOPO": ("exclusive", "topo"),
    "YES": ("oversubscribe", None),
}
_YES_OR_NO: Final = (("Contiguous", "contiguous"), ("Reboot", "reboot"))
_EXCLUSIVE: Final = {"NODE": None, "YES": None, "USER": "user", "MCS": "mcs", "TOPO": "topo"}
MAX_VALUE_CHARS: Final = 8192


def options_of(
    job: Job,
    detail: Mapping[str, str],
    environment: Mapping[str, str] | None,
    stdout: str,
    stderr: str,
    *,
    script: Mapping[str, str | None] | None = None,
    line: Mapping[str, str | None] | None = None,
) -> dict[str, str | None]:
    """sbatch's long options with their values, None for a flag. `stdout` and `stderr` are whole paths.

    script, line: the options of its `#SBATCH` lines and of its submission's command line, as far as those are known.
    """
    asked, written = environment or {}, {**(script or {}), **(line or {})}
    found: dict[str, str | None] = {"job-name": job.name}
    found |= {option: text.value(detail.get(key)) for key, option in _SAME}
    found |= _sizes(detail)
    found["partition"] = partitions_of(job, asked, script=script, line=line)
    found["begin"] = _begin(detail, asked, written)
    found |= _of_environment(asked)
    found |= _per_task(detail, written)
    if not any(name.startswith(("gpus", "tres-per-task")) for name in found if found[name]):
        found["gres"] = _gres(detail.get("TresPerNode", ""))
        found["gpus"] = _gres(detail.get("TresPerJob", "")).removeprefix("gpu:")
    found |= _flags(job, detail, asked)
    found |= _export(asked)
    found |= _files(detail, stdout, stderr)
    if line is not None:
        found |= _node_count(script, line)
        for name, given in options_to_repeat(line, asked).items():
            found.setdefault(name, _FLAG if given is None else given)
    return {
        name: None if given is _FLAG else given
        for name, given in found.items()
        if given and len(given) <= MAX_VALUE_CHARS and given.isprintable()
    }


def _flags(job: Job, detail: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str | None]:
    """Options that are there or not, and those that say yes or no."""
    found: dict[str, str | None] = {"requeue" if job.may_requeue else "no-requeue": _FLAG}
    sharing = _sharing(detail)
    if sharing is not None:
        option, given = sharing
        found[option] = given if given is not None else _FLAG
    found |= {option: _FLAG for key, option in _YES_OR_NO if detail.get(key) == "1"}
    if detail.get(KILL_ON_INVALID) in ("Yes", "No"):
        found["kill-on-invalid-dep"] = detail[KILL_ON_INVALID].lower()
    if "SLURM_OVERCOMMIT" in environment:
        found["overcommit"] = _FLAG
    return found


def _export(environment: Mapping[str, str]) -> dict[str, str | None]:
    names = exported(environment.get("SLURM_EXPORT_ENV"))
    found: dict[str, str | None] = {"export": names}
    if "SLURM_GET_USER_ENV" in environment and names in ("", "ALL"):  # a list of names implies it
        found["get-user-env"] = _FLAG
    return found


def _files(detail: Mapping[str, str], stdout: str, stderr: str) -> dict[str, str | None]:
    stdin = text.value(detail.get("StdIn"))
    return {
        "output": _literal(stdout),
        "error": _literal(stderr) if stderr != stdout else "",
        "input": _literal(stdin) if stdin != "/dev/null" else "",
    }


def _node_count(script: Mapping[str, str | None] | None, line: Mapping[str, str | None]) -> dict[str, str | None]:
    """The number of nodes as it was asked for; "" where Slurm chose it. {}: as Slurm's record shows it."""
    if script is not None and "nodes" not in line and "nodes" not in script:
        return {"nodes": ""}
    asked = line.get("nodes") or (script or {}).get("nodes")
    return {"nodes": asked} if asked else {}


def _of_environment(environment: Mapping[str, str]) -> dict[str, str | None]:
    """What a variable of the submission shows."""
    found: dict[str, str | None] = {
        option: environment[variable] for variable, option in _ASKED if environment.get(variable)
    }
    if found.get("distribution") == "plane" and environment.get("SLURM_DIST_PLANESIZE"):
        found["distribution"] = f"plane={environment['SLURM_DIST_PLANESIZE']}"
    if found.get("hint"):  # which sets the other; sbatch drops the hint where both are given
        found.pop("threads-per-core", None)
    return found


def partitions_of(
    job: Job,
    environment: Mapping[str, str],
    *,
    script: Mapping[str, str | None] | None,
    line: Mapping[str, str | None] | None,
) -> str:
    """The partitions that were asked for. Of a list slurmctld shows, once the job has started, the one it runs in."""
    asked = (
        (line or {}).get("partition") or environment.get("SBATCH_PARTITION") or (script or {}).get("partition") or ""
    )
    has_started = job.state is not SlurmState.PENDING
    return asked if has_started and job.partition in asked.split(",") else job.partition


def _begin(detail: Mapping[str, str], environment: Mapping[str, str], given: Mapping[str, str | None]) -> str:
    """As a time, which may have passed: `now+1day` of a script would count again from the copy's submission."""
    if "begin" not in given and "SBATCH_BEGIN" not in environment:
        return ""
    eligible = detail.get("EligibleTime", "")
    return f"uts{eligible}" if text.is_number(eligible) else "now"  # Source: slurm src/common/parse_time.c, "uts"


_FLAG: Final = "\x20flag"  # told from every value of Slurm's by its blank, and taken out again above


def _sizes(detail: Mapping[str, str]) -> dict[str, str | None]:
    """What is written as a figure."""
    found: dict[str, str | None] = {}
    nodes = detail.get("NumNodes", "")
    low, _, high = nodes.partition("-")
    if text.is_number(low) and (text.is_number(high) or not high):
        found["nodes"] = low if high in ("", low) else nodes
    limit = detail.get("TimeLimit", "")
    if text.seconds(limit) is not None:
        found["time"] = limit
    for key, option in (("MinMemoryNode", "mem"), ("MinMemoryCPU", "mem-per-cpu"), ("MinTmpDiskNode", "tmp")):
        given = text.value(detail.get(key))
        if given not in ("", "0"):
            found[option] = given
    nice = detail.get("Nice", "0")
    if text.is_number(nice.removeprefix("-")) and int(nice) != 0:
        found["nice"] = nice
    spec = detail.get("CoreSpec", "*")
    if text.is_number(spec) and int(spec) > 0:
        found["core-spec"] = spec
    return found


def _sharing(detail: Mapping[str, str]) -> tuple[str, str | None] | None:
    if "Exclusive" in detail:
        if detail["Exclusive"] in _EXCLUSIVE:
            return "exclusive", _EXCLUSIVE[detail["Exclusive"]]
        return ("oversubscribe", None) if detail.get("OverSubscribe") == "YES" else None
    return _SHARING.get(detail.get("OverSubscribe", ""))


def _per_task(detail: Mapping[str, str], given: Mapping[str, str | None]) -> dict[str, str | None]:
    """What each task gets since 23.11: `cpu=1,gres/gpu=2` -> `--gpus-per-task=2`, and how GPUs are bound to tasks.

    sbatch takes either `--tres-per-task` or `--gpus-per-task`: where one was given, in the script too, the same.
    """
    whole, found = text.value(detail.get("TresPerTask")), dict[str, str | None]()
    # As it was written: `cpu=1,gres/gpu:a100=2`, `cpu:2`; 22.05 shows `gres:gpu:2`.
    each = (re.sub(r"^gres:", "gres/", part) for part in whole.split(",") if part)
    parts = dict(part.partition("=")[::2] if "=" in part else part.rpartition(":")[::2] for part in each)
    gpus = [f"{name[9:]}:{count}" if ":" in name else count for name, count in parts.items() if _is_gpu(name)]
    others = [name for name in parts if name != "cpu" and not _is_gpu(name)]
    if parts and (others or "tres-per-task" in given):
        found |= {"tres-per-task": whole, "cpus-per-task": ""}
    elif gpus:
        found["gpus-per-task"] = ",".join(gpus)
    bind = text.value(detail.get("TresBind"))
    bind = bind.removeprefix("gres/gpu:").removeprefix("gpu:")
    if bind and not (bind.startswith("per_task:") and parts):  # which it is by itself
        found["gpu-bind"] = bind
    frequency = text.value(detail.get("TresFreq")).removeprefix("gpu:")
    if frequency:
        found["gpu-freq"] = frequency
    return found


def _is_gpu(name: str) -> bool:
    return name == "gres/gpu" or name.startswith("gres/gpu:")


def _gres(tres: str) -> str:
    """`gres:gpu:8` (22.05) or `gres/gpu:8` (23.02+) -> `gpu:8`."""
    parts = [part.strip() for part in text.value(tres).split(",")]
    return ",".join(part[5:] for part in parts if part.startswith(("gres:", "gres/")))


def exported(names: str | None) -> str:
    """SLURM_EXPORT_ENV as a list of names: `ALL,A=1,B` -> `ALL`; `A=1,B` -> `A,B`. "" where nothing is given.

    Values are not needed: they stand in the captured environment. NONE and NIL mean an empty list.
    """
    if not names:
        return ""
    parts = [part.partition("=")[0].strip() for part in names.split(",")]
    if "ALL" in parts:
        return "ALL"
    kept = [part for part in parts if part.replace("_", "a").isalnum() and part not in ("NONE", "NIL")]
    return ",".join(kept) or "NONE"


def _literal(path: str) -> str:
    """A path in which a percent sign means itself."""
    return path.replace("%", "%%")


def expand(pattern: str, job: Job) -> str:
    """The file that a pattern such as `logs/%x-%j.out` names for this job. Source: sbatch(1), filename pattern.

    scontrol and squeue show the pattern itself from 24.05 on, and squeue always did for patterns that were given.
    """
    found: list[str] = []
    index = 0
    task = text.whole(job.array_task)
    values = {
        "A": str(job.array_job or job.job),
        "a": "4294967294" if task is None else str(task),
        "b": "0" if task is None else str(task % 10),
        "J": str(job.job),
        "j": str(job.job),
        "N": job.batch_host.partition(".")[0],
        "n": "0",
        "s": "4294967291",
        "t": "0",
        "u": job.user,
        "x": job.name,
    }
    while index < len(pattern):
        char = pattern[index]
        if char != "%":
            found.append(char)
            index += 1
            continue
        end = index + 1
        while end < len(pattern) and pattern[end] in "0123456789" and end - index < 4:
            end += 1
        letter = pattern[end] if end < len(pattern) else ""
        width = min(int(pattern[index + 1 : end] or "0"), 10)
        if letter == "%":
            found.append("%")
        elif letter in values and letter:
            text_of = values[letter]
            found.append(text_of.zfill(width) if text_of.isdigit() else text_of)
        else:
            found.append(pattern[index : end + 1])
        index = end + 1
    path = "".join(found)
    return path if path.startswith("/") or not path else f"{job.workdir.rstrip('/')}/{path}"
