"""A node's way, end to end in virtual time: HyperPod's event, the Job's Incident and the node's own, orders through the
queue, the batch APIs, both views, until the node is back. Slurm is a model; tests/slurm plays it on a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.model.incident import Incident, Phase
from localcloud.cloud import STACK
from localcloud.platforms.hyperpod import Timings
from localcloud.platforms.hyperpod_cluster import Node
from localcloud.worlds.recoveries import World, world
from rekindle.protocol.cluster.documents import NodeFacts, SlurmState
from rekindle.protocol.cluster.orders import Verb
from tests.adapters.test_cluster_nodes import group
from tests.fakes.slurm_simulated import SlurmSimulated

pytestmark = pytest.mark.long

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
# What takes 25 minutes takes five here: every minute of a modelled cluster is played tick by tick.
BRISK = Timings(provision=MINUTE, replace=5 * MINUTE, shut_down=MINUTE, reboot=MINUTE)
JOB = "slurm.ml.1"


class Pod:
    """A HyperPod cluster of three workers with a modelled Slurm on it, and one protected job on two of them."""

    def __init__(self, w: World, *, recovery: str = "None", timings: Timings = BRISK) -> None:
        self.w = w
        w.cloud.clusters.timings = timings
        arn = w.cloud.client("sagemaker").create_cluster(
            ClusterName="ml",
            InstanceGroups=[group("head", 1, "Controller"), group("gpu", 3, "Compute")],
            NodeProvisioningMode="Continuous",
            NodeRecovery=recovery,
            Tags=[{"Key": "rekindle:policy", "Value": "default"}],
        )["ClusterArn"]
        w.cloud.clock.run_for(2 * MINUTE)
        names = {name_of(worker): worker for worker in self.workers()}
        self.sim = SlurmSimulated(
            clock=w.cloud.clock,
            client=w.cloud.client,
            cluster="ml",
            bucket=f"{STACK}-mailbox",
            bus=STACK,
            stack=STACK,
            nodes=tuple(names),
        )
        self.sim.cluster_arn = arn
        for name, machine in names.items():
            self.set(name, instance_id=machine.instance_id, group="gpu")
        clusters = w.cloud.clusters
        clusters.on_gone = lambda _, node: self.away(node)
        clusters.on_reboot = lambda _, node: self.back(node)
        clusters.on_replace = lambda _, __, ___, node: self.back(node)
        self.job = self.sim.submit(mailbox=f"s3://{STACK}-mailbox/jobs/lm")
        self.sim.open()
        self.until(lambda: JOB in self.sim.runs and self.sim.runs[JOB].step > 40)
        self.node = self.job.nodes[0]
        self.old = self.facts.instance_id or ""

    @property
    def facts(self) -> NodeFacts:
        return self.sim.model.node_facts[self.node]

    def workers(self) -> list[Node]:
        return [node for node in self.w.cloud.clusters.clusters["ml"].nodes.values() if node.group == "gpu"]

    def set(self, name: str, **changes: Any) -> None:
        self.sim.model.node_facts[name] = replace(self.sim.model.node_facts[name], **changes)

    def away(self, node: Node) -> None:
        """Its slurmd answers no more; a drain stays a drain."""
        name = name_of(node)
        kept = tuple(flag for flag in self.sim.model.node_facts[name].flags if flag == "drain")
        self.sim.model.lose_node(name)
        self.set(name, flags=("not_responding", *kept))

    def back(self, node: Node) -> None:
        """Its slurmd registers again: it answers, and a drain stays a drain."""
        name = name_of(node)
        kept = tuple(flag for flag in self.sim.model.node_facts[name].flags if flag == "drain")
        self.set(name, state="idle", flags=kept, instance_id=node.instance_id)

    def until(self, predicate: Callable[[], bool], limit: timedelta = HOUR) -> None:
        self.w.run_until(predicate, limit=limit)

    def of_node(self) -> list[Incident]:
        return [incident for incident in self.w.incidents() if incident.node is not None]

    def calls(self, operation: str) -> int:
        return self.w.cloud.wire.calls[f"sagemaker.{operation}"]

    def ended(self) -> Incident:
        self.until(lambda: bool(self.of_node()) and not any(incident.is_open for incident in self.of_node()))
        (incident,) = self.of_node()
        return incident


def name_of(node: Node) -> str:
    return node.host_name.partition(".")[0]


@contextmanager
def pod(policies: dict[str, Any] | None = None, **more: Any) -> Iterator[Pod]:
    with world(policies=policies) as w:
        made = Pod(w, **more)
        try:
            yield made
        finally:
            made.sim.close()


def test_a_node_that_the_health_agent_condemns_is_replaced_while_its_job_goes_on_elsewhere() -> None:
    with pod() as p:
        p.w.cloud.clusters.report_health("ml", p.old, fault="NvidiaErrorTerminate", action="Replace")
        incident = p.ended()
        story = p.w.story()
        assert (incident.phase, incident.outcome) == (Phase.RECOVERED, "return.done"), story
        assert p.calls("BatchReplaceClusterNodes") == 1
        assert (p.facts.state, p.facts.flags, p.facts.reason) == ("idle", (), "")
        assert p.facts.instance_id != p.old
        (of_job,) = [incident for incident in p.w.incidents() if incident.job_id == JOB]
        assert of_job.phase is Phase.RECOVERED, story
        assert of_job.closed_at is not None
        assert incident.closed_at is not None
        assert of_job.closed_at < incident.closed_at, "the run does not wait for the repair"
        rules = p.w.rules(incident)
        assert [rule for rule in rules if rule in ("node.cordon", "repair.replace", "return.done")] == [
            "node.cordon",
            "repair.replace",
            "return.done",
        ]
        drains = [order for order in p.sim.model.executed if order.verb in (Verb.DRAIN, Verb.RESUME)]
        assert [order.verb for order in drains] == [Verb.DRAIN, Verb.RESUME], "cordoned once, given back once"


def test_what_hyperpod_repairs_by_itself_is_left_to_it() -> None:
    with pod(recovery="Automatic") as p:
        p.w.cloud.clusters.report_health("ml", p.old, fault="NvidiaErrorTerminate", action="Replace")
        p.set(p.node, flags=("fail",), reason="Action:Replace")
        assert p.w.cloud.clusters.slurm_marked("ml", p.node, "Action:Replace")
        p.until(lambda: p.facts.instance_id != p.old)
        p.set(p.node, flags=(), reason="")
        incident = p.ended()
        assert (incident.phase, incident.outcome) == (Phase.RECOVERED, "node.theirs_done"), p.w.story()
        assert p.calls("BatchReplaceClusterNodes") == p.calls("BatchRebootClusterNodes") == 0
        assert "not by us" in p.w.service.look.store.timeline(incident.incident_id)[-1].text


@pytest.mark.parametrize(("takes", "waits"), [(10, 11), (120, 20)], ids=["it ends", "the start waits no longer"])
def test_the_nodes_that_a_run_died_on_are_checked_before_it_starts_again(takes: int, waits: int) -> None:
    checked = {"default": {"nodes": {"deep_health_check_s": 1200}}}
    with pod(checked, timings=replace(BRISK, health_check=takes * MINUTE)) as p:
        said = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
        p.sim.model.end(p.job, SlurmState.FAILED, reason="NonZeroExitCode", code=1, detail=said)
        died_at = p.w.cloud.clock.now()
        p.until(lambda: f"{JOB}.r1" in p.sim.runs)
        waited = p.w.cloud.clock.now() - died_at
        assert timedelta(minutes=takes if takes < waits else waits) <= waited < (waits + 4) * MINUTE, p.w.story()
        assert p.calls("StartClusterHealthCheck") == 1
        (of_job,) = [incident for incident in p.w.incidents() if incident.job_id == JOB]
        assert "resubmit.checking" in p.w.rules(of_job)


def test_a_check_that_is_refused_keeps_no_run_from_starting() -> None:
    with pod({"default": {"nodes": {"deep_health_check_s": 1200}}}) as p:
        machine = p.workers()[2]  # another check of the cluster is under way
        checks = [
            {"InstanceGroupName": "gpu", "InstanceIds": [machine.instance_id], "DeepHealthChecks": ["InstanceStress"]}
        ]
        client = p.w.cloud.client("sagemaker")
        client.start_cluster_health_check(ClusterName="ml", DeepHealthCheckConfigurations=checks)
        said = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
        p.sim.model.end(p.job, SlurmState.FAILED, reason="NonZeroExitCode", code=1, detail=said)
        p.until(lambda: f"{JOB}.r1" in p.sim.runs, limit=5 * MINUTE)
