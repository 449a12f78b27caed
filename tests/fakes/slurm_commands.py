"""Slurm's commands as real executables: one script under all their names, with slurmctld's state in a file beside
slurm.conf. What they print has the form of Slurm 22.05. `hooks` in the state harm whoever calls, at a known point.

    kill-after     the caller is killed when the command has taken effect and before it says so
    kill-before    the caller is killed, then the command waits for the file `go`, then it takes effect
    away           slurmctld does not answer

Run as a script it imports nothing but the standard library; as a module it lays the executables out.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("squeue", "scontrol", "sinfo", "sbatch", "scancel", "sacct")
SUBMITTED = 1_795_000_000


def lay_out(folder: Path) -> Path:
    """The executables in `folder/bin`, the state beside `folder/slurm.conf`. Returns the path of slurm.conf."""
    (folder / "bin").mkdir(parents=True)
    (folder / "spool").mkdir()
    for name in NAMES:
        path = folder / "bin" / name
        path.write_text(f"#!{sys.executable} -IS\n" + Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
        path.chmod(0o755)
    (folder / "bin" / "env").symlink_to(shutil.which("env") or "/usr/bin/env")  # PATH holds this folder alone
    conf = folder / "slurm.conf"
    conf.write_text("ClusterName=lab\n", encoding="utf-8")
    with state_of(conf) as state:
        state.update(
            {"jobs": {}, "nodes": {}, "commands": [], "hooks": {}, "next": 100, "spool": str(folder / "spool")}
        )
        for number in (1, 2, 3):
            state["nodes"][f"node{number}"] = {"state": "IDLE", "reason": ""}
    return conf


def add_job(conf: Path, number: int, *, state: str = "RUNNING", comment: str = "rekindle", user: str = "root") -> None:
    """A protected job, its script and environment where slurmctld keeps them."""
    with state_of(conf) as now:
        now["jobs"][str(number)] = made(number, comment, user, state=state)
        folder = Path(now["spool"]) / f"hash.{number % 10}" / f"job.{number}"
        folder.mkdir(parents=True, exist_ok=True)
        listed = [f"PATH={conf.parent / 'bin'}".encode(), b"HOME=/tmp"]
        (folder / "environment").write_bytes(
            len(listed).to_bytes(4, "little") + b"".join(variable + b"\0" for variable in listed)
        )


def made(number: int, comment: str, user: str, state: str = "RUNNING", exclude: str = "") -> dict[str, Any]:
    return {
        "JobID": number,
        "RestartCnt": 0,
        "UserID": os.getuid(),
        "UserName": user,
        "GroupID": os.getgid(),
        "State": state,
        "Reason": "None",
        "NodeList": "node[1-2]" if state == "RUNNING" else "",
        "NumNodes": 2,
        "SubmitTime": SUBMITTED,
        "StartTime": SUBMITTED + 1 if state == "RUNNING" else "N/A",
        "EndTime": "N/A",
        "TimeLimit": "UNLIMITED",
        "BatchFlag": 1,
        "Requeue": 1,
        "Partition": "main",
        "BatchHost": "node1",
        "PriorityLong": 100,
        "STDOUT": "/dev/null",
        "STDERR": "/dev/null",
        "WorkDir": "/tmp",
        "Command": "/tmp/train.sh",
        "Name": "train",
        "Comment": comment,
        "HetJobID": "N/A",
        "ArrayJobID": number,
        "ArrayTaskID": "N/A",
        "ExcNodeList": exclude,
    }


@contextmanager
def state_of(conf: Path, *, writes: bool = True) -> Iterator[dict[str, Any]]:
    """Under a lock; written back whole."""
    path = conf.parent / "state.json"
    with open(conf.parent / "state.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        yield state
        if not writes:
            return
        path.with_suffix(".new").write_text(json.dumps(state), encoding="utf-8")
        os.replace(path.with_suffix(".new"), path)


# ---- the commands


def fail(text: str) -> int:
    print(text, file=sys.stderr)
    return 1


def values(arguments: list[str]) -> dict[str, str]:
    return dict(argument.lstrip("-").split("=", 1) for argument in arguments if "=" in argument)


def squeue(arguments: list[str], state: dict[str, Any]) -> int:
    jobs = list(state["jobs"].values())
    if "--jobs" in arguments:
        wanted = arguments[arguments.index("--jobs") + 1]
        if wanted not in state["jobs"]:
            return fail("slurm_load_jobs error: Invalid job id specified")
        jobs = [state["jobs"][wanted]]
    if "--json" in arguments:
        shown = [{"job_id": int(job["JobID"]), "state_reason": "JobHeldUser"} for job in jobs]
        print(json.dumps({"jobs": shown}))
        return 0
    columns = [argument.split(":", 1) for argument in arguments[arguments.index("-O") + 1].split(",")]
    if "--steps" in arguments:
        running = [job for job in jobs if job["State"] == "RUNNING"]
        jobs = [{"StepID": f"{job['JobID']}.0", "StepState": "RUNNING", "StartTime": SUBMITTED} for job in running]
    elif "--nodelist" in arguments:
        jobs = [job for job in jobs if job["State"] == "RUNNING"]
    for job in jobs:
        print("".join(f"{job.get(name, '')}{mark}" for name, mark in columns))
    return 0


def scontrol(arguments: list[str], state: dict[str, Any]) -> int:
    words = [argument for argument in arguments if not argument.startswith("-")]
    match words:
        case ["show", "config"]:
            print("Configuration data as of 2026-11-21T00:00:00")
            print("BOOT_TIME = 2026-11-20T00:00:00\nClusterName = lab\nKillWait = 5 sec\nSLURM_VERSION = 22.05.8")
            print(f"StateSaveLocation = {state['spool']}")
        case ["show", "node", *names]:
            for name, node in state["nodes"].items():
                if not names or name in names:
                    reason = f" Reason={node['reason']} [root@2026-11-20T00:00:00]" if node["reason"] else ""
                    print(
                        f"NodeName={name} Arch=x86_64 CoresPerSocket=1 NodeAddr={name} NodeHostName={name} "
                        f"Version=22.05.8 State={node['state']} BootTime=2026-11-20T00:00:00{reason}"
                    )
        case ["show", "reservation"]:
            print("No reservations in the system")
        case ["show", "job", number]:
            job = state["jobs"].get(number)
            if job is None:
                return fail("slurm_load_jobs error: Invalid job id specified")
            print(
                f"JobId={number} JobName={job['Name']} JobState={job['State']} Reason={job['Reason']} Requeue=1 "
                f"Restarts={job['RestartCnt']} ExitCode=0:0 Partition=main "
                f"ExcNodeList={job['ExcNodeList'] or '(null)'} "
                f"NumNodes=2 Comment={job['Comment']} StdOut=/dev/null WorkDir=/tmp Command=/tmp/train.sh"
            )
        case ["write", "batch_script", *_]:
            print("#!/bin/sh\nsrun train")
        case ["requeuehold" | "uhold" | "release" as verb, number]:
            return change_job(state, number, verb)
        case ["update", first, *rest] if first.startswith("jobid="):
            update_job(state["jobs"][first.partition("=")[2]], values(rest))
        case ["update", first, *rest] if first.startswith("nodename="):
            given = values(rest)
            flag = {"drain": "IDLE+DRAIN", "fail": "IDLE+FAIL", "resume": "IDLE"}[given["state"]]
            state["nodes"][first.partition("=")[2]] = {"state": flag, "reason": given.get("reason", "")}
        case _:
            return fail(f"invalid: {words}")
    return 0


def update_job(job: dict[str, Any], given: dict[str, str]) -> None:
    if "excnodelist" in given:
        job["ExcNodeList"] = given["excnodelist"]
    if "starttime" in given and job["State"] == "PENDING" and job["PriorityLong"]:
        job.update({"State": "RUNNING", "NodeList": "node[2-3]", "StartTime": SUBMITTED + 9, "Reason": "None"})


def change_job(state: dict[str, Any], number: str, verb: str) -> int:
    job = state["jobs"].get(number)
    if job is None:
        return fail("Invalid job id specified")
    if verb == "requeuehold":
        job.update(
            {
                "State": "PENDING",
                "RestartCnt": job["RestartCnt"] + 1,
                "PriorityLong": 0,
                "Reason": "job requeued in held state",
                "NodeList": "",
                "StartTime": "N/A",
            }
        )
    else:
        job["PriorityLong"] = 0 if verb == "uhold" else 100
        if verb == "release" and not job["RestartCnt"]:
            job.update({"State": "RUNNING", "NodeList": "node[1-2]", "StartTime": SUBMITTED + 1, "Reason": "None"})
    return 0


def scancel(arguments: list[str], state: dict[str, Any]) -> int:
    job = state["jobs"].get(arguments[-1])
    if job is not None and not any(argument.startswith("--signal") for argument in arguments):
        job.update({"State": "CANCELLED", "EndTime": SUBMITTED + 5})
    return 0


def sbatch(arguments: list[str], state: dict[str, Any]) -> int:
    if "--test-only" in arguments:
        return 0
    number, given = state["next"], values(arguments)
    state["next"] = number + 1
    job = made(number, given["comment"], "root", state="PENDING", exclude=given.get("exclude", ""))
    state["jobs"][str(number)] = job | {"PriorityLong": 0, "Reason": "JobHeldUser"}
    folder = Path(state["spool"]) / f"hash.{number % 10}" / f"job.{number}"
    folder.mkdir(parents=True)
    listed = [f"{name}={value}\0".encode() for name, value in os.environ.items()]
    (folder / "environment").write_bytes(len(listed).to_bytes(4, "little") + b"".join(listed))
    if "--hold" not in arguments:
        change_job(state, str(number), "release")
    print(number)
    return 0


def main() -> int:
    name, arguments = Path(sys.argv[0]).name, sys.argv[1:]
    conf = Path(os.environ["SLURM_CONF"])
    changes = name in ("sbatch", "scancel", "scontrol") and not {"show", "write", "--test-only"} & set(arguments)
    with state_of(conf, writes=changes) as state:
        hook = state["hooks"].pop(name, "") if changes else ""
        is_away = state["hooks"].get("away", False)
    if is_away:
        return fail(f"{name}: error: Unable to contact slurm controller (connect failure)")
    if hook == "kill-before":
        os.kill(os.getppid(), signal.SIGKILL)
        (conf.parent / "orphan").touch()
        while not (conf.parent / "go").exists():
            time.sleep(0.02)
    with state_of(conf, writes=changes) as state:
        if changes:
            state["commands"].append([name, *(argument for argument in arguments if not argument.startswith("/"))])
        code = globals()[name](arguments, state) if name != "sinfo" and name != "sacct" else 0
    if hook == "kill-after":
        os.kill(os.getppid(), signal.SIGKILL)
        return 0
    sys.stdout.flush()
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
