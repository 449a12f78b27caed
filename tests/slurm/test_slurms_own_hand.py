"""The whole service beside what Slurm does by itself: the next link of a chain begins, and a node is drained."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest

from localcloud.slurm.lab import SlurmLab
from rekindle.protocol.cluster.documents import NodesDoc
from rekindle.protocol.cluster.names import nodes_key
from rekindle.protocol.cluster.node_states import defect_in, drained_for
from rekindle.slurm_agent.watching import node_facts
from tests.slurm.head import BUCKET, Head, bucket, until
from tests.slurm.stage import raised

LINK = """#!/bin/bash
#SBATCH --job-name=chain
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --open-mode=append
#SBATCH --output={f}/chain-%j.out
#SBATCH --comment=rekindle:small,{place}={f}/ckpt
[ -e {f}/next ] || {{ touch {f}/next; sbatch --dependency=afterany:$SLURM_JOB_ID {f}/link.sbatch; }}
[ -e {f}/crashed ] || {{ touch {f}/crashed; sleep 12; exit 3; }}
sleep 600 & wait $!
"""


@pytest.mark.parametrize("place", ["checkpoints", "mailbox"])
def test_the_next_link_of_a_chain_is_the_recovery_of_the_one_that_crashed(tmp_path: Path, place: str) -> None:
    policy = {"timing": {"tell_open_s": 20, "start_limit_s": 120}}
    with raised(tmp_path, policy=policy, submits=False, workers=4) as stage:
        (tmp_path / "ckpt").mkdir()
        (tmp_path / "link.sbatch").write_text(LINK.format(f=tmp_path, place=place))
        stage.job = stage.lab.submit(tmp_path / "link.sbatch")
        stage.lab.wait(lambda: stage.lab.job_state(stage.job + 1) == "RUNNING", "the next link", 120)
        for _ in range(120):
            stated = stage.lab.run("squeue", "-h", "-t", "R", "-o", "%A").stdout.split()
            assert len(stated) <= 1, stated
            closed = [incident for incident in stage.incidents() if not incident.is_open]
            if closed:
                break
            threading.Event().wait(1)
        assert [incident.outcome for incident in closed] == ["resubmit.goes_on"]
        # Which the agent refused, and told what lives; where both name one mailbox the service may see it first.
        assert len(stage.orders()) <= 1


def test_a_node_that_slurm_drains_for_a_defect_has_an_incident_of_its_own(tmp_path: Path) -> None:
    with raised(tmp_path) as stage:
        stage.wait_protected()
        node = stage.lab.nodes_of(stage.job)[0]
        stage.lab.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=Kill task failed")
        stage.lab.wait(
            lambda: any(not incident.is_open for incident in stage.node_incidents(node)),
            "the node's Incident to tell",
            90,
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
