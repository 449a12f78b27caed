"""The agent's side of the border: the same parts as without one, each call a request to root's helper."""

from __future__ import annotations

import hashlib
import queue
import socket
import threading
import time
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rekindle.protocol.cluster.documents import JobSpec
from rekindle.protocol.cluster.orders import Order
from rekindle.protocol.wire import MailboxError
from rekindle.slurm_agent.base.lock import LOOK_S, LockTaken
from rekindle.slurm_agent.base.ports import LeaseHolder, SlurmError, SlurmRefused, SlurmUnavailable
from rekindle.slurm_agent.copies.spec import CapturedSpec
from rekindle.slurm_agent.files.worker_process import frame
from rekindle.slurm_agent.files.workers import PATIENCE_S
from rekindle.slurm_agent.privileged.changes import Change
from rekindle.slurm_agent.privileged.requests import (
    MAX_ANSWER_BYTES,
    MAX_LEFT_S,
    Answer,
    FileRequest,
    FileWork,
    HelperVerb,
    Request,
    packed,
    raised,
    received,
    unpacked,
)
from rekindle.slurm_agent.privileged.submissions import Capture
from rekindle.slurm_agent.reading.jobs import Job
from rekindle.slurm_agent.reading.nodemap import Resources, parse
from rekindle.slurm_agent.reading.nodes import Settings
from rekindle.slurm_agent.reading.run import MAX_OUTPUT_BYTES
from rekindle.slurm_agent.reading.script import ScriptFacts


class Channels:
    """The ways to root's helper, one for each request at a time. For several threads."""

    def __init__(self, ends: Iterable[socket.socket]) -> None:
        self._free: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        for end in ends:
            self._free.put(end)

    def ask(self, request: Request) -> Mapping[str, Any]:
        """What was done. Raises: SlurmError, OSError, as the part behind it; SlurmUnavailable without a helper."""
        raw = packed(request)
        end = self._free.get()
        try:
            end.sendall(frame(raw))
            answer = received(end, MAX_ANSWER_BYTES)
        except OSError as err:
            raise SlurmUnavailable(f"root's helper does not answer: {err}") from err
        finally:
            self._free.put(end)
        if answer is None:
            raise SlurmUnavailable("root's helper has ended")
        try:
            found: Answer = unpacked(Answer, answer)
        except MailboxError as err:
            raise SlurmUnavailable(f"root's helper: {err}") from err
        if found.failed:
            raise raised(found)
        return found.done

    def lock(self, *, wait_s: float, stop: threading.Event) -> None:
        """See `lock.acquire`; the helper holds it. Raises: LockTaken; SlurmError, OSError."""
        end = time.monotonic() + wait_s
        while (found := self.ask(Request(verb=HelperVerb.LOCK)))["is_taken"]:
            if time.monotonic() >= end or stop.wait(LOOK_S):
                raise LockTaken(str(found["why"]))

    def credentials(self) -> Mapping[str, Any]:
        """See `privileged.credentials`. Raises: OSError, SlurmError."""
        return self.ask(Request(verb=HelperVerb.CREDENTIALS))


@dataclass(frozen=True, slots=True)
class Asking:
    """What each part below has."""

    channels: Channels
    holding: LeaseHolder | None = None

    def ask(self, verb: HelperVerb, **about: Any) -> Mapping[str, Any]:
        left_s = MAX_LEFT_S if self.holding is None else self.holding.left_s()
        return self.channels.ask(Request(verb=verb, left_s=min(MAX_LEFT_S, max(0.0, left_s)), **about))


class RemoteReads(Asking):
    """`reads.SlurmReader`."""

    def read(self, args: Sequence[str], *, limit: int = MAX_OUTPUT_BYTES) -> str:
        return str(self.ask(HelperVerb.READ, args=tuple(args), limit=limit)["printed"])


