"""The whole service beside what Slurm does by itself: the next link of a chain begins, and a node is drained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from chalicelib.domain.model.incident import Incident
from rekindle.protocol.cluster.documents import NodesDoc
from rekindle.protocol.cluster.names import nodes_key
from rekindle.protocol.cluster.node_states import defect_in, drained_for
from rekindle.protocol.cluster.orders import Verb
from rekindle.slurm_agent.watching import node_facts
from tests.slurm.head import BUCKET, Head, bucket, until
from tests.slurm.lab.lab import SlurmLab
from tests.slurm.stage import raised

STARTS = (Verb.REQUEUE, Verb.SUBMIT)
LINK = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --open-mode=append
#SBATCH --output={f}/{name}-%j.out
#SBATCH --comment=rekindle:small{place}
if [ ! -e {f}/{name}/crashed ]; then
    echo $SLURM_JOB_ID >{f}/{name}/crashed
    {early}
    until [ -e {f}/crash ]; do sleep 0.2; done
    {late}
    exit 3
fi
until [ "$(cat {f}/{name}/crashed)" = $SLURM_JOB_ID ] && [ -e {f}/{name}/end ]; do sleep 0.2; done
"""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """edge: sbatch's options for the second link, {a} the first one's number. within: the first submits it itself, as
    it begins or before it ends; else their user. place: where both train; "": the edge alone shows that they are one
    run, their scripts differ. begins: the second runs by itself after the first has failed."""

    edge: str = ""
    within: str = ""
    place: str = ""
    begins: bool = True


CHAINS: Mapping[str, Chain] = {
    "afterany": Chain(edge="--dependency=afterany:{a}", within="early", place="checkpoints"),
    "afterany-in-a-mailbox": Chain(edge="--dependency=afterany:{a}", within="early", place="mailbox"),
    "afternotok": Chain(edge="--dependency=afternotok:{a}"),
    "singleton": Chain(edge="--dependency=singleton"),
    "within": Chain(within="late"),
    "afterok": Chain(edge="--dependency=afterok:{a}", begins=False),
    "afterok-or-never": Chain(edge="--dependency=afterok:{a} --kill-on-invalid-dep=yes", begins=False),
}


def test_the_next_link_that_runs_by_itself_is_the_recovery_and_one_that_waits_for_a_success_waits_for_ours(
    tmp_path: Path,
) -> None:
    """All chains on one cluster: of none do two starts run at once, but where the first submits the second to run."""
    first = dict[str, int]()
    with raised(tmp_path, policy={"timing": {"start_limit_s": 120}}, submits=False, workers=5) as stage:

        def of(name: str) -> list[Incident]:
            stage.job = first[name]
            return stage.incidents()

        def links(name: str, *states: str) -> list[int]:
            words = ("squeue", "-h", "-n", name, "-t", ",".join(states), "-o", "%A")
            return sorted(map(int, stage.lab.run(*words).stdout.split()))

        for name, chain in CHAINS.items():
            (tmp_path / name).mkdir()
            script, second = tmp_path / f"{name}-1.sbatch", tmp_path / f"{name}-2.sbatch"
            again = f"sbatch {chain.edge.format(a='$SLURM_JOB_ID')} {second}"
            early, late = (again if chain.within == when else "" for when in ("early", "late"))
            place = f",{chain.place}={tmp_path / name}" if chain.place else ""
            script.write_text(LINK.format(f=tmp_path, name=name, place=place, early=early, late=late))
            second.write_text(f"{script.read_text()}# the second\n")
            first[name] = stage.lab.submit(script)
            if not chain.within:
                stage.lab.submit(second, *chain.edge.format(a=first[name]).split())
        for name in CHAINS:
            stage.job = first[name]
            stage.wait(stage.attempts, f"{name} to be registered")
            stage.wait(lambda name=name: links(name, "R") == [first[name]], f"the first of {name} to run")  # type: ignore[misc]
        (tmp_path / "crash").touch()

        def are_over() -> bool:
            for name, chain in CHAINS.items():
                assert chain.within == "late" or len(links(name, "R")) <= 1, name
                stage.job = first[name]
                if not chain.begins and len(stage.attempts()) > 1:
                    (tmp_path / name / "end").touch()
            return all(opened and not any(incident.is_open for incident in opened) for opened in map(of, CHAINS))

        stage.wait(are_over, "the Incidents to be closed")
        outcomes = {name: [incident.outcome for incident in of(name)] for name in CHAINS}
        assert outcomes == {n: ["resubmit.goes_on" if c.begins else "verify.completed"] for n, c in CHAINS.items()}
        for name, chain in CHAINS.items():
            stage.wait(lambda name=name: links(name, "R"), f"the second of {name} to run")  # type: ignore[misc]
            assert first[name] not in links(name, "R", "PD"), name
            started = [order for order in stage.orders() if order.slurm_job == first[name] and order.verb in STARTS]
            # Which the agent refused, and told what lives; where both name one mailbox the service may see it first.
            assert len(started) <= 1, name
            assert (stage.lab.job(first[name])["Restarts"] == "0") is chain.begins, name


