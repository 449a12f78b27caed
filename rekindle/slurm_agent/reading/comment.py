"""How a job says that it is protected: `rekindle[:policy][,key=value]*` in its comment. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rekindle.protocol.cluster.names import is_slurm
from rekindle.protocol.cluster.orders import Signal
from rekindle.protocol.wire import is_id
from rekindle.slurm_agent.reading.text import value

MARK: Final = "rekindle"
OUT: Final = "norekindle"  # of a job that wants no protection
SHOWN: Final = ("AdminComment", "Extra")
KEYS: Final = ("job", "attempt", "mailbox", "checkpoints", "signal")
MAX_CHARS: Final = 4096
_POLICY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# No other may be sent (orders.Signal): a run that saves on another cannot be asked by it.
_SIGNAL: Final = re.compile(rf"(B:)?(?:SIG)?({'|'.join(Signal)})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    """What a comment says. `signal_batch`: the batch shell traps the signal, not the steps (`signal=B:USR1`).

    `others` are keys that are not known here, kept for a resubmission. `problems` tells what was passed over.
    """

    policy: str = "default"
    job: str | None = None
    attempt: str | None = None
    mailbox: str = ""
    checkpoints: str = ""
    signal: str | None = None
    signal_batch: bool = False
    others: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()


def parse(text: str) -> Comment | None:
    """None for a job that is none of ours. A wrong value is ignored and reported, so that a typo loses one key only."""
    words = text.strip().strip("\"'").strip()[:MAX_CHARS].split(",")
    mark, colon, policy = words[0].strip().partition(":")
    if mark != MARK:
        return None
    problems = []
    if colon and _POLICY.fullmatch(policy) is None:
        problems.append("the comment's policy is no name")
        policy = ""
    given: dict[str, str] = {}
    others = []
    for word in words[1:]:
        key, equals, rest = word.strip().partition("=")
        if equals and key in KEYS:
            given.setdefault(key, rest.strip())
        elif equals and key:
            others.append((key, rest.strip()))
        elif word.strip():
            problems.append(f"the comment's {word.strip()[:40]!r} is no key=value")
    for key, is_right in (("job", is_id), ("attempt", is_slurm)):
        if key in given and not is_right(given[key]):
            problems.append(f"the comment's {key} is no name")
            del given[key]
    sent = _SIGNAL.fullmatch(given.get("signal", "").upper())
    if "signal" in given and sent is None:
        problems.append(f"the comment's signal is none of {', '.join(Signal)}")
    return Comment(
        policy=policy or "default",
        job=given.get("job"),
        attempt=given.get("attempt"),
        mailbox=given.get("mailbox", ""),
        checkpoints=given.get("checkpoints", ""),
        signal=sent[2] if sent else None,
        signal_batch=bool(sent and sent[1]),
        others=tuple(others),
        problems=tuple(problems),
    )


def render(
    policy: str, keys: Mapping[str, str | None], others: tuple[tuple[str, str], ...] = (), signal_batch: bool = False
) -> str:
    """A comment with those keys. Values with a comma are left out: the grammar cannot hold them."""
    given = dict(keys)
    if given.get("signal") and signal_batch:
        given["signal"] = f"B:{given['signal']}"
    pairs = [(key, given[key]) for key in KEYS if given.get(key)] + list(others)
    kept = [f"{key}={found}" for key, found in pairs if found and "," not in found and found.isprintable()]
    return ",".join([f"{MARK}:{policy}", *kept])


def text_of(asked: Comment) -> str:
    """A comment that says the same."""
    keys = {
        "job": asked.job,
        "attempt": asked.attempt,
        "mailbox": asked.mailbox,
        "checkpoints": asked.checkpoints,
        "signal": asked.signal,
    }
    return render(asked.policy, keys, asked.others, asked.signal_batch)


def says_out(shown: Mapping[str, str]) -> bool:
    """Of a job whose comment asks for protection: an administrator may want none for it. shown: its record."""
    return any(is_out_word(value(shown.get(name))) for name in SHOWN)


def is_out_word(asked: str) -> bool:
    return asked.strip().strip("\"'").strip().split(",")[0].strip() == OUT
