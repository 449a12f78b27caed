"""A file system that never answers: FUSE, mounted and then silent, as a file server is that has gone away.

`python -I tests/slurm/never_answers.py FOLDER` mounts it there, says `mounted`, and serves until its input ends.
A process that touches FOLDER waits, and where the kernel has handed the request over not even SIGKILL ends that wait.
Needs Linux, root, and /dev/fuse; nothing else is installed. Source: linux, include/uapi/linux/fuse.h and
fs/fuse/dev.c.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_INIT: Final = 26  # FUSE_INIT
_FLAGS: Final = 0x2 | 0x4  # MS_NOSUID | MS_NODEV
_DETACH: Final = 2  # MNT_DETACH
_HEAD: Final = "<IIQQ"  # length, opcode, the request's number, the node's
_ANSWER: Final = "<IiQ"


class CannotMount(RuntimeError):
    """Not root, or no FUSE here."""


@contextlib.contextmanager
def never_answers(folder: Path) -> Iterator[Path]:
    """The folder does not answer meanwhile; afterwards who waits gets an error. Raises: CannotMount."""
    folder.mkdir(parents=True, exist_ok=True)
    server = subprocess.Popen(
        [sys.executable, "-I", str(Path(__file__).resolve()), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    assert server.stdin is not None
    try:
        text = server.stdout.readline().strip()
        if text != "mounted":
            raise CannotMount(text or "the file system could not be mounted")
        yield folder
    finally:
        server.stdin.close()
        server.wait()
        server.stdout.close()


def main() -> int:
    folder = os.fsencode(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as err:
        print(f"/dev/fuse: {err.strerror}", flush=True)
        return 1
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"never", folder, b"fuse", ctypes.c_ulong(_FLAGS), options) != 0:
        print(f"mount: {os.strerror(ctypes.get_errno())}", flush=True)
        return 1
    print("mounted", flush=True)
    try:
        _serve(device)
    finally:
        libc.umount2(folder, _DETACH)
    return 0


def _serve(device: int) -> None:
    """Takes every request, and answers the first one alone: without it the kernel would let killed processes go."""
    ready = select.poll()
    ready.register(device, select.POLLIN)
    ready.register(0, select.POLLIN)
    while True:
        events = [descriptor for descriptor, _ in ready.poll()]
        if 0 in events:
            return
        request = os.read(device, 1 << 20)
        _, opcode, number, _ = struct.unpack(_HEAD, request[:24])
        if opcode == _INIT:
            _, minor = struct.unpack("<II", request[40:48])
            body = struct.pack("<IIIIHHI", 7, min(minor, 31), 65536, 0, 16, 16, 65536).ljust(64, b"\0")
            os.write(device, struct.pack(_ANSWER, 16 + len(body), 0, number) + body)


if __name__ == "__main__":
    sys.exit(main())
