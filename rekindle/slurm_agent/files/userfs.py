"""Files of users, read and written as those users.

The agent runs as root; the paths come from users (a comment's mailbox, a job's output file). With the file-system ids
of the job's user, the kernel allows just what that user may do: no link leads the agent where its owner could not go
himself, and a file system that squashes root (FSx, NFS) works. The ids are the calling thread's own (Source:
setfsuid(2)); setfsuid drops root's rights over files with them. So are the supplementary groups, where they are set by
the system call itself and not by the C library (Source: setgroups(2)): root's own would open what a group of root's may
read, and the user's own are how teams share a folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import pwd
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

MAX_NAMES: Final = 80_000  # four kinds of report of 16,384 ranks, and their hosts' summaries
UNPRIVILEGED: Final = 65534
# Source: linux, arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
_SETGROUPS: Final = {"x86_64": 116, "aarch64": 159}
GROUPS_HOLD_S: Final = 300.0  # a directory service is not asked at every file
MAX_GROUPS_KEPT: Final = 10_000
_groups: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}


@contextlib.contextmanager
def as_user(uid: int | None, gid: int | None) -> Iterator[None]:
    """File access as that user (None: `nobody`), in this thread. Without root's rights it changes nothing."""
    if os.geteuid() != 0:
        yield
        return
    wanted, group = UNPRIVILEGED if uid is None else uid, UNPRIVILEGED if gid is None else gid
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.getgroups()
    try:
        _set_groups(libc, groups_of(wanted, group))
        libc.setfsgid(group)
        libc.setfsuid(wanted)
        if libc.setfsuid(-1) != wanted:  # -1 is refused and answers what holds
            raise PermissionError(f"file access as user {wanted} is not possible here")
        yield
    finally:
        libc.setfsuid(0)
        libc.setfsgid(0)
        _set_groups(libc, before)


def groups_of(uid: int, gid: int) -> tuple[int, ...]:
    """The user's supplementary groups; his own alone where he is unknown. Never raises."""
    now = time.monotonic()
    kept = _groups.get((uid, gid))
    if kept is not None and now - kept[0] < GROUPS_HOLD_S:
        return kept[1]
    try:
        found = tuple(os.getgrouplist(pwd.getpwuid(uid).pw_name, gid))
    except (KeyError, OSError):
        found = (gid,)
    if len(_groups) >= MAX_GROUPS_KEPT:
        _groups.clear()
    _groups[uid, gid] = (now, found)
    return found


def _set_groups(libc: ctypes.CDLL, groups: Sequence[int]) -> None:
    """Of this thread alone. Raises: PermissionError, also on a machine where that is not known how to."""
    number = _SETGROUPS.get(platform.machine())
    listed = (ctypes.c_uint32 * len(groups))(*groups)
    if number is None or libc.syscall(number, len(groups), listed) != 0:
        raise PermissionError("file access with a user's groups is not possible here")


def tail(path: str, limit: int) -> bytes:
    """The end of a plain file; never waits for a pipe's writer. Raises: OSError."""
    with _opened(path) as file:
        size = os.fstat(file).st_size
        return os.pread(file, limit, max(0, size - limit))


def read(path: str, limit: int) -> bytes | None:
    """A small plain file whole; None for one that is not there, is none, is a link, or is larger. Never raises."""
    try:
        with _opened(path, os.O_NOFOLLOW) as file:
            found = os.pread(file, limit + 1, 0)
    except (OSError, ValueError):  # the latter for a path that the system cannot be given
        return None
    return found if len(found) <= limit else None


def stamp(path: str) -> tuple[int, int, int] | None:
    """What changes when a file does; None for one that is not there, a link, or no plain file."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def names(folder: str) -> tuple[str, ...]:
    """What lies in a folder that is no link, at most MAX_NAMES; empty where it cannot be read."""
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return ()
        with os.scandir(folder) as entries:
            return tuple(entry.name for entry, _ in zip(entries, range(MAX_NAMES), strict=False))
    except (OSError, ValueError):
        return ()


def write(folder: str, name: str, body: bytes, still_wanted: Callable[[], None] = lambda: None) -> None:
    """A file in place of the one before, whole or not at all. The folder's last part is made if it is not there, and
    must be no link. `still_wanted` is asked last of all, and raises where it is too late. Raises: OSError."""
    with contextlib.suppress(FileExistsError):
        Path(folder).mkdir(mode=0o775)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fresh = f".{name}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=handle)
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o664, dir_fd=handle)
        try:
            with os.fdopen(file, "wb") as out:
                out.write(body)
                out.flush()
                os.fsync(out.fileno())
            still_wanted()
            os.rename(fresh, name, src_dir_fd=handle, dst_dir_fd=handle)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(fresh, dir_fd=handle)
            raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def _opened(path: str, more: int = 0) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | more)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{path} is no plain file")
        yield file
    finally:
        os.close(file)


def folder(path: str) -> None:
    """Make a folder that is not there. Raises: OSError where it cannot be made, or is a link."""
    with contextlib.suppress(FileExistsError):
        Path(path).mkdir(mode=0o775)
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise NotADirectoryError(f"{path} is no folder")
