"""The agent as it is installed: a process, AWS over HTTP, Slurm's commands as executables. Killed, starved, doubled."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

import infra.lifecycle
from localcloud.aws.clock import RealClock
from localcloud.cloud import STACK, Cloud
from rekindle.protocol.cluster.documents import AgentDoc, AttemptDoc, NodesDoc, SlurmState
from rekindle.protocol.cluster.names import agent_key, answer_key, attempt_key, nodes_key, order_key, queue_name
from rekindle.protocol.cluster.orders import Order, OrderResult, Outcome, Verb
from rekindle.slurm_agent.agent_process import STOP_S
from rekindle.slurm_agent.process import LAST_NEWS_S, LAST_ORDER_S
from tests.fakes.slurm_commands import add_job, lay_out, state_of

pytestmark = [pytest.mark.long, pytest.mark.process]
PATIENCE_S = 120.0  # nothing here takes seconds; a machine may be busy
BUCKET = f"{STACK}-mailbox"
T = TypeVar("T")


@dataclass
class HeadNode:
    """A folder with Slurm's commands, and the agents that were started there."""

    cloud: Cloud
    folder: Path
    conf: Path
    agents: list[subprocess.Popen[str]] = field(default_factory=list)

    def environ(self) -> dict[str, str]:
        return (
            {name: value for name, value in os.environ.items() if not name.startswith("REKINDLE_")}
            | self.cloud.environ()
            | {
                "PATH": str(self.folder / "bin"),
                "SLURM_CONF": str(self.conf),
                "REKINDLE_STATE_DIR": str(self.folder / "state"),
                "REKINDLE_CLUSTER_FILE": str(self.folder / "none"),
                "SAGEMAKER_RESOURCE_CONFIG_PATH": str(self.folder / "none.json"),
                "REKINDLE_POLL_S": "1",
            }
        )

    def start(self, *options: str) -> subprocess.Popen[str]:
        log = (self.folder / f"agent-{len(self.agents)}.log").open("w")
        agent = subprocess.Popen(
            [sys.executable, "-m", "rekindle.slurm_agent", *options],
            env=self.environ(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        log.close()
        self.agents.append(agent)
        return agent

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rekindle.slurm_agent", *options],
            env=self.environ(),
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
            timeout=PATIENCE_S,
            check=False,
        )

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("agent-*.log")))

    def wait_for(self, find: Callable[[], T | None]) -> T:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if found := find():
                return found
            time.sleep(0.05)
        raise AssertionError(f"never came; the agents' logs:\n{self.logs()}")

    # ---- the service's side

    def make_queue(self) -> str:
        return str(self.cloud.client("sqs").create_queue(QueueName=queue_name(STACK, "lab"))["QueueUrl"])

    def order(self, verb: Verb, **changes: Any) -> Order:
        now = datetime.now(UTC)
        return Order(
            token=changes.pop("token", "order-1"),
            verb=verb,
            cluster="lab",
            issued_at=now,
            expires_at=now + timedelta(hours=1),
            **changes,
        )

    def send(self, order: Order) -> None:
        key = order_key("lab", order.token)  # as the service does: written down first
        self.cloud.client("s3").put_object(Bucket=BUCKET, Key=key, Body=order.to_json())
        self.cloud.client("sqs").send_message(QueueUrl=self.make_queue(), MessageBody=order.to_json().decode())

    def read(self, key: str) -> bytes | None:
        s3 = self.cloud.client("s3")
        found = s3.list_objects_v2(Bucket=BUCKET, Prefix=key).get("Contents", [])
        if not any(entry["Key"] == key for entry in found):
            return None
        return bytes(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())

    def answer(self, token: str = "order-1") -> OrderResult | None:  # noqa: S107
        raw = self.read(answer_key("lab", token))
        return None if raw is None else OrderResult.from_json(raw)

    def doc(self, attempt: str) -> AttemptDoc | None:
        raw = self.read(attempt_key(attempt))
        return None if raw is None else AttemptDoc.from_json(raw)

    def heartbeat(self) -> AgentDoc | None:
        raw = self.read(agent_key("lab"))
        return None if raw is None else AgentDoc.from_json(raw)

    def commands(self, name: str) -> int:
        with state_of(self.conf) as state:
            return sum(command[0] == name for command in state["commands"])

    def job(self, number: int = 7, **changes: Any) -> AttemptDoc:
        """A protected job that the agent has told of."""
        add_job(self.conf, number, user=pwd.getpwuid(os.getuid()).pw_name, **changes)
        return self.wait_for(lambda: (doc := self.doc(f"slurm.lab.{number}")) and doc.spec and doc)  # type: ignore[return-value]

    def resubmission(self, doc: AttemptDoc) -> Order:
        return self.order(
            Verb.SUBMIT,
            attempt=doc.attempt,
            slurm_job=doc.slurm_job,
            new_attempt=f"{doc.attempt}-a2",
            spec=doc.spec,
            environment={"REKINDLE_ATTEMPT_NAME": f"{doc.attempt}-a2"},
        )


