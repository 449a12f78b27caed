"""The ledger's formulas against cases worked out by hand (docs/ledger.md tells them)."""

from __future__ import annotations

from dataclasses import replace

import botocore.session
import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from chalicelib.domain.model.account import Account
from chalicelib.domain.model.evidence import Onset
from chalicelib.domain.model.incident import Incident, Phase, SkipWindow, Try
from chalicelib.domain.model.instances import GPU_TABLE, JobSize, gpus_of
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.reporting.counterfactual import Spared
from chalicelib.domain.reporting.lost_time import net_gain
from chalicelib.domain.reporting.prices import Prices
from rekindle.protocol.signals import FaultClass
from tests.ledger.books import POD, T0, UNKNOWN, at, incident, ledger, restart


def test_a_crash_that_is_made_good_step_for_step() -> None:
    """Crash at 0 s and step 1000, look at 60 s, over at 660 s at step 1000 again: 660 s of 32 GPUs at 200 USD/h."""
    wire = ledger(incident()).to_wire()
    assert wire["mttd_s"] == 60
    assert wire["mttr_s"] == 660
    assert [(stage["phase"], stage["after_s"], stage["seconds"]) for stage in wire["stages"]] == [
        ("detect", 0, 60),
        ("resubmitting", 60, 30),
        ("verifying", 90, 570),
    ]
    assert (wire["steps_lost"], wire["steps_saved"]) == (100, 0)
    assert wire["lost_s"] == 660
    assert wire["gpus"] == 32
    assert wire["gpu_hours_lost"] == pytest.approx(660 / 3600 * 32, abs=0.001)  # 5.867
    assert wire["dollars_lost"] == pytest.approx(660 / 3600 * 200, abs=0.001)  # 36.667
    assert (wire["gpu_hours_saved"], wire["dollars_saved"]) == (0, 0)


def test_what_the_run_has_gained_beyond_its_old_end_is_not_lost() -> None:
    """At the end it stands 40 steps of 2 s further: 660 - 80 s."""
    one = ledger(incident(closed_step=Known(1040)))
    assert one.lost.seconds == Known(580.0)
    assert dict(one.lost.by_stage) == {"detect": 60, "resubmitting": 30, "verifying": 490}


def test_what_the_run_has_still_to_do_again_is_lost_too() -> None:
    """The mark lay below its end: at the end it stands 30 steps of 2 s before it: 660 + 60 s."""
    one = ledger(incident(closed_step=Known(970)))
    assert one.lost.seconds == Known(720.0)
    assert dict(one.lost.by_stage)["verifying"] == 630


def test_an_emergency_checkpoint_saves_the_steps_back_to_the_periodic_one() -> None:
    """Resumed at 990 instead of 900: 10 steps lost, 90 saved; 90 x 2 s x 32 GPUs are 1.6 GPU-hours, 10 USD."""
    saved = restart(resume=Known(990), kind="emergency", periodic=Known(900))
    one = ledger(incident(fault=FaultClass.HANG, restarts=[saved]))
    assert (one.steps_lost, one.steps_saved) == (Known(10), Known(90))
    assert one.gpu_hours_saved == Known(pytest.approx(1.6))
    assert one.dollars_saved == Known(pytest.approx(10.0))


def test_a_run_that_works_until_it_is_stopped_loses_nothing_before() -> None:
    """A node's ECC error at 0 s; the run is saved and stopped at 300 s: 660 - 300 s are lost."""
    stopped = restart(resume=Known(1000), kind="emergency", ended=300)
    one = ledger(incident(fault=FaultClass.NODE_HARDWARE, restarts=[stopped]))
    assert one.lost.seconds == Known(360.0)
    assert one.mttr_s == Known(660.0)
    assert sum(seconds for _, seconds in one.lost.by_stage) == 360


def test_after_a_nan_steps_count_up_to_the_one_before_it_and_skipped_ones_not_at_all() -> None:
    """First bad step 901, steps 901-1000 skipped, over at 1010: the ten steps 1001-1010 are gained, 20 s of 660."""
    poisoned = incident(
        fault=FaultClass.NON_FINITE,
        restarts=[restart(furthest=Known(905), resume=Known(850))],
        closed_step=Known(1010),
        onsets=(Onset(attempt="lm", fault=FaultClass.NON_FINITE, step=Known(901)),),
        skips=(SkipWindow(from_step=901, to_step=1001),),
    )
    one = ledger(poisoned)
    assert one.lost.seconds == Known(640.0)
    assert one.steps_lost == Known(50)  # 851 to 900: those since the first bad one were worth nothing
    unskipped = ledger(replace(poisoned, loss=replace(poisoned.loss, skips=())))
    assert unskipped.lost.seconds == Known(660.0 - 2 * 110)  # 901 to 1010, the once bad step among them
    assert unskipped.otherwise.recompute_s == Known(0.0)  # 900, where its own checkpoint lies


