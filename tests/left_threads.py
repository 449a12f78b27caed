"""Fail a test that leaves threads of a monitor running: they would slow down every test after it.

Threads are daemons that end when their owner is finished; a test that left some made others in its process take hours.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from rekindle.monitor.base.stacks import OWN_PREFIX

ENDS_S = 60.0  # a call to a host that never answers has its own time limits


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    until = time.monotonic() + ENDS_S
    while left := [one for one in threading.enumerate() if one.name.startswith(OWN_PREFIX) and one not in before]:
        if time.monotonic() > until:
            pytest.fail(f"threads still run after the test: {', '.join(sorted(one.name for one in left))}")
        time.sleep(0.01)
