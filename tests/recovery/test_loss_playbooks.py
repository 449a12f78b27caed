"""Spikes, divergences, NaN, suspects and bad checkpoints, each played on the real engine with its costs counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.model.evidence import FORENSIC, Stretch, SuspicionKind
from chalicelib.domain.model.incident import Phase, SkipWindow
from chalicelib.domain.model.known import Known
from localcloud.cloud import STACK
from localcloud.worlds.recoveries import Script, World, crash_at, freeze_at, nan_at, spike_at, world
from rekindle.protocol.mailbox import ReplyOutcome
from rekindle.protocol.signals import FaultClass

pytestmark = pytest.mark.long

SOON = timedelta(hours=1)  # of virtual time: a test that waits for what never comes must fail soon
NOTHING = {"stops": 0, "attempts": 0, "requests": 0}


def calm(**more: Any) -> Any:
    """A run with few beats, which are what a simulated step costs."""
    return Script(**({"heartbeat": timedelta(seconds=10)} | more))


def seldom(**more: Any) -> Any:
    """A run of hundreds of steps, with fewer beats and saves, so that it is played in seconds."""
    return Script(**({"heartbeat": timedelta(seconds=60), "checkpoint_every": 25} | more))


def is_alive(w: World, name: str = "lm") -> bool:
    return bool(w.jobs()[name].status == "InProgress")


def quick(**more: Any) -> Mapping[str, Mapping[str, Any]]:
    """Small numbers, so that few steps are enough."""
    loss = {"spike_heal_steps": 6, "spike_rewind_steps": 20, "skip_steps": 20, "skip_margin_steps": 2}
    return {"quick": {"name": "quick", "loss": loss} | more}


# --- spikes ---------------------------------------------------------------------------------------------------------


def test_a_spike_that_heals_by_itself_costs_nothing() -> None:
    with world() as w:
        w.submit(scripts=(calm(faults=(spike_at(50, heals_after=20),)),))
        incident = w.recover(limit=SOON)
        assert (incident.phase, incident.outcome) == (Phase.RECOVERED, "spike.healed"), w.story()
        assert w.spent() == NOTHING
        assert is_alive(w)
        assert incident.loss.stretches == (Stretch(attempt="lm", from_step=50, to_step=70),)
        assert w.rules(incident)[0] == "spike.watching"


def test_what_was_saved_in_a_healed_spike_is_not_resumed_from_in_a_later_incident() -> None:
    with world() as w:
        spiky = calm(checkpoint_every=35, faults=(spike_at(50, heals_after=40), crash_at(104)))
        w.submit(scripts=(spiky, Script()))
        incident = w.recover(count=2, limit=SOON)
        assert incident.fault is FaultClass.SOFTWARE_CRASH, w.story()
        assert 70 in w.cloud.simulated["lm"].saved_steps
        assert incident.resubmission.tries[0].resume_step == Known(35), w.story()


def test_a_spike_in_the_data_is_rolled_back_and_its_data_left_out() -> None:
    with world(policies=quick()) as w:
        bad = calm(faults=(spike_at(45, span=10),))
        w.submit(scripts=(bad, bad), policy="quick")
        incident = w.recover(limit=SOON)
        assert (incident.phase, incident.outcome) == (Phase.RECOVERED, "verify.passed"), w.story()
        assert incident.resubmission.tries[0].resume_step == Known(20)
        assert incident.loss.skips == (SkipWindow(from_step=43, to_step=63),)
        assert w.spent() == {"stops": 1, "attempts": 1, "requests": 1}
        again = w.cloud.simulated["lm-r2"]
        assert (again.first_step, again.judge.onset_step) == (21, None)
        assert again.step > 62 + 6


def test_the_checkpoint_of_the_bad_stretch_is_kept_for_forensics_and_never_resumed_from() -> None:
    with world(policies=quick()) as w:
        bad = calm(faults=(spike_at(45, span=10),))
        w.submit(scripts=(bad, calm(faults=(crash_at(80),)), calm()), policy="quick")
        incident = w.recover(count=2, limit=SOON)
        assert incident.fault is FaultClass.SOFTWARE_CRASH, w.story()
        job = w.service.look.registry.get("lm")
        seen = w.service.look.mailbox.checkpoints(job, w.service.look.registry.attempts("lm"))
        forensic = [item for item in seen.value if item.kind == FORENSIC]
        assert [(item.attempt, item.step >= 45) for item in forensic] == [("lm", True)]
        assert incident.resubmission.tries[0].resume_step == Known(70), w.story()


def test_a_spike_that_comes_back_is_rolled_back_further_and_more_data_are_left_out() -> None:
    with world(policies=quick()) as w:
        bad = calm(faults=(spike_at(65, span=25),))
        w.submit(scripts=(bad, bad, bad), policy="quick")
        incident = w.recover(limit=SOON)
        assert (incident.phase, incident.outcome) == (Phase.RECOVERED, "verify.passed"), w.story()
        assert [item.resume_step for item in incident.resubmission.tries] == [Known(40), Known(30)]
        assert incident.loss.skips == (SkipWindow(from_step=62, to_step=110),)
        assert [item.step for item in incident.loss.onsets] == [Known(65), Known(83)]
        assert w.spent() == {"stops": 2, "attempts": 2, "requests": 2}


def test_roll_backs_that_cure_nothing_end_with_a_person_and_a_living_run() -> None:
    with world(policies=quick(budgets={"max_rollbacks": 1})) as w:
        bad = calm(faults=(spike_at(65, in_data=False),))
        w.submit(scripts=(bad,) * 3, policy="quick")
        incident = w.recover(limit=SOON)
        assert (incident.phase, incident.outcome) == (Phase.HANDED_OVER, "budget.rollbacks"), w.story()
        assert w.spent() == {"stops": 1, "attempts": 1, "requests": 1}
        assert [item.resume_step for item in incident.resubmission.tries] == [Known(40)]
        assert is_alive(w, "lm-r2")


def test_a_spike_of_one_attempts_hardware_is_cured_by_the_next_attempt() -> None:
    with world(policies=quick()) as w:
        w.submit(scripts=(calm(faults=(spike_at(45, in_data=False),)), calm()), policy="quick")
        incident = w.recover(limit=SOON)
        assert (incident.phase, incident.loss.rollbacks) == (Phase.RECOVERED, 1), w.story()


def test_a_run_with_nowhere_to_go_is_told_about_and_not_stopped() -> None:
    with world() as w:
        w.submit(scripts=(calm(faults=(spike_at(60),)),))
        incident = w.recover(limit=SOON)
        assert (incident.phase, incident.outcome) == (Phase.HANDED_OVER, "rollback.no_place"), w.story()
        assert w.spent() == NOTHING
        assert is_alive(w)


def test_unless_the_policy_says_to_stop_it() -> None:
    with world(policies={"strict": {"name": "strict", "loss": {"stop_without_resume_point": True}}}) as w:
        w.submit(scripts=(calm(faults=(spike_at(60),)),), policy="strict")
        incident = w.recover(limit=SOON)
        assert incident.phase is Phase.HANDED_OVER, w.story()
        assert w.spent() == NOTHING | {"stops": 1}


def test_a_run_that_logs_every_hundred_steps_is_not_stopped_on_one_verdict() -> None:
    with world() as w:
        rare = seldom(log_every=100, faults=(spike_at(300, heals_after=100),))
        w.submit(scripts=(rare,))
        incident = w.recover(limit=SOON)
        assert incident.outcome == "spike.healed", w.story()
        assert w.spent() == NOTHING


def test_a_run_that_logs_every_hundred_steps_is_rolled_back_on_the_second_verdict() -> None:
    with world() as w:
        rare = seldom(log_every=100, faults=(spike_at(300, span=150),))
        w.submit(scripts=(rare, rare))
        incident = w.recover(limit=SOON)
        assert (incident.phase, incident.loss.rollbacks) == (Phase.RECOVERED, 1), w.story()
        judged = w.cloud.simulated["lm"].judge.judged_step
        assert judged == 400
        assert incident.resubmission.tries[0].resume_step == Known(200)


def test_a_divergence_is_saved_for_people_and_left_to_them() -> None:
    with world() as w:
        w.submit(scripts=(Script(faults=(spike_at(30, kind="diverge"),)),))
        incident = w.recover(limit=SOON)
        assert (incident.phase, incident.fault) == (Phase.HANDED_OVER, FaultClass.DIVERGENCE), w.story()
        assert w.spent() == NOTHING | {"requests": 1}
        assert is_alive(w)
        assert incident.loss.stretches == (Stretch(attempt="lm", from_step=30),)


def test_a_divergence_is_rolled_back_where_the_policy_says_so() -> None:
    chosen = quick(playbooks={"divergence": {"response": "roll_back"}})
    with world(policies=chosen) as w:
        bad = calm(faults=(spike_at(45, kind="diverge", span=5),))
        w.submit(scripts=(bad, bad), policy="quick")
        incident = w.recover(limit=SOON)
        assert (incident.phase, incident.loss.rollbacks) == (Phase.RECOVERED, 1), w.story()
        assert incident.resubmission.tries[0].resume_step == Known(20)


# --- non-finite losses ----------------------------------------------------------------------------------------------


def test_a_nan_of_one_rank_that_the_same_data_do_not_repeat_is_laid_to_its_host() -> None:
    with world() as w:
        w.submit(scripts=(calm(faults=(nan_at(25, in_data=False, rank=2),)), calm()))
        incident = w.recover(limit=SOON)
        assert (incident.phase, incident.loss.skips) == (Phase.RECOVERED, ()), w.story()
        assert incident.resubmission.tries[0].resume_step == Known(20)
        (suspicion,) = incident.evidence.suspicions
        assert (suspicion.kind, suspicion.ranks, suspicion.hosts) == (SuspicionKind.NON_FINITE, (2,), ("lm-algo-3",))
        assert incident.evidence.conclusion.startswith("flaky hardware on lm-algo-3"), w.story()


def test_a_nan_that_comes_again_at_the_same_step_on_another_host_is_laid_to_the_data_and_skipped() -> None:
    with world() as w:
        first, second = calm(faults=(nan_at(25, rank=2),)), calm(faults=(nan_at(25, rank=0),))
        w.submit(scripts=(first, second, first))
        incident = w.recover(limit=SOON)
        assert (incident.phase, incident.loss.rollbacks) == (Phase.RECOVERED, 2), w.story()
        assert incident.loss.skips == (SkipWindow(from_step=15, to_step=215),)
        assert [item.hosts for item in incident.evidence.suspicions] == [("lm-algo-3",), ("lm-r2-algo-1",)]
        assert "the data or the model: non-finite at step 25 again on another host" in incident.evidence.conclusion


def test_a_host_that_goes_nan_wherever_it_is_gets_no_data_skipped() -> None:
    hosts = ("a", "b", "c", "d")
    with world() as w:
        scripts = [calm(hosts=hosts, faults=(nan_at(step, in_data=False, rank=2),)) for step in (33, 32, 31)]
        w.submit(scripts=(*scripts, calm(hosts=hosts)))
        incident = w.recover(limit=SOON)
        assert (incident.phase, incident.loss.rollbacks, incident.loss.skips) == (Phase.RECOVERED, 3, ()), w.story()
        assert incident.evidence.conclusion.startswith("flaky hardware on c")


def test_a_nan_with_nowhere_to_go_is_told_about_while_it_runs() -> None:
    with world() as w:
        w.submit(scripts=(calm(faults=(nan_at(5),)),))
        incident = w.recover(limit=SOON)
        assert (incident.phase, incident.outcome) == (Phase.HANDED_OVER, "rollback.no_place"), w.story()
        assert w.spent() == NOTHING
        assert is_alive(w)


# --- suspects -------------------------------------------------------------------------------------------------------


def test_the_rank_that_holds_up_a_hung_run_is_named_before_the_run_is_stopped() -> None:
    with world() as w:
        stuck = calm(faults=(freeze_at(15, rank=2),), reply=ReplyOutcome.CANNOT)
        w.submit(scripts=(stuck, calm()))
        incident = w.recover(limit=SOON)
        assert incident.phase is Phase.RECOVERED, w.story()
        (suspicion,) = incident.evidence.suspicions
        assert (suspicion.kind, suspicion.ranks, suspicion.hosts) == (SuspicionKind.HANG, (2,), ("lm-algo-3",))
        assert suspicion.kept_at == f"s3://{STACK}-mailbox/jobs/lm/rekindle/reports/lm/"
        lines = w.service.look.store.timeline(incident.incident_id)
        stop = next(line for line in lines if "StopJob" in line.actions)
        assert "rank 2 on lm-algo-3" in stop.text
        assert "Suspected in lm: rank 2 on lm-algo-3" in lines[-1].text or "Suspected" in lines[-2].text
        assert "stacks.waiting" not in w.rules(incident)  # every rank had spoken: there was nothing to wait for


def test_reports_that_never_come_are_not_waited_for_past_the_limit() -> None:
    with world() as w:
        w.submit(scripts=(calm(faults=(freeze_at(15),), reply=ReplyOutcome.CANNOT), calm()))
        incident = w.recover(limit=SOON)
        assert incident.phase is Phase.RECOVERED, w.story()
        assert incident.evidence.suspicions == ()
        assert "stacks.waiting" in w.rules(incident)


@pytest.mark.parametrize(("step_s", "outcome"), [(4.1, "playbook.notified"), (2.0, "claim.fast_again")])
def test_a_straggler_is_named_and_only_told(step_s: float, outcome: str) -> None:
    """Whether or not the run's own heartbeats bear the report out."""
    with world(policies={"brief": {"name": "brief", "timing": {"tell_open_s": 30}}}) as w:
        w.submit(scripts=(calm(step=timedelta(seconds=step_s)),), policy="brief")
        w.cloud.clock.run_for(timedelta(seconds=60))
        detail = {
            "v": 1,
            "job_id": "lm",
            "attempt": "lm",
            "attempt_number": 1,
            "rank": 0,
            "world_size": 4,
            "step": 20,
            "at": w.cloud.clock.now().isoformat(),
            "straggler": 3,
            "host": "lm-algo-4",
            "step_s": 4.1,
            "baseline_s": 2.0,
            "rule": "as scripted",
        }
        entry = {
            "Source": "rekindle.monitor",
            "DetailType": "Rekindle Straggler",
            "Detail": json.dumps(detail),
            "EventBusName": STACK,
        }
        w.cloud.client("events").put_events(Entries=[entry])
        incident = w.recover(limit=SOON)
        assert (incident.phase, incident.outcome) == (Phase.STOPPED, outcome), w.story()
        assert w.spent() == NOTHING
        (suspicion,) = incident.evidence.suspicions
        assert (suspicion.kind, suspicion.ranks, suspicion.hosts) == (SuspicionKind.SLOW, (3,), ("lm-algo-4",))


