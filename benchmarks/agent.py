"""What the agent on a Slurm head node costs, and how quickly it obeys.

    make bench ARGS=agent          python -m benchmarks.agent [--seconds 60] [--orders 20] [--json]

The agent runs as it is installed, a process of its own at its default settings, against AWS over HTTP (the embedded
cloud) and Slurm's commands as executables (those of its tests: nothing needs Slurm). Two clusters: 3 nodes without a
job, and 1,000 nodes with 500 jobs of which 50 are protected. For each, over so many quiet seconds: processor time of
the agent itself as a share of one core (the commands that it starts not counted: they are stand-ins), its memory, its
threads, and AWS calls per hour by name. Then orders: from SendMessage until the command has taken effect, and until the
answer is in the cluster state. The stand-ins take part of that time (each starts Python and reads the whole state): the
time of one alone is printed beside it; an order to cancel runs four, and the agent's looks run others.
Where there is a Slurm, what is asked of a real slurmctld comes behind: `benchmarks/agent_slurm.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import agent_slurm
from localcloud.aws.clock import RealClock
from localcloud.cloud import STACK, Cloud
from localcloud.slurm.commands import add_job, lay_out, made, state_of
from rekindle.protocol.cluster.names import agent_key, answer_key, attempt_key, queue_name
from rekindle.protocol.cluster.orders import Order, Verb

BUCKET = f"{STACK}-mailbox"
CLUSTERS = {"3 nodes, no job": (3, 0, 0), "1,000 nodes, 500 jobs": (1000, 450, 50)}
PATIENCE_S = 600.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Bench:
    cloud: Cloud
    conf: Path
    agent: subprocess.Popen[bytes]
    calls: Counter[str]

    def until(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > end or self.agent.poll() is not None:
                raise RuntimeError("the agent never did what it should")
            time.sleep(0.002)

    def is_there(self, key: str) -> bool:
        found = self.cloud.client("s3").list_objects_v2(Bucket=BUCKET, Prefix=key).get("Contents", [])
        return any(item["Key"] == key for item in found)

    def cpu_s(self) -> float:
        """Of the agent itself. Source: proc(5), /proc/pid/stat, utime and stime."""
        text = Path(f"/proc/{self.agent.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(text[11]) + int(text[12])) / TICKS

    def status(self, name: str) -> int:
        for line in Path(f"/proc/{self.agent.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
        return 0


@contextmanager
def running(nodes: int, others: int, protected: int) -> Iterator[Bench]:
    """An agent that has reported everything there is."""
    calls: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name, Cloud(http=True, clock=RealClock(), set_environ=False) as cloud:
        folder = Path(name)
        conf = lay_out(folder / "slurm")
        with state_of(conf) as state:
            state["nodes"] = {f"ip-10-1-{n // 250}-{n % 250}": {"state": "IDLE", "reason": ""} for n in range(nodes)}
            state["jobs"] = {str(n): made(n, "", "root") for n in range(1000, 1000 + others)}
        for number in range(1, 1 + protected):
            add_job(conf, number)
        cloud.client("sqs").create_queue(QueueName=queue_name(STACK, "lab"))
        _count(cloud, calls)
        environ = cloud.environ() | {
            "PATH": str(conf.parent / "bin"),
            "SLURM_CONF": str(conf),
            "REKINDLE_CLUSTER": "lab",
            "REKINDLE_STATE_DIR": str(folder / "state"),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        with subprocess.Popen(
            [sys.executable, "-m", "rekindle.slurm_agent"], env=environ, stderr=subprocess.DEVNULL
        ) as agent:
            bench = Bench(cloud, conf, agent, calls)
            try:
                bench.until(partial(bench.is_there, agent_key("lab")))
                for number in range(1, 1 + protected):
                    bench.until(partial(bench.is_there, attempt_key(f"slurm.lab.{number}")))
                yield bench
            finally:
                agent.kill()


def _count(cloud: Cloud, calls: Counter[str]) -> None:
    """Note each request by AWS operation, at the server's own door."""
    assert cloud.server is not None
    server = cloud.server._server
    answer: Any = server.app

    def counting(environ: dict[str, Any], start_response: Any) -> Any:
        if "rekindle-agent" in environ.get("HTTP_USER_AGENT", ""):
            target = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
            calls[target or f"S3 {environ['REQUEST_METHOD']}"] += 1
        return answer(environ, start_response)

    server.app = counting


