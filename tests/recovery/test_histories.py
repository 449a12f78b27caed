"""Over a run's whole history, on the whole embedded cloud: a second start beside ours, checkpoints that are gone or lie
elsewhere, a shared place, and crashes without end.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.model.incident import Phase
from localcloud.cloud import STACK
from localcloud.worlds.recoveries import Script, World, crash_at, world

pytestmark = pytest.mark.long

BUCKET = f"{STACK}-mailbox"


def beside(place: str, job_id: str) -> dict[str, Any]:
    """What a launch script gives each of its submissions: one mailbox, and that it belongs to one Job."""
    mailbox = f"s3://{BUCKET}/jobs/{place}"
    environment = {"REKINDLE_MAILBOX": mailbox, "REKINDLE_JOB_ID": job_id, "REKINDLE_BUS": STACK}
    return {"CheckpointConfig": {"S3Uri": mailbox}, "Environment": environment}


def is_live(w: World, name: str) -> bool:
    return name in w.jobs() and w.jobs()[name].status in ("InProgress", "Stopping")


def test_an_owners_retry_beside_ours_is_kept_and_ours_saves_and_makes_way() -> None:
    with world() as w:
        w.submit(scripts=(Script(faults=(crash_at(25),)), Script(steps=4000)))
        assert w.recover().phase is Phase.RECOVERED, w.story()
        w.submit("lm-pipeline", scripts=(Script(steps=4000),), **beside("lm", "lm"))
        w.run_until(lambda: not is_live(w, "lm-r2"), limit=timedelta(minutes=30))
        w.recover(count=2)
        assert is_live(w, "lm-pipeline"), w.story()
        rules = [rule for incident in w.incidents() for rule in w.rules(incident)]
        assert {"two_live.make_way", "two_live.saved"} <= set(rules), w.story()
        assert w.service.registry.get("lm").current_attempt == "lm-pipeline"


def test_a_run_all_of_whose_checkpoints_are_gone_is_left_to_a_person_before_it_begins_at_nothing() -> None:
    with world() as w:
        slow = {
            "step": timedelta(seconds=10),
            "heartbeat": timedelta(seconds=15),
        }  # seen by a sweep before they are gone
        w.submit(scripts=(Script(faults=(crash_at(205),), checkpoint_every=50, **slow),))
        w.run_until(lambda: 200 in w.cloud.simulated["lm"].saved_steps)
        s3 = w.cloud.client("s3")
        for part in ("checkpoints", "rekindle/manifests"):
            for item in s3.list_objects_v2(Bucket=BUCKET, Prefix=f"jobs/lm/{part}/")["Contents"]:
                s3.delete_object(Bucket=BUCKET, Key=item["Key"])
        incident = w.recover()
        assert (incident.phase, incident.outcome) == (Phase.HANDED_OVER, "resume.gone"), w.story()
        assert list(w.jobs()) == ["lm"]


def test_a_run_that_saves_to_a_new_folder_after_each_start_goes_on_from_there() -> None:
    with world() as w:
        starts = (crash_at(25), crash_at(45), None)
        scripts = tuple(Script(own_folder=True, faults=(fault,) if fault else ()) for fault in starts)
        w.submit(scripts=scripts)
        assert w.recover(count=2).phase is Phase.RECOVERED, w.story()
        assert w.cloud.simulated["lm-r3"].plan.step == 40, w.story()
        assert w.cloud.simulated["lm-r3"].plan.uri == f"s3://{BUCKET}/outputs/lm-r2/step-40"


def test_of_runs_that_share_one_place_none_goes_on_from_anothers_checkpoint() -> None:
    with world() as w:
        w.submit("trial-0", scripts=(Script(faults=(crash_at(25),)),), **beside("sweep", "trial-0"))
        w.submit("trial-1", scripts=(Script(steps=4000),), **beside("sweep", "trial-1"))
        incident = w.recover()
        limits = [w.service.registry.get(name).limits for name in ("trial-0", "trial-1")]
        assert any("it shares" in text for found in limits for text in found), limits
        for name, run in w.cloud.simulated.runs.items():
            assert run.plan.uri is None or name.removesuffix("-r2") in run.plan.uri, (name, run.plan)
        assert incident.phase is Phase.HANDED_OVER, w.story()
        assert is_live(w, "trial-1"), w.story()


def test_crashes_that_each_gain_steps_are_left_to_a_person_within_an_hour() -> None:
    with world(policies={"thrifty": {"budgets": {"max_restarts_per_day": 4}}}) as w:
        crashes = tuple(Script(faults=(crash_at(25 + 40 * number),)) for number in range(12))
        w.submit(scripts=crashes, policy="thrifty")
        w.run_until(lambda: any(incident.phase is Phase.HANDED_OVER for incident in w.incidents()))
        phases = [incident.phase for incident in sorted(w.incidents(), key=lambda one: one.opened_at)]
        last = max(w.incidents(), key=lambda incident: incident.opened_at)
        assert (last.outcome, phases[0]) == ("budget.restarts", Phase.RECOVERED), w.story()
        assert list(w.jobs()) == ["lm", "lm-r2", "lm-r3"], w.story()
