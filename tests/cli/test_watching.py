"""`--watch`: appended off a terminal, in place on one, patient with a service that is away, and gone at Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.service import FakeService, serve

PATIENCE_S = 120.0
WRAPS, CURSOR = b"\x1b[?7h", b"\x1b[?25h"


def answer(status: int, body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    return status, {}, json.dumps(body).encode()


def incident(phase: str, *, closed: bool = False) -> dict[str, Any]:
    return {
        "incident_id": "inc-1",
        "phase": phase,
        "opened_at": "2026-11-20T10:00:00+00:00",
        "closed_at": "2026-11-20T10:05:00+00:00" if closed else None,
    }


def test_an_incident_is_watched_through_failures_of_the_service_until_it_closes(
    rekindle: Run, service: FakeService
) -> None:
    service.answers += [
        answer(200, incident("stopping")),
        answer(200, incident("stopping")),
        answer(503, {"detail": "busy"}),
        answer(500, {"detail": "broken"}),
        answer(200, incident("recovered", closed=True)),
    ]
    ended = rekindle("show", "inc-1", "--watch", "0.2")
    assert ended.code == 0
    assert ended.out.count("inc-1") == 2  # what has not changed is not told again
    assert ended.out.index("stopping") < ended.out.index("recovered, open for 5 min")
    assert "busy; looking again" in ended.err
    assert "broken; looking again" in ended.err
    assert "\x1b" not in ended.out


def test_an_incident_that_is_not_known_yet_is_waited_for(rekindle: Run, service: FakeService) -> None:
    none = answer(200, {"incidents": []})
    service.answers += [answer(404, {"detail": "no incident inc-1"}), none, none]
    service.answers += [answer(200, incident("recovered", closed=True))]
    ended = rekindle("show", "inc-1", "--watch", "0.2")
    assert (ended.code, "no incident inc-1; looking again" in ended.err) == (0, True)
    assert "recovered" in ended.out


def test_the_beginning_of_a_name_is_completed_once(rekindle: Run, service: FakeService) -> None:
    none, listed = answer(200, {"incidents": []}), answer(200, {"incidents": [incident("stopping")]})
    service.answers += [answer(404, {"detail": "no incident inc"}), listed, none]
    service.answers += [answer(200, incident("stopping")), answer(200, incident("recovered", closed=True))]
    ended = rekindle("show", "inc", "--watch", "0.2")
    assert (ended.code, ended.err) == (0, "rekindle: Incident inc-1\n")


def test_what_waiting_cannot_mend_ends_the_watch_with_its_own_code(rekindle: Run, service: FakeService) -> None:
    service.answers += [answer(200, incident("stopping")), answer(404, {"detail": "no incident inc-1"})]
    assert rekindle("show", "inc-1", "--watch", "0.2").code == 3
    service.answers += [answer(403, {"detail": "no"})]
    assert rekindle("status", "--watch", "0.2").code == 1


def test_documents_for_machines_are_appended_too(rekindle: Run, service: FakeService) -> None:
    service.answers += [answer(200, incident("stopping")), answer(200, incident("recovered", closed=True))]
    text = rekindle("show", "inc-1", "--json", "--watch", "0.2").out
    found = []
    while text.strip():
        body, end = json.JSONDecoder().raw_decode(text.lstrip())
        found.append(body["phase"])
        text = text.lstrip()[end:]
    assert found == ["stopping", "recovered"]


@pytest.mark.parametrize("given", ["0", "0.1", "3601", "soon", "nan", "-1"])
def test_an_interval_that_makes_no_sense_is_wrong_usage(rekindle: Run, given: str) -> None:
    ended = rekindle("status", f"--watch={given}")
    assert ended.code == 2
    assert "must be seconds from 0.2 to 3600" in ended.err


class OnTerminal:
    """The real command with a real terminal."""

    def __init__(self, *argv: str) -> None:
        self.main, side = pty.openpty()
        env = {
            "PATH": os.environ["PATH"],
            "TERM": "xterm",
            "HOME": "/nonexistent",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rekindle.cli.main", *argv],
            stdin=side,
            stdout=side,
            stderr=side,
            env=env,
            start_new_session=True,
            preexec_fn=lambda: _own(side),
        )
        os.close(side)
        self.seen = b""

    def until(self, pattern: bytes) -> None:
        """Read on until the terminal has been given this, beyond what was found before."""
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.seen):
            assert time.monotonic() < deadline, self.seen
            assert self._more() or self.process.poll() is None, self.seen

    def _more(self) -> bool:
        if not select.select([self.main], [], [], 1.0)[0]:
            return False
        try:
            read = os.read(self.main, 65536)
        except OSError:  # Linux's way to say that nobody holds the other side any more
            return False
        self.seen += read
        return bool(read)

    def ends(self) -> int:
        """The exit code, with everything read that was written."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.seen
            self._more()
        while self._more():
            pass
        return int(self.process.returncode)


def _own(side: int) -> None:
    """Make the terminal the process's own, so that its Ctrl-C becomes a signal.

    Whoever runs the tests in the background hands on a deaf ear for it.
    """
    import fcntl
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)

    fcntl.ioctl(side, termios.TIOCSCTTY, 0)


@contextmanager
def on_terminal(*argv: str) -> Iterator[OnTerminal]:
    made = OnTerminal(*argv)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.send_signal(signal.SIGKILL)
        made.process.wait()
        os.close(made.main)


@pytest.mark.process
def test_on_a_terminal_it_redraws_outlives_the_service_and_leaves_all_as_it_was_at_ctrl_c() -> None:
    fake = FakeService()
    with serve(fake) as url, on_terminal("--api", url, "status", "--watch", "0.2") as shown:
        shown.until(rb"(?s)\x1b\[2J\x1b\[H.*Ctrl-C ends.*protection  on")
        fake.registry.set_paused(True, who="ann", now=fake.clock.now())
        shown.until(rb"(?s)protection  on.*\x1b\[H.*paused")
        fake.answers += [answer(503, {"detail": "away for lunch"})] * 3
        shown.until(rb"away for lunch; looking again")
        shown.seen = b""
        shown.until(rb"(?s)Ctrl-C ends.*paused")
        os.write(shown.main, b"\x03")
        assert shown.ends() == 130
        assert b"Traceback" not in shown.seen
        assert shown.seen.rstrip().endswith(WRAPS + CURSOR)


@pytest.mark.process
def test_a_service_that_cannot_be_reached_at_all_is_waited_for() -> None:
    with serve(FakeService()) as url:
        pass  # its port is free again, and nobody listens there
    with on_terminal("--api", url, "status", "--watch", "0.2") as shown:
        shown.until(rb"cannot reach")
        os.write(shown.main, b"\x03")
        assert shown.ends() == 130
