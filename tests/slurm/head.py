"""The whole agent on a real Slurm, turn by turn in this process: its own store, journal, watcher and commands.

Orders are given to its executor as their messages' bodies; S3 is moto's. A shell script may stand before one of Slurm's
commands, for what happens in the middle of an order.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
from moto import mock_aws

from rekindle.protocol.cluster.documents import AttemptDoc
from rekindle.protocol.cluster.names import attempt_key, order_key
from rekindle.protocol.cluster.orders import Order, OrderResult, Verb
from rekindle.slurm_agent.base.aws import Clients
from rekindle.slurm_agent.base.clock import SystemClock
from rekindle.slurm_agent.base.settings import Settings
from rekindle.slurm_agent.process import Agent
from rekindle.slurm_agent.slurm.build import build
from tests.slurm.lab.lab import SlurmLab

BUCKET = "stack"
PATIENCE_S = 240.0


class SetClock(SystemClock):
    """The host's clock, set forward or back by `off`."""

    off = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.off


class Head:
    """An agent of its own state directory. `start` again: another process on the same directory, as after a kill."""

    def __init__(self, lab: SlurmLab, s3: Any, state: Path, clock: Any = None) -> None:
        self.lab, self.s3, self.state = lab, s3, state
        self.shims = state.with_name(f"{state.name}-shims")
        self.shims.mkdir(exist_ok=True)
        state.mkdir(exist_ok=True)
        own = lab.environ()
        self.root = state.with_name(f"{state.name}-root")
        self.allow("[allow]\nverbs = *\n")
        self.environ = own | {
            "PATH": f"{self.shims}:{own['PATH']}",
            "REKINDLE_BUCKET": BUCKET,
            "REKINDLE_CLUSTER": "lab",
            "SAGEMAKER_RESOURCE_CONFIG_PATH": "/nonexistent",
            "REKINDLE_ROOT": str(self.root),
        }
        self._tokens = 0
        self.clock = clock or SetClock()
        self.start()

    def allow(self, text: str) -> None:
        """What the administrator of the head node allows from now on."""
        path = self.root / "etc/rekindle/allow.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)

    def start(self, *, is_leaving: bool = False) -> None:
        settings = Settings.read(self.environ, {"state_dir": str(self.state)})
        aws = {name: boto3.client(name, region_name="us-east-1") for name in ("sqs", "events")}
        clients = Clients(s3=self.s3, lease=self.s3, **aws)
        self.agent = Agent(
            settings=settings, clients=clients, clock=self.clock, build=build, guard_fd=None, is_leaving=is_leaving
        )

    def look(self) -> None:
        """One reading, published."""
        self.agent.watch.run_once()
        for lane in (0, 1):
            while found := self.agent.outbox.documents(lane, 500):  # type: ignore[arg-type]
                for one in found:
                    self.s3.put_object(Bucket=BUCKET, Key=one.key, Body=one.body)
                    self.agent.outbox.written(one)

    def doc(self, attempt: str) -> AttemptDoc | None:
        try:
            raw = self.s3.get_object(Bucket=BUCKET, Key=attempt_key(attempt))["Body"].read()
        except self.s3.exceptions.NoSuchKey:
            return None
        return AttemptDoc.from_json(raw)

    def docs(self) -> list[AttemptDoc]:
        """All that are published."""
        prefix = attempt_key("slurm.lab.0").rpartition("/")[0]
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        return [AttemptDoc.from_json(self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()) for key in keys]

    def problems(self) -> str:
        return "\n".join(self.agent.heartbeat().problems)

    # ---- orders

    def order(self, verb: Verb, **about: Any) -> Order:
        """Taken, and worked on once at the most by `work`."""
        self._tokens += 1
        now = self.clock.now()
        order = Order(
            token=f"t{self._tokens}",
            verb=verb,
            cluster="lab",
            issued_at=now,
            expires_at=now + timedelta(minutes=15),
            **about,
        )
        self.s3.put_object(Bucket=BUCKET, Key=order_key("lab", order.token), Body=order.to_json())
        self.agent.executor.take(order.to_json().decode())
        return order

    def answer(self, order: Order) -> OrderResult | None:
        entry = self.agent.journal.find(order.token)
        return None if entry is None else entry.answer

    def run_once(self) -> None:
        """A look, and what it finds to do."""
        self.look()
        self.agent.executor.work()

    def answered(self, order: Order) -> OrderResult:
        """Worked on until it is answered, with a look in between as in the agent's own loops."""
        deadline = time.monotonic() + PATIENCE_S
        while (answer := self.answer(order)) is None:
            assert time.monotonic() < deadline, self.agent.problems.lines()
            left_s = self.agent.executor.work()
            threading.Event().wait(min(0.5, left_s or 0.0))
        return answer

    def delivered_again(self, order: Order) -> OrderResult:
        """Its message has come another time."""
        self.agent.executor.take(order.to_json().decode())
        return self.answered(order)

    def carry_out(self, verb: Verb, **about: Any) -> OrderResult:
        return self.answered(self.order(verb, **about))

    # ---- what stands in the middle

    def shim(self, command: str, body: str) -> None:
        """`$real` is the command itself."""
        script = self.shims / command
        script.write_text(f"#!/bin/bash\nreal={shlex.quote(str(self.lab.install.which(command)))}\n{body}\n")
        script.chmod(0o755)

    def no_shim(self) -> None:
        for entry in self.shims.iterdir():
            entry.unlink()


