"""A directory seen through a FUSE mount whose kernel keeps names, attributes and absences for seconds, as NFS does.

Each process that enters has the mount in a namespace of its own, as on a host of its own: what others write into the
directory is seen late there, what it writes itself at once. Needs /dev/fuse and the right to mount.

Sources: include/uapi/linux/fuse.h (protocol 7.31), Documentation/filesystems/fuse.rst, mount_namespaces(7).
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import stat
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
_IN = struct.Struct("<IIQQIIII")
_OUT = struct.Struct("<IiQ")
_ATTR = struct.Struct("<6Q10I")
_MAX_WRITE = 128 * 1024
_FATTR_MODE, _FATTR_SIZE, _FATTR_ATIME, _FATTR_MTIME = 1, 8, 16, 32
_NO_REPLY = (2, 36, 42)  # FORGET, INTERRUPT, BATCH_FORGET


def _libc(what: str, *arguments: Any) -> None:
    """Raises: OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, what)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def can_mount() -> bool:
    """Whether this machine lets a process do what `enter` does; tried in a child."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return False
    child = os.fork()
    if child == 0:
        try:
            _libc("unshare", CLONE_NEWNS)
            _libc("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def enter(place: Path, behind: Path, late_s: float) -> None:
    """From now on `place` shows this process, and its children, what is in `behind`. Raises: OSError."""
    _libc("unshare", CLONE_NEWNS)
    _libc("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    _libc("mount", b"late", os.fsencode(place), b"fuse", 0, options.encode())
    parent = os.getpid()
    if os.fork() == 0:
        try:
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in range(3):  # a parent whose output is read to its end must not wait for this process
                os.dup2(nothing, number)
            _Server(device, os.fsencode(behind), late_s).serve(parent)
        finally:
            os._exit(0)
    os.close(device)


class _Server:
    def __init__(self, device: int, top: bytes, late_s: float) -> None:
        self._device, self._late_s = device, late_s
        self._paths: dict[int, bytes] = {1: top}
        self._listings: dict[bytes, tuple[float, list[tuple[bytes, int, int]]]] = {}
        self._operations: dict[int, Callable[[int, bytes], bytes]] = {
            1: self._lookup, 3: self._getattr, 4: self._setattr, 9: self._mkdir, 10: self._unlink, 11: self._rmdir,
            12: self._rename, 13: self._link, 14: self._open, 15: self._read, 16: self._write, 17: self._statfs,
            18: self._release, 20: self._fsync, 25: self._nothing, 26: self._init, 27: self._opendir,
            28: self._readdir, 29: self._nothing, 30: self._nothing, 34: self._nothing, 35: self._create,
            45: self._rename2,
        }  # fmt: skip

    def serve(self, parent: int) -> None:
        """Until that process has ended, or unmounted."""
        while os.getppid() == parent:
            if not select.select([self._device], [], [], 0.2)[0]:
                continue
            try:
                raw = os.read(self._device, _MAX_WRITE + 4096)
            except InterruptedError:
                continue
            except OSError as err:
                if err.errno == errno.ENOENT:  # interrupted in between
                    continue
                return  # unmounted
            _, code, unique, node, *_ = _IN.unpack_from(raw)
            if code in _NO_REPLY:
                continue
            error, body = 0, b""
            try:
                body = self._operations[code](node, raw[_IN.size :])
            except OSError as err:
                error = err.errno or errno.EIO
            except KeyError:
                error = errno.ENOSYS
            os.write(self._device, _OUT.pack(_OUT.size + len(body), -error, unique) + body)

    # ---- names -------------------------------------------------------------------------------------------------

    def _in(self, node: int, name: bytes) -> bytes:
        return os.path.join(self._paths[node], name.split(b"\0")[0])

    def _entry(self, path: bytes) -> bytes:
        seen = os.lstat(path)
        self._paths[seen.st_ino] = path
        seconds, rest = divmod(self._late_s, 1)
        kept = (int(seconds), int(seconds), int(rest * 1e9), int(rest * 1e9))
        return struct.pack("<4Q2I", seen.st_ino, 0, *kept) + self._attr(seen)

    def _attr(self, seen: os.stat_result) -> bytes:
        times = [divmod(at, 10**9) for at in (seen.st_atime_ns, seen.st_mtime_ns, seen.st_ctime_ns)]
        return _ATTR.pack(
            seen.st_ino, seen.st_size, seen.st_blocks, *(at[0] for at in times), *(at[1] for at in times),
            seen.st_mode, seen.st_nlink, seen.st_uid, seen.st_gid, 0, 4096, 0,
        )  # fmt: skip

    def _changed(self, path: bytes) -> None:
        """By this client itself, which sees that at once."""
        self._listings.pop(os.path.dirname(path), None)

    def _lookup(self, node: int, body: bytes) -> bytes:
        try:
            return self._entry(self._in(node, body))
        except FileNotFoundError:  # node 0: that there is none is kept, too
            seconds, rest = divmod(self._late_s, 1)
            return struct.pack("<4Q2I", 0, 0, int(seconds), 0, int(rest * 1e9), 0) + bytes(_ATTR.size)

    def _mkdir(self, node: int, body: bytes) -> bytes:
        mode, _ = struct.unpack_from("<2I", body)
        path = self._in(node, body[8:])
        os.mkdir(path, mode)
        self._changed(path)
        return self._entry(path)

    def _unlink(self, node: int, body: bytes) -> bytes:
        os.unlink(path := self._in(node, body))
        self._changed(path)
        return b""

    def _rmdir(self, node: int, body: bytes) -> bytes:
        os.rmdir(path := self._in(node, body))
        self._changed(path)
        return b""

    def _rename(self, node: int, body: bytes, head: int = 8) -> bytes:
        (into,) = struct.unpack_from("<Q", body)
        old, new, *_ = body[head:].split(b"\0")
        before, after = self._in(node, old), self._in(into, new)
        os.rename(before, after)
        self._paths = {
            number: after + path[len(before) :] if path == before or path.startswith(before + b"/") else path
            for number, path in self._paths.items()
        }
        self._listings.clear()
        return b""

    def _rename2(self, node: int, body: bytes) -> bytes:
        return self._rename(node, body, 16)

    def _link(self, node: int, body: bytes) -> bytes:
        (old,) = struct.unpack_from("<Q", body)
        os.link(self._paths[old], path := self._in(node, body[8:]))
        self._changed(path)
        return self._entry(path)

    # ---- attributes --------------------------------------------------------------------------------------------

    def _getattr(self, node: int, _: bytes) -> bytes:
        seconds, rest = divmod(self._late_s, 1)
        return struct.pack("<Q2I", int(seconds), int(rest * 1e9), 0) + self._attr(os.lstat(self._paths[node]))

    def _setattr(self, node: int, body: bytes) -> bytes:
        valid, _, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, *_ = struct.unpack_from("<2I6Q8I", body)
        path = self._paths[node]
        if valid & _FATTR_MODE:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & _FATTR_SIZE:
            os.truncate(path, size)
        if valid & (_FATTR_ATIME | _FATTR_MTIME):
            seen, now = os.lstat(path), time.time_ns()
            kept = {
                _FATTR_ATIME: (seen.st_atime_ns, atime * 10**9 + atime_ns, 128),
                _FATTR_MTIME: (seen.st_mtime_ns, mtime * 10**9 + mtime_ns, 256),
            }
            os.utime(
                path,
                ns=tuple(now if valid & n else given if valid & bit else old for bit, (old, given, n) in kept.items()),
            )
        return self._getattr(node, b"")

    def _statfs(self, node: int, _: bytes) -> bytes:
        seen = os.statvfs(self._paths[node])
        counts = (seen.f_blocks, seen.f_bfree, seen.f_bavail, seen.f_files, seen.f_ffree)
        return struct.pack("<5Q10I", *counts, seen.f_bsize, seen.f_namemax, seen.f_frsize, *([0] * 7))

    # ---- content -----------------------------------------------------------------------------------------------

    def _init(self, _: int, body: bytes) -> bytes:
        _, _, readahead, _ = struct.unpack_from("<4I", body)
        return struct.pack("<4I2H2I2H8I", 7, 31, readahead, 0, 16, 12, _MAX_WRITE, 1, 0, 0, *([0] * 8))

    def _open(self, node: int, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", body)
        return struct.pack("<Q2I", os.open(self._paths[node], flags & ~(os.O_CREAT | os.O_EXCL | os.O_APPEND)), 0, 0)

    def _create(self, node: int, body: bytes) -> bytes:
        flags, mode, *_ = struct.unpack_from("<4I", body)
        path = self._in(node, body[16:])
        handle = os.open(path, (flags | os.O_CREAT) & ~os.O_APPEND, mode)
        self._changed(path)
        return self._entry(path) + struct.pack("<Q2I", handle, 0, 0)

    def _read(self, _: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<2QI", body)
        return os.pread(handle, size, offset)

    def _write(self, _: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<2QI", body)
        return struct.pack("<2I", os.pwrite(handle, body[40 : 40 + size], offset), 0)

    def _release(self, _: int, body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    def _fsync(self, _: int, body: bytes) -> bytes:
        os.fsync(struct.unpack_from("<Q", body)[0])
        return b""

    def _nothing(self, *_: object) -> bytes:
        return b""

    def _opendir(self, *_: object) -> bytes:
        return bytes(16)

    def _readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<2QI", body)
        path, now = self._paths[node], time.monotonic()
        until, entries = self._listings.get(path, (0.0, []))
        if now > until:
            with os.scandir(path) as found:
                entries = [(entry.name, entry.inode(), 4 if entry.is_dir() else 8) for entry in found]
            self._listings[path] = now + self._late_s, entries
        raw = b""
        for number, (name, inode, kind) in list(enumerate(entries, start=1))[offset:]:
            one = struct.pack("<2Q2I", inode, number, len(name), kind) + name
            one += bytes(-len(one) % 8)
            if len(raw) + len(one) > size:
                break
            raw += one
        return raw
