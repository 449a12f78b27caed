"""moto in process, and both implementations of each port that the contract suites run over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ReadTimeoutError
from moto import mock_aws

from chalicelib.aws.dynamodb.incidents import DynamoIncidentStore
from chalicelib.aws.dynamodb.jobs import DynamoJobRegistry
from chalicelib.aws.errors import drain_unlisted
from chalicelib.ports.incidents import IncidentStore
from chalicelib.ports.jobs import JobRegistry
from localcloud.aws.template import create_table
from localcloud.memory_tables import MemoryIncidents, MemoryJobs

REGION = "us-west-2"
TABLE = "rekindle"


def make_client(name: str) -> Any:
    """A client that never retries: each call that a test counts is one call."""
    client = boto3.client(
        name,
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"mode": "standard", "total_max_attempts": 1}),
    )
    client.meta.events.register("before-parameter-build.dynamodb", must_be_consistent)
    return client


def must_be_consistent(params: dict[str, Any], model: Any, **_: Any) -> None:
    """Reads of the table itself are strongly consistent, which moto does not tell apart; an index offers none."""
    if model.name in ("GetItem", "Query") and "IndexName" not in params:
        assert params.get("ConsistentRead") is True, params
    elif model.name == "BatchGetItem":
        assert all(one.get("ConsistentRead") is True for one in params["RequestItems"].values()), params


@dataclass
class Wire:
    """What goes over a client's wire: counts calls, and can lose the answer of one after it took effect."""

    client: Any
    calls: Counter[str] = field(default_factory=Counter)
    item_writes: int = 0
    _lose: Callable[[str], bool] | None = None

    def __post_init__(self) -> None:
        events = self.client.meta.events
        events.register("before-parameter-build.dynamodb", self._count)
        events.register("after-call.dynamodb", self._after)

    def _count(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        self.calls[model.name] += 1
        if model.name == "TransactWriteItems":
            self.item_writes += len(params["TransactItems"])
        elif model.name in ("PutItem", "UpdateItem", "DeleteItem"):
            self.item_writes += 1

    def _after(self, model: Any, **_: Any) -> None:
        if self._lose is not None and self._lose(model.name):
            self._lose = None
            raise ReadTimeoutError(endpoint_url="https://dynamodb.invalid")

    def lose_next_answer(self, operation: str | None = None) -> None:
        """The next call (of `operation`) takes effect, but its answer never arrives."""
        self._lose = lambda name: operation is None or name == operation

    def lose_answer_after(self, calls: int) -> None:
        """Lets `calls` calls through, then loses one answer."""
        left = [calls]

        def lose(_: str) -> bool:
            left[0] -= 1
            return left[0] < 0

        self._lose = lose

    def stop_losing(self) -> None:
        self._lose = None

    def reset(self) -> None:
        self.calls.clear()
        self.item_writes = 0


@pytest.fixture(autouse=True)
def _no_counts_left_over() -> None:
    drain_unlisted()


@pytest.fixture
def aws() -> Iterator[None]:
    with mock_aws(config={"core": {"reset_boto3_session": False}}):
        yield


@dataclass
class Shelf:
    """The two stores that share a table; `wire` only for the real ones."""

    store: IncidentStore
    registry: JobRegistry
    wire: Wire | None = None


def real_shelf() -> Shelf:
    client = make_client("dynamodb")
    create_table(client, TABLE)
    wire = Wire(client)
    return Shelf(
        store=DynamoIncidentStore(client, table=TABLE), registry=DynamoJobRegistry(client, table=TABLE), wire=wire
    )


def fake_shelf() -> Shelf:
    registry = MemoryJobs()
    return Shelf(store=MemoryIncidents(registry), registry=registry)


@pytest.fixture(params=["fake", "dynamodb"])
def shelf(request: pytest.FixtureRequest, aws: None) -> Iterator[Shelf]:
    made = fake_shelf() if request.param == "fake" else real_shelf()
    yield made
    if made.wire is not None:
        assert made.wire.calls["Scan"] == 0


@pytest.fixture
def table(aws: None) -> Shelf:
    return real_shelf()
