"""Root's side of the agent: carries out what `requests` describes, holds the gate and the caps, and the kept specs.

It knows nothing of AWS, and takes nothing on trust: whose a job is, where slurmctld keeps its files and what was
submitted it reads itself. What it cannot read as a request it answers with a refusal.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rekindle.compat import UTC
from rekindle.protocol.cluster.documents import JobSpec
from rekindle.protocol.cluster.orders import Order
from rekindle.protocol.wire import MailboxError
from rekindle.slurm_agent.base.lock import LockTaken, acquire
from rekindle.slurm_agent.base.ports import NotHolder, SlurmError, SlurmRefused, UnknownJob
from rekindle.slurm_agent.base.settings import Settings as AgentSettings
from rekindle.slurm_agent.copies.capture import StateFiles, is_secret
from rekindle.slurm_agent.copies.kept import SpecFolder
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.files.worker import WorkNotDone
from rekindle.slurm_agent.files.worker_process import frame
from rekindle.slurm_agent.privileged.credentials import credentials
from rekindle.slurm_agent.privileged.requests import (
    MAX_REQUEST_BYTES,
    Answer,
    FileWork,
    HelperVerb,
    Request,
    failure,
    is_question,
    packed,
    received,
    unpacked,
)
from rekindle.slurm_agent.privileged.rights import Rights, rights
from rekindle.slurm_agent.reading import comment
from rekindle.slurm_agent.reading.jobs import Job
from rekindle.slurm_agent.reading.nodemap import MAX_BYTES as MAX_RESOURCES_BYTES
from rekindle.slurm_agent.reading.nodes import Settings
from rekindle.slurm_agent.reading.run import TooMuch, Unreadable

SETTINGS_S: Final = 60.0
AGAIN_S: Final = 1.0  # between two looks at whose jobs there are
# What all jobs showed at once is captured from for so long: the next job of a number comes later.
READING_S: Final = 30.0

log = logging.getLogger(__name__)


class _Granted(threading.local):
    """`LeaseHolder` for the request that this thread is at: the agent says for how long it holds the lease."""

    until = 0.0

    def left_s(self) -> float:
        return self.until - time.monotonic()

    def begin(self, token: str, at: datetime) -> None:  # noqa: ARG002
        """Orders are begun by the agent."""
        raise NotHolder("no order is begun here")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """All jobs and their records, shown after `at` (time.monotonic)."""

    at: float
    jobs: Mapping[int, Job]
    details: Mapping[int, Mapping[str, str]]


class Helper:
    """`own`: a folder of root's alone, for caps, specs and the lock. `is_leaving`: see `Gate`; `is_removing`: the
    kept specs may be removed. For several threads, and for requests of anyone."""

    def __init__(
        self, settings: AgentSettings, own: Path, *, is_leaving: bool = False, is_removing: bool = False
    ) -> None:
        self._own_settings = settings
        self._own = own
        self._is_leaving = is_leaving
        self._is_removing = is_removing
        self._granted = _Granted()
        self._files = UserFiles()
        self._users: set[tuple[int | None, int | None]] = set()
        self._looked_at = 0.0
        self._looking = threading.Lock()
        self._reading: _Reading | None = None
        self._changing = threading.Lock()
        self._settings: tuple[float, Settings] | None = None
        self._kept = SpecFolder(own, lambda: self._slurm_settings().state_location)
        self._is_locked = False
        self._parts = self._built(None)
        self._work: Mapping[HelperVerb, Callable[[Request], Mapping[str, Any]]] = {
            HelperVerb.LOCK: self._lock,
            HelperVerb.CREDENTIALS: lambda _: credentials(settings.environ),
            HelperVerb.RESOURCES: self._resources,
            HelperVerb.READ: self._read,
            HelperVerb.ALLOWED: self._allowed,
            HelperVerb.CHECK: self._check,
            HelperVerb.CHANGE: self._change,
            HelperVerb.STATE: lambda _: {"is_readable": self._state().is_readable()},
            HelperVerb.SCRIPT: lambda asked: {"script": self._state().script(_job(asked))},
            HelperVerb.VARIABLES: self._variables,
            HelperVerb.ARGUMENTS: self._arguments,
            HelperVerb.CAPTURE: self._capture,
            HelperVerb.SPEC: self._spec,
            HelperVerb.KEEP: self._keep,
            HelperVerb.REMOVE: self._remove,
            HelperVerb.SUBMIT: self._submit,
            HelperVerb.REHEARSE: self._rehearse,
            HelperVerb.DIFFERENCES: self._differences,
            HelperVerb.SECRETS: self._secrets,
            HelperVerb.FIXED: self._fixed,
            HelperVerb.FILES: self._do_files,
        }

    def serve(self, channel: socket.socket) -> None:
        """Until its other end is closed, or sends a frame that is too long. Never raises."""
        try:
            with channel:
                while (raw := received(channel, MAX_REQUEST_BYTES)) is not None:
                    answer = self.answer(raw)
                    channel.sendall(frame(answer))
        except OSError as err:
            log.info("part=helper channel=closed why=%s", err)

    def answer(self, raw: bytes) -> bytes:
        """Never raises."""
        try:
            asked: Request = unpacked(Request, raw)
            self._granted.until = time.monotonic() + asked.left_s
            self._forget_reading()
            return packed(Answer(done=self._work[asked.verb](asked)))
        except (SlurmError, OSError) as err:
            return packed(failure(err))
        except MailboxError as err:
            return packed(failure(SlurmRefused(f"that is not done here: {err}"[:300])))
        except Exception as err:  # whatever was sent, and whatever is wrong here, ends no more than that request
            log.exception("part=helper")
            return packed(failure(SlurmRefused(f"internal error: {type(err).__name__}: {err}"[:300])))

    # ---- parts

    def _built(self, guard: int | None) -> Rights:
        return rights(
            self._own_settings,
            guard_fd=guard,
            holding=self._granted,
            now=lambda: datetime.now(UTC),
            folder=self._own,
            is_leaving=self._is_leaving,
            of_slurmctld=self._slurm_settings,
            files=self._files,
            kept=self._kept,
        )

    def _slurm_settings(self) -> Settings:
        """slurmctld's. Raises: SlurmError."""
        found = self._settings
        if found is None or time.monotonic() - found[0] > SETTINGS_S:
            self._settings = found = time.monotonic(), self._parts.reads.settings()
        return found[1]

    def _state(self) -> StateFiles:
        return StateFiles(self._slurm_settings().state_location)

    def _acting(self) -> Rights:
        """Raises: NotHolder: nothing is changed but by the one agent of this head node."""
        if not self._is_locked:
            raise NotHolder("nothing is changed before the agent's lock is taken")
        return self._parts

    def _slurm_job(self, number: int) -> Job:
        found = self._parts.reads.job(number)
        if found is None:
            raise UnknownJob(f"slurmctld does not know job {number}")
        return found

    def _forget_reading(self) -> None:
        """It holds all of the queue."""
        held = self._reading
        if held is not None and _is_over(held):
            self._reading = None

    def _as_shown(self, number: int, since: float | None) -> tuple[Job, Mapping[str, str]]:
        """A job and its record; see `Request.since`. Raises: SlurmError."""
        if since is not None:
            with self._looking:
                held = self._reading
                if held is None or held.at < since or _is_over(held):
                    self._reading = held = self._read_all()
            if number in held.details:
                return held.jobs[number], held.details[number]
        job = self._slurm_job(number)
        return job, self._parts.reads.detail(job)

    def _read_all(self) -> _Reading:
        """Raises: SlurmError."""
        at, reads = time.monotonic(), self._parts.reads
        jobs = {job.job: job for job in reads.jobs()}
        details: Mapping[int, Mapping[str, str]] = {}
        with suppress(TooMuch):
            details = reads.details([*jobs.values()])
        return _Reading(at=at, jobs=jobs, details=details)

    # ---- verbs

    def _lock(self, _: Request) -> Mapping[str, Any]:
        with self._changing:
            if not self._is_locked:
                try:
                    self._parts = self._built(acquire(self._own, wait_s=0.0, stop=threading.Event()))
                except LockTaken as err:
                    return {"is_taken": True, "why": str(err)}
                self._is_locked = True
        return {"is_taken": False}

    def _resources(self, _: Request) -> Mapping[str, Any]:
        try:
            with Path(self._own_settings.resource_config).open("rb") as file:
                return {"text": file.read(MAX_RESOURCES_BYTES).decode("utf-8", "replace")}
        except OSError:
            return {"text": ""}

    def _read(self, asked: Request) -> Mapping[str, Any]:
        if not is_question(asked.args):
            raise SlurmRefused(f"{asked.args[0][:40]!r} with these words is not run here")
        return {"printed": self._parts.reads.printed(asked.args, asked.limit)}

    def _allowed(self, _: Request) -> Mapping[str, Any]:
        return {"problems": list(self._parts.gate.problems()), "observes": self._parts.gate.observes()}

    def _check(self, asked: Request) -> Mapping[str, Any]:
        with self._changing:
            self._parts.gate.check(_order(asked))
        return {}

    def _change(self, asked: Request) -> Mapping[str, Any]:
        assert asked.change is not None, "requests._NEEDED"  # noqa: S101
        with self._changing:
            self._acting().gate.make(asked.change)
        return {}

    def _variables(self, asked: Request) -> Mapping[str, Any]:
        found = self._state().variables(_job(asked), asked.names, asked.prefixes)
        return {"variables": _told(found)}

    def _arguments(self, asked: Request) -> Mapping[str, Any]:
        job = self._slurm_job(_job(asked))
        found = self._state().arguments(job, asked.text, self._slurm_settings().version)
        return {"arguments": None if found is None else list(found)}

    def _capture(self, asked: Request) -> Mapping[str, Any]:
        if comment.parse(asked.text) is None or not asked.text.isprintable():
            raise SlurmRefused("that is no comment of a protected job")
        job, detail = self._as_shown(_job(asked), asked.since)
        try:
            found = self._parts.captures.capture(
                replace(job, comment=asked.text), detail, self._slurm_settings(), asked.exclude
            )
        except MailboxError as err:
            raise Unreadable(str(err)) from err
        taken, facts = found.taken, found.taken.facts
        return {
            "spec": None if taken.spec is None else taken.spec.to_json().decode(),
            "name": found.name,
            "exclude": found.exclude,
            "cannot": list(taken.cannot),
            "is_final": taken.is_final,
            "facts": None if facts is None else asdict(facts) | {"traps": sorted(facts.traps)},
        }

    def _spec(self, asked: Request) -> Mapping[str, Any]:
        found = self._kept.get(asked.spec or "")
        return {"spec": None if found is None else found.to_json().decode()}

    def _keep(self, asked: Request) -> Mapping[str, Any]:
        is_written = self._kept.write()
        if asked.names:
            self._kept.sweep(set(asked.names))
        return {"is_written": is_written}

    def _remove(self, _: Request) -> Mapping[str, Any]:
        if not self._is_removing:
            raise SlurmRefused("what is kept is removed with --remove-state alone")
        return {"removed": list(self._kept.remove())}

    def _submit(self, asked: Request) -> Mapping[str, Any]:
        order = _order(asked)
        with self._changing:
            return {"job": self._acting().copies.submit(self._named(order), order, asked.old)}

    def _rehearse(self, asked: Request) -> Mapping[str, Any]:
        order = _order(asked)
        self._acting().copies.rehearse(self._named(order), order, asked.old)
        return {}

    def _differences(self, asked: Request) -> Mapping[str, Any]:
        spec, copy = self._named(_order(asked)), self._slurm_job(_job(asked))
        if copy.user != spec.user:
            raise SlurmRefused(f"job {copy.job} is not of the user of that submission")
        return {"differences": list(self._parts.copies.differences(spec, _order(asked), copy))}

    def _secrets(self, asked: Request) -> Mapping[str, Any]:
        spec = self._named(_order(asked))
        return {"names": list(self._parts.copies.other_secrets(spec, _order(asked), _job(asked)))}

    def _fixed(self, asked: Request) -> Mapping[str, Any]:
        job = self._slurm_job(_job(asked))
        return {"why": self._parts.copies.fixed(job, self._parts.reads.detail(job))}

    def _named(self, order: Order) -> JobSpec:
        """What was captured here, by its name. Nothing else is submitted."""
        found = self._kept.get(order.spec or "")
        if found is None:
            raise SlurmRefused("the script and environment of its submission are not kept on this head node")
        return found

    def _do_files(self, asked: Request) -> Mapping[str, Any]:
        work = asked.files
        assert work is not None, "requests._NEEDED"  # noqa: S101
        self._check_user(work.uid, work.gid)
        given = work.checked()
        if work.work is FileWork.DELIVER:
            if self._acting().gate.observes():
                raise WorkNotDone("observe: nothing is brought to a run")
            given["until"] = min(given["until"], time.monotonic() + self._files.workers.patience_s)
        done = self._files.workers.ask(
            (work.whose, work.kind),
            work.path,
            work.work,
            given,
            work.uid,
            work.gid,
            same=work.same,
            for_good=work.for_good or work.work in (FileWork.FAILURE, FileWork.CHECKPOINTS),
            is_long=work.is_long,
            soft_s=work.soft_s,
        )
        return {"done": done}

    def _check_user(self, uid: int | None, gid: int | None) -> None:
        """Files are touched as users who have had jobs here, by Slurm's own word. Raises: WorkNotDone; SlurmError."""
        who = (uid, gid)
        if who == (None, None) or who in self._users:
            return
        with self._looking:
            if who in self._users:
                return
            time.sleep(max(0.0, self._looked_at + AGAIN_S - time.monotonic()))
            self._users |= {(job.uid, job.gid) for job in self._parts.reads.jobs()}
            self._looked_at = time.monotonic()
        if who not in self._users:
            raise WorkNotDone(f"user {uid} with group {gid} has no job here")


def _is_over(reading: _Reading) -> bool:
    return time.monotonic() - reading.at > READING_S


def _job(asked: Request) -> int:
    assert asked.job is not None, "requests._NEEDED"  # noqa: S101
    return asked.job


def _order(asked: Request) -> Order:
    assert asked.order is not None, "requests._NEEDED"  # noqa: S101
    return asked.order


def _told(variables: Mapping[str, str]) -> dict[str, str]:
    """Without what looks like a secret, and what is no text."""
    is_text = {name: given.encode("utf-8", "replace").decode() == given for name, given in variables.items()}
    return {name: given for name, given in variables.items() if is_text[name] and not is_secret(name)}
