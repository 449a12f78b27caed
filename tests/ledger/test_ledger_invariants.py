"""What holds for every Incident's ledger, whatever happened: nothing negative, and the parts are the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chalicelib.domain.model.account import Restart
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.reporting.ledger import ledger_of
from rekindle.protocol.signals import FaultClass
from tests.ledger.books import POD, PRICES, at, incident, ledger
from tests.sizes import examples

_OPEN = [phase for phase in Phase if not phase.is_terminal]
_ENDS = [phase for phase in Phase if phase.is_terminal]


def maybe(values: st.SearchStrategy[int]) -> st.SearchStrategy[Maybe[int]]:
    return st.one_of(values.map(Known), st.just(Unknown("nobody knows")))


@st.composite
def incidents(draw: st.DrawFn) -> Incident:
    steps = st.integers(0, 10_000)
    spans = draw(st.lists(st.floats(0, 10_000, allow_nan=False), min_size=1, max_size=12))
    moments = [sum(spans[: index + 1]) for index in range(len(spans))]
    phases = [(draw(st.sampled_from(_OPEN)), moment) for moment in moments]
    phases.append((draw(st.sampled_from([*_ENDS, Phase.VERIFYING])), moments[-1] + draw(st.floats(0, 10_000))))
    restarts = [
        Restart(
            number=number,
            name=f"lm-r{number}",
            after="lm",
            furthest=draw(maybe(steps)),
            ended_at=draw(st.one_of(st.none(), st.floats(0, 20_000).map(at))),
            resume_step=draw(maybe(steps)),
            kind=draw(st.sampled_from(["", "periodic", "emergency", "final"])),
            periodic_step=draw(maybe(steps)),
        )
        for number in range(2, 2 + draw(st.integers(0, 4)))
    ]
    onset: Maybe[float] = draw(
        st.one_of(st.floats(-10_000, 20_000, allow_nan=False).map(Known), st.just(Unknown("nobody told")))
    )
    step_s: Maybe[float] = draw(st.one_of(st.floats(0.001, 100).map(Known), st.just(Unknown("never seen"))))
    return incident(
        fault=draw(st.sampled_from(FaultClass)),
        phases=phases,
        onset=onset,
        restarts=restarts,
        step_s=step_s,
        closed_step=draw(maybe(steps)),
        target_step=draw(maybe(steps)),
        asks=draw(st.integers(0, 2)),
        job_id=draw(st.sampled_from(["lm", "lm", "lm", None])),
    )


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(incidents())
def test_the_parts_are_the_whole_and_nothing_is_negative(one: Incident) -> None:
    book = ledger(one, now=100_000)
    span = sum(stage.seconds for stage in book.stages)
    assert all(stage.seconds >= 0 for stage in book.stages)
    if isinstance(book.elapsed_s, Known):
        assert span == pytest.approx(book.elapsed_s.value, abs=0.001)
    if isinstance(book.mttr_s, Known):
        assert span == pytest.approx(book.mttr_s.value, abs=0.001)
        assert isinstance(book.elapsed_s, Known)
    if isinstance(book.mttd_s, Known) and isinstance(book.elapsed_s, Known):
        assert 0 <= book.mttd_s.value <= book.elapsed_s.value
    for quantity in (book.steps_lost, book.steps_saved, book.gpu_hours_lost, book.gpu_hours_saved, book.dollars_lost):
        assert isinstance(quantity, Unknown) or quantity.value >= 0
    if isinstance(book.lost.seconds, Known):
        assert book.lost.seconds.value >= 0
        assert all(seconds > 0 for _, seconds in book.lost.by_stage)
        parts = sum(seconds for _, seconds in book.lost.by_stage)
        assert parts == pytest.approx(book.lost.seconds.value, abs=0.001)


@settings(max_examples=examples(100))
@given(
    furthest=st.integers(0, 10_000), back=st.integers(0, 500), further=st.integers(0, 500), step_s=st.floats(0.01, 10)
)
def test_lost_and_saved_are_what_would_have_been_lost(furthest: int, back: int, further: int, step_s: float) -> None:
    """lost + saved = from where it had come back to its own checkpoint: an emergency one only moves the border."""
    base = incident().account.restarts[0]
    resume, periodic = max(0, furthest - back), max(0, furthest - back - further)
    kept = replace(
        base, furthest=Known(furthest), resume_step=Known(resume), kind="emergency", periodic_step=Known(periodic)
    )
    with_one = ledger(incident(fault=FaultClass.HANG, restarts=[kept], step_s=Known(step_s)))
    without = ledger(
        incident(
            fault=FaultClass.HANG,
            restarts=[replace(kept, resume_step=Known(periodic), kind="periodic")],
            step_s=Known(step_s),
        )
    )
    assert isinstance(with_one.steps_lost, Known)
    assert isinstance(with_one.steps_saved, Known)
    assert isinstance(without.steps_lost, Known)
    assert with_one.steps_lost.value + with_one.steps_saved.value == without.steps_lost.value
    assert without.steps_saved == Known(0)


@settings(max_examples=examples(100))
@given(later=st.floats(0, 10_000), further=st.integers(0, 100), more=st.integers(1, 50))
def test_a_longer_recovery_a_longer_way_back_and_a_bigger_run_never_cost_less(
    later: float, further: int, more: int
) -> None:
    def lost(closed: float, step: int, pods: int) -> float:
        phases = ((Phase.RESUBMITTING, 60.0), (Phase.VERIFYING, 90.0), (Phase.RECOVERED, closed))
        one = incident(phases=phases, closed_step=Known(step))
        book = ledger(one, size=JobSize.of_instances((("ml.p5.48xlarge", pods),)), now=50_000)
        assert isinstance(book.gpu_hours_lost, Known)
        return book.gpu_hours_lost.value

    assert lost(660 + later, 1000, 4) >= lost(660, 1000, 4)
    assert lost(660, 1000 - further, 4) >= lost(660, 1000, 4)
    assert lost(660, 1000, 4 + more) > lost(660, 1000, 4)


def test_the_same_incident_has_the_same_ledger_whenever_it_is_read_once_closed() -> None:
    one = incident()
    early, late = (ledger_of(one, size=POD, prices=PRICES, now=at(seconds)).to_wire() for seconds in (700, 9000))
    assert early == late
