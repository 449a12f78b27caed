"""The user's price table, one JSON document in SSM Parameter Store."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.aws.errors import AwsRefusal, call
from chalicelib.domain.model.errors import InvalidRequest
from chalicelib.domain.reporting.prices import Prices
from chalicelib.ports.clock import Clock

MEMORY: Final = timedelta(minutes=5)  # prices change by the month; a page of ledgers must not cost a call each


@dataclass(frozen=True, slots=True)
class _Read:
    prices: Prices
    at: datetime


class SsmPrices:
    """ports.PriceList; `client` is a boto3 SSM client, the document lies at `name`."""

    def __init__(self, client: Any, *, name: str, clock: Clock) -> None:
        self._client = client
        self._name = name
        self._clock = clock
        self._read: _Read | None = None

    def load(self) -> Prices:
        now = self._clock.now()
        if self._read is not None and timedelta(0) <= now - self._read.at < MEMORY:
            return self._read.prices
        prices = self._fresh()
        self._read = _Read(prices, now)
        return prices

    def _fresh(self) -> Prices:
        try:
            parameter = call(self._client.get_parameter, expect=("ParameterNotFound",), Name=self._name)["Parameter"]
        except AwsRefusal:
            return Prices.default()
        return read_prices(parameter["Value"])


def read_prices(text: str) -> Prices:
    """A document that cannot be used gives no price at all, and says why: a wrong price would look like a right one."""
    try:
        return Prices.from_wire(json.loads(text))
    except InvalidRequest as err:
        return Prices(instances={}, source=f"none: the prices document cannot be used ({err})"[:200])
    except (ValueError, RecursionError):
        return Prices(instances={}, source="none: the prices document is not JSON")
