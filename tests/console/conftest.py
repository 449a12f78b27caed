"""A browser, and a console over a small fleet."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.browser import Browser, open_browser
from tests.console.chromium_install import find
from tests.console.world import Visitor, World, raised


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests of a process."""
    with (
        tempfile.TemporaryDirectory(prefix="rekindle-chromium-", ignore_cleanup_errors=True) as profile,
        open_browser(find(), Path(profile)) as opened,
    ):
        yield opened


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """A small fleet: 12 Jobs, 9 Incidents of which 2 are open."""
    with raised() as made:
        made.fill(jobs=12, incidents=9, opened=2)
        yield made


@pytest.fixture
def visitor(world: World) -> Visitor:
    return Visitor(world.console)