@pytest.fixture
def head_node(tmp_path: Path) -> Iterator[HeadNode]:
    with Cloud(http=True, clock=RealClock()) as cloud:
        node = HeadNode(cloud=cloud, folder=tmp_path, conf=lay_out(tmp_path))
        node.make_queue()
        yield node
        (tmp_path / "go").touch()
        for agent in node.agents:
            agent.kill()
            agent.communicate()


def test_it_tells_what_it_sees_obeys_and_ends_when_it_is_told_to(head_node: HeadNode) -> None:
    agent = head_node.start()
    doc = head_node.job()
    assert (doc.state, doc.nodes, doc.user) == (
        SlurmState.RUNNING,
        ("node1", "node2"),
        pwd.getpwuid(os.getuid()).pw_name,
    )
    nodes = head_node.wait_for(lambda: head_node.read(nodes_key("lab")))
    assert [node.name for node in NodesDoc.from_json(nodes).nodes] == ["node1", "node2", "node3"]
    head_node.send(head_node.order(Verb.HOLD, attempt=doc.attempt, slurm_job=7))
    held = head_node.wait_for(head_node.answer)
    assert held.outcome is Outcome.DONE
    again = head_node.wait_for(lambda: head_node.doc("slurm.lab.7.r1"))
    assert (again.state, again.held) == (SlurmState.PENDING, True)
    first = head_node.wait_for(lambda: (one := head_node.doc("slurm.lab.7")) and one.successor and one)
    assert isinstance(first, AttemptDoc)
    assert (first.successor, first.requeued_by) == ("slurm.lab.7.r1", "agent")
    names = {"attempt": "slurm.lab.7", "new_attempt": "slurm.lab.7.r1", "exclude": ("node1",)}
    head_node.send(head_node.order(Verb.REQUEUE, token="order-2", slurm_job=7, **names))
    assert head_node.wait_for(lambda: head_node.answer("order-2")).outcome is Outcome.DONE
    running = head_node.wait_for(
        lambda: (one := head_node.doc("slurm.lab.7.r1")) and one.state is SlurmState.RUNNING and one
    )
    assert isinstance(running, AttemptDoc)
    assert running.exclude == ("node1",)
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(PATIENCE_S) == 0


def test_killed_between_sbatch_and_its_answer_it_finds_the_job_and_submits_no_second(head_node: HeadNode) -> None:
    agent = head_node.start()
    doc = head_node.job()
    with state_of(head_node.conf) as state:
        state["jobs"]["7"]["State"] = "FAILED"
        state["hooks"]["sbatch"] = "kill-after"
    head_node.send(head_node.resubmission(doc))
    assert agent.wait(PATIENCE_S) == -signal.SIGKILL
    assert head_node.answer() is None
    head_node.start()
    answer = head_node.wait_for(head_node.answer)
    assert (answer.outcome, answer.slurm_job) == (Outcome.DONE, 100)
    assert head_node.commands("sbatch") == 1
    assert head_node.wait_for(lambda: head_node.doc("slurm.lab.7-a2")).slurm_job == 100


def test_it_does_not_look_before_a_submission_that_a_killed_agent_left_behind_has_ended(head_node: HeadNode) -> None:
    """The orphaned sbatch submits only after the next agent was started: looking at once would find no job."""
    agent = head_node.start()
    doc = head_node.job()
    with state_of(head_node.conf) as state:
        state["jobs"]["7"]["State"] = "FAILED"
        state["hooks"]["sbatch"] = "kill-before"
    head_node.send(head_node.resubmission(doc))
    assert agent.wait(PATIENCE_S) == -signal.SIGKILL
    head_node.wait_for((head_node.folder / "orphan").exists)
    assert head_node.run("--lock-wait", "0").returncode == 3  # nobody looks while the lock is held
    head_node.start()
    (head_node.folder / "go").touch()
    answer = head_node.wait_for(head_node.answer)
    assert (answer.outcome, answer.slurm_job) == (Outcome.DONE, 100)
    assert head_node.commands("sbatch") == 1