@pytest.mark.parametrize(
    ("base", "closed", "skips", "gain"),
    [
        (10, 20, (), 10),
        (20, 10, (), -10),
        (10, 20, ((11, 16),), 5),
        (10, 20, ((5, 12), (11, 16)), 5),
        (10, 20, ((1, 50),), 0),
        (10, 20, ((20, 30),), 9),
        (10, 20, ((21, 30), (1, 11)), 10),
    ],
)
def test_the_net_gain_counts_each_trained_step_once(
    base: int, closed: int, skips: tuple[tuple[int, int], ...], gain: int
) -> None:
    assert net_gain(base, closed, [SkipWindow(from_step=low, to_step=high) for low, high in skips]) == gain


def test_two_new_starts_lose_twice() -> None:
    """1000 -> 900, then 930 -> 900: 130 steps."""
    one = ledger(incident(restarts=[restart(), restart(3, furthest=Known(930), resume=Known(900))]))
    assert one.steps_lost == Known(130)


def test_a_new_start_that_died_at_load_had_come_as_far_as_its_checkpoint() -> None:
    """1000 -> 900, dead at load, 900 -> 800: 200 steps, as if the first had gone back to 800 at once."""
    second = restart(3, furthest=UNKNOWN, resume=Known(800))
    died = Try(number=2, name="lm-r2", clone_of="lm", at=T0, resume_step=Known(900), ended=True, died_at_load=True)
    assert ledger(incident(restarts=[restart(), second], tries=(died,))).steps_lost == Known(200)
    assert isinstance(ledger(incident(restarts=[restart(), second])).steps_lost, Unknown)


def test_a_hang_is_compared_with_a_requeue_after_the_time_out_and_with_a_person_after_it() -> None:
    """600 + 300 s and 600 + 3600 + 300 s, and 1000 - 900 steps of 2 s again; spared is that less 660 s."""
    other = ledger(incident(fault=FaultClass.HANG)).otherwise
    assert other.recompute_s == Known(200.0)
    assert (other.requeue.waiting_s, other.requeue.lost_s) == (Known(900.0), Known(1100.0))
    assert (other.person.waiting_s, other.person.lost_s) == (Known(4500.0), Known(4700.0))
    assert other.spared_s == Known(Spared(440.0, 4040.0))
    assert other.person.gpu_hours == Known(pytest.approx(4700 / 3600 * 32))
    assert isinstance(other.spared_dollars, Known)
    assert other.spared_dollars.value.low == pytest.approx(440 / 3600 * 200)
    assert other.spared_dollars.value.high == pytest.approx(4040 / 3600 * 200)
    assert "\n" not in other.assumes
    for said in ("estimate", "requeue", "10 min", "60 min", "5 min"):
        assert said in other.assumes


@pytest.mark.parametrize(
    ("fault", "cluster", "requeue", "person"),
    [
        (FaultClass.SOFTWARE_CRASH, "pod", 300, 3900),  # the platform sees it at once
        (FaultClass.HANG, "pod", 900, 4500),
        (FaultClass.NODE_LOST, "pod", 1800, 6300),  # a replacement; the time-out, a person, and the node's repair
        (FaultClass.NODE_HARDWARE, "pod", 1800, 6300),
        (FaultClass.NODE_HARDWARE, None, 300, 4500),  # a training job gets other instances at once
        (FaultClass.NON_FINITE, None, 300, 3900),
    ],
)
def test_who_waits_for_what_in_the_counterfactual(
    fault: FaultClass, cluster: str | None, requeue: float, person: float
) -> None:
    other = ledger(replace(incident(fault=fault), cluster=cluster)).otherwise
    assert (other.requeue.waiting_s, other.person.waiting_s) == (Known(float(requeue)), Known(float(person)))