def test_a_node_that_slurm_drains_for_a_defect_has_an_incident_of_its_own(tmp_path: Path) -> None:
    with raised(tmp_path) as stage:
        stage.wait_protected()
        node = stage.lab.nodes_of(stage.job)[0]
        stage.lab.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=Kill task failed")
        stage.lab.wait(
            lambda: any(not incident.is_open for incident in stage.node_incidents(node)),
            "the node's Incident to tell",
        )
        assert [incident.outcome for incident in stage.node_incidents(node)] == ["node.cluster_drained"]
        assert "drain" in stage.lab.run("sinfo", "-h", "-N", "-n", node, "-o", "%T").stdout
        assert not [incident for incident in stage.incidents() if incident.node is None]


def test_a_job_that_slurm_cannot_end_is_told_of_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its epilog hangs."""
    monkeypatch.setattr(node_facts, "ENDING_TAKES", timedelta(seconds=2))
    epilog, go = tmp_path / "epilog", tmp_path / "go"
    epilog.write_text(f"#!/bin/bash\nfor n in $(seq 600); do [ -e {go} ] && exit 0; sleep 0.2; done\n")
    epilog.chmod(0o755)
    with SlurmLab(nodes=("n1", "n2"), extra_conf=[f"Epilog={epilog}"]) as lab, bucket() as s3:
        head = Head(lab, s3, tmp_path / "state")
        job = int(lab.run("sbatch", "--parsable", "--comment=rekindle", "--wrap=exit 3").stdout)
        lab.wait(lambda: lab.job_state(job) == "COMPLETING", "its epilog to hang")

        def ending() -> list[str]:
            head.look()
            raw = s3.get_object(Bucket=BUCKET, Key=nodes_key("lab"))["Body"].read()
            return [node.name for node in NodesDoc.from_json(raw).nodes if node.ending_since is not None]

        until(lambda: ending() == lab.nodes_of(job), "it to be told")
        go.touch()
        until(lambda: ending() == [], "it to be over")


@pytest.mark.parametrize(
    ("reason", "defect", "is_slurms_alone"),
    [
        ("Kill task failed", "Kill task failed", True),
        ("Prolog error : Not responding", "Prolog error", True),
        ("batch job complete failure", "batch job complete failure", True),
        ("rekindle:inc-1 : Epilog error", "Epilog error", False),
        ("rekindle:inc-1 : Epilog error : reboot complete", "", False),
        ("bob: Kill task failed", "", False),
        ("Not responding", "", False),
    ],
)
def test_a_defect_is_told_from_other_reasons(reason: str, defect: str, is_slurms_alone: bool) -> None:
    assert defect_in(reason) == defect
    assert bool(drained_for("idle", ("drain",), reason)) is is_slurms_alone
    assert drained_for("idle", (), reason) == ""
