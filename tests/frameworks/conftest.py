"""Processes that have imported a framework, for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.train.launcher import Nurseries


@pytest.fixture(scope="session")
def nurseries() -> Iterator[Nurseries]:
    made = Nurseries()
    yield made
    made.close()
