"""What holds for the figures of many Incidents: a sum is its parts, and no figure flatters or moves by itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chalicelib.domain.model.evidence import Onset
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.reporting.ledger import steps_lost
from chalicelib.domain.reporting.lost_time import POISONS
from chalicelib.domain.reporting.sums import fleet_ettr, job_sums, sums_of, total_of
from chalicelib.platforms.training_job.platform import TRAINING_JOB
from rekindle.protocol.signals import FaultClass
from tests.ledger.books import POD, at, incident, ledger, restart
from tests.ledger.test_ledger_invariants import incidents
from tests.sizes import examples

NOW = at(100_000)


def job(*, active: bool = False, ended: float | None = 50_000) -> Job:
    return Job(
        job_id="lm",
        name="lm",
        platform=TRAINING_JOB.name,
        policy_name="default",
        created_at=at(0),
        current_attempt="lm",
        attempt_number=1,
        attempt_started_at=at(0),
        active=active,
        size=POD,
        ended_at=None if active or ended is None else at(ended),
    )


def attempt(ended: float | None = None) -> Attempt:
    return Attempt(job_id="lm", number=1, name="lm", submitted_at=at(0), ended_at=None if ended is None else at(ended))


@given(st.lists(st.one_of(st.integers(0, 10_000).map(Known), st.just(Unknown("nobody knows")))))
def test_a_sum_is_its_known_parts_and_unknown_where_there_are_none(quantities: list[Maybe[int]]) -> None:
    known = [quantity.value for quantity in quantities if isinstance(quantity, Known)]
    total = total_of(quantities)
    assert (total["counted"], total["counted"] + total["not_counted"]) == (len(known), len(quantities))
    if quantities and not known:
        assert total["sum"] == {"unknown": "it is known of no Incident"}
    else:
        assert total["sum"] == sum(known)


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(incidents(), max_size=6), st.booleans(), st.floats(0, 90_000))
def test_a_jobs_figures_are_those_of_its_incidents(many: list[Incident], active: bool, ended: float) -> None:
    books = [ledger(incident, now=100_000) for incident in many]
    body = job_sums(job(active=active, ended=ended), [attempt()], books, now=NOW)
    assert {name: body[name] for name in sums_of(books)} == sums_of(books)
    for name in ("steps_lost", "steps_saved", "gpu_hours_lost", "dollars_lost", "dollars_saved"):
        parts = [getattr(book, name) for book in books]
        known = [part.value for part in parts if isinstance(part, Known)]
        expected = sum(known) if known or not parts else None
        told = body[name]["sum"] if not isinstance(body[name]["sum"], dict) else None
        assert told == (None if expected is None else pytest.approx(expected, abs=0.01))
    by_fault = body["lost_s"]["sum"] if not isinstance(body["lost_s"]["sum"], dict) else 0
    assert sum(body["lost_by_fault_s"].values()) == pytest.approx(by_fault, abs=0.01)
    assert sum(body["lost_by_stage_s"].values()) == pytest.approx(by_fault, abs=0.01)


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(incidents(), max_size=6), st.booleans())
def test_an_ettr_is_a_share_and_never_above_what_it_is_at_most(many: list[Incident], active: bool) -> None:
    books = [ledger(incident, now=100_000) for incident in many]
    whole = job_sums(job(active=active), [attempt()], books, now=NOW)
    fleet = fleet_ettr([job(active=active)], books, since=at(0), now=NOW)
    is_open = any(incident.closed_at is None for incident in many)
    for body in (whole, fleet):
        at_most = body["ettr_at_most"]
        if isinstance(body["ettr"], float):
            assert 0 <= body["ettr"] <= 1
            assert isinstance(at_most, dict) or body["ettr"] <= at_most
        assert isinstance(at_most, dict) or (0 <= at_most <= 1 and (body is fleet or not is_open))
    if is_open:
        assert isinstance(whole["ettr"], dict)
        assert "unknown" in whole["ettr_at_most"]


@pytest.mark.parametrize(
    ("one", "last"),
    [
        (job(active=False, ended=50_000), attempt()),
        (job(active=False, ended=None), attempt(40_000)),
        (job(active=True), attempt(40_000)),  # it has ended, and nobody has noticed
    ],
)
def test_no_figure_of_a_run_that_is_over_moves_on(one: Job, last: Attempt) -> None:
    books = [ledger(incident(), now=100_000)]
    early, late = (job_sums(one, [last], books, now=NOW + timedelta(days=days)) for days in (0, 30))
    assert early == late
    assert isinstance(early["ettr"], float)


def test_a_run_whose_end_is_not_known_has_no_ettr() -> None:
    body = job_sums(job(active=False, ended=None), [attempt()], [ledger(incident())], now=NOW)
    assert body["ettr"] == body["wall_s"] == {"unknown": "when the run ended is not known"}
    assert body["until"] is None


def test_an_open_incident_leaves_no_at_most_and_the_fleet_counts_up_to_its_onset() -> None:
    going_on = incident(phases=((Phase.RESUBMITTING, 60), (Phase.VERIFYING, 90)), onset=Known(0.0))
    books = [ledger(going_on, now=100_000)]
    body = job_sums(job(active=True), [attempt()], books, now=NOW)
    assert body["ettr"] == {"unknown": "what one Incident cost is not known: it is still open"}
    assert body["ettr_at_most"] == {"unknown": "an Incident is open"}
    early, late = (fleet_ettr([job(active=True)], books, since=at(-1), now=at(later)) for later in (1_000, 90_000))
    assert early == late


def test_what_is_spared_is_summed_at_both_ends() -> None:
    books = [ledger(incident(fault=fault)) for fault in (FaultClass.HANG, FaultClass.SOFTWARE_CRASH)]
    total = sums_of([*books, ledger(incident(fault=FaultClass.OPERATOR_ORDER))])["spared_dollars"]
    ends = [book.otherwise.spared_dollars for book in books]
    low = sum(end.value.low for end in ends if isinstance(end, Known))
    high = sum(end.value.high for end in ends if isinstance(end, Known))
    assert total["sum"] == {"low": pytest.approx(low, abs=0.001), "high": pytest.approx(high, abs=0.001)}
    assert (total["counted"], total["not_counted"]) == (2, 1)
    nothing = sums_of([ledger(incident(fault=FaultClass.OPERATOR_ORDER))])["spared_dollars"]
    assert nothing["sum"] == {"unknown": "it is known of no Incident"}


def test_a_finished_job_counts_in_the_fleets_ettr() -> None:
    book = ledger(incident(), now=100_000)
    alone = fleet_ettr([job(active=False, ended=6_600)], [book], since=at(0), now=NOW)
    assert alone["jobs"] == 1
    assert isinstance(book.lost.seconds, Known)
    assert alone["ettr"] == pytest.approx(1 - book.lost.seconds.value / 6_600, abs=0.001)


@settings(max_examples=examples(100))
@given(
    fault=st.sampled_from(sorted(POISONS)),
    resume=st.integers(0, 1000),
    good=st.integers(0, 300),
    bad=st.integers(0, 300),
    again=st.integers(0, 3),
)
def test_steps_since_a_loss_went_bad_are_never_counted_as_lost(
    fault: FaultClass, resume: int, good: int, bad: int, again: int
) -> None:
    """Each new start loses the good steps since its resume point, however far the bad ones went."""
    onset = resume + good + 1
    starts = [
        restart(number, furthest=Known(onset + bad), resume=Known(resume), periodic=Known(resume))
        for number in range(2, 3 + again)
    ]
    one = incident(fault=fault, restarts=starts)
    one = replace(
        one,
        loss=replace(
            one.loss, onsets=tuple(Onset(attempt=start.after, fault=fault, step=Known(onset)) for start in starts)
        ),
    )
    assert steps_lost(one) == Known(good * len(starts))


def test_where_it_is_not_known_since_when_a_run_was_bad_its_lost_steps_are_not_either() -> None:
    one = incident(fault=FaultClass.NON_FINITE).changed(
        onsets=(Onset(attempt="lm", fault=FaultClass.NON_FINITE, step=Unknown("only one rank spoke")),),
    )
    lost = steps_lost(one)
    assert isinstance(lost, Unknown)
    assert "only one rank spoke" in lost.why
