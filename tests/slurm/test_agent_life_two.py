"""The agents of two head nodes, from installation to removal, on a real Slurm with one lease: what a stop, an
upgrade, a rollback and a removal on one of them does to the other.

Each head node is a folder as in test_agent_life; both see the same slurmctld (test_two_head_nodes plays two of those).
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud.aws.clock import RealClock
from localcloud.cloud import Cloud
from rekindle.protocol.cluster.lease import LeaseDoc, lease_key, standby_key
from rekindle.protocol.cluster.names import agent_key, answer_key, attempt_key
from rekindle.protocol.cluster.orders import Verb
from tests.slurm import head_node
from tests.slurm.lab.hyperpod import HyperPodLab
from tests.slurm.test_agent_life import BUCKET, CLUSTER, SLEEPS, Site, bundle, said

__all__ = ["bundle"]  # the fixture
pytestmark = pytest.mark.long
LEASE_S = 6
SERVICE = "rekindle-agent.service"


class HeadNode(Site):
    """With a short lease."""

    @property
    def environ(self) -> dict[str, str]:
        return super().environ | {"REKINDLE_LEASE_S": str(LEASE_S)}

    def systemctl(self, *words: str) -> int:
        return subprocess.run(["systemctl", *words, SERVICE], env=self.environ, check=False).returncode

    def do(self, code: int, *words: str) -> subprocess.CompletedProcess[str]:
        done = self.agent(*words, "--here")
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def install(self, folder: Path, verb: str) -> None:
        said(self.script(folder, verb), 0, "the agent was started")

    def stands_by(self) -> bool:
        """Its mark is in the bucket: an agent that starts has none until its first look, one that ends empties it."""
        key = standby_key(CLUSTER, self.identity())
        return self.has(key) and bool(self.cloud.client("s3").get_object(Bucket=BUCKET, Key=key)["Body"].read())

    def identity(self) -> str:
        """The agent's id, as its state directory has it."""
        import sqlite3
        from contextlib import closing

        with closing(sqlite3.connect(self.root / "var/lib/rekindle/agent.sqlite")) as db:
            row = db.execute("SELECT value FROM memory WHERE key = 'agent/id'").fetchone()
        return bytes(row[0]).decode() if row else ""


@pytest.fixture
def heads(bundle: Path, tmp_path: Path) -> Iterator[tuple[HeadNode, HeadNode]]:
    with (
        Cloud(http=True, clock=RealClock(), set_environ=False) as cloud,
        HyperPodLab(cloud, name=CLUSTER, workers=4) as pod,
    ):
        from localcloud.cloud import STACK
        from rekindle.protocol.cluster.names import queue_name

        cloud.client("sqs").create_queue(QueueName=queue_name(STACK, CLUSTER))
        made = []
        for name in ("a", "b"):
            head_node.lay_out(tmp_path / name / "bin")
            made.append(HeadNode(cloud, pod, tmp_path / name, bundle))
            made[-1].allow("mode = act\n")
        try:
            yield made[0], made[1]
        finally:
            for head in made:
                head.systemctl("stop")


def lease_of(head: Site) -> LeaseDoc:
    raw = head.cloud.client("s3").get_object(Bucket=BUCKET, Key=lease_key(CLUSTER))["Body"].read()
    return LeaseDoc.from_json(raw)


def holds(head: HeadNode) -> bool:
    lease = lease_of(head)
    return lease.holder == head.identity() and lease.term_s > 0 and not lease.stopped_on


def takes_over(head: HeadNode, other: HeadNode) -> None:
    """`other` has given the lease back and starts again. The first to read it takes it; if that is `other`, stop it."""
    lab = head.pod.lab
    lab.wait(lambda: holds(head) or holds(other), "one of them to take the lease that was given back")
    if holds(other):
        assert other.systemctl("stop") == 0
        lab.wait(lambda: holds(head), "the one that runs to take over")
        assert other.systemctl("restart") == 0


