"""A real directory mailbox that tells when something was written: tests wait for facts, not for time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rekindle.monitor import Exchange, Monitor, Ranks
from rekindle.monitor.base.settings import Config, process_environment
from rekindle.monitor.mail.boxes import DirectoryBox
from rekindle.monitor.starting import start_in
from rekindle.protocol.keys import (
    doorbell_key,
    fence_key,
    heartbeat_key,
    manifest_prefix,
    reply_key,
    request_key,
    request_prefix,
)
from rekindle.protocol.mailbox import CheckpointReply, CheckpointRequest, Fence, Heartbeat
from rekindle.protocol.manifests import Manifest

PATIENCE_S = 120.0  # how long a test waits for a fact that never comes
QUICK = Config(heartbeat_s=0.05, poll_s=0.02, metrics_s=0.05, watch_s=0.02, judge_s=0.02, agree_s=0.02)


def start_monitor(
    *,
    env: Mapping[str, str] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    exchange: Callable[[], Exchange | None] | None = None,
    share: Callable[[str], str] | None = None,
    saves_alone: bool = False,
    end_collectives: Callable[[], None] | None = None,
    **more: Any,
) -> Monitor:
    """`rekindle.monitor.start` with an environment, settings (`config`) and a clock of the test's own."""
    ranks = Ranks(
        rank=rank,
        world_size=world_size,
        exchange=exchange,
        share=share,
        saves_alone=saves_alone,
        end_collectives=end_collectives,
    )
    return start_in(process_environment() if env is None else env, ranks=ranks, **more)


class ObservedBox(DirectoryBox):
    """Records the order of writes and reads."""

    def __init__(self, directory: Path) -> None:
        super().__init__(str(directory))
        self.written: list[str] = []
        self.polls = 0
        self._changed = threading.Condition()

    def put(self, key: str, body: bytes) -> None:
        super().put(key, body)
        self._tell(key)

    def put_new(self, key: str, body: bytes) -> bool:
        is_new = super().put_new(key, body)
        if is_new:
            self._tell(key)
        return is_new

    def names(self, prefix: str) -> tuple[str, ...]:
        found = super().names(prefix)
        if prefix != request_prefix():
            return found
        with self._changed:
            self.polls += 1
            self._changed.notify_all()
        return found

    def _tell(self, key: str) -> None:
        with self._changed:
            self.written.append(key)
            self._changed.notify_all()

    def wait(self, is_so: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(is_so, PATIENCE_S), f"still not so; written: {self.written}"

    def wait_polls(self, more: int = 3) -> None:
        """Until whatever lies in the box now has been read.

        The poll that is under way may have listed the box before; the one after it is over when a third begins.
        """
        wanted = self.polls + more
        self.wait(lambda: self.polls >= wanted)

    # the service's side

    def ask(self, request_id: str, attempt: str, *, job_id: str = "job", within_s: float = 600.0) -> CheckpointRequest:
        request = CheckpointRequest(
            request_id=request_id,
            job_id=job_id,
            attempt=attempt,
            deadline_s=within_s,
            reason="a test asks",
        )
        assert DirectoryBox.put_new(self, request_key(request_id), request.to_json())
        return request

    def ring(self, text: str) -> None:
        DirectoryBox.put(self, doorbell_key(), text.encode())

    def fence(self, attempt: str, number: int, *superseded: str) -> None:
        fence = Fence(
            job_id="job", attempt=attempt, attempt_number=number, superseded=superseded, written_at=datetime.now(UTC)
        )
        DirectoryBox.put(self, fence_key(), fence.to_json())

    def reply(self, request_id: str) -> CheckpointReply:
        self.wait(lambda: reply_key(request_id) in self.written)
        raw = self.get(reply_key(request_id))
        assert raw is not None
        return CheckpointReply.from_json(raw)

    def manifest(self, key: str) -> Manifest:
        raw = self.get(key)
        assert raw is not None
        return Manifest.from_json(raw)

    @property
    def manifests(self) -> list[str]:
        return [key for key in self.written if key.startswith(manifest_prefix())]

    def heartbeat(self, attempt: str) -> Heartbeat | None:
        raw = self.get(heartbeat_key(attempt))
        return Heartbeat.from_json(raw) if raw is not None else None

    def wait_heartbeat(self, attempt: str, is_so: Callable[[Heartbeat], bool]) -> Heartbeat:
        def seen() -> bool:
            heartbeat = self.heartbeat(attempt)
            return heartbeat is not None and is_so(heartbeat)

        self.wait(seen)
        heartbeat = self.heartbeat(attempt)
        assert heartbeat is not None
        return heartbeat
