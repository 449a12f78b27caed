"""The process in which users' files are touched: orders from standard input, answers to standard output.

What lies in a user's folders decides how long it takes to read them, and how much memory; a file system may never
answer at all. So the agent itself touches no path of a user's: it asks a child, with a deadline, and leaves it behind
when that is over (see `workers`). The child is Python in isolated mode (`-I`: no path, no site and no variable that
others choose) and inherits no descriptor of ours. Small messages are read and written with the ids of the job's
user for its files (`userfs`); before a folder is walked or a log is judged root's rights are given up for good, and
that child does nothing else. A frame is its length (four bytes) and JSON.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import struct
import sys
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, Final

from rekindle.compat import from_iso
from rekindle.slurm_agent.files import cause, found, messages, userfs

CPU_S: Final = 20  # of a child that has given up root's rights
MEMORY_BYTES: Final = 2 * 1024**3
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
READY: Final = b'{"ready":true}'  # the first frame: whatever takes long from here on is the order's


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def _failure(asked: Mapping[str, Any], uid: int | None, gid: int | None) -> Any:
    found = cause.of_files([str(path) for path in asked["paths"]], uid, gid)
    return {"text": found.text, "cause": None if found.cause is None else found.cause.to_wire()}


def _checkpoints(asked: Mapping[str, Any], uid: int | None, gid: int | None) -> Any:
    mailbox, place = asked["mailbox"], asked["place"]
    with userfs.as_user(uid, gid):
        manifests = found.manifests_in(mailbox) if mailbox is not None else {}
        doc = found.judge(asked["job_id"], place, manifests, from_iso(asked["now"]), mailbox=mailbox)
    return json.loads(doc.to_json())


def _changed(asked: Mapping[str, Any], uid: int | None, gid: int | None) -> Any:
    sent = {key: (stamp[0], stamp[1], stamp[2]) for key, stamp in asked["sent"].items()}
    with userfs.as_user(uid, gid):
        news = messages.changed(asked["root"], sent, most=asked["most"], most_bytes=asked["most_bytes"])
        return [[key, list(stamp), base64.b64encode(body).decode()] for key, stamp, body in news]


def _deliver(asked: Mapping[str, Any], uid: int | None, gid: int | None) -> None:
    """Nothing is put in place after its time, or for an agent that is gone: a file system that answers after hours must
    not bring back a fence or a plan that others have followed since."""
    agent = os.getppid()

    def still_wanted() -> None:
        if os.getppid() != agent or time.monotonic() > asked["until"]:
            raise TimeoutError("it came too late")

    with userfs.as_user(uid, gid):
        messages.deliver(asked["root"], asked["key"], base64.b64decode(asked["body"]), still_wanted)


def _read(asked: Mapping[str, Any], uid: int | None, gid: int | None) -> Any:
    with userfs.as_user(uid, gid):
        body = userfs.read(asked["path"], asked["limit"])
    return None if body is None else base64.b64encode(body).decode()


def _answers(asked: Mapping[str, Any], uid: int | None, gid: int | None) -> bool:
    with userfs.as_user(uid, gid):
        return os.path.isdir(asked["path"])


def _resolved(asked: Mapping[str, Any], uid: int | None, gid: int | None) -> tuple[str, str]:
    with userfs.as_user(uid, gid):
        real = os.path.realpath(str(asked["path"]))
        try:
            found = os.stat(real)
        except OSError:
            return real, real
        return real, f"{found.st_dev}:{found.st_ino}"


_WORK: Final[Mapping[str, Callable[[Mapping[str, Any], int | None, int | None], Any]]] = {
    "failure": _failure,
    "checkpoints": _checkpoints,
    "changed": _changed,
    "deliver": _deliver,
    "read": _read,
    "answers": _answers,
    "resolved": _resolved,
}


def _become(uid: int | None, gid: int | None) -> None:
    """Give up root's rights for good; no user: `nobody`. What is not root stays what it is. Raises: OSError."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    if os.geteuid() != 0:
        return
    wanted, group = userfs.UNPRIVILEGED if uid is None else uid, userfs.UNPRIVILEGED if gid is None else gid
    groups = userfs.groups_of(wanted, group)
    cause.of_text(b"RuntimeError: loads the rules, which that user may not be able to read")
    os.setgroups(groups)
    os.setresgid(group, group, group)
    os.setresuid(wanted, wanted, wanted)


def _answer(order: Mapping[str, Any]) -> dict[str, Any]:
    try:
        if order["for_good"]:
            _become(order["uid"], order["gid"])
        return {"done": _WORK[order["work"]](order["asked"], order["uid"], order["gid"])}
    except Exception as err:  # whatever it is, it is that user's, and is told where his other problems are
        return {"error": f"{type(err).__name__}: {err}"[:300]}


def _next(source: IO[bytes]) -> bytes | None:
    head = source.read(4)
    if len(head) < 4:
        return None
    (length,) = struct.unpack(">I", head)
    return source.read(length) if length <= MAX_FRAME_BYTES else None


def main() -> int:
    """Until its input ends, or it has given up its rights for the one order that needed it."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdout.buffer.write(frame(READY))
    sys.stdout.buffer.flush()
    while (raw := _next(sys.stdin.buffer)) is not None:
        order = json.loads(raw)
        sys.stdout.buffer.write(frame(json.dumps(_answer(order)).encode()))
        sys.stdout.buffer.flush()
        if order["for_good"]:
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
