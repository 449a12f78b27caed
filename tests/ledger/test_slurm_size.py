"""How many GPUs a Slurm job has: what Slurm says in each of its ways, and nothing where it does not say."""

from __future__ import annotations

import pytest

from chalicelib.domain.model.known import Known, Unknown
from chalicelib.platforms.slurm.found import found_of
from rekindle.protocol.cluster.documents import AttemptDoc, SlurmState
from rekindle.slurm_agent.reading.sizes import gpus_in
from tests.ledger.books import T0


@pytest.mark.parametrize(
    ("detail", "gpus"),
    [
        ({"TRES": "cpu=64,mem=1T,node=2,billing=64,gres/gpu=16"}, 16),
        ({"ReqTRES": "cpu=64,node=2,gres/gpu=16,gres/gpu:h100=16", "AllocTRES": "(null)"}, 16),
        ({"ReqTRES": "node=4,gres/gpu=32", "AllocTRES": "node=3,gres/gpu=24"}, 24),
        ({"TRES": "cpu=64,node=2", "TresPerNode": "gres:gpu:8"}, 16),
        ({"ReqTRES": "node=2", "TresPerNode": "gres/gpu:h100:8"}, 16),
        ({"ReqTRES": "node=2", "TresPerNode": "gres/gpu"}, 2),
        ({"ReqTRES": "node=2", "TresPerNode": "gres/gpu:a100:4,gres/gpu:h100:4,gres/nic:2"}, 16),
        ({"ReqTRES": "cpu=64,node=2"}, None),
        ({"TresPerNode": "gres:gpu:8"}, None),
        ({"ReqTRES": "node=2", "TresPerNode": "gres/gpu:many"}, None),
        ({"ReqTRES": "node=2", "TresPerNode": "gres/gpumem:80"}, None),
        ({"TRES": "node=2,gres/gpu=0"}, None),
        ({"TRES": "node=2,gres/gpu=99999999999"}, None),
        ({}, None),
    ],
)
def test_all_gpus_of_a_job(detail: dict[str, str], gpus: int | None) -> None:
    assert gpus_in(detail) == gpus


def test_a_job_is_registered_with_the_gpus_that_slurm_tells_or_with_none_that_are_known() -> None:
    doc = AttemptDoc(
        attempt="slurm.ml.42",
        cluster="ml",
        slurm_job=42,
        restart=0,
        state=SlurmState.RUNNING,
        seen_at=T0,
        node_count=2,
        gpu_count=16,
    )
    assert AttemptDoc.from_json(doc.to_json()) == doc
    assert found_of(doc, bucket="b").size.gpus == Known(16)
    old = AttemptDoc(attempt="slurm.ml.42", cluster="ml", slurm_job=42, restart=0, state=SlurmState.RUNNING, seen_at=T0)
    assert isinstance(found_of(old, bucket="b").size.gpus, Unknown)