@contextmanager
def bucket() -> Iterator[Any]:
    with mock_aws():
        s3 = boto3.client("s3", region_name="us-east-1")
        s3.create_bucket(Bucket=BUCKET)
        yield s3


def script(lab: SlurmLab, name: str, text: str) -> Path:
    path = lab.folder / "work" / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    return path


def until(condition: Callable[[], Any], what: str, between: Callable[[], Any] = lambda: None) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        between()
        threading.Event().wait(0.2)
    return found


def started(head: Head, then: str, comment: str = "rekindle") -> tuple[int, Path]:
    """A protected job that runs and whose spec the agent knows, and where it writes down each start."""
    lab = head.lab
    runs = lab.folder / "work" / f"runs-{time.monotonic_ns()}"
    path = script(lab, f"{runs.name}.sh", f'echo "$SLURM_JOB_ID" >>{runs}; {then}')
    job = lab.submit(path, "-N1", "--exclusive", f"--comment={comment}")
    until(lambda: (doc := head.doc(f"slurm.lab.{job}")) is not None and doc.spec is not None, "its spec", head.look)
    until(runs.exists, "it to run")
    return job, runs


def saved(lab: SlurmLab) -> None:
    """Until slurmctld has written down what is so now, which it does some seconds after each change."""
    now = time.time()
    lab.submit(script(lab, "other.sh", "exit 0"), "--begin=now+1day")
    lab.wait(lambda: lab.jobs_saved_at() > now, "the jobs to be saved")


def lines(runs: Path) -> list[str]:
    return runs.read_text().splitlines()


def runs_as_one_copy(head: Head, runs: Path, answer: OrderResult, *, works: bool = False) -> None:
    """The job that the order has started runs, and Slurm has no other of its name. works: the agent also takes orders
    meanwhile, and three turns longer.
    """

    def run_once() -> None:
        head.look()
        if works:
            head.agent.executor.work()

    until(lambda: len(lines(runs)) == 2, "the copy to run", run_once)
    for _ in range(3 if works else 0):
        run_once()
    named = head.lab.run("squeue", "-h", "-t", "PD,R,CG", "-n", runs.name, "-o", "%A").stdout.split()
    assert named == [str(answer.slurm_job)]


def spec_of(head: Head, job: int, attempt: str = "") -> str:
    doc = head.doc(attempt or f"slurm.lab.{job}")
    assert doc is not None
    assert doc.spec is not None
    return doc.spec


def alive(lab: SlurmLab, job: int) -> bool:
    return lab.job_state(job) in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
