"""The price table: the sources of the shipped one, and what of a document of the user's own is refused."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from chalicelib.aws.ssm.prices import read_prices
from chalicelib.domain.model.errors import InvalidRequest
from chalicelib.domain.model.instances import GPU_TABLE, JobSize
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.reporting.prices import DEFAULT_PRICES, Prices


@pytest.mark.parametrize("row", DEFAULT_PRICES, ids=lambda row: str(row.instance))
def test_every_shipped_price_has_a_source_a_date_and_a_type_that_can_cost_something(row: Any) -> None:
    assert row.source
    assert date(2025, 11, 23) <= date.fromisoformat(row.as_of) <= date(2026, 11, 23)
    assert row.usd_per_hour > 0
    known = {row.instance for row in GPU_TABLE}
    assert row.instance in known or row.instance.startswith("trn")


def test_the_families_from_p4d_to_p6_and_trainium_have_a_price_or_cost_an_unknown_amount_and_never_zero() -> None:
    priced = {row.instance for row in DEFAULT_PRICES}
    assert {"p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge"} <= priced
    assert {"p6-b200.48xlarge", "p6-b300.48xlarge", "p6e-gb200.36xlarge", "trn1.32xlarge", "trn2.48xlarge"} <= priced
    without = {row.instance for row in GPU_TABLE} - priced
    assert "p5.4xlarge" in without
    for name in without:
        assert isinstance(Prices.default().per_hour(JobSize.of_instances(((f"ml.{name}", 2),))), Unknown)


def test_a_document_counts_alone() -> None:
    own = Prices.from_wire({"instances": {"ml.p5.48xlarge": 48.2}, "source": "our contract"})
    assert own.per_hour(JobSize.of_instances((("p5.48xlarge", 2),))) == Known(96.4)
    assert isinstance(own.per_hour(JobSize.of_instances((("p6-b200.48xlarge", 2),))), Unknown)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"instances": {"p5.48xlarge": -1}}, "prices.instances.p5.48xlarge"),
        ({"instances": {"p5.48xlarge": "48"}}, "prices.instances.p5.48xlarge"),
        ({"instances": []}, "prices.instances"),
        ({"usd": 4}, "prices.usd"),
    ],
)
def test_a_document_that_cannot_be_used_is_refused_by_its_field(document: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Prices.from_wire(document)
    assert caught.value.field == field


@pytest.mark.parametrize("text", ["{", "[]", '{"instances": {"p5.48xlarge": -1}}'])
def test_what_cannot_be_used_prices_nothing_and_says_so(text: str) -> None:
    read = read_prices(text)
    assert read.instances == {}
    assert read.source.startswith("none: ")
