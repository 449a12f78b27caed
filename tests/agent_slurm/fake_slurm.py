"""Slurm's commands as real executables that answer from files: for tests and benchmarks where no Slurm is installed.

`FakeSlurm(folder)` writes them; `path` goes in front of PATH. What they print is what the files hold (recordings of a
real slurmctld, or made by `recordings.py`), with the caller's own markers put in. Commands that would change something
are written down in `calls.log`, one argument list a line, and answered by `answers/<command>` where that is there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from rekindle.slurm_agent.reading.jobs import COLUMNS, STEP_COLUMNS

BETWEEN, END = "@B@", "@E@"
DEFAULTS: Mapping[str, str] = {
    "RestartCnt": "0",
    "UserID": str(os.getuid()),
    "UserName": "ml",
    "GroupID": str(os.getgid()),
    "State": "RUNNING",
    "Reason": "None",
    "NodeList": "node[1-2]",
    "NumNodes": "2",
    "SubmitTime": "1795276000",
    "StartTime": "1795276001",
    "EndTime": "N/A",
    "TimeLimit": "1-00:00:00",
    "BatchFlag": "1",
    "Requeue": "1",
    "Partition": "main",
    "Dependency": "(null)",
    "ArrayTaskID": "N/A",
    "HetJobID": "N/A",
    "HetJobOffset": "N/A",
    "BatchHost": "node1",
    "PriorityLong": "4294901757",
    "STDOUT": "/fsx/ml/slurm-%j.out",
    "STDERR": "/fsx/ml/slurm-%j.out",
    "WorkDir": "/fsx/ml",
    "Command": "/fsx/ml/train.sh",
    "Name": "train",
    "Comment": "rekindle",
}

_SCRIPT = r"""#!/bin/sh
# Answers from files beside this one; nothing is started but sed, grep and cat.
here=FOLDER
name=$(basename "$0")
echo "$name $*" >> "$here/run.log"
refuse() { echo "$1" >&2; exit 1; }
reach() { [ -e "$here/away" ] && refuse "$1 error: Unable to contact slurm controller (connect failure)"; }
case "$name $*" in
  "squeue "*) kind=squeue; id=; node=
    for a; do
      [ "$a" = --json ] && { cat "$here/json" 2>/dev/null || refuse "squeue: unrecognized option '--json'"; exit 0; }
      case "$before" in --jobs) id=$a;; --nodelist) node=$a;; -O) format=$a;; esac
      [ "$a" = --steps ] && kind=steps
      before=$a
    done
    reach slurm_load_jobs
    [ -n "$node" ] && { cat "$here/on-$node" 2>/dev/null; exit 0; }
    mark=${format#*:|}; mark=${mark%%|*}
    case "$format" in *DerivedEC*) exit 0;; esac
    if [ -n "$id" ]; then
      grep -q "^$id@B@" "$here/squeue" || refuse "slurm_load_jobs error: Invalid job id specified"
      grep "^$id@B@" "$here/squeue" | sed "s/@B@/|$mark|/g; s/@E@/|$mark#/g"
    else
      sed "s/@B@/|$mark|/g; s/@E@/|$mark#/g" "$here/$kind"
    fi ;;
  "scontrol "*" show node"*) reach slurm_load_node
    cat "$here/nodes" ;;
  "scontrol "*" show reservation") cat "$here/reservations" 2>/dev/null || echo "No reservations in the system" ;;
  "scontrol show config") reach slurm_load_ctl_conf
    cat "$here/config" ;;
  "scontrol "*" show job") cat "$here/jobs/"* 2>/dev/null ;;
  "scontrol "*" show job "*) for a; do id=$a; done
    cat "$here/jobs/$id" 2>/dev/null || refuse "slurm_load_jobs error: Invalid job id specified" ;;
  "scontrol write batch_script "*)
    cat "$here/scripts/$3" 2>/dev/null || echo "job script retrieval failed: Invalid job id specified" >&2 ;;
  "sacct "*) cat "$here/sacct" 2>/dev/null ;;
  *) printf '%s' "$name" >> "$here/calls.log"
    for a; do printf '\037%s' "$a" >> "$here/calls.log"; done
    printf '\n' >> "$here/calls.log"
    [ -e "$here/answers/$name" ] && exec sh "$here/answers/$name" "$@"
    exit 0 ;;