def test_a_second_agent_on_the_same_state_directory_does_not_start(head_node: HeadNode) -> None:
    head_node.start()
    head_node.wait_for(head_node.heartbeat)
    second = head_node.run("--lock-wait", "0")
    assert second.returncode == 3
    assert "held by another agent" in second.stderr


def test_while_slurmctld_is_away_it_stays_and_says_so(head_node: HeadNode) -> None:
    with state_of(head_node.conf) as state:
        state["hooks"]["away"] = True
    agent = head_node.start()
    add_job(head_node.conf, 7)
    head_node.send(head_node.order(Verb.CANCEL, attempt="slurm.lab.7", slurm_job=7))
    head_node.wait_for(lambda: "Unable to contact" in head_node.logs())
    assert agent.poll() is None
    with state_of(head_node.conf) as state:
        del state["hooks"]["away"]
    assert head_node.wait_for(head_node.answer).outcome is Outcome.DONE
    assert head_node.commands("scancel") == 1


def test_check_says_all_that_is_missing_and_fails(head_node: HeadNode) -> None:
    good = head_node.run("--check")
    assert good.returncode == 0, good.stdout + good.stderr
    assert "queue" in good.stdout
    for what in (
        "job numbers",
        "versions",
        "reboot",
        "state of jobs",
        "accounting",
        "Slurm's clock",
        "clock",
        "commands",
    ):
        assert f"  {what}" in good.stdout, what
    assert "a minute at rest" in good.stdout
    (head_node.folder / "bin" / "scancel").unlink()
    bad = head_node.run("--check", "--bucket", "no-such-bucket-anywhere", "--state-dir", "/dev/null/x")
    assert bad.returncode == 1
    assert [line.split()[1].rstrip(":") for line in bad.stdout.splitlines() if line.startswith("MISSING")] == [
        "state",
        "commands",
        "cluster",
        "lease",
    ]


def test_check_knows_what_the_agent_beside_it_keeps(head_node: HeadNode) -> None:
    agent = head_node.start()
    head_node.job()
    found = head_node.run("--check")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "reading" not in found.stdout
    assert agent.poll() is None


def test_wrong_settings_are_told_all_at_once(head_node: HeadNode) -> None:
    bad = head_node.run("--bucket", "No_Bucket", "--poll", "never", "--cluster", "a/b", "--stack", "?")
    assert bad.returncode == 2
    for name in ("REKINDLE_BUCKET", "REKINDLE_POLL_S", "REKINDLE_CLUSTER", "REKINDLE_STACK"):
        assert name in bad.stderr


def test_once_looks_obeys_tells_and_ends(head_node: HeadNode) -> None:
    add_job(head_node.conf, 7)
    head_node.send(head_node.order(Verb.CANCEL, attempt="slurm.lab.7", slurm_job=7))
    ran = head_node.run("--once")
    assert ran.returncode == 0, ran.stderr
    answer = head_node.answer()
    assert answer is not None
    assert answer.outcome is Outcome.DONE
    doc = head_node.doc("slurm.lab.7")
    assert doc is not None
    assert (doc.state, doc.ended_by) == (SlurmState.CANCELLED, "agent")
    heartbeat = head_node.heartbeat()
    assert heartbeat is not None
    assert heartbeat.read_at is not None


def test_the_process_ends_within_its_bound_whatever_hangs() -> None:
    """A part that never ends stands for S3, a disk or a command that hangs."""
    hangs = (
        "import threading; from rekindle.slurm_agent import agent_process as agent\n"
        "stop = agent._stopped_by_signals(); print('up', flush=True)\n"
        "while True: threading.Event().wait(1)\n"
    )
    with subprocess.Popen([sys.executable, "-c", hangs], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("rest", "code", "said"), [(["job 7", "node gpu-2"], 1, ["LEFT     job 7", "LEFT     node gpu-2"]), ([], 0, [])]
)
def test_what_is_not_given_back_within_its_bound_is_named(rest: list[str], code: int, said: list[str]) -> None:
    hangs = (
        "import threading; from rekindle.slurm_agent import agent_process as agent\n"
        f"agent._end_within(0.2, {rest!r}); threading.Event().wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", hangs], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, [line.partition(":")[0] for line in done.stdout.splitlines()]) == (code, said), done


def test_the_bounds_of_a_stop_fit_into_each_other() -> None:
    unit = (Path(infra.lifecycle.__file__).parent / "rekindle-agent.service").read_text()
    killed_after_s = float(next(line for line in unit.splitlines() if line.startswith("TimeoutStopSec=")).split("=")[1])
    assert LAST_ORDER_S + 2 * LAST_NEWS_S < STOP_S < killed_after_s <= 10