@pytest.mark.parametrize("fault", FaultClass)
@pytest.mark.parametrize("own", [Unknown("too few"), Known(0.0), Known(90.0), Known(1e6)], ids=str)
def test_the_low_end_is_never_above_the_high_one(fault: FaultClass, own: Maybe[float]) -> None:
    one = incident(fault=fault)
    spared = ledger(replace(one, account=replace(one.account, own_gap_s=own))).otherwise.spared_s
    assert isinstance(spared, Unknown) or spared.value.low <= spared.value.high


@pytest.mark.parametrize(
    ("fault", "person"), [(FaultClass.SOFTWARE_CRASH, 1020), (FaultClass.HANG, 1620), (FaultClass.NODE_LOST, 1620)]
)
def test_a_runs_own_history_takes_the_place_of_what_is_assumed_of_people(fault: FaultClass, person: float) -> None:
    one = incident(fault=fault)
    other = ledger(replace(one, account=replace(one.account, own_gap_s=Known(720.0)))).otherwise
    assert other.person.waiting_s == Known(float(person))
    assert "12 min, the median that this run took before Rekindle" in other.assumes
    assert "60 min" not in other.assumes


def test_a_recovery_that_took_longer_than_a_person_spared_less_than_nothing() -> None:
    long = incident(phases=((Phase.RESUBMITTING, 60), (Phase.VERIFYING, 90), (Phase.RECOVERED, 10_000)))
    spared = ledger(long).otherwise.spared_s
    assert spared == Known(Spared(500.0 - 10_000.0, 4100.0 - 10_000.0))


def test_a_spike_that_heals_by_itself_costs_nothing_that_is_known() -> None:
    healed = incident(fault=FaultClass.LOSS_SPIKE, phases=((Phase.WATCHING, 10), (Phase.RECOVERED, 100)), restarts=[])
    one = ledger(healed)
    assert (one.steps_lost, one.lost.seconds, one.gpu_hours_lost) == (Known(0), Known(0.0), Known(0.0))
    assert isinstance(one.otherwise.person.lost_s, Unknown)


def test_a_slow_run_costs_something_that_nobody_measures() -> None:
    slow = incident(fault=FaultClass.THROUGHPUT_DROP, phases=((Phase.OPEN, 10), (Phase.RECOVERED, 100)), restarts=[])
    assert isinstance(ledger(slow).gpu_hours_lost, Unknown)


@pytest.mark.parametrize("phase", [Phase.STOPPED, Phase.HANDED_OVER])
def test_what_was_not_brought_back_has_no_mttr_and_no_price(phase: Phase) -> None:
    left = incident(phases=((Phase.RESUBMITTING, 60), (phase, 90)))
    one = ledger(left)
    assert isinstance(one.mttr_s, Unknown)
    assert isinstance(one.gpu_hours_lost, Unknown)
    assert one.elapsed_s == Known(90.0)


def test_an_open_incident_counts_to_now() -> None:
    one = ledger(incident(phases=((Phase.RESUBMITTING, 60), (Phase.VERIFYING, 90))), now=200)
    assert isinstance(one.mttr_s, Unknown)
    assert one.elapsed_s == Known(200.0)
    assert sum(stage.seconds for stage in one.stages) == 200


@pytest.mark.parametrize(
    ("field", "what"),
    [
        ("onset", "mttd_s mttr_s elapsed_s lost_s gpu_hours_lost dollars_lost"),
        ("step_s", "gpu_hours_saved dollars_saved"),
        ("furthest", "steps_lost"),
        ("resume", "steps_lost steps_saved gpu_hours_saved dollars_saved"),
        ("periodic", "steps_saved gpu_hours_saved dollars_saved"),
        ("size", "gpu_hours_lost gpu_hours_saved dollars_lost dollars_saved gpus"),
    ],
)
def test_each_unknown_input_makes_what_needs_it_unknown_and_nothing_else_zero(field: str, what: str) -> None:
    kept = restart(
        furthest=UNKNOWN if field == "furthest" else Known(1000),
        resume=UNKNOWN if field == "resume" else Known(990),
        kind="emergency",
        periodic=UNKNOWN if field == "periodic" else Known(900),
    )
    one = incident(
        fault=FaultClass.HANG,
        restarts=[kept],
        onset=UNKNOWN if field == "onset" else Known(0.0),
        step_s=UNKNOWN if field == "step_s" else Known(2.0),
    )
    wire = ledger(one, size=JobSize() if field == "size" else POD).to_wire()
    named = what.split()
    for name in named:
        assert set(wire[name]) == {"unknown"}, name
    for name in ("steps_lost", "steps_saved", "mttr_s", "gpu_hours_saved", "dollars_saved"):
        if name not in named:
            assert wire[name] > 0, name


