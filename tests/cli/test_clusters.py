"""`rekindle clusters`, and registering a Slurm job from the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from rekindle.protocol.cluster.documents import NodeFacts, NodesDoc
from tests.cli.conftest import Run
from tests.cli.service import FakeService

NAME = "slurm.ml.4211"


def _cluster(service: FakeService) -> None:
    service.head_nodes.heartbeat("ml")
    agent = service.head_nodes.agents["ml"]
    service.head_nodes.agents["ml"] = replace(agent, problems=("sbatch: not allowed",), slurm_version="24.11.0")
    nodes = (
        NodeFacts(name="gpu-1", state="allocated", instance_id="i-0a1b2c3d4e5f60718", group="gpu"),
        NodeFacts(name="gpu-2", state="down", flags=("drain",), reason="Not responding\x1b[31m"),
    )
    service.head_nodes.node_docs["ml"] = NodesDoc(cluster="ml", seen_at=service.clock.now(), nodes=nodes)


def _slurm_job(service: FakeService, *limits: str) -> None:
    service.scheduler.put(NAME, mailbox="s3://runs/lm")
    run = service.scheduler.runs[NAME]
    run.found = replace(run.found, limits=limits, cluster="ml")


def test_no_cluster_says_how_one_appears(rekindle: Run) -> None:
    ended = rekindle("clusters")
    assert ended.code == 0
    assert "docs/agent.md" in ended.out


def test_clusters_are_listed_with_their_agents(rekindle: Run, service: FakeService) -> None:
    _cluster(service)
    service.clock.advance(timedelta(seconds=40))
    out = rekindle("clusters").out
    assert "ml" in out
    assert "alive" in out
    assert "40 s" in out
    assert "1 allocated, 1 down+drain" in out


def test_a_silent_agent_s_cluster_is_unknown_and_not_well(rekindle: Run, service: FakeService) -> None:
    _cluster(service)
    service.clock.advance(timedelta(minutes=5))
    row = rekindle("clusters").out.splitlines()[-1]
    assert row.count("unknown") == 2  # the agent, and the nodes
    assert "silent since" in rekindle("clusters", "ml").out


def test_a_slurm_that_was_never_read_is_said_so(rekindle: Run, service: FakeService) -> None:
    _cluster(service)
    service.head_nodes.agents["ml"] = replace(service.head_nodes.agents["ml"], read_at=None)
    out = rekindle("clusters", "ml").out
    assert "Slurm read never\n" in out
    assert "never ago" not in out


def test_one_cluster_is_shown_with_problems_nodes_and_runs(rekindle: Run, service: FakeService) -> None:
    _cluster(service)
    _slurm_job(service)
    rekindle("register", "--yes", "--slurm", "ml/4211")
    out = rekindle("clusters", "ml").out
    for said in ("sbatch: not allowed", "24.11.0", "gpu-1", "i-0a1b2c3d4e5f60718", "Not responding", NAME):
        assert said in out
    assert "\x1b" not in out


def test_clusters_for_machines(rekindle: Run, service: FakeService) -> None:
    _cluster(service)
    assert json.loads(rekindle("clusters", "--json").out)["clusters"][0]["cluster"] == "ml"
    assert len(json.loads(rekindle("clusters", "ml", "--json").out)["nodes"]) == 2


def test_an_unknown_cluster_is_not_found(rekindle: Run) -> None:
    assert rekindle("clusters", "nowhere").code == 3
    assert rekindle("clusters", "..x").code == 3  # no cluster can have such a name


def test_a_slurm_job_is_registered_and_its_limits_are_told(rekindle: Run, service: FakeService) -> None:
    _slurm_job(service, "it cannot be submitted again faithfully: it is an array job")
    ended = rekindle("register", "--yes", "--slurm", "ml/4211", "--policy", "default")
    assert ended.code == 0
    assert f"{NAME} is protected by policy default." in ended.out
    assert "but: it cannot be submitted again faithfully" in ended.out
    assert "array job" in rekindle("jobs", NAME).out
    assert json.loads(rekindle("jobs", NAME, "--json").out)["limits"]


def test_a_slurm_job_that_nobody_watches_is_not_found(rekindle: Run) -> None:
    ended = rekindle("register", "--yes", "--slurm", "ml/77")
    assert ended.code == 3
    assert "comment=rekindle" in ended.err


@pytest.mark.parametrize("given", ["ml", "ml/", "/4211", "ml/x", "ml/0"])
def test_a_slurm_job_needs_its_cluster_and_its_number(rekindle: Run, given: str) -> None:
    assert rekindle("register", "--slurm", given).code == 2


def test_either_a_training_job_or_a_slurm_job(rekindle: Run) -> None:
    assert rekindle("register").code == 2
    assert rekindle("register", "lm", "--slurm", "ml/1").code == 2
