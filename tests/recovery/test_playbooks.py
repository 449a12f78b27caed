"""Each playbook from the first event to a run that moves again, on the real engine, handlers and emulated AWS."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from localcloud.worlds.recoveries import Fault, Script, World, crash_at, freeze_at, nan_at, world
from rekindle.protocol.mailbox import ReplyOutcome
from rekindle.protocol.signals import FaultClass

pytestmark = pytest.mark.long


def test_a_crashed_run_is_resubmitted_from_its_newest_checkpoint_and_passes_the_step_it_died_at() -> None:
    with world() as w:
        w.submit(scripts=(Script(faults=(crash_at(25),)), Script()))
        incident = w.recover()
        assert (incident.phase, incident.fault) == (Phase.RECOVERED, FaultClass.SOFTWARE_CRASH), w.story()
        assert incident.outcome == "verify.passed"
        assert [item.name for item in incident.resubmission.tries] == ["lm-r2"]
        assert incident.resubmission.tries[0].resume_step == Known(20)
        assert w.cloud.simulated["lm-r2"].first_step == 21


def test_the_clone_keeps_what_the_user_set_and_is_told_where_to_resume() -> None:
    with world() as w:
        w.submit(scripts=(Script(faults=(crash_at(25),)), Script()))
        w.recover()
        clone = w.cloud.client("sagemaker").describe_training_job(TrainingJobName="lm-r2")
        first = w.cloud.client("sagemaker").describe_training_job(TrainingJobName="lm")
        same = ("RoleArn", "ResourceConfig", "CheckpointConfig", "OutputDataConfig", "StoppingCondition")
        assert {name: clone[name] for name in same} == {name: first[name] for name in same}
        assert clone["Environment"]["REKINDLE_RESUME_STEP"] == "20"
        tags = {
            tag["Key"]: tag["Value"]
            for tag in w.cloud.client("sagemaker").list_tags(ResourceArn=clone["TrainingJobArn"])["Tags"]
        }
        assert tags["team"] == "lm"
        assert (tags["rekindle:job"], tags["rekindle:attempt"]) == ("lm", "2")


def test_a_hung_run_is_asked_for_a_checkpoint_stopped_and_resumed() -> None:
    with world() as w:
        w.submit(scripts=(Script(faults=(freeze_at(15),), reply=ReplyOutcome.CANNOT), Script()))
        incident = w.recover()
        assert (incident.phase, incident.fault) == (Phase.RECOVERED, FaultClass.HANG), w.story()
        assert incident.halt.ask is not None
        assert incident.halt.ask.outcome == "cannot"
        assert incident.resubmission.tries[0].resume_step == Known(10)
        assert w.jobs()["lm"].status == "Stopped"


def test_a_hung_run_that_never_answers_is_not_waited_for_past_the_deadline() -> None:
    with world() as w:
        w.submit(scripts=(Script(faults=(freeze_at(15),), reply=None), Script()))
        incident = w.recover()
        assert incident.phase is Phase.RECOVERED, w.story()
        assert incident.halt.ask is not None
        assert incident.halt.ask.outcome == "late"


def test_a_poisoned_run_is_rolled_back_before_the_onset_then_its_data_is_skipped() -> None:
    with world() as w:
        w.submit(scripts=(Script(faults=(nan_at(15),)), Script(faults=(nan_at(15),)), Script(faults=(nan_at(15),))))
        incident = w.recover()
        assert (incident.phase, incident.fault) == (Phase.RECOVERED, FaultClass.NON_FINITE), w.story()
        assert [item.resume_step for item in incident.resubmission.tries] == [Known(10), Known(10)]
        assert incident.loss.rollbacks == 2
        assert [(skip.from_step, skip.to_step) for skip in incident.loss.skips] == [(5, 205)]


def test_an_operators_resubmission_saves_first_and_loses_nothing() -> None:
    with world() as w:
        w.submit()
        w.cloud.clock.run_for(timedelta(seconds=80))
        w.service.orders.resubmit("lm", who="ada", key="k1", from_step=None, skip=())
        incident = w.recover()
        assert incident.phase is Phase.RECOVERED, w.story()
        assert incident.halt.ask is not None
        assert incident.halt.ask.outcome == "saved"
        assert incident.resubmission.tries[0].resume_step == Known(incident.halt.ask.step)


def test_an_operators_checkpoint_stops_nothing() -> None:
    with world() as w:
        w.submit()
        w.cloud.clock.run_for(timedelta(seconds=80))
        w.service.orders.checkpoint("lm", who="ada", key="k1")
        incident = w.recover(limit=timedelta(minutes=10))
        assert (incident.phase, incident.outcome) == (Phase.RECOVERED, "order.checkpoint"), w.story()
        assert w.jobs()["lm"].status == "InProgress"


def test_sagemakers_own_repair_is_left_alone() -> None:
    with world() as w:
        w.submit(scripts=(Script(faults=(Fault(kind="hardware", step=15),)),))
        w.cloud.clock.run_for(timedelta(minutes=5))
        assert not any(incident.resubmission.tries for incident in w.incidents()), w.story()
        assert w.cloud.wire.calls["sagemaker.StopTrainingJob"] == 0
        assert list(w.jobs()) == ["lm"]


def test_a_run_stopped_by_its_owner_is_left_alone() -> None:
    with world() as w:
        w.submit()
        w.cloud.clock.run_for(timedelta(seconds=80))
        w.cloud.client("sagemaker").stop_training_job(TrainingJobName="lm")
        w.cloud.clock.run_for(timedelta(minutes=5))
        assert w.incidents() == []
        assert list(w.jobs()) == ["lm"]


def test_a_run_without_the_tag_is_nobodys_business() -> None:
    with world() as w:
        w.submit(scripts=(Script(faults=(crash_at(5),)),), Tags=[{"Key": "team", "Value": "lm"}])
        w.cloud.clock.run_for(timedelta(minutes=5))
        assert w.incidents() == []
        assert list(w.jobs()) == ["lm"]


def test_three_attempts_without_a_step_gained_end_with_a_person() -> None:
    with world() as w:
        flaky = tuple(Script(faults=(crash_at(25, text=f"RuntimeError: {word}"),)) for word in ("a", "b", "c", "d"))
        w.submit(scripts=(*flaky, Script()))
        incident = w.recover()
        assert (incident.phase, incident.outcome) == (Phase.HANDED_OVER, "budget.no_progress"), w.story()
        assert len(incident.resubmission.tries) == 3
        assert sorted(w.jobs()) == ["lm", "lm-r2", "lm-r3", "lm-r4"]


def test_the_same_crash_at_the_same_step_twice_goes_to_the_owner() -> None:
    with world() as w:
        same = Script(faults=(crash_at(25),))
        w.submit(scripts=(same, same, Script()))
        incident = w.recover()
        assert (incident.phase, incident.outcome) == (Phase.HANDED_OVER, "crash.same_again"), w.story()


def test_capacity_refusals_back_off_and_do_not_count_as_attempts() -> None:
    with world() as w:
        full = Script(lacks_capacity=True)
        w.submit(scripts=(Script(faults=(crash_at(25),)), full, full, Script()))
        incident = w.recover()
        assert incident.phase is Phase.RECOVERED, w.story()


def test_a_name_taken_by_somebody_else_is_evaded() -> None:
    with world() as w:
        w.submit(scripts=(Script(faults=(crash_at(25),)), Script()))
        w.submit("lm-r2", Tags=[])
        incident = w.recover()
        assert incident.phase is Phase.RECOVERED, w.story()
        assert incident.resubmission.tries[-1].name == "lm-r2x1"


def test_shadow_mode_tells_what_it_would_do_and_does_nothing() -> None:
    with world(policies={"watch": {"name": "watch", "shadow": True}}) as w:
        w.submit(scripts=(Script(faults=(crash_at(25),)),), policy="watch")
        incident = w.recover()
        assert (incident.phase, incident.outcome) == (Phase.HANDED_OVER, "guard.shadow"), w.story()
        assert list(w.jobs()) == ["lm"]


def test_every_rank_reports_its_stall_and_people_are_called_once() -> None:
    with world(policies={"watch": {"name": "watch", "shadow": True}}) as w:
        w.submit(scripts=(Script(faults=(freeze_at(15),)),), policy="watch")
        w.recover()
        w.cloud.clock.run_for(timedelta(seconds=30))
        event = next(
            delivery.event
            for delivery in w.cloud.events.deliveries
            if delivery.event["detail-type"] == "Rekindle Stall"
        )
        for rank in range(1, 4):
            other = {**event, "id": f"rank-{rank}", "detail": {**event["detail"], "rank": rank, "world_size": 4}}
            w.cloud.invoke("monitor_event", other)
        w.cloud.clock.run_for(timedelta(minutes=5))
        assert len(w.incidents()) == 1, w.story()


def test_an_unusable_policy_falls_back_to_telling() -> None:
    with world(policies={"typo": {"max_atempts": 3}}) as w:
        w.submit(scripts=(Script(faults=(crash_at(25),)),), policy="typo")
        incident = w.recover()
        assert incident.outcome == "guard.shadow", w.story()
        assert "max_atempts" in incident.policy_version


def test_a_global_pause_holds_everything_until_it_is_lifted() -> None:
    with world() as w:
        registry = w.service.look.registry
        registry.set_paused(True, who="ada", now=w.cloud.clock.now())
        w.submit(scripts=(Script(faults=(crash_at(25),)), Script()))
        w.cloud.clock.run_for(timedelta(minutes=5))
        assert list(w.jobs()) == ["lm"], w.story()
        registry.set_paused(False, who="ada", now=w.cloud.clock.now())
        assert w.recover().phase is Phase.RECOVERED, w.story()


@pytest.mark.parametrize("after", [0, 2, 8, 20, 32, 40, 60])
def test_a_cancel_at_any_point_ends_the_incident_and_leaves_the_world_consistent(after: int) -> None:
    with world() as w:
        w.submit(scripts=(Script(faults=(freeze_at(15),), reply=None), Script()))
        w.run_until(lambda: bool(w.incidents()))
        w.cloud.clock.run_for(timedelta(seconds=after))
        incident_id = w.incidents()[0].incident_id
        w.service.orders.cancel(incident_id, who="ada", key="k")
        incident = w.recover()
        assert incident.outcome in ("order.cancel", "verify.passed"), w.story()
        live = [name for name, job in w.jobs().items() if job.status == "InProgress"]
        w.cloud.clock.run_for(timedelta(minutes=3))
        assert [name for name, job in w.jobs().items() if job.status == "InProgress"] == live
        assert len(live) <= 1
        assert w.service.look.registry.get("lm").open_incident is None


def test_a_lost_event_costs_a_minute_not_the_run() -> None:
    with world() as w:
        w.cloud.events.rules.clear()
        w.service.orders.register(training_job=_submit_quietly(w), policy=None, mailbox=None)
        incident = w.recover()
        assert incident.phase is Phase.RECOVERED, w.story()
        ended = w.jobs()["lm"].ended_at
        assert ended is not None
        assert incident.opened_at - ended <= timedelta(seconds=61)


def test_a_dead_execution_is_continued_by_the_sweep_under_a_new_generation() -> None:
    with world() as w:
        w.submit(scripts=(Script(faults=(crash_at(25),)), Script()))
        w.run_until(lambda: any(i.phase is Phase.VERIFYING for i in w.incidents()))
        for execution in w.cloud.engine.executions(statuses=frozenset({"RUNNING"})):
            w.cloud.engine.stop(execution.durable_execution_arn)
        incident = w.recover()
        assert incident.phase is Phase.RECOVERED, w.story()
        assert incident.generation == 2
        assert sorted(w.jobs()) == ["lm", "lm-r2"]


def test_a_checkpoint_whose_files_are_short_is_passed_over() -> None:
    with world() as w:
        w.submit(scripts=(Script(faults=(crash_at(25),)), Script()))
        w.run_until(lambda: 20 in w.cloud.simulated["lm"].saved_steps if "lm" in w.cloud.simulated.runs else False)
        w.cloud.clock.run_for(timedelta(seconds=3))
        s3 = w.cloud.client("s3")
        listed = s3.list_objects_v2(Bucket="rekindle-mailbox", Prefix="jobs/lm/")["Contents"]
        damaged = [item["Key"] for item in listed if "20" in item["Key"] and "/manifests/" not in item["Key"]]
        assert damaged
        for key in damaged:
            s3.put_object(Bucket="rekindle-mailbox", Key=key, Body=b"")
        incident = w.recover()
        assert incident.resubmission.tries[0].resume_step == Known(10), w.story()


def test_a_job_whose_steps_cannot_be_seen_is_never_called_recovered() -> None:
    with world() as w:
        blind = Script(has_monitor=False)
        w.submit(scripts=(Script(has_monitor=False, faults=(crash_at(25),)), blind))
        incident = w.recover()
        assert (incident.phase, incident.outcome) == (Phase.HANDED_OVER, "verify.blind_limit"), w.story()


@pytest.mark.parametrize(("fault", "expected"), [(freeze_at(15), FaultClass.HANG), (nan_at(15), FaultClass.NON_FINITE)])
def test_a_lost_word_of_the_monitor_is_found_in_its_heartbeat(fault: Fault, expected: FaultClass) -> None:
    with world() as w:
        w.cloud.events.rules[:] = [rule for rule in w.cloud.events.rules if rule.function != "monitor_event"]
        w.submit(scripts=(Script(faults=(fault,), reply=None), Script()))
        incident = w.recover()
        assert (incident.phase, incident.fault) == (Phase.RECOVERED, expected), w.story()


def test_a_heartbeat_that_stops_is_told_and_nothing_is_done() -> None:
    with world() as w:
        w.submit(scripts=(Script(heartbeat=timedelta(hours=9), checkpoint_every=None),))
        incident = w.recover()
        assert (incident.phase, incident.outcome) == (Phase.STOPPED, "playbook.notified"), w.story()
        assert list(w.jobs()) == ["lm"]
        assert w.cloud.wire.calls["sagemaker.StopTrainingJob"] == 0


def _submit_quietly(w: World) -> str:
    w.submit(scripts=(Script(faults=(crash_at(25),)), Script()))
    return "lm"