esac
"""


class FakeSlurm:
    """See the module's text. Every method replaces a file whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        for each in (self.bin, folder / "jobs", folder / "scripts", folder / "answers", folder / "state"):
            each.mkdir(parents=True, exist_ok=True)
        for name in ("squeue", "scontrol", "scancel", "sbatch", "sacct"):
            script = self.bin / name
            script.write_text(_SCRIPT.replace("FOLDER", str(folder)))
            script.chmod(0o755)
        self.jobs([])
        self.steps({})
        self.nodes(["node1", "node2", "node3"])
        self.config()

    @property
    def path(self) -> str:
        """PATH, with these commands first."""
        return f"{self.bin}:{os.environ.get('PATH', '/usr/bin:/bin')}"

    def jobs(self, jobs: Sequence[Mapping[str, str]]) -> None:
        """What squeue and scontrol show job print. A job is its columns; what is not given is as in DEFAULTS."""
        rows = []
        shutil.rmtree(self.folder / "jobs")
        (self.folder / "jobs").mkdir()
        for given in jobs:
            job = {**DEFAULTS, "ArrayJobID": given["JobID"]} | dict(given)
            rows.append(BETWEEN.join(job[name] for name in COLUMNS) + END + "\n")
            (self.folder / "jobs" / job["JobID"]).write_text(detail_of(job) + "\n")
            (self.folder / "scripts" / job["JobID"]).write_text(
                job.get("script", "#!/bin/bash\nsrun python train.py\n")
            )
        self._put("squeue", "".join(rows))

    def steps(self, steps: Mapping[str, int]) -> None:
        rows = []
        for job, count in steps.items():
            names = ("batch", *range(count))
            rows += [BETWEEN.join((f"{job}.{name}", "RUNNING", "1795276002")) + END + "\n" for name in names]
        assert len(STEP_COLUMNS) == 3
        self._put("steps", "".join(rows))

    def nodes(self, nodes: Sequence[str]) -> None:
        """A name is an idle node; else the whole line."""
        self._put("nodes", "\n".join(line if "=" in line else node_line(line) for line in nodes) + "\n")

    def config(
        self,
        *,
        up_s: int = 1000,
        accounting: str = "accounting_storage/none",
        state: str | None = None,
        next_job: int | None = None,
        slurm_user: str = "slurm(990)",
    ) -> None:
        numbers = "" if next_job is None else f"NEXT_JOB_ID             = {next_job}\n"
        self._put(
            "config",
            f"Configuration data as of 1795279000\nAccountingStorageType   = {accounting}\n"
            f"BOOT_TIME               = {1795279000 - up_s}\nClusterName             = ml\n"
            f"JobCompType             = jobcomp/none\nKillWait                = 30 sec\n"
            f"SLURM_VERSION           = 24.05.2\nSlurmUser               = {slurm_user}\n"
            f"StateSaveLocation       = {state or self.folder / 'state'}\n{numbers}",
        )

    def away(self, is_away: bool) -> None:
        """Whether slurmctld answers."""
        flag = self.folder / "away"
        flag.touch() if is_away else flag.unlink(missing_ok=True)

    def sacct(self, lines: Sequence[str]) -> None:
        self._put("sacct", "".join(f"{line}\n" for line in lines))

    def answer(self, command: str, *, stdout: str = "", stderr: str = "", code: int = 0) -> None:
        """How a command that would change something ends."""
        (self.folder / "answers" / f"{command}.out").write_text(stdout)
        (self.folder / "answers" / f"{command}.err").write_text(stderr)
        script = f"cat {self.folder}/answers/{command}.out\ncat {self.folder}/answers/{command}.err >&2\nexit {code}\n"
        (self.folder / "answers" / command).write_text(script)

    def run(self) -> int:
        """How many commands were run, by the agent and by root's helper."""
        log = self.folder / "run.log"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def calls(self) -> list[list[str]]:
        """The argument lists of the commands that would have changed something, in order."""
        log = self.folder / "calls.log"
        return [line.split("\037") for line in log.read_text().splitlines()] if log.exists() else []

    def _put(self, name: str, content: str) -> None:
        fresh = self.folder / f"{name}.new"
        fresh.write_text(content)
        fresh.replace(self.folder / name)


