"""A rehearsal is real where it reads and decides, and nothing at all where it would act."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest

from chalicelib.domain.drills.catalogue import DRILLS
from chalicelib.domain.model.errors import InvalidRequest, Skip, UnknownEntity
from chalicelib.services.operator.drills import Drills
from localcloud.cloud import STACK
from localcloud.worlds.recoveries import World, world
from rekindle.protocol.signals import FaultClass
from tests.drills.parts import until_step, writes


def stored(made: World) -> list[str]:
    """Every object in the mailbox bucket."""
    found = made.cloud.client("s3").list_objects_v2(Bucket=f"{STACK}-mailbox")
    return [item["Key"] for item in found["Contents"]]


# Virtual time begins at midnight: it holds then, and ends at noon.
NIGHTS = {"windows": [{"name": "frozen", "from": "20:00", "to": "12:00"}]}


@pytest.fixture(scope="module")
def one() -> Iterator[World]:
    """Runs that train, with heartbeats and a few checkpoints. Shared: a drill leaves nothing behind."""
    row = {"when": {"actions": ["StopJob"]}, "deadline_s": 600, "default": "deny"}
    asks = {"approvals": {"rules": [row]}, "shadow": True}
    with world(policies={"asks": asks, "nights": NIGHTS}) as made:
        made.submit()
        made.submit("asking", policy="asks")
        made.submit("sleeping", policy="nights")
        until_step(made, "lm", 15)
        for name in ("asking", "sleeping"):
            until_step(made, name, 5)
        yield made


@pytest.fixture
def drills(one: World) -> Drills:
    return one.service.drills


def test_every_fault_that_befalls_a_run_can_be_rehearsed() -> None:
    """Not what people order, nor a second attempt that they start: the world of a drill holds one attempt."""
    assert {row.fault for row in DRILLS} == set(FaultClass) - {FaultClass.OPERATOR_ORDER, FaultClass.TWO_LIVE}


@pytest.mark.long
def test_no_fault_of_all_is_rehearsed_with_any_write_but_the_record(one: World, drills: Drills) -> None:
    objects = stored(one)
    for row in DRILLS:
        before = Counter(one.cloud.wire.calls)
        result = drills.start("lm", row.fault.value, who="ann", key=f"k-{row.fault}")
        made = writes(one.cloud.wire.calls - before)
        assert made == {"dynamodb.PutItem": 1}, row.fault
        assert result["outcome"]["finished"], (row.fault, result["looks"])
    assert one.incidents() == []
    job = one.service.registry.get("lm")
    assert (job.open_incident, job.current_attempt, len(one.service.registry.attempts("lm"))) == (None, "lm", 1)
    assert stored(one) == objects
    assert sorted(one.jobs()) == ["asking", "lm", "sleeping"]


def test_it_resumes_where_a_real_checkpoint_is_and_says_what_an_emergency_checkpoint_would_save(
    drills: Drills,
) -> None:
    crash = drills.start("lm", "software_crash", who="ann", key="a")["resume"]
    assert crash["step"] == {"known": 10}
    assert crash["emergency"] is False
    assert crash["from"].startswith(f"s3://{STACK}-mailbox/jobs/lm")
    node = drills.start("lm", "node_hardware", who="ann", key="b")
    assert node["would_do"] == ["RequestCheckpoint", "StopJob", "ResubmitJob"]
    resume = node["resume"]
    assert resume["emergency"] is True
    assert resume["step"] == resume["struck_step"]
    assert resume["steps_lost_at_strike"] == {"known": 0}
    assert resume["without_emergency"]["step"] == {"known": 10}
    assert resume["without_emergency"]["steps_lost_at_strike"]["known"] >= 5
    # How long it trains on before it is stopped is not known, so neither is what that costs.
    assert "saving and stopping" in resume["steps_lost"]["unknown"]


def test_a_pause_and_shadow_mode_are_told_and_played_through(one: World, drills: Drills) -> None:
    one.service.registry.set_paused(True, who="ann", now=one.cloud.clock.now())
    result = drills.start("asking", "node_hardware", who="ann", key="paused")
    assert one.service.registry.is_paused()  # in truth it still is
    one.service.registry.set_paused(False, who="ann", now=one.cloud.clock.now())
    held = {item["guard"]: item for item in result["guards"]}
    assert held["pause"]["lifted"]
    assert held["shadow"]["lifted"]
    assert result["outcome"]["phase"] == "recovered"
    assert "continues as though pause did not hold it" in result["assumptions"]


def test_a_switch_that_puts_one_job_into_shadow_mode_is_told_too(one: World, drills: Drills) -> None:
    one.service.switches.set_shadow("job", "lm", True, who="ann")
    result = drills.start("lm", "node_hardware", who="ann", key="shadowed")
    one.service.switches.set_shadow("job", "lm", False, who="ann")
    assert [item["guard"] for item in result["guards"]] == ["shadow"]
    assert result["outcome"]["phase"] == "recovered"


def test_a_question_to_people_is_assumed_to_be_answered_with_yes_and_its_time_is_not_known(drills: Drills) -> None:
    result = drills.start("asking", "node_hardware", who="ann", key="k")
    (asked,) = [item for item in result["guards"] if item["guard"] == "approval"]
    assert asked["lifted"]
    assert "May Rekindle" in asked["text"]
    assert "AskApproval" in result["would_do"]
    assert result["outcome"]["phase"] == "recovered"
    assert any("how long people take" in item["seconds"].get("unknown", "") for item in result["stages"])


def test_a_window_holds_a_step_until_it_ends(drills: Drills) -> None:
    result = drills.start("sleeping", "software_crash", who="ann", key="k")
    (held,) = [item for item in result["guards"] if item["guard"] == "window"]
    assert not held["lifted"]
    assert "frozen" in held["text"]
    assert next(item["seconds"]["known"] for item in result["stages"]) > 3600
    assert result["outcome"]["phase"] == "recovered"
    assert result["would_do"] == ["ResubmitJob"]


def test_an_open_breaker_is_told_as_the_question_that_it_is(one: World, drills: Drills) -> None:
    one.service.registry.trip("inc-other", now=one.cloud.clock.now(), text="6 Incidents would have acted")
    result = drills.start("lm", "node_hardware", who="ann", key="broken")
    one.service.registry.lift(who="ann", now=one.cloud.clock.now())
    assert "breaker" in {item["guard"] for item in result["guards"]}
    assert result["outcome"]["phase"] == "recovered"


def test_a_loop_of_deaths_ends_at_the_retry_budget_with_its_back_off(drills: Drills) -> None:
    result = drills.start("lm", "no_progress", who="ann", key="k")
    assert result["outcome"]["phase"] == "handed_over"
    assert result["outcome"]["rule"] == "budget.no_progress"
    assert {"retry_budget", "back_off"} <= {item["guard"] for item in result["guards"]}


def test_the_same_key_is_the_same_drill_and_another_fault_under_it_is_refused(one: World, drills: Drills) -> None:
    first = drills.start("lm", "hang", who="ann", key="same")
    before = Counter(one.cloud.wire.calls)
    again = drills.start("lm", "hang", who="bob", key="same")
    assert again == first == drills.get(first["drill_id"])
    assert writes(one.cloud.wire.calls - before) == {}
    with pytest.raises(InvalidRequest, match="fault: this key has been used to rehearse hang"):
        drills.start("lm", "divergence", who="ann", key="same")
    assert drills.start("lm", "hang", who="ann", key="other")["drill_id"] != first["drill_id"]


def test_a_result_leaves_after_a_month(one: World, drills: Drills) -> None:
    result = drills.start("lm", "throughput_drop", who="ann", key="ttl")
    key = {"pk": {"S": f"DRILL#{result['drill_id']}"}, "sk": {"S": "META"}}
    item = one.cloud.client("dynamodb").get_item(TableName=STACK, Key=key)["Item"]
    ends = one.cloud.clock.now() + timedelta(days=30)
    assert abs(int(item["ttl"]["N"]) - ends.timestamp()) < 5


def test_what_cannot_be_rehearsed_is_refused_in_words(one: World, drills: Drills) -> None:
    """The last of those that share their world: it ends one of its runs."""
    with pytest.raises(InvalidRequest, match=r"fault: must be one of .*hang"):
        drills.start("lm", "flat_tyre", who="ann", key="n")
    with pytest.raises(InvalidRequest, match="fault"):
        drills.start("lm", "operator_order", who="ann", key="n")
    with pytest.raises(UnknownEntity):
        drills.start("nobody", "hang", who="ann", key="n")
    with pytest.raises(UnknownEntity, match="kept for 30 days"):
        drills.get("drill-none")
    one.cloud.client("sagemaker").stop_training_job(TrainingJobName="lm")
    one.run_until(lambda: one.service.scheduler.of_name("lm").describe("lm").status.has_ended)
    with pytest.raises(Skip, match="nothing to rehearse on: lm is stopped"):
        drills.start("lm", "hang", who="ann", key="n2")