def idle(bench: Bench, seconds: float) -> dict[str, Any]:
    pause = threading.Event()
    pause.wait(20.0)  # the start is over, and its hurry
    bench.calls.clear()
    cpu, began = bench.cpu_s(), time.monotonic()
    pause.wait(seconds)
    took = time.monotonic() - began
    return {
        "cpu_percent_of_a_core": (bench.cpu_s() - cpu) / took * 100,
        "resident_mb": bench.status("VmRSS") / 1024,
        "peak_mb": bench.status("VmHWM") / 1024,
        "threads": bench.status("Threads"),
        "calls_per_hour": {name: count / took * 3600 for name, count in sorted(bench.calls.items())},
    }


def orders(bench: Bench, count: int) -> dict[str, float]:
    sqs = bench.cloud.client("sqs")
    url = sqs.get_queue_url(QueueName=queue_name(STACK, "lab"))["QueueUrl"]
    effect, answered = [], []
    for number in range(1, 1 + count):
        now = datetime.now(UTC)
        order = Order(
            token=f"bench-{number}",
            verb=Verb.CANCEL,
            cluster="lab",
            issued_at=now,
            expires_at=now + timedelta(hours=1),
            attempt=f"slurm.lab.{number}",
            slurm_job=number,
        )
        began = time.monotonic()
        sqs.send_message(QueueUrl=url, MessageBody=order.to_json().decode())
        bench.until(partial(_is_cancelled, bench.conf, str(number)))
        effect.append((time.monotonic() - began) * 1000)
        bench.until(partial(bench.is_there, answer_key("lab", order.token)))
        answered.append((time.monotonic() - began) * 1000)
    environ = {"SLURM_CONF": str(bench.conf)}
    began = time.monotonic()
    for _ in range(5):
        subprocess.run(
            [bench.conf.parent / "bin" / "squeue", "--jobs", "1", "-O", "JobID:#"],
            env=environ,
            stdout=subprocess.DEVNULL,
            check=True,
        )
    return {
        "stand_in_ms": (time.monotonic() - began) * 200,
        "orders": float(count),
        "effect_median_ms": statistics.median(effect),
        "effect_max_ms": max(effect),
        "answer_median_ms": statistics.median(answered),
        "answer_max_ms": max(answered),
    }


def _is_cancelled(conf: Path, job: str) -> bool:
    return bool(json.loads((conf.parent / "state.json").read_text())["jobs"][job]["State"] == "CANCELLED")


def main(argv: Sequence[str] = ()) -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=60.0)
    arguments.add_argument("--orders", type=int, default=20)
    arguments.add_argument("--json", action="store_true")
    given = arguments.parse_args(argv)
    results: dict[str, Any] = {}
    for name, (nodes, others, protected) in CLUSTERS.items():
        with running(nodes, others, protected) as bench:
            results[name] = idle(bench, given.seconds)
            for number in range(1 + protected, 1 + given.orders):
                add_job(bench.conf, number)
            results[name]["orders"] = orders(bench, given.orders)
    if given.json:
        print(json.dumps(results))
        return agent_slurm.main(["--seconds", str(given.seconds), "--json"])
    print("idle                      CPU % of a core   resident MB   peak MB   threads   AWS calls per hour")
    for name, found in results.items():
        calls = found["calls_per_hour"]
        listed = ", ".join(f"{call} {rate:.0f}" for call, rate in calls.items())
        print(
            f"{name:<25} {found['cpu_percent_of_a_core']:>15.2f} {found['resident_mb']:>13.1f} "
            f"{found['peak_mb']:>9.1f} {found['threads']:>9} {sum(calls.values()):>12.0f} ({listed})"
        )
        if took := found.get("orders"):
            print(
                f"  {took['orders']:.0f} orders: in effect after {took['effect_median_ms']:.0f} ms (median; "
                f"at most {took['effect_max_ms']:.0f}), answered after {took['answer_median_ms']:.0f} ms "
                f"(at most {took['answer_max_ms']:.0f}); one stand-in alone takes {took['stand_in_ms']:.0f} ms"
            )
    return agent_slurm.main(["--seconds", str(given.seconds)])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
