"""What the agent asks of a real slurmctld: commands at rest and during its initial read of a large cluster.

Part of `make bench ARGS=agent`; alone: `python -m benchmarks.agent_slurm [--seconds 60]`. 512 nodes, 2,000 jobs, 400 of
them protected, on the Slurm that SLURM_ROOT names (or that is installed). Eight nodes are slurmds of this machine and
run 40 of the protected jobs; the other nodes are down and the other jobs wait, which costs a read the same. The initial
read is timed in a process of its own that has seen nothing, by the clock and by the processor's time of that process
alone, which what else the machine does leaves as it is; then the agent runs as it is installed, and its commands are
counted through wrappers of Slurm's commands over a quiet time.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import boto3

from localcloud.aws.clock import RealClock
from localcloud.cloud import STACK, Cloud
from localcloud.slurm.conf import Timers
from localcloud.slurm.install import COMMANDS, Installation, SlurmMissing
from localcloud.slurm.lab import SlurmLab
from rekindle.protocol.cluster.names import attempt_key, queue_name
from rekindle.slurm_agent.base.ports import AgentContext, Memory, OwnActions
from rekindle.slurm_agent.check import MANY_A_MINUTE
from rekindle.slurm_agent.slurm.build import build

NODES, JOBS, PROTECTED, LIVE, RUNNING = 512, 2000, 400, 8, 40
FIRST_LOOK_S: Final = 5.0
BUCKET: Final = f"{STACK}-mailbox"
PLAIN = "#!/bin/bash\n#SBATCH --nodes=1 --ntasks=1 --time=1:00:00\nexec sleep 3600\n"
OURS = PLAIN.replace("--nodes", "--comment=rekindle,signal=USR1 --nodes")


class _Nothing(Memory, OwnActions):
    def items(self, prefix: str) -> dict[str, bytes]:  # noqa: ARG002
        return {}

    def has_ended(self, attempt: str) -> bool:  # noqa: ARG002
        return False

    has_requeued = is_unproven = holds = has_ended

    def copy_of(self, new_attempt: str) -> int | None:  # noqa: ARG002
        return None


@contextmanager
def large() -> Iterator[tuple[SlurmLab, list[int]]]:
    """The cluster, and its protected jobs."""
    names = [f"node{number}" for number in range(1, 1 + LIVE)]
    # Nothing is scheduled while the jobs are submitted, and little afterwards: it is the agent that is measured.
    extra = ["MaxJobCount=10000"]
    with SlurmLab(nodes=names, cpus=RUNNING // LIVE, name="lab", timers=Timers(), extra_conf=extra) as lab:
        conf = lab.folder / "etc/slurm.conf"
        others = f"away[{LIVE + 1}-{NODES}]"
        away = f"NodeName={others} NodeAddr=127.0.0.1 Port=9 CPUs=96 State=DOWN Reason=spare\n"
        conf.write_text(f"{conf.read_text()}{away}PartitionName=away Nodes={others}\n")
        lab.stop_slurmctld()
        lab.start_slurmctld()
        lab.wait(lambda: len(lab.node_states()) == NODES, "all nodes to be known")
        lab.wait(lambda: list(lab.node_states().values()).count("idle") == LIVE, "the live nodes")
        scripts = [lab.folder / "work" / name for name in ("ours.sh", "plain.sh")]
        for script, text in zip(scripts, (OURS, PLAIN), strict=True):
            script.write_text(text)
        with ThreadPoolExecutor(4) as several:
            protected = list(several.map(lambda _: lab.submit(scripts[0]), range(PROTECTED)))
            list(several.map(lambda _: lab.submit(scripts[1]), range(JOBS - PROTECTED)))
        lab.wait(lambda: _running(lab) == RUNNING, f"{RUNNING} jobs to run")
        yield lab, protected


def _running(lab: SlurmLab) -> int:
    return len(lab.run("squeue", "-h", "-t", "R", "-o", "%i").stdout.split())


def looks(lab: SlurmLab, cloud: Cloud, count: int) -> dict[str, Any]:
    """`looked` in a process of its own."""
    environ = lab.environ() | cloud.environ() | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "benchmarks.agent_slurm", "--looks", str(count)]
    printed = subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(printed)
    return found


def looked(count: int) -> dict[str, Any]:
    """The initial read of an agent without state, and some reads at rest."""
    nothing = _Nothing()
    parts = build(
        AgentContext(
            cluster="lab",
            bucket=BUCKET,
            s3=boto3.client("s3"),
            memory=nothing,
            own_actions=nothing,
            resource_config="/nonexistent",
            environ=os.environ,
        )
    )
    took, commands, turns, own = [], [], 0, []
    attempts: set[str] = set()
    while len(took) < count:
        before, began, cpu = parts.watcher.commands, time.monotonic(), time.process_time()
        reading = parts.watcher.read(datetime.now(UTC))
        seconds = time.monotonic() - began
        own.append(time.process_time() - cpu)
        attempts |= {key for key in reading.documents if "/attempts/" in key}
        if len(attempts) < PROTECTED:
            turns += 1
        took.append(seconds)
        commands.append(parts.watcher.commands - before)
    return {
        "first_look_s": took[0],
        "first_look_cpu_s": own[0],
        "later_look_cpu_s": statistics.median(own[1 + turns :]),
        "first_look_commands": commands[0],
        "looks_until_all_are_told": turns + 1,
        "later_look_s": statistics.median(took[1 + turns :]),
        "later_look_commands": statistics.median(commands[1 + turns :]),
    }


def at_rest(lab: SlurmLab, cloud: Cloud, protected: Sequence[int], seconds: float) -> dict[str, Any]:
    """Slurm commands a minute of an agent that runs as installed, once it has reported everything there is."""
    cloud.client("sqs").create_queue(QueueName=queue_name(STACK, "lab"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "commands"
        for command in COMMANDS:
            wrapper = folder / command
            real = shlex.quote(str(lab.install.which(command)))
            wrapper.write_text(f'#!/bin/sh\necho {command} >> {shlex.quote(str(log))}\nexec {real} "$@"\n')
            wrapper.chmod(0o755)
        own = lab.environ() | cloud.environ()
        environ = own | {
            "PATH": f"{folder}:{own['PATH']}",
            "REKINDLE_CLUSTER": "lab",
            "REKINDLE_STATE_DIR": str(folder / "state"),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        with subprocess.Popen(
            [sys.executable, "-m", "rekindle.slurm_agent"], env=environ, stderr=subprocess.DEVNULL
        ) as agent:
            try:
                for job in protected:
                    lab.wait(partial(_is_reported, cloud, job), f"job {job} to be reported", limit_s=300)
                threading.Event().wait(30.0)  # what is written some seconds after a submission is read by then
                before, began = _count(log), time.monotonic()
                threading.Event().wait(seconds)
                after, passed = _count(log), time.monotonic() - began
            finally:
                agent.kill()
    found = {name: (count - before[name]) / passed * 60 for name, count in after.items() if count > before[name]}
    return {"a_minute": sum(found.values()), "by_command": found}


def _is_reported(cloud: Cloud, job: int) -> bool:
    found = cloud.client("s3").list_objects_v2(Bucket=BUCKET, Prefix=attempt_key(f"slurm.lab.{job}"))
    return bool(found.get("Contents"))


def _count(log: Path) -> Counter[str]:
    return Counter(log.read_text().split()) if log.exists() else Counter()


def main(argv: Sequence[str] = ()) -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=60.0)
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--looks", type=int, default=0, help=argparse.SUPPRESS)
    given = arguments.parse_args(argv)
    if given.looks:
        print(json.dumps(looked(given.looks)))
        return 0
    try:
        version = ".".join(f"{part:02}" for part in Installation.find().version())
    except SlurmMissing as err:
        print(f"not measured on a real Slurm: {err}")
        return 0
    with Cloud(http=True, clock=RealClock(), set_environ=False) as cloud, large() as (lab, protected):
        found = looks(lab, cloud, 6) | at_rest(lab, cloud, protected, given.seconds)
    if given.json:
        print(json.dumps({"slurm": version} | found))
        return 0
    listed = ", ".join(f"{name} {count:.1f}" for name, count in found["by_command"].items())
    print(f"\nSlurm {version}: {NODES} nodes, {JOBS} jobs, {PROTECTED} protected")
    print(
        f"  first observation {found['first_look_s']:.2f} s, of it {found['first_look_cpu_s']:.2f} s of the agent's "
        f"own processor time, {found['first_look_commands']} commands "
        f"(limit {FIRST_LOOK_S:g} s); all reported after {found['looks_until_all_are_told']} looks"
    )
    print(
        f"  a look at rest {found['later_look_s']:.2f} s, {found['later_look_cpu_s']:.2f} s the agent's own, "
        f"{found['later_look_commands']:.0f} commands"
    )
    print(f"  at rest {found['a_minute']:.1f} commands a minute (limit {MANY_A_MINUTE}): {listed}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
