"""What Slurm answers to each command that the agent runs, and how the records were made.

`SLURM_ROOT=.venv/slurm-26.05 python -m tests.agent_slurm.outputs` raises a real Slurm of that version with jobs and
nodes of every kind, makes each of `CALLS` through the agent's own readers and commands, and writes what was answered to
`recorded/26.05-outputs.json`. `Replayed` gives the same answers again: so the readers are held against each version.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rekindle.protocol.cluster.orders import Repair, Signal
from rekindle.slurm_agent.base.ports import SlurmError
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.copies.script_file import FOLDER
from rekindle.slurm_agent.reading.nodemap import NodeMap
from rekindle.slurm_agent.reading.run import CommandResult, Runner
from rekindle.slurm_agent.slurm.commands import Commands
from rekindle.slurm_agent.watching.joining import Joining
from rekindle.slurm_agent.watching.owners import Owners
from tests.agent_slurm.gates import NoGate, parts
from tests.slurm.lab.conf import Timers
from tests.slurm.lab.lab import SlurmLab

RECORDED = Path(__file__).with_name("recorded")
PLACE = "/fsx/lab"  # in the records, the lab's own folder
ODD = "train | 7B=x\nJobId=1 übung"
OURS = "rekindle:gentle,mailbox=/fsx/m,signal=USR1"
_MARK = re.compile(r"\|([0-9a-f]{12})[|#]")
_KERNEL = re.compile(r"OS=Linux .*?(?= RealMemory=)")


@dataclass(frozen=True)
class Recording(Runner):
    """A real one that writes down what it runs."""

    ran: list[dict[str, Any]] = field(default_factory=list)

    def _run(self, args: Sequence[str], **how: Any) -> CommandResult:  # type: ignore[override]
        answer = super()._run(args, **how)
        self.ran.append({"args": list(args), "code": answer.code, "stdout": answer.stdout, "stderr": answer.stderr})
        return answer


@dataclass(frozen=True)
class Replayed(Runner):
    """Answers as was recorded: the same commands in the same order, or it fails."""

    left: list[dict[str, Any]] = field(default_factory=list)

    def _run(self, args: Sequence[str], **how: Any) -> CommandResult:  # type: ignore[override]
        wanted = self.left.pop(0)
        given, before = " ".join(args), " ".join(wanted["args"])
        new, old = _MARK.search(given), _MARK.search(before)  # drawn anew for each call
        stdout: str = wanted["stdout"]
        if new and old:
            before, stdout = before.replace(old[1], new[1]), stdout.replace(old[1], new[1])
        assert given == before, "the agent runs another command than was recorded"
        return CommandResult(code=wanted["code"], stdout=stdout, stderr=wanted["stderr"])


@dataclass(frozen=True)
class Side:
    """The agent's readers and commands over one Runner."""

    reads: CopyReads
    commands: Commands
    ids: Mapping[str, int]

    def detail(self, name: str) -> Mapping[str, str]:
        job = self.reads.job(self.ids[name])
        assert job is not None
        return self.reads.detail(job)


def side(runner: Runner, ids: Mapping[str, int], now: datetime) -> Side:
    reads = CopyReads(runner, lambda: now)
    commands = Commands(
        cluster="lab",
        reads=reads,
        **parts(runner, reads, reads.settings, NoGate),
        node_map=NodeMap("/nonexistent"),
        now=lambda: now,
        owners=Owners("lab", lambda _: None),
        watch=SimpleNamespace(
            asked=Joining(reads).asked,
            start=lambda _: None,
            spec=lambda _: None,
            followed=tuple,
            current_settings=reads.settings,
        ),
    )
    return Side(reads, commands, ids)


