"""Work on a user's own files in a process of its own, with limits on its time and its memory.

What lies in a user's folders decides how long it takes to read them, and how much memory: a hundred thousand folders, a
file system that hangs, a log made to be slow. The agent reads for the whole cluster, so each such piece of work is done
by a child that is ended when its time is over. The child is Python in isolated mode (`-I`: no path, no site and no
variable of anybody's choosing), inherits no descriptor of ours, and gives up root's rights before it opens anything.
Orders to it and what it answers are JSON.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from rekindle.agent.slurm import cause, found, userfs
from rekindle.compat import from_iso
from rekindle.headnode.documents import FoundDoc

PATIENCE_S: Final = 20.0
MEMORY_BYTES: Final = 2 * 1024**3
MAX_ANSWER_BYTES: Final = 1024 * 1024
# What Python needs to be found and to write UTF-8; nothing else of the agent's environment reaches the child.
_ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
_CHILD: Final = (sys.executable, "-I", "-m", "rekindle.agent.slurm.apart")


class NotDone(OSError):
    """The work was not finished: too slow, too large, or its process ended."""


def failure(paths: Sequence[str], uid: int | None, gid: int | None) -> str:
    """See `cause.of_files`; "" also where that takes too long."""
    try:
        return str(_ask("failure", {"paths": list(paths)}, uid, gid))[:4000]
    except NotDone:
        return ""


def checkpoints(
    job_id: str, mailbox: str | None, place: str | None, uid: int | None, gid: int | None, now: datetime
) -> FoundDoc:
    """See `found.judge`. Raises: OSError, also where it takes too long; MailboxError."""
    asked = {"job_id": job_id, "mailbox": mailbox, "place": place, "now": now.isoformat()}
    return FoundDoc.from_json(json.dumps(_ask("checkpoints", asked, uid, gid)))


def _ask(work: str, asked: Mapping[str, Any], uid: int | None, gid: int | None) -> Any:
    """Raises: NotDone."""
    order = {"work": work, "asked": asked, "uid": uid, "gid": gid}
    try:
        ran = subprocess.run(
            _CHILD,
            input=json.dumps(order).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(_ENVIRONMENT),
            cwd="/",
            timeout=PATIENCE_S,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired as err:
        raise NotDone(f"it took longer than {PATIENCE_S:g} s") from err
    except OSError as err:
        raise NotDone(f"no process could be started for it: {err}"[:300]) from err
    if ran.returncode != 0 or len(ran.stdout) > MAX_ANSWER_BYTES:
        raise NotDone(f"its process ended with {ran.returncode} and {len(ran.stdout)} bytes")
    try:
        answer = json.loads(ran.stdout)
    except (ValueError, RecursionError) as err:
        raise NotDone("its process answered no JSON") from err
    if not isinstance(answer, dict) or "error" in answer:
        raise NotDone(str(answer.get("error") if isinstance(answer, dict) else "no answer")[:300])
    return answer.get("done")


def _failure(asked: Mapping[str, Any], uid: int | None, gid: int | None) -> str:
    return cause.of_files([str(path) for path in asked["paths"]], uid, gid)


def _checkpoints(asked: Mapping[str, Any], uid: int | None, gid: int | None) -> Any:
    mailbox, place = asked["mailbox"], asked["place"]
    with userfs.as_user(uid, gid):
        manifests = found.manifests_in(mailbox) if mailbox is not None else {}
        doc = found.judge(asked["job_id"], place, manifests, from_iso(asked["now"]), mailbox=mailbox)
    return json.loads(doc.to_json())


_WORK: Final[Mapping[str, Callable[[Mapping[str, Any], int | None, int | None], Any]]] = {
    "failure": _failure,
    "checkpoints": _checkpoints,
}


def _become(uid: int | None, gid: int | None) -> None:
    """Give up root's rights for good; no user is nobody. What is not root stays what it is. Raises: OSError."""
    if os.geteuid() != 0:
        return
    wanted, group = userfs.NOBODY if uid is None else uid, userfs.NOBODY if gid is None else gid
    groups = userfs.groups_of(wanted, group)
    cause.of_text(b"RuntimeError: loads the rules, which that user may not be able to read")
    os.setgroups(groups)
    os.setresgid(group, group, group)
    os.setresuid(wanted, wanted, wanted)


def main() -> int:
    """One order from standard input, its answer to standard output."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    seconds = int(PATIENCE_S)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    order = json.loads(sys.stdin.buffer.read())
    try:
        _become(order["uid"], order["gid"])
        answer = {"done": _WORK[order["work"]](order["asked"], order["uid"], order["gid"])}
    except Exception as err:  # whatever it is, it is that user's, and is told where his other problems are
        answer = {"error": f"{type(err).__name__}: {err}"[:300]}
    sys.stdout.buffer.write(json.dumps(answer).encode())
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