def detail_of(job: Mapping[str, str]) -> str:
    """The line of scontrol -o show job, in the form of 24.05."""
    return (
        f"JobId={job['JobID']} JobName={job['Name']} UserId={job['UserName']}({job['UserID']}) GroupId=ml(1000)"
        f" MCS_label=N/A Priority={job['PriorityLong']} Nice=0 Account={job.get('Account', 'research')}"
        f" QOS={job.get('QOS', 'normal')}"
        f" JobState={job['State']} Reason={job['Reason']} Dependency={job['Dependency']} Requeue={job['Requeue']}"
        f" Restarts={job['RestartCnt']} BatchFlag={job['BatchFlag']} Reboot=0 ExitCode={job.get('ExitCode', '0:0')}"
        f" RunTime=00:01:00 TimeLimit={job['TimeLimit']} TimeMin=N/A SubmitTime={job['SubmitTime']}"
        f" StartTime={job['StartTime']} EndTime={job['EndTime']} Deadline=N/A SuspendTime=None"
        f" Partition={job['Partition']} AllocNode:Sid=login1:77 ReqNodeList={job.get('ReqNodeList', '(null)')}"
        f" ExcNodeList={job.get('ExcNodeList', '(null)')} NodeList={job['NodeList']} BatchHost={job['BatchHost']}"
        f" NumNodes={job['NumNodes']} NumCPUs=192 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:*"
        f" ReqTRES=cpu=192,mem=4000G,node=2,billing=192,gres/gpu=16 AllocTRES=cpu=192,mem=4000G,node=2,gres/gpu=16"
        f" Socks/Node=* NtasksPerN:B:S:C=1:0:*:* CoreSpec=* MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0"
        f" Features=(null) DelayBoot=00:00:00 OverSubscribe=NO Contiguous=0 Licenses=(null) Network=(null)"
        f" Command={job['Command']} WorkDir={job['WorkDir']}"
        + (f" AdminComment={job['AdminComment']}" if job.get("AdminComment") else "")
        + f" Comment={job['Comment']}"
        f" StdErr={job['STDERR']} StdIn=/dev/null StdOut={job['STDOUT']} TresPerNode=gres/gpu:8"
    )


def node_line(name: str, state: str = "IDLE", reason: str = "", more: str = "") -> str:
    """A line of scontrol -o show node, in the form of 24.05."""
    said = f" Reason={reason} [root@1795277195]" if reason else ""
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=48  CPUAlloc=0 CPUEfctv=192 CPUTot=192 CPULoad=0.10"
        f" AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:8 NodeAddr={name} NodeHostName={name}"
        f" Version=24.05.2 OS=Linux 6.8.0-1021-aws #23-Ubuntu SMP  RealMemory=2000000 AllocMem=0 FreeMem=1900000"
        f" Sockets=2 Boards=1 State={state} ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A"
        f" Partitions=main,dev  BootTime=1795262212 SlurmdStartTime=1795275387 LastBusyTime=1795277093"
        f" ResumeAfterTime=None CfgTRES=cpu=192,mem=2000000M,billing=192,gres/gpu=8 AllocTRES= CurrentWatts=0"
        f" AveWatts=0{said}{more}"
    )
