"""The names of a mailbox's objects: made and parsed here, relative to the mailbox's prefix. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from rekindle.compat import StrEnum
from rekindle.protocol.lives import named, split_name
from rekindle.protocol.wire import FOLDER, MAX_STEP, MailboxError, check_id, is_id

_KEY: Final = re.compile(
    rf"(?:(?P<prefix>.*)/)?{FOLDER}/(?:"
    r"(?P<fence>fence)\.json"
    r"|requests/(?P<request>[A-Za-z0-9._-]{1,128})\.json"
    r"|replies/(?P<reply>[A-Za-z0-9._-]{1,128})\.json"
    r"|manifests/step-(?P<step>[0-9]{12})-(?P<manifest>[A-Za-z0-9._-]{1,128})\.json"
    r"|hashes/step-(?P<hashed_step>[0-9]{12})-(?P<hashes>[A-Za-z0-9._-]{1,128})\.json"
    r"|heartbeats/(?P<heartbeat>[A-Za-z0-9._-]{1,128})\.json"
    r"|plans/(?P<plan>[A-Za-z0-9._-]{1,128})\.json"
    r")\Z",
    re.DOTALL,
)


class KeyKind(StrEnum):
    FENCE = "fence"
    REQUEST = "request"
    REPLY = "reply"
    MANIFEST = "manifest"
    HASHES = "hashes"
    HEARTBEAT = "heartbeat"
    PLAN = "plan"


def fence_key() -> str:
    return f"{FOLDER}/fence.json"


def doorbell_key() -> str:
    """An object whose bytes change whenever there is something new to read: one GET, where a LIST costs 12 times that.

    Optional: where it is missing the monitor lists at every turn, and where it stays quiet every `Config.list_s`.
    """
    return f"{FOLDER}/doorbell.json"


def request_prefix() -> str:
    return f"{FOLDER}/requests/"


def request_key(request_id: str) -> str:
    return f"{request_prefix()}{check_id(request_id, 'request_id')}.json"


def reply_key(request_id: str) -> str:
    return f"{FOLDER}/replies/{check_id(request_id, 'request_id')}.json"


def manifest_prefix() -> str:
    return f"{FOLDER}/manifests/"


def manifest_key(step: int, attempt: str, life: int = 0) -> str:
    return f"{manifest_prefix()}{_step_name(step, attempt, life)}"


def hashes_key(step: int, attempt: str, life: int = 0) -> str:
    """Where the hashes of the files lie that the manifest of that step and attempt names."""
    return f"{FOLDER}/hashes/{_step_name(step, attempt, life)}"


def _step_name(step: int, attempt: str, life: int) -> str:
    if isinstance(step, bool) or not 0 <= step <= MAX_STEP:
        raise MailboxError("step", f"must be 0 to {MAX_STEP}")
    return f"step-{step:012d}-{check_id(named(attempt, life), 'attempt')}.json"


def heartbeat_prefix() -> str:
    return f"{FOLDER}/heartbeats/"


def heartbeat_key(attempt: str) -> str:
    return f"{heartbeat_prefix()}{check_id(attempt, 'attempt')}.json"


def plan_prefix() -> str:
    return f"{FOLDER}/plans/"


def plan_key(attempt: str) -> str:
    return f"{plan_prefix()}{check_id(attempt, 'attempt')}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A parsed key. `prefix` is what stands before `rekindle/`, without the slash; `name` the request id or attempt.

    `life`: which of the attempt's lives has written a manifest or its hashes.
    """

    kind: KeyKind
    prefix: str
    name: str = ""
    step: int | None = None
    life: int = 0


def parse_key(key: str) -> Key | None:
    """What a key in a mailbox stands for, or None for a key that is not the mailbox's."""
    match = _KEY.match(key)
    if match is None:
        return None
    prefix = match["prefix"] or ""
    if match["fence"]:
        return Key(kind=KeyKind.FENCE, prefix=prefix)
    for kind in (KeyKind.REQUEST, KeyKind.REPLY, KeyKind.MANIFEST, KeyKind.HASHES, KeyKind.HEARTBEAT, KeyKind.PLAN):
        name = match[kind.value]
        if name is not None and is_id(name):
            step = match["step"] or match["hashed_step"]
            if step is None:
                return Key(kind=kind, prefix=prefix, name=name)
            attempt, life = split_name(name)
            return Key(kind=kind, prefix=prefix, name=attempt, step=int(step), life=life)
    return None
