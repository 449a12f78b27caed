"""Ledgers of Incidents that really happened on the embedded cloud, and bounds on what a fleet's ledger reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from chalicelib.aws.ssm.prices import read_prices
from chalicelib.domain.model.errors import InvalidRequest, UnknownEntity
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.reporting.prices import DEFAULT_PRICES, Prices
from chalicelib.ports.incidents import Page
from chalicelib.services.reporting.ledgers import MAX_INCIDENTS, PAGE, Ledgers
from localcloud.cloud import STACK
from localcloud.memory_tables import MemoryIncidents, MemoryJobs
from localcloud.worlds.recoveries import Script, crash_at, freeze_at, world
from rekindle.protocol.mailbox import ReplyOutcome
from tests.adapters.samples import attempt, job
from tests.fakes.paging import FakeListings
from tests.fakes.world import FakeClock
from tests.ledger.books import at, incident


def test_a_crash_on_the_embedded_cloud_has_the_ledger_that_its_own_events_give() -> None:
    """4 x p5.48xlarge, steps of 2 s, a checkpoint every 10 steps, dead after step 25, back from 20."""
    with world() as w:
        w.submit(scripts=(Script(faults=(crash_at(25),)), Script()))
        one = w.recover()
        book = w.service.ledgers.incident(one.incident_id)
        story = w.service.store.timeline(one.incident_id)
        assert book["gpus"] == 32
        assert book["steps_lost"] == 5
        assert (book["steps_saved"], book["gpu_hours_saved"]) == (0, 0)
        assert one.closed_at is not None
        onset = datetime.fromisoformat(book["onset_at"])
        assert onset <= story[0].at
        assert book["mttd_s"] == (story[0].at - onset).total_seconds()
        assert book["mttr_s"] == (one.closed_at - onset).total_seconds()
        assert sum(stage["seconds"] for stage in book["stages"]) == pytest.approx(book["mttr_s"])
        # What it had gained beyond its old end by the last look took 2 s a step, and is not lost.
        closed, died = one.account.closed_step, one.account.restarts[0].furthest
        gained = closed.value - died.value  # type: ignore[union-attr]  # an Unknown fails here, as it should
        assert book["lost_s"] == pytest.approx(book["mttr_s"] - 2 * gained)
        assert book["gpu_hours_lost"] == pytest.approx(book["lost_s"] / 3600 * 32, abs=0.001)
        job = w.service.ledgers.job("lm")
        assert job["lost_s"] == {"sum": book["lost_s"], "counted": 1, "not_counted": 0}
        assert job["ettr"] == pytest.approx(1 - book["lost_s"] / job["wall_s"], abs=0.001)
        assert sum(job["lost_by_stage_s"].values()) == pytest.approx(book["lost_s"], abs=0.01)
        fleet = w.service.ledgers.fleet(7)
        assert (fleet["incidents"]["recovered"], fleet["truncated"]) == (1, False)
        assert fleet["gpu_hours_lost"]["sum"] == book["gpu_hours_lost"]
        assert "lm-r2 is submitted" in w.service.ledgers.postmortem(one.incident_id)
        json.dumps([book, job, fleet])


def test_a_hang_that_saved_nothing_and_an_order_that_saved_first_at_the_users_own_prices() -> None:
    document = {"instances": {"ml.p5.48xlarge": 90.0}, "source": "our contract", "as_of": "2026-11-01"}
    with world() as w:
        w.cloud.client("ssm").put_parameter(Name=f"/{STACK}/prices", Value=json.dumps(document), Type="String")
        w.submit(scripts=(Script(faults=(freeze_at(15),), reply=ReplyOutcome.CANNOT), Script(), Script()))
        hang = w.recover()
        book = w.service.ledgers.incident(hang.incident_id)
        assert (book["fault"], book["steps_lost"], book["steps_saved"]) == ("hang", 4, 0)  # stuck after 14, back at 10
        assert "20 s of silence" in book["onset_from"]
        assert book["dollars_lost"] == pytest.approx(book["lost_s"] / 3600 * 4 * 90.0, abs=0.001)
        assert any("our contract, as of 2026-11-01" in said for said in book["assumptions"])
        with pytest.raises(UnknownEntity):
            w.service.ledgers.incident("inc-nobody")
        assert [stage["phase"] for stage in book["stages"]][:3] == ["detect", "checkpointing", "stopping"]
        w.service.orders.resubmit("lm", who="ada", key="k1", from_step=None, skip=())
        order = w.recover(count=2)
        book = w.service.ledgers.incident(order.incident_id)
        kept = order.account.restarts[0]
        assert kept.kind == "emergency"
        assert book["steps_saved"] == kept.resume_step.value - kept.periodic_step.value > 0  # type: ignore[union-attr]
        assert book["counterfactual"]["spared_s"] == {"unknown": "a person ordered it"}


@dataclass
class _Counted:
    """A store that counts its pages, and never gives more of the open ones than are asked for."""

    under: MemoryIncidents
    pages: int = 0
    opened: int = 0

    def list_closed(self, *, limit: int, cursor: str | None = None) -> Page:
        self.pages += 1
        return self.under.list_closed(limit=limit, cursor=cursor)

    def list_open(self) -> Iterator[tuple[Incident, datetime | None]]:
        for found in self.under.list_open():
            self.opened += 1
            yield found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.under, name)


class _Default:
    def load(self) -> Prices:
        return Prices.default()


def _fleet(count: int, *, every_s: float) -> tuple[_Counted, Ledgers]:
    """`count` closed Incidents, the newest now, each `every_s` older than the next."""
    jobs = MemoryJobs()
    clock = FakeClock(at(0))
    store = MemoryIncidents(jobs)
    for number in range(count):
        opened = at(-every_s * number)
        name = f"job-{number:05}"
        jobs.register(job(name), attempt(of=name))
        one = replace(incident(), incident_id=f"inc-{number:05}", job_id=name, opened_at=opened)
        signal = Signal(
            kind=SignalKind.STALL,
            source=SignalSource.MONITOR,
            occurred_at=opened,
            dedupe_key=f"{number}",
            summary="x",
        )
        store.open(one, signal, now=opened)
    counted = _Counted(store)
    ledgers = Ledgers(
        store=counted,  # type: ignore[arg-type]  # the port, by __getattr__
        registry=(forgotten := MemoryJobs()),  # it has forgotten them
        listings=FakeListings(store, forgotten),
        prices=_Default(),
        clock=clock,
    )
    return counted, ledgers


def test_a_fleets_ledger_reads_so_many_pages_and_says_where_it_stopped() -> None:
    store, ledgers = _fleet(MAX_INCIDENTS + 250, every_s=1)
    fleet = ledgers.fleet(1)
    assert store.pages == MAX_INCIDENTS // PAGE
    assert fleet["incidents"]["all"] == MAX_INCIDENTS
    assert fleet["truncated"]
    assert f"newest {MAX_INCIDENTS}" in fleet["text"]


def test_a_fleets_ledger_reads_no_page_beyond_its_window() -> None:
    store, ledgers = _fleet(450, every_s=timedelta(days=1).total_seconds() / 150)
    fleet = ledgers.fleet(1)
    assert fleet["incidents"]["all"] == 151  # of exactly a day ago, too
    assert store.pages == 2
    assert not fleet["truncated"]
    assert fleet["ettr"] == {"unknown": "no Job ran"}


def test_a_fleets_ledger_reads_no_job_one_by_one() -> None:
    """A Job that is over is not among the active ones; a month may know a thousand of them."""
    _, ledgers = _fleet(30, every_s=1)
    together: list[int] = []

    class Jobs(MemoryJobs):
        def get(self, job_id: str) -> Job:
            raise AssertionError(f"{job_id} was read alone")

        def known(self, job_ids: Iterable[str]) -> dict[str, Job]:
            together.append(len(list(job_ids)))
            return {}

    fleet = replace(ledgers, registry=Jobs()).fleet(1)
    assert (fleet["incidents"]["all"], together) == (30, [30])
    assert fleet["gpu_hours_lost"]["not_counted"] == 30


@pytest.mark.parametrize("days", [0, -1, 367])
def test_a_window_must_be_from_a_day_to_a_year(days: int) -> None:
    _, ledgers = _fleet(0, every_s=1)
    with pytest.raises(InvalidRequest, match="days"):
        ledgers.fleet(days)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ([], "prices"),
        ({"instances": []}, "prices.instances"),
        ({"instances": {"ml.p5.48xlarge": "55"}}, "prices.instances.ml.p5.48xlarge"),
        ({"instances": {"ml.p5.48xlarge": -1}}, "prices.instances.ml.p5.48xlarge"),
        ({"instances": {"ml.p5.48xlarge": True}}, "prices.instances.ml.p5.48xlarge"),
        ({"instances": {"<b>": 1}}, "prices.instances"),
        ({"usd_per_gpu_hour": 1e9}, "prices.usd_per_gpu_hour"),
        ({"currency": "EUR"}, "prices.currency"),
        ({"source": "a\nb"}, "prices.source"),
    ],
)
def test_a_wrong_price_document_names_its_field_and_prices_nothing(document: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Prices.from_wire(document)
    assert refused.value.field == field
    read = read_prices(json.dumps(document))
    assert read.instances == {}
    assert read.usd_per_gpu_hour is None
    assert "cannot be used" in read.source
    assert read_prices("{").source.endswith("is not JSON")


def test_every_price_that_is_shipped_says_where_it_is_from_and_of_when() -> None:
    for row in DEFAULT_PRICES:
        assert row.source
        assert datetime.fromisoformat(row.as_of)
    assert Prices.from_wire(Prices.default().to_wire()) == Prices.default()
