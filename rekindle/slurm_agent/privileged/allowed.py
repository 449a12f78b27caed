"""What an administrator allows the agent here: /etc/rekindle/allow.conf. Pure but for `read`.

    mode = act                        # observe: nothing is changed, orders are answered with what they would have done

    [allow]                           # `*`: all. Left out: all; of node verbs none, but on HyperPod
    verbs = signal cancel hold requeue submit
    partitions = gpu

    [deny]                            # precedes [allow]
    users = root

    [caps]                            # per hour and per day
    drained = 4 10

What is not understood allows nothing.
"""

from __future__ import annotations

import configparser
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from rekindle.compat import StrEnum
from rekindle.protocol.cluster.orders import Verb

MAX_BYTES: Final = 64 * 1024
MAX_CAP: Final = 10_000
NODE_VERBS: Final = frozenset({Verb.DRAIN, Verb.RESUME, Verb.MARK, Verb.REBOOT})
_WORD: Final = re.compile(r"[^\s,\[\]=]{1,200}")
ALL: Final = "*"


class Mode(StrEnum):
    """Whether orders are carried out."""

    OBSERVE = "observe"
    ACT = "act"


class Counted(StrEnum):
    """What is counted on the head node, whatever is ordered."""

    DRAINED = "drained"
    REBOOTED = "rebooted"
    MARKED = "marked"
    STARTED = "started"  # jobs, by a release or a submission


class Kind(StrEnum):
    """What can be named in [allow] and [deny]."""

    VERBS = "verbs"
    PARTITIONS = "partitions"
    ACCOUNTS = "accounts"
    QOS = "qos"
    USERS = "users"
    POLICIES = "policies"
    NODES = "nodes"


DEFAULT_CAPS: Final[Mapping[Counted, tuple[int, int]]] = {
    Counted.DRAINED: (10, 40),
    Counted.REBOOTED: (10, 40),
    Counted.MARKED: (5, 20),
    Counted.STARTED: (60, 400),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What the file says. `problem`: why it cannot be followed; then nothing is allowed."""

    mode: Mode = Mode.ACT
    allow: Mapping[Kind, frozenset[str]] = field(default_factory=dict)
    deny: Mapping[Kind, frozenset[str]] = field(default_factory=dict)
    caps: Mapping[Counted, tuple[int, int]] = field(default_factory=lambda: DEFAULT_CAPS)
    problem: str = ""

    @property
    def observes(self) -> bool:
        """Nothing is changed."""
        return self.mode is Mode.OBSERVE

    def refusal(self, verbs: frozenset[Verb], about: Mapping[Kind, str], *, is_hyperpod: bool) -> str:
        """Why none of the verbs may be used on what is described so; "" where one may."""
        if self.problem:
            return self.problem
        for kind, word in about.items():
            if word in self.deny.get(kind, ()) or ALL in self.deny.get(kind, ()):
                return f"{kind} = {word} is denied here"
            wanted = self.allow.get(kind, frozenset({ALL}))
            if ALL not in wanted and word not in wanted:
                return f"{kind} = {word} is not allowed here"
        if not any(self._may(verb, is_hyperpod=is_hyperpod) for verb in verbs):
            return f"verbs = {' '.join(sorted(verbs))} is not allowed here"
        return ""

    def _may(self, verb: Verb, *, is_hyperpod: bool) -> bool:
        denied, wanted = self.deny.get(Kind.VERBS, ()), self.allow.get(Kind.VERBS)
        if verb in denied or ALL in denied:
            return False
        if wanted is None:
            return is_hyperpod or verb not in NODE_VERBS
        return ALL in wanted or verb in wanted


def read(path: str) -> Allowed:
    """What the file says now; without one, what is allowed where nothing is said. Never raises."""
    why, raw = "it must be a file of root's that no one else can write", b""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(handle)
            is_roots = stat.S_ISREG(found.st_mode) and found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022
            raw = os.read(handle, MAX_BYTES + 1) if is_roots else raw
        finally:
            os.close(handle)
    except FileNotFoundError:
        return Allowed()
    except (OSError, ValueError) as err:  # a path that no file can have
        is_roots, why = False, str(err)
    if not is_roots:
        return Allowed(problem=f"{path} is not followed, so nothing is allowed here: {why}")
    try:
        return parse(raw)
    except ValueError as err:
        return Allowed(problem=f"{path} is not understood, so nothing is allowed here: {err}"[:300])


def parse(raw: bytes) -> Allowed:
    """Raises: ValueError."""
    if len(raw) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    parser = configparser.ConfigParser(
        delimiters=("=",),
        comment_prefixes=("#",),
        inline_comment_prefixes=("#",),
        interpolation=None,
        default_section="",
    )
    try:
        parser.read_string(f"[agent]\n{raw.decode()}")
    except configparser.Error as err:
        raise ValueError(" ".join(str(err).split())) from err
    unknown = set(parser.sections()) - {"agent", "allow", "deny", "caps"} or set(parser["agent"]) - {"mode"}
    if unknown:
        raise ValueError(f"{sorted(unknown)[0]} is not known")
    caps = {Counted(name): _cap(name, text) for name, text in _section(parser, "caps").items()}
    return Allowed(
        mode=Mode(parser["agent"].get("mode", Mode.ACT)),
        allow=_listed(_section(parser, "allow")),
        deny=_listed(_section(parser, "deny")),
        caps={**DEFAULT_CAPS, **caps},
    )


def _section(parser: configparser.ConfigParser, name: str) -> Mapping[str, str]:
    return parser[name] if parser.has_section(name) else {}


def _listed(section: Mapping[str, str]) -> dict[Kind, frozenset[str]]:
    found = {}
    for name, text in section.items():
        words = text.replace(",", " ").split()
        if wrong := [word for word in words if _WORD.fullmatch(word) is None]:
            raise ValueError(f"{name}: {wrong[0]!r} is no name")
        if Kind(name) is Kind.VERBS and (wrong := [word for word in words if word not in {ALL, *Verb}]):
            raise ValueError(f"{name}: {wrong[0]!r} is none of {', '.join(Verb)}")
        found[Kind(name)] = frozenset(words)
    return found


def _cap(name: str, text: str) -> tuple[int, int]:
    words = text.split()
    if len(words) != 2 or not all(word.isascii() and word.isdigit() and int(word) <= MAX_CAP for word in words):
        raise ValueError(f"{name} must be two numbers, per hour and per day, up to {MAX_CAP}")
    return int(words[0]), int(words[1])
