from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud.cloud import Cloud
from tests.agent.world import World


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    """One for all tests of a module; each World empties it of what the one before left."""
    with Cloud() as one:
        yield one


@pytest.fixture
def world(cloud: Cloud, tmp_path: Path) -> World:
    return World(cloud, tmp_path / "state")
