"""The running app on the embedded cloud, with Jobs, Incidents, a cluster and policies in several states."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from app import app
from localcloud.cloud import STACK
from localcloud.worlds.recoveries import Script, World, crash_at, world
from rekindle.protocol.cluster import documents, names

CLUSTER, NODE = "pretrain", "ip-10-0-0-1"
POLICIES: dict[str, dict[str, Any]] = {
    "asking": {
        "approvals": {"rules": [{"when": {"actions": ["ResubmitJob"]}, "deadline_s": 86400, "default": "deny"}]}
    },
    "hasty": {"budgets": {"max_no_progress": 1}},
}


@dataclass(frozen=True)
class Stage:
    """Where the API is, and what there is to ask it for."""

    url: str
    world: World
    known: dict[str, list[str]]


@contextmanager
def stage() -> Iterator[Stage]:
    """Virtual time is stopped while it stands: nothing moves but what an order or an answer wakes, and that at once."""
    with world(policies=POLICIES) as w:
        w.submit("lm-calm", scripts=(Script(),))
        w.submit("lm-healed", scripts=(Script(faults=(crash_at(30),)), Script()))
        w.submit("lm-asks", scripts=(Script(faults=(crash_at(30),)), Script()), policy="asking")
        again = Script(faults=(crash_at(30),))
        w.submit("lm-given-up", scripts=(again, again, again, again), policy="hasty")
        w.submit("plain", scripts=(Script(),), Tags=[])
        w.run_until(lambda: _is_ready(w))
        now = w.cloud.clock.now()
        agent = documents.AgentDoc(cluster=CLUSTER, agent_id="a1", at=now, started_at=now, read_at=now, version="1")
        facts = (documents.NodeFacts(name=NODE, state="idle"), documents.NodeFacts(name="ip-10-0-0-2", state="down"))
        nodes = documents.NodesDoc(cluster=CLUSTER, seen_at=now, nodes=facts)
        bucket = f"{STACK}-mailbox"
        w.cloud.client("s3").put_object(Bucket=bucket, Key=names.agent_key(CLUSTER), Body=agent.to_json())
        w.cloud.client("s3").put_object(Bucket=bucket, Key=names.nodes_key(CLUSTER), Body=nodes.to_json())
        w.service.ingress.take("training_job_event", {"version": "0", "detail-type": "nothing we know"})
        drill = w.service.drills.start("lm-calm", "non_finite", who="ada", key="seed")
        yield Stage(url=w.cloud.serve_api(app), world=w, known=_known(w) | {"drill_id": [drill["drill_id"]]})


def _is_ready(w: World) -> bool:
    found = w.incidents()
    closed = {incident.job_id for incident in found if not incident.is_open}
    asks = any(asked.is_pending for incident in found for asked in incident.approvals)
    return asks and {"lm-healed", "lm-given-up"} <= closed


def _known(w: World) -> dict[str, list[str]]:
    incidents = w.incidents()
    asked = [incident for incident in incidents if incident.approvals]
    return {
        "job_id": ["lm-calm", "lm-healed", "lm-asks", "lm-given-up"],
        # The one that asks comes first, so that the answer below its path is about it.
        "incident_id": [
            incident.incident_id
            for incident in (*asked, *(incident for incident in incidents if not incident.approvals))
        ],
        "approval_id": [approval.approval_id for incident in asked for approval in incident.approvals],
        "cluster": [CLUSTER],
        "node": [NODE, "ip-10-0-0-2"],
        "name": ["default", *POLICIES],
    }
