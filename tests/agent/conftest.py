from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud.cloud import Cloud
from tests.agent.world import World


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    with Cloud() as one:
        yield one


@pytest.fixture
def world(cloud: Cloud, tmp_path: Path) -> World:
    return World(cloud, tmp_path / "state")
