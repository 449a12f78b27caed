"""Two processes of one agent: root's helper, and the agent itself as a user who may do nothing else.

root's process forks before it has read a byte of AWS's or of a user's, and before AWS's code is loaded. Its child
becomes `rekindle` for good and talks to it over socket pairs; each ends with the other.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import socket
import stat
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

USER: Final = "rekindle"
CHANNELS: Final = 8  # as many requests at once; the agent has five threads
DATABASE: Final = "agent.sqlite"
# What an agent of root's alone has made, or the install script; the child's from now on.
_HANDED_OVER: Final = frozenset({DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", "stopped"})
_OF_ROOTS: Final = ("caps.json", "specs")
_AWS_FILES: Final = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE")
# Source: linux, include/uapi/linux/prctl.h
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38


def user() -> pwd.struct_passwd | None:
    """Whom the agent becomes; None where there is nothing to separate: not root, or there is no such user."""
    if os.geteuid() != 0:
        return None
    try:
        found = pwd.getpwnam(USER)
    except KeyError:
        return None
    return found if found.pw_uid != 0 else None


def folder_of_root(state_dir: Path) -> Path:
    """Caps, kept specs and the lock, beside the agent's own folder and out of its reach."""
    return state_dir.with_name(f"{state_dir.name}-root")


def hand_over(state_dir: Path, who: pwd.struct_passwd) -> Path:
    """The state directory becomes the agent's; `folder_of_root`, with what root keeps of an agent before it.

    Raises: OSError.
    """
    own = folder_of_root(state_dir)
    state_dir.parent.mkdir(parents=True, exist_ok=True)
    is_first = not own.exists()
    for folder in (own, state_dir):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    seen = own.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != 0:
        raise PermissionError(f"{own} is not root's folder")
    own.chmod(0o700)
    handle = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if is_first and os.fstat(handle).st_uid == 0:  # later on it holds what the agent wants root to believe
            _keep(state_dir, own)
        os.fchown(handle, who.pw_uid, who.pw_gid)
        os.fchmod(handle, 0o700)
        for name in _HANDED_OVER:
            with suppress(FileNotFoundError):
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
                found = os.fstat(file)
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid == 0:
                    os.fchown(file, who.pw_uid, who.pw_gid)
                os.close(file)
    finally:
        os.close(handle)
    return own


def _keep(state_dir: Path, own: Path) -> None:
    """What an agent of root's alone has left. It stays there, too, for a version before this one."""
    for name in _OF_ROOTS:
        source, target = state_dir / name, own / name
        if target.exists() or not source.exists():
            continue
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy2(source, target)


def run(
    who: pwd.struct_passwd,
    serve: Callable[[socket.socket], None],
    agent: Callable[[list[socket.socket]], int],
    home: Path,
) -> int:
    """The exit code of `agent`, which runs as that user; `serve` answers it here, each channel in a thread."""
    pairs = [socket.socketpair() for _ in range(CHANNELS)]
    root = os.getpid()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for ours, _ in pairs:
                ours.close()
            _become(who, root, home)
            code = agent([theirs for _, theirs in pairs])
        except SystemExit as err:
            code = err.code if isinstance(err.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: _pass_on(child, got))
    for ours, theirs in pairs:
        theirs.close()
        threading.Thread(target=serve, args=(ours,), name="helper", daemon=True).start()
    _, status = os.waitpid(child, 0)
    return max(1, os.waitstatus_to_exitcode(status)) if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


def _pass_on(child: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, number)


def _become(who: pwd.struct_passwd, root: int, home: Path) -> None:
    """For good. Raises: OSError."""
    os.setgroups([])
    os.setresgid(who.pw_gid, who.pw_gid, who.pw_gid)
    os.setresuid(who.pw_uid, who.pw_uid, who.pw_uid)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != root:
        raise OSError("root's helper has ended")
    with suppress(PermissionError):
        os.setuid(0)
        raise OSError("root's rights could not be given up")
    os.chdir("/")
    os.environ["HOME"] = str(home)
    for name in _AWS_FILES:
        os.environ.pop(name, None)