# --- bad checkpoints ------------------------------------------------------------------------------------------------


def quarantined(w: World) -> int:
    found = w.cloud.client("s3").list_objects_v2(Bucket=f"{STACK}-mailbox", Prefix="jobs/lm/rekindle/quarantine/")
    return int(found["KeyCount"])


@pytest.mark.parametrize(
    ("error", "deaths"),
    [("PytorchStreamReader failed reading zip archive", 1), ("RuntimeError: size mismatch for wte.weight", 2)],
)
def test_a_checkpoint_that_kills_new_attempts_is_quarantined_and_the_next_older_one_taken(
    error: str, deaths: int
) -> None:
    with world() as w:
        dies = calm(unloadable=(20,), load_error=error)
        w.submit(scripts=(calm(faults=(crash_at(25),)), *(dies,) * deaths, dies))
        incident = w.recover(limit=SOON)
        assert incident.phase is Phase.RECOVERED, w.story()
        assert [item.resume_step for item in incident.resubmission.tries] == [Known(20)] * deaths + [Known(10)]
        assert quarantined(w) == 1
        job = w.service.look.registry.get("lm")
        seen = w.service.look.mailbox.checkpoints(job, w.service.look.registry.attempts("lm"))
        marked = [item.step for item in seen.value if any("quarantined" in problem for problem in item.problems)]
        assert marked == [20]


def test_the_only_checkpoint_gets_a_second_chance_even_where_the_failure_says_corrupt() -> None:
    with world() as w:
        dies = calm(unloadable=(10,))
        w.submit(scripts=(calm(faults=(crash_at(15),)), dies, calm()))
        incident = w.recover(limit=SOON)
        assert incident.phase is Phase.RECOVERED, w.story()
        assert [item.resume_step for item in incident.resubmission.tries] == [Known(10), Known(10)]
        assert quarantined(w) == 0
