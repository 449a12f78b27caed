"""What a job sees when it runs, and whether the job that was submitted again sees the same: its environment, limits,
arguments, standard input, umask, group, folder, partition and time of start. Each row is equal, or refused with the
name of what cannot be.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from rekindle.slurm_agent.base.ports import SlurmError
from rekindle.slurm_agent.copies import spec
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.reading.jobs import Job
from rekindle.slurm_agent.reading.nodes import Settings
from tests.slurm.lab.lab import SlurmLab
from tests.slurm.test_same_job import head_of, learn, order_for

pytestmark = pytest.mark.versions
TELLS = """#!/bin/bash
{lines}
{{
env -0 | sort -z | tr '\\0' '\\n'; declare -F; printf 'arguments='; printf '%q ' "$@"; echo
echo "pwd=$PWD"; echo "real=$(pwd -P)"; echo "umask=$(umask)"; echo "group=$(id -gn)"; echo "nice=$(nice)"
echo "name=${{0##*/}}"; echo "stdin=$(readlink /proc/self/fd/0)"; ulimit -Sa; ulimit -Ha | sed 's/^/hard /'
}} >{seen}.$SLURM_JOB_ID.part
mv {seen}.$SLURM_JOB_ID.part {seen}.$SLURM_JOB_ID
sleep 600
"""
# What two jobs never share, or what the resubmission sets: docs/slurm-playbooks.md.
OWN = re.compile(
    r"(SLURM_(JOB_ID|JOBID|JOB_START_TIME|JOB_END_TIME|TASK_PID|OPEN_MODE|EXPORT_ENV|NODELIST|JOB_NODELIST|TOPOLOGY_ADDR"
    r"|JOB_PARTITION|JOB_COMMENT|JOB_SLUID|JOB_DEPENDENCY)|SBATCH_PARTITION|SLURMD_NODENAME|HOSTNAME"
    r"|REKINDLE_ATTEMPT_NAME|REKINDLE_SUBMITTED_ON|_)="
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """How a job is submitted, and what happens to it before it is submitted again.

    options: of sbatch. environ, first: of the submitting shell, and what that does before. lines: of the script.
    update: by scontrol, once it runs or waits. refused: a part of the reason; "": equal.
    """

    options: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    first: str = ""
    lines: str = ""
    update: str = ""
    runs: bool = True
    refused: str = ""


ROWS: Mapping[str, Row] = {
    "limits of the shell": Row(first="ulimit -n 777; ulimit -s 4096"),
    "limits that are propagated by name": Row(options=("--propagate=NOFILE",), first="ulimit -n 778"),
    "umask": Row(first="umask 027"),
    "no environment": Row(options=("--export=NONE",), environ={"FOO": "1"}),
    "an environment by names": Row(
        options=("--export=FOO,BAR=2",), environ={"FOO": "1", "BAZ": "3"}, first="ulimit -n 779"
    ),
    "all and one more": Row(options=("--export=ALL,BAR=2",), environ={"FOO": "1"}),
    "the login environment": Row(options=("--get-user-env",), environ={"FOO": "1"}),
    "the login environment, by the script": Row(lines="#SBATCH --get-user-env"),
    "not even an environment": Row(options=("--export=NIL",), refused="--export=NIL"),
    "a group": Row(options=("--gid=daemon",)),
    "its user's own for srun and squeue": Row(
        environ={"SLURM_MPI_TYPE": "none", "SLURM_CPU_BIND": "none", "SRUN_CPUS_PER_TASK": "1", "SQUEUE_FORMAT": "%A"}
    ),
    "a signal, by the environment": Row(environ={"SBATCH_SIGNAL": "B:USR1@60"}),
    "reads its own place": Row(
        lines="scontrol show job $SLURM_JOB_ID | awk -F= '/Command=/{{print $2}}'", refused="reads where it lies"
    ),
    "hard limits": Row(first="ulimit -Sn 700; ulimit -Hn 900; ulimit -Hc 0"),
    "a umask and the login environment": Row(options=("--get-user-env",), first="umask 077"),
    "all memory of a node": Row(options=("--mem=0",)),
    "all memory of a node, by the script": Row(lines="#SBATCH --mem=0"),
    "a secret that Slurm still knows": Row(environ={"HF_TOKEN": "hf_1", "PLAIN": "p"}),
    "values of several lines and of no letters": Row(environ={"LINES": "a\nb=c\n", "BAD": "x\udcff"}),
    "a function of bash": Row(first="told() { echo 1; }; export -f told"),
    "options by the environment": Row(
        environ={"SBATCH_TIMELIMIT": "20", "SBATCH_REQUEUE": "1", "SBATCH_JOB_NAME": "by-the-environment"}
    ),
    "more of its user's own for srun": Row(
        environ={"SLURM_KILL_BAD_EXIT": "1", "SLURM_WAIT": "9", "SRUN_DEBUG": "0", "SLURM_UNBUFFEREDIO": "1"}
    ),
    "a standard input": Row(options=("--input={folder}/etc/slurm.conf",)),
    "a folder behind a link": Row(options=("--chdir={folder}/link",)),
    "nice, by the script": Row(lines="#SBATCH --nice=3"),
    "nice": Row(options=("--nice=7",)),
    "a priority": Row(options=("--priority=77",), refused="Priority"),
    "a priority, by the script": Row(lines="#SBATCH --priority=78", refused="Priority"),
    "a list of partitions": Row(options=("--partition=main,other",)),
    "a list of partitions, by the environment": Row(environ={"SBATCH_PARTITION": "other,main"}),
    "a list of partitions, by the script": Row(lines="#SBATCH --partition=main,other"),
    "begins tomorrow": Row(options=("--begin=now+1day",), runs=False),
    "begins tomorrow, by the script": Row(lines="#SBATCH --begin=now+1day", runs=False),
    "began as its script says": Row(lines="#SBATCH --begin=now"),
    "waited for a job that is forgotten": Row(lines="#SBATCH --dependency=afterany:999999", update="dependency="),
    "waits for its like": Row(options=("--dependency=singleton", "--job-name=alike")),
    "a shortened limit": Row(options=("--time=10", "--time-min=5"), refused="TimeLimit"),
    "sockets": Row(options=("-n1", "--sockets-per-node=1", "--cores-per-socket=1")),
    "switches": Row(options=("-N2", "--switches=1@00:10:00")),
    "QOS": Row(options=("--qos=high",)),
    "a container": Row(options=("--container=/tmp/bundle",)),
    "a name of two lines": Row(options=("--job-name=a\nb=c|ü",), refused="line break"),
    "a name in other letters": Row(options=("--job-name=übung 火",)),
    "a script that has changed": Row(),
    "a folder that has gone": Row(options=("--chdir={folder}/gone",), refused="WorkDir"),
    "a comment of another tool's": Row(options=("--comment=rekindle:default",), update="comment=theirs"),
    "an array": Row(options=("--array=1-2",), refused="job array"),
    "a heterogeneous job": Row(options=("-n1", ":", "-n1"), refused="heterogeneous"),
    "a deadline": Row(options=("--deadline=now+1day", "--time=10"), refused="deadline"),
}  # fmt: skip


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    with SlurmLab(nodes=("n1", "n2"), cpus=128) as raised:
        conf = raised.folder / "etc/slurm.conf"
        text = conf.read_text().replace("PropagateResourceLimits=NONE\n", "")  # Slurm's own default is ALL
        conf.write_text(f"{text}PartitionName=other Nodes=n2 MaxTime=INFINITE State=UP\n")
        raised.run("scontrol", "reconfigure")
        yield raised


def slug(name: str) -> str:
    return re.sub(r"\W+", "-", name)


def seen_by(lab: SlurmLab, name: str, job: int) -> Path:
    return lab.folder / "work" / f"{slug(name)}.{job}"


def ask(lab: SlurmLab, name: str) -> int | None:
    """Submitted as its user does it; None where this Slurm does not know what is asked for."""
    row, work = ROWS[name], lab.folder / "work"
    script = work / f"{slug(name)}.sh"
    script.write_text(TELLS.format(lines=row.lines, seen=work / slug(name)))
    options = [option.format(folder=lab.folder) for option in row.options]
    sbatch = ["sbatch", "--parsable", *options, str(script), "--of", name]
    done = subprocess.run(
        ["bash", "-c", f'{row.first or ":"}; exec "$@"', "x", *sbatch],
        env=lab.environ() | dict(row.environ),
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    return int(done.stdout.partition(";")[0]) if done.returncode == 0 else None


def _has_run(lab: SlurmLab, name: str, job: int) -> bool:
    return seen_by(lab, name, job).exists()


def _has_ended(lab: SlurmLab, job: int) -> bool:
    return lab.job_state(job) not in ("RUNNING", "COMPLETING")


def _is_final(reads: CopyReads, settings: Settings, job: Job) -> bool:
    return job.is_array_task or bool(job.het_job) or spec.capture_spec(reads, settings, job, reads.detail(job)).is_final


def lines_of(path: Path) -> list[str]:
    return [line for line in path.read_text(errors="surrogateescape").splitlines() if not OWN.match(line)]


def test_what_runs_again_sees_the_same_or_is_refused_by_name(lab: SlurmLab) -> None:
    (lab.folder / "gone").mkdir()
    (lab.folder / "link").symlink_to(lab.folder / "work")
    numbers = {name: number for name in ROWS if (number := ask(lab, name)) is not None}
    assert len(numbers) >= len(ROWS) - 2, ROWS.keys() - numbers.keys()
    for name, number in numbers.items():
        if ROWS[name].update:
            lab.run("scontrol", "update", f"jobid={number}", ROWS[name].update, fails=True)
    runs = [name for name in numbers if ROWS[name].runs and not ROWS[name].refused]
    for name in runs:
        lab.wait(partial(_has_run, lab, name, numbers[name]), f"the job with {name} to run")
    last = str(lab.folder / "work" / f"{slug(list(numbers)[-1])}.sh").encode()
    lab.wait(lambda: last in lab.saved_jobs(), "slurmctld to write the jobs down")

    reads, commands, owners = head_of(lab)
    settings, jobs, taken = reads.settings(), dict[str, Job](), dict[str, spec.CapturedSpec]()
    details = {}
    for name, number in numbers.items():
        job = reads.job(number)
        assert job is not None, name
        jobs[name], details[name] = job, reads.detail(job)
        learn(owners, job)
        lab.wait(partial(_is_final, reads, settings, job), f"what {name} was asked for")
        taken[name] = spec.capture_spec(reads, settings, job, details[name])
    lab.run("scancel", *map(str, numbers.values()))
    shutil.rmtree(lab.folder / "gone")
    (lab.folder / "work/a-script-that-has-changed.sh").write_text("#!/bin/bash\nexit 1\n")

    found, copies = dict[str, str](), dict[str, int]()
    for name, one in taken.items():
        lab.wait(partial(_has_ended, lab, numbers[name]), f"the end of {name}")
        found[name] = "; ".join(one.cannot)
        if one.cannot or one.spec is None:
            continue
        order = order_for(jobs[name].job)
        try:
            copies[name] = commands.submit(one.spec, order)
            found[name] = "; ".join(commands.differences(copies[name], one.spec, order))
        except SlurmError as err:
            found[name] = str(err)
        if name in copies and not found[name]:
            commands.release(copies[name])
    expected = {name: ROWS[name].refused for name in numbers}
    unlike = {name: (why, expected[name]) for name, why in found.items() if bool(why) != bool(expected[name])}
    assert unlike == {}
    assert {name: why for name, why in found.items() if expected[name] not in why} == {}

    for name in runs:
        own, copy = seen_by(lab, name, numbers[name]), seen_by(lab, name, copies[name])
        lab.wait(copy.exists, f"the copy of the job with {name} to run")
        before, after = lines_of(own), lines_of(copy)
        assert [line for line in before if line not in after] == [], name
        assert [line for line in after if line not in before] == [], name
    for name, number in copies.items():
        if not ROWS[name].runs:
            again = reads.job(number)
            assert again is not None
            assert reads.detail(again)["EligibleTime"] == details[name]["EligibleTime"], name
    lab.run("scancel", *map(str, copies.values()))


@pytest.mark.skipif(os.getuid() != 0, reason="only root submits as another user")
def test_a_user_who_is_gone_is_named(lab: SlurmLab) -> None:
    script = lab.folder / "work" / "plain.sh"
    script.write_text("#!/bin/bash\nsleep 600\n")
    number = lab.submit(script, "--hold")
    reads, commands, owners = head_of(lab)
    job = reads.job(number)
    assert job is not None
    learn(owners, job)
    lab.wait(lambda: spec.capture_spec(reads, reads.settings(), job, reads.detail(job)).is_final, "what was asked for")
    whole = spec.capture_spec(reads, reads.settings(), job, reads.detail(job)).spec
    assert whole is not None
    lab.run("scancel", str(number))
    who = "nobody-of-that-name"
    learn(owners, dataclasses.replace(job, job=900, user=who))
    with pytest.raises(SlurmError, match=f"knows no user '{who}'"):
        commands.submit(dataclasses.replace(whole, user=who), order_for(900))
