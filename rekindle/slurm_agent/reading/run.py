"""Runs Slurm's commands: argument lists only, with a time limit, bounded output and one meaning per failure.

Slurm's exit statuses do not tell success: `scancel` of an unknown job and `scontrol write batch_script` of one say so
on stderr and end with 0 (seen on 22.05). So stderr is read too, and its texts stand in one table below.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Final

from rekindle.slurm_agent.base.ports import (
    LeaseHolder,
    NotHolder,
    SlurmError,
    SlurmRefused,
    SlurmUnavailable,
    UnknownJob,
    UnknownNode,
)

PATIENCE_S: Final = 40.0  # slurmctld's own MessageTimeout is 10 s, and a command tries the backup controller too
KILLED_S: Final = 2.0  # what a killed command may take to end
MAX_OUTPUT_BYTES: Final = 64 * 1024 * 1024  # 10,000 jobs with long comments are 20 MB
MAX_STDERR_BYTES: Final = 64 * 1024
# Behind whatever PATH the agent has: systemd's does not name HyperPod's and ParallelCluster's /opt/slurm.
MORE_PATH: Final = "/opt/slurm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Times as seconds since 1970: no zone, no summer time, no locale. Source: squeue(1), SLURM_TIME_FORMAT is strftime's.
TIME_FORMAT: Final = "%s"


class Denied(SlurmRefused):
    """The agent's user may not do that."""


class TooMuch(SlurmUnavailable):
    """The command printed more than is read."""


class Unreadable(SlurmUnavailable):
    """Slurm answered, and its answer cannot be read: nothing is concluded from it."""


