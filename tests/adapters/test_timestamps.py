"""Times in AWS's answers, read as UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.utils import parse_timestamp

from chalicelib.bootstrap.clients import session_of, timestamp


@pytest.mark.parametrize(
    "value",
    [0, 1795469171, 1795469171.685, -1.5, "2026-11-23T21:26:11Z", "Mon, 23 Nov 2026 21:26:11 GMT", "1795469"],
)
def test_every_form_is_the_moment_that_botocore_reads(value: Any) -> None:
    assert timestamp(value) == parse_timestamp(value)
    assert timestamp(value).utcoffset() is not None


@pytest.mark.parametrize("value", ["yesterday", None, float("nan"), 1e300])
def test_what_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises((ValueError, OverflowError)):
        timestamp(value)


def test_the_services_clients_read_times_with_it() -> None:
    parser = session_of("us-west-2")._session.get_component("response_parser_factory").create_parser("json")
    assert parser._timestamp_parser(1795469171.0) == datetime(2026, 11, 23, 21, 26, 11, tzinfo=UTC)
    assert parser._timestamp_parser(1795469171.0).tzinfo is UTC
