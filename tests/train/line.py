"""How a rank of a story reports: one line of JSON per event, over a Unix socket to the launcher.

Neither files nor pipes are used, so that a fault which forbids a rank to write files leaves its reports alone. Every
event carries `rank`, `pid`, `at` (CLOCK_MONOTONIC, which all processes of a machine share) and `e`, its kind:

    hello                     connected; `python`, `world`
    started                   `rekindle.monitor.start` returned; `took_s`, `silent`
    step                      one training step; `step`, `held_s` (in `Monitor.step`, without the script's own save),
                              `digest` of the weights, `step_s` (the whole step)
    save, saved               the script's save function was entered, returned; `step`, `kind`
    log                       a line of Rekindle's own log; `level`, `text`
    stop                      `should_stop` was seen; `step`
    harm                      a fault was done; `do`
    finished                  `Monitor.finish` returned; `took_s`, `threads`, `descriptors`, `health`
    bye                       the script is about to end by itself; `why`
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ENV_LINE = "TRAIN_LINE"


class Line(logging.Handler):
    """A rank's end. Without a socket in the environment the events go nowhere: the script runs by itself too."""

    def __init__(self, *, rank: int, world: int) -> None:
        super().__init__(logging.INFO)
        self.rank = rank
        self._lock_of_sends = threading.Lock()
        self._socket: socket.socket | None = None
        path = os.environ.get(ENV_LINE)
        if path:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.connect(path)
        logger = logging.getLogger("rekindle")
        logger.addHandler(self)
        logger.setLevel(logging.INFO)
        self.send("hello", python=sys.version.split()[0], world=world)

    def send(self, event_kind: str, /, **more: object) -> None:
        if self._socket is None:
            return
        event = {"e": event_kind, "rank": self.rank, "pid": os.getpid(), "at": time.monotonic(), **more}
        body = (json.dumps(event) + "\n").encode()
        with self._lock_of_sends:
            self._socket.sendall(body)

    def emit(self, record: logging.LogRecord) -> None:
        self.send("log", level=record.levelname, text=record.getMessage()[:2000])


class Receiver:
    """The launcher's end: keeps all events, in the order in which they came, and tells who waits for them."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "line")
        self.events: list[dict[str, Any]] = []
        self.changed = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(512)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._partial: dict[int, bytes] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._receive, daemon=True, name="receiver")
        self._thread.start()

    def wait(self, is_there: Callable[[], bool], timeout_s: float) -> bool:
        """Whether it came to be; asked again at every event, and now and then without one."""
        until = time.monotonic() + timeout_s
        with self.changed:
            while not is_there():
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self.changed.wait(min(left, 0.1))
        return True

    def of(self, kind: str, rank: int | None = None) -> list[dict[str, Any]]:
        with self.changed:
            return [event for event in self.events if event["e"] == kind and rank in (None, event["rank"])]

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _receive(self) -> None:
        while not self._closed.is_set():
            for key, _ in self._selector.select(0.1):
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    self._selector.register(connection, selectors.EVENT_READ)
                    self._partial[connection.fileno()] = b""
                else:
                    self._read(key.fileobj)  # type: ignore[arg-type]

    def _read(self, connection: socket.socket) -> None:
        number = connection.fileno()
        try:
            body = connection.recv(65536)
        except OSError:
            body = b""
        if not body:
            self._selector.unregister(connection)
            self._partial.pop(number, None)
            connection.close()
            return
        *lines, self._partial[number] = (self._partial[number] + body).split(b"\n")
        events = [json.loads(line) for line in lines]
        with self.changed:
            self.events.extend(events)
            self.changed.notify_all()