# Every command of the agent's but sbatch, which `asked` and tests/slurm/test_same_job.py play. Those that change
# something stand behind those that read.
CALLS: Mapping[str, Callable[[Side], Any]] = {
    "jobs": lambda at: at.reads.jobs(),
    "steps": lambda at: at.reads.steps(),
    "details": lambda at: at.reads.details(at.reads.jobs()),
    "one job": lambda at: at.reads.job(at.ids["two"]),
    "detail": lambda at: at.detail("two"),
    "detail of an odd name": lambda at: at.detail("odd"),
    "an unknown job": lambda at: at.reads.job(999_999),
    "script": lambda at: at.reads.script(at.ids["two"]),
    "script of an unknown job": lambda at: at.reads.script(999_999),
    "nodes": lambda at: at.reads.nodes(),
    "node": lambda at: at.reads.node("n4"),
    "an unknown node": lambda at: at.reads.node("nowhere"),
    "jobs on": lambda at: at.reads.jobs_on("n1"),
    "settings": lambda at: at.reads.settings(),
    "history": lambda at: at.reads.history(at.ids["failed"], at.reads.settings()),
    "waiting": lambda at: [doc.slurm_job for doc in at.commands.waiting()],
    "taken out": lambda at: [node.name for node in at.commands.nodes_out_by_us()],
    "signal": lambda at: at.commands.signal(at.ids["two"], Signal.USR1),
    "cancel unknown": lambda at: at.commands.cancel(999_999),
    "release unknown": lambda at: at.commands.release(999_999),
    "hold ended": lambda at: at.commands.hold(at.ids["failed"]),
    "exclude": lambda at: at.commands.exclude(at.ids["held"], ["n1", "n2", "n4"]),
    "exclude what is a node no more": lambda at: at.commands.exclude(at.ids["held"], ["nowhere"]),
    "resize": lambda at: at.commands.resize(at.ids["held"], 1, 2),
    "repoint": lambda at: at.commands.repoint(at.ids["two"], at.ids["held"], others=False).changed,
    "take back": lambda at: at.commands.cancel_copy(at.ids["copy"]),
    "why it waits": lambda at: at.reads.why_waiting(at.ids["held"]),
    "why an unknown job waits": lambda at: at.reads.why_waiting(999_999),
    "release": lambda at: at.commands.release(at.ids["held"]),
    "hold": lambda at: at.commands.hold(at.ids["held"]),
    "start now": lambda at: at.commands.start_now(at.ids["held"]),
    "requeue hold": lambda at: at.commands.requeue_hold(at.ids["two"]),
    "drain": lambda at: at.commands.drain("n4", "rekindle:inc-2"),
    "resume": lambda at: at.commands.resume("n4"),
    "resume unknown": lambda at: at.commands.resume("nowhere"),
    "mark": lambda at: at.commands.mark("n4", Repair.REBOOT),
    "reboot": lambda at: at.commands.reboot("n4", "rekindle:inc-2"),
    "cancel": lambda at: at.commands.cancel(at.ids["held"]),
}
AWAY: Mapping[str, Callable[[Side], Any]] = {
    "away jobs": CALLS["jobs"],
    "away nodes": CALLS["nodes"],
    "away settings": CALLS["settings"],
    "away script": CALLS["script"],
    "away release": CALLS["release"],
    "away requeue": CALLS["requeue hold"],
    "away cancel": CALLS["cancel"],
    "away drain": CALLS["drain"],
}


def recorded(version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"{version}-outputs.json").read_text())
    return found


def _stage(lab: SlurmLab) -> dict[str, int]:
    """Jobs and nodes of every kind."""
    script = lab.folder / "work/job.sh"
    script.write_text("#!/bin/bash\nsrun bash -c 'trap : USR1 USR2; while :; do sleep 1; done'\n")
    quick = lab.folder / "work/quick.sh"
    quick.write_text("#!/bin/bash\nexit 3\n")
    ids = {"failed": lab.submit(quick, f"--comment={OURS}", "--requeue")}
    lab.wait(lambda: lab.job_state(ids["failed"]) == "FAILED", "the failure")
    ids["two"] = lab.submit(script, "-N2", f"--comment={OURS}", "--requeue", "--time=10:00")
    lab.wait(lambda: f"{ids['two']}.0" in lab.run("squeue", "-h", "--steps").stdout, "its step")
    ids["odd"] = lab.submit(script, "--hold", f"--job-name={ODD}", f"--comment={OURS}", "--exclude=n3")
    ids["held"] = lab.submit(script, "-N2", "--hold", f"--comment={OURS}")
    ids["waits"] = lab.submit(script, f"--dependency=afterany:{ids['two']}")
    copy = lab.folder / f"work/{FOLDER}slurm.lab.{ids['failed']}-a2.abcdefgh/batch"
    copy.parent.mkdir()
    copy.write_text(script.read_text())
    ids["copy"] = lab.submit(copy, "--hold")
    ids["array"] = lab.submit(script, "--array=1-3%1", "--hold")
    lab.run("scontrol", "update", "nodename=n3", "state=drain", "reason=rekindle:inc-1")
    lab.run("scontrol", "update", "nodename=n5", "state=down", "reason=bob: bad fan")
    return ids


def main() -> None:
    timers = Timers(message_timeout_s=2)
    with SlurmLab(nodes=("n1", "n2", "n3", "n4", "n5"), timers=timers, extra_conf=["RebootProgram=/bin/true"]) as lab:
        ids = _stage(lab)
        runner = Recording(environ=lab.environ())
        found: dict[str, list[dict[str, Any]]] = {}
        now = datetime.now(UTC)
        at = side(runner, ids, now)

        def record(calls: Mapping[str, Callable[[Side], Any]]) -> None:
            for name, call in calls.items():
                runner.ran.clear()
                try:
                    call(at)
                except SlurmError as err:
                    print(f"{name}: {type(err).__name__}: {err}")
                found[name] = list(runner.ran)

        record(CALLS)
        lab.stop_slurmctld(kills=True)
        record(AWAY)
        version = "{}.{:02}".format(*lab.install.version())
        whole = {"at": now.isoformat(), "ids": ids, "calls": found}
        root = str(lab.install.root or "")  # as if it were installed
        written = json.dumps(whole, indent=1).replace(str(lab.folder), PLACE).replace(f"{root}/usr/", "/usr/")
        written = _KERNEL.sub("OS=Linux 6.1.0", written)
        written = written.replace(socket.gethostname().partition(".")[0], "login1")
        (RECORDED / f"{version}-outputs.json").write_text(written + "\n")


if __name__ == "__main__":
    main()