class RemoteNodeMap:
    """As `NodeMap`."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._held = Resources()

    def read(self) -> Resources:
        found = self._channels.ask(Request(verb=HelperVerb.RESOURCES))["text"]
        if (fresh := parse(str(found).encode())).by_address or not self._held.by_address:
            self._held = fresh
        return self._held


class RemoteGate(Asking):
    """As `Gate`."""

    def problems(self) -> tuple[str, ...]:
        return tuple(self.ask(HelperVerb.ALLOWED)["problems"])

    def observes(self) -> bool:
        return bool(self.ask(HelperVerb.ALLOWED)["observes"])

    def check(self, order: Order) -> None:
        self.ask(HelperVerb.CHECK, order=order)

    def make(self, change: Change) -> None:
        self.ask(HelperVerb.CHANGE, change=change)


@dataclass(frozen=True, slots=True)
class RemoteWorkers:
    """As `Workers`."""

    channels: Channels
    patience_s: float = PATIENCE_S

    def ask(
        self,
        whose: Hashable,
        path: str,
        work: str,
        asked: Mapping[str, Any],
        uid: int | None,
        gid: int | None,
        *,
        same: Hashable = None,
        for_good: bool = False,
        is_long: bool = False,
        soft_s: float | None = None,
    ) -> Any:
        name, kind = whose if isinstance(whose, tuple) and len(whose) == 2 else (whose, "")
        request = FileRequest(
            work=FileWork(work),
            whose=str(name)[:2000],
            kind=str(kind),
            path=path[:4096],
            same=hashlib.sha256(repr(same).encode("utf-8", "surrogateescape")).hexdigest(),
            asked=asked,
            uid=uid,
            gid=gid,
            for_good=for_good,
            is_long=is_long,
            soft_s=soft_s,
        )
        return self.channels.ask(Request(verb=HelperVerb.FILES, files=request))["done"]


class RemoteState(Asking):
    """As `StateFiles`. What cannot be read is nothing."""

    def _told(self, verb: HelperVerb, name: str, **about: Any) -> Any:
        try:
            return self.ask(verb, **about)[name]
        except SlurmRefused:
            return None

    def is_readable(self) -> bool:
        return bool(self._told(HelperVerb.STATE, "is_readable"))

    def script(self, job: int) -> str | None:
        found: str | None = self._told(HelperVerb.SCRIPT, "script", job=job)
        return found

    def variables(self, job: int, names: Collection[str], prefixes: tuple[str, ...] = ()) -> Mapping[str, str]:
        about = {"names": tuple(names), "prefixes": prefixes}
        return self._told(HelperVerb.VARIABLES, "variables", job=job, **about) or {}

    def arguments(self, job: Job, line: str, version: str) -> tuple[str, ...] | None:  # noqa: ARG002
        found = self._told(HelperVerb.ARGUMENTS, "arguments", job=job.job, text=line)
        return None if found is None else tuple(found)


class RemoteKept(Asking):
    """As `SpecFolder`."""

    def write(self) -> bool:
        try:
            return bool(self.ask(HelperVerb.KEEP)["is_written"])
        except SlurmError:
            return False

    def get(self, name: str) -> JobSpec | None:
        try:
            found = self.ask(HelperVerb.SPEC, spec=name)["spec"]
            return None if found is None else JobSpec.from_json(found)
        except (SlurmRefused, MailboxError):
            return None

    def sweep(self, followed: Collection[str]) -> None:
        if followed:
            self.ask(HelperVerb.KEEP, names=tuple(followed))

    def remove(self) -> tuple[str, ...]:
        return tuple(self.ask(HelperVerb.REMOVE)["removed"])


class RemoteCaptures(Asking):
    """As `Captures`."""

    @property
    def kept(self) -> RemoteKept:
        return RemoteKept(self.channels)

    def state(self, settings: Settings) -> RemoteState:  # noqa: ARG002
        return RemoteState(self.channels)

    def capture(
        self,
        job: Job,
        detail: Mapping[str, str],  # noqa: ARG002
        settings: Settings,  # noqa: ARG002
        exclude: str | None,
        since: float | None = None,
    ) -> Capture:
        found = self.ask(HelperVerb.CAPTURE, job=job.job, text=job.comment, exclude=exclude, since=since)
        facts = found["facts"]
        taken = CapturedSpec(
            spec=None if found["spec"] is None else JobSpec.from_json(found["spec"]),
            cannot=tuple(found["cannot"]),
            facts=None if facts is None else ScriptFacts(**{**facts, "traps": frozenset(facts["traps"])}),
            is_final=found["is_final"],
        )
        return Capture(taken=taken, name=found["name"], exclude=found["exclude"])


class RemoteCopies(Asking):
    """As `Copies`: of the spec its name alone counts, which is the order's."""

    def submit(self, spec: JobSpec, order: Order, old: int | None) -> int:  # noqa: ARG002
        return int(self.ask(HelperVerb.SUBMIT, order=order, old=old)["job"])

    def rehearse(self, spec: JobSpec, order: Order, old: int | None) -> None:  # noqa: ARG002
        self.ask(HelperVerb.REHEARSE, order=order, old=old)

    def differences(self, spec: JobSpec, order: Order, copy: Job) -> tuple[str, ...]:  # noqa: ARG002
        return tuple(self.ask(HelperVerb.DIFFERENCES, order=order, job=copy.job)["differences"])

    def other_secrets(self, spec: JobSpec, order: Order, copy: int) -> tuple[str, ...]:  # noqa: ARG002
        return tuple(self.ask(HelperVerb.SECRETS, order=order, job=copy)["names"])

    def fixed(self, job: Job, detail: Mapping[str, str]) -> str:  # noqa: ARG002
        return str(self.ask(HelperVerb.FIXED, job=job.job)["why"])
