"""Fail a test that leaves threads of a monitor or an agent running: they would slow down every test after it.

Threads are daemons that end when their owner is finished; a test that left some made others in its process take hours.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

OURS = "rekindle-"  # what the monitor's and the agent's threads are named by
MARK = "may_leave_threads"  # for tests in which a call never returns, whose thread cannot be ended
ENDS_S = 60.0  # a call to a host that never answers has its own time limits


@pytest.fixture(autouse=True)
def _no_thread_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    if request.node.get_closest_marker(MARK) is not None:
        return
    until = time.monotonic() + ENDS_S
    while left := [one for one in threading.enumerate() if one.name.startswith(OURS) and one not in before]:
        if time.monotonic() > until:
            pytest.fail(f"threads still run after the test: {', '.join(sorted(one.name for one in left))}")
        time.sleep(0.01)