# The first text that is found in stderr (lower case) decides. Source: slurm/slurm_errno.c, and outputs of 22.05.
_MEANING: Final[tuple[tuple[str, type[SlurmError]], ...]] = (
    ("unable to contact slurm controller", SlurmUnavailable),
    ("unexpected message received", SlurmUnavailable),  # what scontrol requeue says where no process listens
    ("socket timed out", SlurmUnavailable),
    ("zero bytes were transmitted", SlurmUnavailable),
    ("connection refused", SlurmUnavailable),
    ("connection reset", SlurmUnavailable),
    ("connection timed out", SlurmUnavailable),
    ("transport endpoint", SlurmUnavailable),  # slurmctld killed in the middle of an answer
    ("broken pipe", SlurmUnavailable),
    ("no route to host", SlurmUnavailable),
    ("network is unreachable", SlurmUnavailable),
    ("temporarily unavailable", SlurmUnavailable),
    ("input/output error", SlurmUnavailable),
    ("unable to resolve", SlurmUnavailable),
    ("resolve failure", SlurmUnavailable),
    ("communication connection failure", SlurmUnavailable),
    ("communication shutdown", SlurmUnavailable),
    ("in standby mode", SlurmUnavailable),
    ("protocol authentication error", SlurmUnavailable),  # munge is down
    ("munge", SlurmUnavailable),
    ("temporarily unable to accept", SlurmUnavailable),
    ("try again", SlurmUnavailable),
    ("transaction is in progress", SlurmUnavailable),
    ("slurmctld is shutting down", SlurmUnavailable),
    ("could not establish a configuration source", SlurmUnavailable),
    ("unable to establish controller", SlurmUnavailable),
    ("invalid job id", UnknownJob),
    ("invalid job array id", UnknownJob),
    ("invalid node name", UnknownNode),
    ("access/permission denied", Denied),
    ("invalid user id", Denied),
    ("permission denied", Denied),
    ("must be run as", Denied),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """A command that ended on its own."""

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class As:
    """Whom a command runs as. `groups` are the supplementary ones; None leaves the agent's, which is not root then."""

    uid: int
    gid: int
    groups: tuple[int, ...] | None = ()
    umask: int = -1


@dataclass(frozen=True, slots=True)
class Runner:
    """`environ` is the agent's own; nothing of it but PATH, HOME, LD_LIBRARY_PATH and SLURM_CONF reaches a command."""

    environ: Mapping[str, str] = field(default_factory=dict)
    guard_fd: int | None = None
    patience_s: float = PATIENCE_S
    holding: LeaseHolder | None = None  # of the cluster's lease: nothing is changed without it, nor after its end

    def read(self, args: Sequence[str], *, limit: int = MAX_OUTPUT_BYTES) -> str:
        """What a command that changes nothing prints. Raises: SlurmError."""
        return checked(args, self._run(args, limit=limit)).stdout

    def change(
        self,
        args: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        who: As | None = None,
        cwd: str | None = None,
    ) -> str:
        """What a command that changes something prints; it holds the guard while it runs, and is killed where the
        lease ends before it does. Raises: SlurmError."""
        left_s = self.patience_s if self.holding is None else self.holding.left_s()
        if left_s <= 0:
            raise NotHolder(f"{args[0]} was not run: another agent may act by now")
        patience_s = min(self.patience_s, left_s)
        ran = self._run(args, environ=environ, who=who, cwd=cwd, is_guarded=True, patience_s=patience_s)
        return checked(args, ran).stdout

    def environment(self) -> dict[str, str]:
        """What a command is started with: no one's SQUEUE_FORMAT or SLURM_CLUSTERS may change what it prints."""
        kept = {
            name: self.environ[name]
            for name in ("HOME", "LD_LIBRARY_PATH", "SLURM_CONF", "SLURM_CONF_SERVER", "TZ")
            if name in self.environ
        }
        path = ":".join(part for part in (self.environ.get("PATH"), MORE_PATH) if part)
        return kept | {"PATH": path, "LC_ALL": "C", "SLURM_TIME_FORMAT": TIME_FORMAT}

    def where(self, command: str) -> str:
        """The command's whole path, for a process that gets another PATH."""
        return shutil.which(command, path=self.environment()["PATH"]) or command

    def _run(
        self,
        args: Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        who: As | None = None,
        cwd: str | None = None,
        limit: int = MAX_OUTPUT_BYTES,
        is_guarded: bool = False,
        patience_s: float | None = None,
    ) -> CommandResult:
        keep = (self.guard_fd,) if is_guarded and self.guard_fd is not None else ()
        try:
            process = subprocess.Popen(
                list(args),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(self.environment() if environ is None else environ),
                cwd=cwd,
                pass_fds=keep,
                start_new_session=True,
                user=None if who is None else who.uid,
                group=None if who is None else who.gid,
                extra_groups=None if who is None or who.groups is None else list(who.groups),
                umask=-1 if who is None else who.umask,
            )
        except (OSError, subprocess.SubprocessError, ValueError) as err:
            raise SlurmUnavailable(f"{args[0]} cannot be started: {err}"[:300]) from err
        try:
            return _collect(args, process, self.patience_s if patience_s is None else patience_s, limit)
        finally:
            if process.poll() is None:
                _end(process)
                with contextlib.suppress(subprocess.TimeoutExpired):  # one that cannot be killed is left behind
                    process.wait(KILLED_S)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def checked(args: Sequence[str], ran: CommandResult) -> CommandResult:
    """The same, if the command succeeded. Raises: SlurmError with its output."""
    detail = " ".join(ran.stderr.split()) or (" ".join(ran.stdout.split()) if ran.code else "")
    low = detail.lower()
    detail = detail.removeprefix(f"{args[0]}: ")  # the commands name themselves first; once is enough
    for text, kind in _MEANING:
        if text in low:
            raise kind(f"{args[0]}: {detail}"[:300])
    if "not found" in low and low.startswith("node "):  # scontrol show node says it on stdout
        raise UnknownNode(f"{args[0]}: {detail}"[:300])
    if ran.code < 0:
        raise SlurmUnavailable(f"{args[0]} was ended by signal {-ran.code}")
    if ran.code != 0:
        raise SlurmRefused(f"{args[0]}: {detail or f'ended with status {ran.code}'}"[:300])
    return ran


def _collect(args: Sequence[str], process: subprocess.Popen[bytes], patience_s: float, limit: int) -> CommandResult:
    """Both streams to their ends, within the time and the sizes allowed. Raises: SlurmUnavailable."""
    parts: dict[str, list[bytes]] = {"out": [], "err": []}
    sizes = {"out": 0, "err": 0}
    ends = time.monotonic() + patience_s
    with selectors.DefaultSelector() as selector:
        for name, stream in (("out", process.stdout), ("err", process.stderr)):
            if stream is not None:
                selector.register(stream, selectors.EVENT_READ, name)
        while selector.get_map():
            left = ends - time.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                _end(process)
                raise SlurmUnavailable(f"{args[0]} did not end within {patience_s:g} s")
            for key, _ in ready:
                data = _some(key.fileobj)
                if not data:
                    selector.unregister(key.fileobj)
                    continue
                sizes[key.data] += len(data)
                if key.data == "err" and sizes["err"] > MAX_STDERR_BYTES:
                    continue  # read on, so that the command can end, and forget it
                if sizes["out"] > limit:
                    _end(process)
                    raise TooMuch(f"{args[0]} printed more than {limit} bytes")
                parts[key.data].append(data)
    try:
        code = process.wait(max(0.1, ends - time.monotonic()))
    except subprocess.TimeoutExpired as err:
        _end(process)
        raise SlurmUnavailable(f"{args[0]} did not end within {patience_s:g} s") from err
    return CommandResult(code=code, stdout=_text(parts["out"]), stderr=_text(parts["err"]))


def _some(stream: object) -> bytes:
    found: IO[bytes] = stream  # type: ignore[assignment]  # what was registered above
    return os.read(found.fileno(), 1 << 16)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The command and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _text(parts: list[bytes]) -> str:
    return b"".join(parts).decode("utf-8", "replace").replace("\0", "\ufffd")
