"""The three attackers of docs/threat-model.md, each with the rights of one role, against the whole service.

Each does with its role whatever it can think of; afterwards the victims' runs go on untouched, nothing was ordered, and
the service still recovers a run that truly fails.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from localcloud.cloud import STACK
from localcloud.worlds.recoveries import Script, World, crash_at, world
from tests.recovery.test_slurm_playbooks import JOB, Slurm, slurm

pytestmark = pytest.mark.long
EVENTS = Path(__file__).parents[2] / "events"
MINUTES = timedelta(minutes=20)


def put(w: World, source: str, entries: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Over the stack's bus, as a role with `events:source` on `source` may."""
    for kind, detail in entries:
        entry = {"Source": source, "DetailType": kind, "Detail": json.dumps(detail), "EventBusName": STACK}
        answer = w.cloud.client("events").put_events(Entries=[entry])
        assert answer["FailedEntryCount"] == 0, answer


def golden(name: str, **changes: Any) -> tuple[str, dict[str, Any]]:
    event = json.loads((EVENTS / f"{name}.json").read_text(encoding="utf-8"))
    detail: dict[str, Any] = copy.deepcopy(event["detail"]) | changes
    return event["detail-type"], detail


def forged_about_a_cluster(s: Slurm) -> list[tuple[str, dict[str, Any]]]:
    """Everything that an agent can say, in the name of the victim's cluster, of now, of long ago and of years ahead."""
    now = s.w.cloud.clock.now()
    return [event for at in (now, now - timedelta(hours=1), now + timedelta(days=3650)) for event in _forged(s, at)]


def _forged(s: Slurm, at: datetime) -> list[tuple[str, dict[str, Any]]]:
    own = {"cluster": "ml", "at": at.isoformat()}
    job = {**own, "attempt": JOB, "slurm_job": 1, "nodes": list(s.job.nodes)}
    names = [path.stem for path in sorted(EVENTS.glob("agent_slurm_*.json"))]
    said = [golden(name, **job) for name in names if "_job_" in name]
    said += [
        golden(name, **own, node=node, instance_id=instance)
        for name in names
        if "_node_" in name and "_job_" not in name
        for node in s.job.nodes
        for instance in (None, "i-0a1b2c3d4e5f60718")
    ]
    said.append(golden("agent_slurm_job_resubmitted", **job, successor="slurm.ml.999"))
    said.append(golden("agent_order_answered_done", cluster="ml", at=at.isoformat()))
    return said


def test_a_head_node_that_speaks_for_another_cluster_harms_none_of_its_runs_and_nodes() -> None:
    with slurm() as s:
        put(s.w, "rekindle.agent", forged_about_a_cluster(s))
        before = s.step(JOB)
        s.w.cloud.clock.run_for(MINUTES)
        assert s.verbs() == [], s.w.story()
        assert s.starts() == [JOB], s.w.story()
        assert s.step(JOB) > before
        assert s.w.incidents() == [], s.w.story()
        job = s.w.service.look.registry.get(JOB)
        assert (job.active, job.current_attempt) == (True, JOB)


def forged_about_a_job(w: World) -> list[tuple[str, dict[str, Any]]]:
    """Everything that a monitor can say, in the name of the victim's run, of now, of long ago and of years ahead."""
    now = w.cloud.clock.now()
    said = []
    for at in (now, now - timedelta(hours=1), now + timedelta(days=3650)):
        for path in sorted(EVENTS.glob("monitor_*.json")):
            kind, detail = golden(path.stem, job_id="lm", attempt="lm", attempt_number=1, at=at.isoformat())
            if isinstance(detail.get("reply"), dict):
                detail["reply"] |= {"job_id": "lm", "attempt": "lm"}
            said.append((kind, detail))
            said.append((kind, {**detail, "age_s": 30 * 86_400.0, "step": 10**12 - 1}))
    return said


def forged_in_its_own_mailbox(w: World) -> None:
    """All that its role may write, under its own prefix, in the name of the victim's run."""
    s3, bucket = w.cloud.client("s3"), f"{STACK}-mailbox"
    victims = [
        entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket, Prefix="jobs/lm/rekindle/").get("Contents", ())
    ]
    assert any("/heartbeats/" in key for key in victims)
    for key in victims:
        if any(f"/rekindle/{folder}/" in key for folder in ("heartbeats", "replies", "manifests", "reports", "hashes")):
            body = s3.get_object(Bucket=bucket, Key=key)["Body"].read().replace(b'"running"', b'"stalled"')
            s3.put_object(Bucket=bucket, Key=key.replace("jobs/lm/", "jobs/evil/"), Body=body)
    for body in (b"", b"\xff", b"[" * 50_000, b'{"v":1,"step":1e999}', b'{"v":1,"files":' + b"9" * 4301 + b"}"):
        for folder in ("heartbeats", "replies", "manifests"):
            s3.put_object(Bucket=bucket, Key=f"jobs/evil/rekindle/{folder}/evil-{len(body)}.json", Body=body)


def test_a_training_role_that_speaks_for_another_job_harms_it_in_nothing() -> None:
    with world() as w:
        w.submit("lm", scripts=(Script(steps=100_000),))
        w.submit("evil", scripts=(Script(faults=(crash_at(25),)), Script()))
        w.cloud.clock.run_for(timedelta(minutes=2))
        forged_in_its_own_mailbox(w)
        for _ in range(3):
            put(w, "rekindle.monitor", forged_about_a_job(w))
            w.cloud.clock.run_for(timedelta(minutes=5))
        assert not [name for name in w.jobs() if name.startswith("lm-")], w.story()
        assert "lm" in w.jobs()
        assert w.cloud.training.jobs["lm"].status == "InProgress", w.story()
        store = w.service.look.store
        about = [incident.incident_id for incident in w.incidents() if incident.job_id == "lm"]
        acted = {action for incident_id in about for entry in store.timeline(incident_id) for action in entry.actions}
        assert not acted & {"StopJob", "ResubmitJob", "QuarantineCheckpoint"}, w.story()
        job = w.service.look.registry.get("lm")
        assert (job.active, job.current_attempt) == (True, "lm")