def test_without_a_step_time_the_time_is_counted_whole_and_says_so() -> None:
    one = ledger(incident(step_s=UNKNOWN, closed_step=Known(1040)))
    assert one.lost.seconds == Known(660.0)
    assert any("Counted whole" in said for said in one.assumptions)


def test_a_clock_that_is_ahead_gives_no_detection_before_the_fault() -> None:
    one = ledger(incident(onset=Known(75.0)))
    assert isinstance(one.mttd_s, Unknown)
    assert "15 s after the first observation" in one.mttd_s.why
    assert [stage.name for stage in one.stages] == ["resubmitting", "verifying"]


def test_an_order_was_not_detected() -> None:
    assert isinstance(ledger(incident(fault=FaultClass.OPERATOR_ORDER)).mttd_s, Unknown)


def test_an_incident_of_before_the_account_was_kept_says_so_and_costs_nothing_that_is_known() -> None:
    wire = ledger(replace(incident(), account=Account())).to_wire()
    assert wire["stages"] == []
    for name in ("mttd_s", "mttr_s", "lost_s", "gpu_hours_lost", "dollars_lost"):
        assert "unknown" in wire[name], name


def test_the_account_survives_being_stored() -> None:
    one = incident(restarts=[restart(ended=12), restart(3, furthest=UNKNOWN, resume=UNKNOWN)])
    assert Incident.from_wire(one.to_wire()) == one
    assert Account.from_wire(Account().to_wire()) == Account()


def test_the_newest_phases_are_kept_and_the_others_counted() -> None:
    account = Account(looked_at=at(0))
    for number in range(100):
        account = account.with_phase("verifying" if number % 2 else "resubmitting", now=at(number))
    assert len(account.entered) == 64
    assert account.entered_before == 36
    stages = ledger(replace(incident(), account=replace(account, onset_at=Known(at(0))), closed_at=at(100))).stages
    assert stages[1].name == "earlier"
    assert sum(stage.seconds for stage in stages) == 100


def test_every_type_in_the_table_of_gpus_is_one_of_ec2_and_of_sagemaker() -> None:
    session = botocore.session.get_session()
    ec2 = set(session.get_service_model("ec2").shape_for("InstanceType").enum)
    sagemaker = set(session.get_service_model("sagemaker").shape_for("TrainingInstanceType").enum)
    for row in GPU_TABLE:
        assert row.instance in ec2, row
        assert f"ml.{row.instance}" in sagemaker, row
        assert row.gpus > 0
        assert row.source


def test_every_count_of_gpus_is_what_ec2_itself_answers() -> None:
    """moto keeps EC2's own answer to DescribeInstanceTypes; what it lacks (old and rare types) is left out."""
    told = {
        name: sum(gpu["Count"] for gpu in instance_type["GpuInfo"]["Gpus"])
        for name, instance_type in INSTANCE_TYPES.items()
        if "GpuInfo" in instance_type
    }
    held = [row for row in GPU_TABLE if row.instance in told]
    assert len(held) > 40
    assert [(row.instance, row.gpus) for row in held] == [(row.instance, told[row.instance]) for row in held]


def test_what_is_no_gpu_still_has_its_price() -> None:
    trainium = JobSize.of_instances((("ml.trn1.32xlarge", 2),))
    assert isinstance(trainium.gpus, Unknown)
    assert Prices.default().per_hour(trainium) == Known(43.0)


def test_a_type_that_is_not_in_the_table_is_unknown_and_makes_the_whole_run_unknown() -> None:
    assert gpus_of("ml.p4d.24xlarge") == Known(8)
    assert isinstance(gpus_of("ml.trn1.32xlarge"), Unknown)
    mixed = JobSize.of_instances((("ml.p5.48xlarge", 2), ("ml.c5.xlarge", 1)))
    assert isinstance(mixed.gpus, Unknown)
    assert mixed.instances == (("ml.p5.48xlarge", 2), ("ml.c5.xlarge", 1))
    assert JobSize.from_wire(mixed.to_wire()) == mixed
    assert isinstance(JobSize.of_instances(()).gpus, Unknown)
