"""The price table as people see and set it: sources, what is unknown, and no price lost to two who write at once."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from chalicelib.domain.model.errors import InvalidRequest, Outdated
from chalicelib.domain.model.instances import GPU_TABLE, JobSize
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.reporting.prices import DEFAULT_PRICES, Prices
from chalicelib.services.operator.price_table import PriceTable
from tests.fakes.paging import FakePolicyShelf
from tests.fakes.world import FakeClock


@pytest.fixture
def shelf() -> FakePolicyShelf:
    return FakePolicyShelf()


@pytest.fixture
def table(shelf: FakePolicyShelf) -> PriceTable:
    return PriceTable(documents=shelf, clock=FakeClock())


@pytest.mark.parametrize("row", DEFAULT_PRICES, ids=lambda row: str(row.instance))
def test_every_shipped_price_has_a_source_a_date_and_a_type_that_can_cost_something(row: Any) -> None:
    assert row.source
    assert date(2025, 11, 23) <= date.fromisoformat(row.as_of) <= date(2026, 11, 23)
    assert row.usd_per_hour > 0
    known = {row.instance for row in GPU_TABLE}
    assert row.instance in known or row.instance.startswith("trn")


def test_the_families_from_p4d_to_p6_and_trainium_have_a_price_or_are_named_as_unknown(table: PriceTable) -> None:
    seen = table.get()
    priced = {row["instance"] for row in seen["rows"]}
    assert {"p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge"} <= priced
    assert {"p6-b200.48xlarge", "p6-b300.48xlarge", "p6e-gb200.36xlarge", "trn1.32xlarge", "trn2.48xlarge"} <= priced
    assert "p5.4xlarge" in seen["without_price"]
    assert priced.isdisjoint(seen["without_price"])
    assert (seen["is_builtin"], seen["version"], seen["problem"]) == (True, 0, None)


def test_a_type_without_a_price_costs_an_unknown_amount_and_never_zero(table: PriceTable) -> None:
    for name in table.get()["without_price"]:
        assert isinstance(Prices.default().per_hour(JobSize.of_instances(((f"ml.{name}", 2),))), Unknown)


def test_a_stored_document_counts_alone_with_its_own_source(table: PriceTable) -> None:
    stored = table.put({"instances": {"ml.p5.48xlarge": 48.2}, "source": "our contract"}, replaces=0)
    assert stored["rows"] == [{"instance": "p5.48xlarge", "usd_per_hour": 48.2, "as_of": "", "source": "our contract"}]
    assert "p6-b200.48xlarge" in stored["without_price"]
    assert Prices.from_wire(stored["document"]).per_hour(JobSize.of_instances((("p5.48xlarge", 2),))) == Known(96.4)


def test_two_who_set_prices_at_once_lose_none_and_an_order_given_twice_is_one(table: PriceTable) -> None:
    mine = {"instances": {"p5.48xlarge": 48.2}}
    assert table.put(mine, replaces=0)["version"] == 1
    assert table.put(mine, replaces=0)["version"] == 1
    with pytest.raises(Outdated):
        table.put({"instances": {"p4d.24xlarge": 20}}, replaces=0)
    assert table.get()["document"] == mine


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"instances": {"p5.48xlarge": -1}}, "prices.instances.p5.48xlarge"),
        ({"instances": {"p5.48xlarge": "48"}}, "prices.instances.p5.48xlarge"),
        ({"instances": []}, "prices.instances"),
        ({"usd": 4}, "prices.usd"),
        ({"instances": {f"p{n:04d}{'x' * 24}.24xlarge": 1.123456 for n in range(200)}}, "prices"),  # beyond 8 KB
    ],
)
def test_a_document_that_cannot_be_used_is_refused_by_its_field_and_nothing_is_stored(
    table: PriceTable, document: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        table.put(document, replaces=0)
    assert caught.value.field == field
    assert table.get()["is_builtin"] is True


@pytest.mark.parametrize("text", ["{", "[]", '{"instances": {"p5.48xlarge": -1}}'])
def test_what_somebody_stored_by_hand_and_cannot_be_used_prices_nothing_and_says_so(
    table: PriceTable, shelf: FakePolicyShelf, text: str
) -> None:
    shelf.write("prices", text, replaces=0, now=FakeClock().now())
    seen = table.get()
    assert seen["rows"] == []
    assert "nothing is priced" in seen["problem"]