def test_one_acts_through_every_step_of_the_others_life(heads: tuple[HeadNode, HeadNode]) -> None:
    one, two = heads
    lab = one.pod.lab
    one.install(one.bundle, "install")
    lab.wait(lambda: one.has(agent_key(CLUSTER)) and holds(one), "the first agent to hold the lease")
    two.install(two.bundle, "install")
    lab.wait(two.stands_by, "the second agent's mark")
    lab.wait(lambda: lease_of(one).term_s == LEASE_S, "the holder to see the one that stands by")
    assert holds(one)

    (lab.folder / "work/job.sh").write_text(SLEEPS)
    held = lab.submit(lab.folder / "work/job.sh")
    lab.wait(lambda: one.has(attempt_key(f"slurm.{CLUSTER}.{held}")), "the job to be followed")
    lab.wait(lambda: lab.job_state(held) == "RUNNING", "the job to run")
    one.order("hold-1", Verb.HOLD, attempt=f"slurm.{CLUSTER}.{held}", slurm_job=held)
    ours, later, last = lab.nodes[1:4]
    one.order("drain-1", Verb.DRAIN, node=ours, incident_id="inc-1")

    # The holder is upgraded: the other takes over at once, with what was done, and keeps the lease.
    one.install(one.other("next"), "upgrade")
    takes_over(two, one)
    epoch = lease_of(two).epoch
    lab.wait(lambda: two.journal() == ["drain-1", "hold-1"], "the second to know what was done")
    two.order("drain-2", Verb.DRAIN, node=later, incident_id="inc-2")
    assert "drain-2" in two.journal()
    assert "drain-2" not in one.journal()

    # One that stands by is rolled back: nothing changes hands.
    lab.wait(one.stands_by, "the one that was upgraded to stand by")
    one.do(0, "rollback", "--yes")
    assert holds(two)
    assert lease_of(two).epoch == epoch
    lab.wait(one.stands_by, "the one that was rolled back to stand by")
    two.install(two.other("next"), "upgrade")
    takes_over(one, two)
    assert one.journal() == ["drain-1", "drain-2", "hold-1"]
    lab.wait(two.stands_by, "the one that was upgraded to stand by")
    one.do(0, "rollback", "--yes")
    takes_over(two, one)
    assert one.journal() == ["drain-1", "drain-2", "hold-1"]

    # A stop on the one that stands by stops the one that holds it; what is ordered meanwhile waits.
    said(one.do(0, "stop"), 0, "the agent is stopped", f"no agent of {CLUSTER} acts now")
    assert lease_of(one).stopped_on
    assert two.systemctl("-q", "is-active") == 0, "it stands by"
    two.send("drain-3", Verb.DRAIN, node=last, incident_id="inc-3")
    time.sleep(3 * LEASE_S)
    assert not one.has(answer_key(CLUSTER, "drain-3"))
    assert lab.node_states()[last] in ("idle", "mix", "alloc")
    assert lease_of(one).stopped_on
    assert two.systemctl("restart") == 0
    time.sleep(LEASE_S)
    assert lease_of(one).stopped_on, "a start elsewhere takes nothing back"
    assert one.systemctl("enable", "--now") == 0
    lab.wait(lambda: one.has(answer_key(CLUSTER, "drain-3")), "what waited to be carried out")
    assert lab.node_states()[last].startswith("drain")

    # The holder is removed: the other goes on with what is held. The last one gives it back.
    first, second = (one, two) if holds(one) else (two, one)
    said(first.do(0, "uninstall", "--yes"), 0, "continues with what is held: nothing is given back", "removed")
    lab.wait(lambda: holds(second), "the other to go on")
    assert lab.job(held).get("Priority") == "0"
    assert all(lab.node_states()[node].startswith("drain") for node in (ours, later, last))
    said(second.do(0, "uninstall", "--yes"), 0, f"done     release job {held}", "removed")
    lab.wait(lambda: lab.job_state(held) == "RUNNING", "the job to be let go")
    lab.wait(lambda: not [state for state in lab.node_states().values() if state.startswith("drain")], "the nodes")
    assert not one.has(lease_key(CLUSTER)), "the next installation need not wait"
