"""What a page asks of AWS does not grow with the Incidents that have closed, over the real routes and adapters."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from localcloud.aws.wire import SERVICE
from rekindle.console.reads import AnswerCache
from tests.console.world import NOW, Visitor, World, an_incident, an_item, raised

FEW, MANY, OPENED = 60, 240, 5  # pages of 50 are full in both
PAGES = (
    "/",
    "/jobs",
    "/jobs/llama-00001",
    "/incidents",
    "/incidents?state=closed",
    "/incidents?state=all",
    "/incidents/inc-llama-00001-000000000001",
    "/approvals",
    "/nodes",
    "/policies",
    "/metrics",
)


def asked(world: World, visitor: Visitor, page: str) -> Counter[str]:
    """The calls of one request of a page."""
    calls: Counter[str] = Counter()

    def count(model: Any, **_: Any) -> None:
        calls[f"{model.service_model.service_name}.{model.name}"] += 1

    clients = [
        world.cloud.client(name, caller=SERVICE) for name in ("dynamodb", "s3", "ssm", "cloudwatch", "sqs", "sagemaker")
    ]
    for client in clients:
        client.meta.events.register("before-call", count, unique_id="count")
    try:
        assert visitor.get(page).status == 200
    finally:
        for client in clients:
            client.meta.events.unregister("before-call", count, unique_id="count")
    return calls


@pytest.fixture(scope="module")
def counts() -> tuple[dict[str, Counter[str]], dict[str, Counter[str]]]:
    """Calls by page, with few closed Incidents and with many."""
    with raised() as world:
        world.fill(jobs=12, incidents=FEW, opened=OPENED)
        site, visitor = world.console.site, Visitor(world.console)
        # The week's ledger is read once, and never grows old here.
        site.cache = AnswerCache(site.read_one, site._pool, lambda: NOW)
        visitor.get("/metrics")
        few = {page: asked(world, visitor, page) for page in PAGES}
        world.put(*(an_item(an_incident(number, is_open=False)) for number in range(FEW, MANY)))
        return few, {page: asked(world, visitor, page) for page in PAGES}


@pytest.mark.parametrize("page", PAGES)
def test_calls_do_not_grow_with_what_has_closed(
    counts: tuple[dict[str, Counter[str]], dict[str, Counter[str]]], page: str
) -> None:
    few, many = counts
    assert few[page]
    assert many[page] == few[page]


def test_the_fleets_page_is_a_few_calls(counts: tuple[dict[str, Counter[str]], dict[str, Counter[str]]]) -> None:
    assert counts[1]["/"].total() <= 12
    assert counts[1]["/"]["dynamodb.BatchGetItem"] <= 3  # the newest open, all open for their questions, closed last
