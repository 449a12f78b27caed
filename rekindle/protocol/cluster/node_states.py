"""Slurm's words for the states of nodes, and what they say: one table for the agent, the service and the doctor. Pure.

The words are what Slurm's own library answers for every base state and every flag of each version (recorded under
tests/agent_slurm/recorded/*-node-states.json, which the tests hold this table against, both ways). They are kept in
lower case; what sinfo folds into one word, and what older agents wrote, is read as the same words.

A node is left alone where any part of its reason is another writer's: an administrator's, or a health check's. A reason
of slurmctld alone proves nothing, since it stays after the hardware is registered again (docs/facts-slurm.md#nodes).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rekindle.compat import StrEnum
from rekindle.protocol.cluster.orders import REASON_PREFIX, Repair

ACTION: Final = "Action:"  # what HyperPod acts on, and what its health agent writes, to the letter
_BETWEEN: Final = " : "  # how slurmctld adds a reason to one that is there. Seen on 22.05.8 to 26.05.5


class StateMeaning(StrEnum):
    """What one word says about the node."""

    WORKS = "works"  # it takes jobs, as far as no other word says otherwise
    NOTHING = "nothing"  # about its health
    DRAINED = "drained"
    FAILING = "failing"
    DOWN = "down"
    SILENT = "silent"
    INVALID = "invalid"  # its slurmd registered with less than slurm.conf says
    AWAY = "away"  # on purpose
    REBOOT = "reboot"  # Slurm reboots it, or is about to
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateWord:
    """`source` names the constant of slurm/slurm.h; `since` and `until` the first and the last version that has it, of
    those that were asked; "" for all of them."""

    word: str
    says: StateMeaning
    source: str
    is_base: bool = False
    since: str = ""
    until: str = ""


def _base(word: str, says: StateMeaning, source: str) -> StateWord:
    return StateWord(word=word, says=says, source=source, is_base=True)


def _flag(word: str, says: StateMeaning, source: str, *, since: str = "", until: str = "") -> StateWord:
    return StateWord(word=word, says=says, source=source, since=since, until=until)


WORDS: Final[Mapping[str, StateWord]] = {
    row.word: row
    for row in (
        _base("unknown", StateMeaning.UNKNOWN, "NODE_STATE_UNKNOWN"),
        _base("down", StateMeaning.DOWN, "NODE_STATE_DOWN"),
        _base("idle", StateMeaning.WORKS, "NODE_STATE_IDLE"),
        _base("allocated", StateMeaning.WORKS, "NODE_STATE_ALLOCATED"),
        _base("error", StateMeaning.DOWN, "NODE_STATE_ERROR"),
        _base("mixed", StateMeaning.WORKS, "NODE_STATE_MIXED"),
        _base("future", StateMeaning.AWAY, "NODE_STATE_FUTURE"),
        _flag("perfctrs", StateMeaning.NOTHING, "NODE_STATE_NET", until="23.11"),
        _flag("external", StateMeaning.NOTHING, "NODE_STATE_EXTERNAL", since="25.11"),
        _flag("reserved", StateMeaning.NOTHING, "NODE_STATE_RES"),  # but see `standing_of`
        _flag("cloud", StateMeaning.NOTHING, "NODE_STATE_CLOUD"),
        _flag("resume", StateMeaning.NOTHING, "NODE_RESUME"),
        _flag("drain", StateMeaning.DRAINED, "NODE_STATE_DRAIN"),
        _flag("completing", StateMeaning.NOTHING, "NODE_STATE_COMPLETING"),
        _flag("not_responding", StateMeaning.SILENT, "NODE_STATE_NO_RESPOND"),
        _flag("powered_down", StateMeaning.AWAY, "NODE_STATE_POWERED_DOWN"),
        _flag("fail", StateMeaning.FAILING, "NODE_STATE_FAIL"),
        _flag("powering_up", StateMeaning.AWAY, "NODE_STATE_POWERING_UP"),
        _flag("maintenance", StateMeaning.AWAY, "NODE_STATE_MAINT"),
        _flag("reboot_requested", StateMeaning.REBOOT, "NODE_STATE_REBOOT_REQUESTED"),
        _flag("powering_down", StateMeaning.AWAY, "NODE_STATE_POWERING_DOWN"),
        _flag("dynamic_future", StateMeaning.NOTHING, "NODE_STATE_DYNAMIC_FUTURE"),
        _flag("reboot_issued", StateMeaning.REBOOT, "NODE_STATE_REBOOT_ISSUED"),
        _flag("planned", StateMeaning.NOTHING, "NODE_STATE_PLANNED"),
        _flag("invalid_reg", StateMeaning.INVALID, "NODE_STATE_INVALID_REG"),
        _flag("power_down", StateMeaning.AWAY, "NODE_STATE_POWER_DOWN"),
        _flag("power_up", StateMeaning.AWAY, "NODE_STATE_POWER_UP"),
        _flag("dynamic_norm", StateMeaning.NOTHING, "NODE_STATE_DYNAMIC_NORM"),
        _flag("blocked", StateMeaning.NOTHING, "NODE_STATE_BLOCKED", since="24.11"),
    )
}

# What one character behind a state means. Source: sinfo(1), NODE STATE CODES.
SUFFIXES: Final[Mapping[str, str]] = {
    "*": "not_responding",
    "~": "powered_down",
    "#": "powering_up",
    "!": "power_down",
    "%": "powering_down",
    "$": "maintenance",
    "@": "reboot_requested",
    "^": "reboot_issued",
    "-": "planned",
}
# One word for a base state with a flag. Source: slurm_node_state_string of each version, as recorded.
FOLDED: Final[Mapping[str, tuple[str, str]]] = {
    "drained": ("idle", "drain"),
    "draining": ("allocated", "drain"),
    "fail": ("idle", "fail"),
    "failing": ("allocated", "fail"),
    "maint": ("idle", "maintenance"),
    "inval": ("idle", "invalid_reg"),
    "reboot": ("idle", "reboot_requested"),
    "reboot^": ("idle", "reboot_issued"),
    # short forms of `sinfo %t`. Source: sinfo(1), NODE STATE CODES
    "drng": ("allocated", "drain"),
    "failg": ("allocated", "fail"),
    "no_respond": ("down", "not_responding"),
}
_SHORT: Final = {"alloc": "allocated", "mix": "mixed", "unk": "unknown", "comp": "completing", "resv": "reserved"}
_FLAGS_ELSEWHERE: Final = {
    "maint": "maintenance",
    "invalid": "invalid_reg",
    "inval": "invalid_reg",
    "invalid_registration": "invalid_reg",  # what agents before the table wrote
    "noresp": "not_responding",
    "no_respond": "not_responding",
    "reboot": "reboot_requested",
    "resv": "reserved",
    "drained": "drain",
    "draining": "drain",
    "failing": "fail",
}


def read_state(written: str) -> tuple[str, tuple[str, ...]]:
    """`IDLE+DRAIN`, `DOWN*`, `MIXED+FAIL+NOT_RESPONDING`, `drained~` -> the base state and its flags. Total."""
    flags: list[str] = []
    base = ""
    for word in (word.strip().lower() for word in written.strip().split("+") if word.strip()):
        bare, behind = _bare(word)
        if not base:
            base, flag = _first(bare)
            flags += [flag, *behind]
        else:
            flags += [_FLAGS_ELSEWHERE.get(bare, bare), *behind]
    return base or "unknown", tuple(dict.fromkeys(flag for flag in flags if flag))


def _bare(word: str) -> tuple[str, list[str]]:
    """A word without the characters behind it, and what those mean."""
    behind: list[str] = []
    while word and word not in FOLDED and word[-1] in SUFFIXES:
        behind.append(SUFFIXES[word[-1]])
        word = word[:-1]
    return word.replace(" ", "_")[:64], behind


def _first(bare: str) -> tuple[str, str]:
    """The base state and the flag that a first word stands for; a flag alone is an idle node's."""
    bare = _SHORT.get(bare, bare)
    if bare in FOLDED:
        return FOLDED[bare]
    known = WORDS.get(bare)
    if known is None:
        return "unknown", ""
    return (bare, "") if known.is_base else ("idle", bare)


def words_of(state: str, flags: Iterable[str]) -> frozenset[str]:
    """The states in the table, and those that are not in it, of any version's document."""
    base, folded = read_state(state)
    return frozenset({base, *folded, *(_FLAGS_ELSEWHERE.get(flag.lower(), flag.lower()) for flag in flags)})


def meanings_of(words: Iterable[str]) -> frozenset[StateMeaning]:
    """What words of the table say; a word that is not there says UNKNOWN."""
    return frozenset(WORDS[word].says if word in WORDS else StateMeaning.UNKNOWN for word in words)


def that_say(*says: StateMeaning) -> frozenset[str]:
    """The words of the table that say one of these."""
    return frozenset(row.word for row in WORDS.values() if row.says in says)


# ---- reasons ---------------------------------------------------------------------------------------------------------


class Writer(StrEnum):
    """Who writes such a part of a node's reason."""

    SLURM = "slurm"
    HARDWARE = "hardware"  # slurmctld, which misses some of the node's hardware
    US = "us"
    HYPERPOD = "hyperpod"
    OTHER = "other"  # a person, or a program that we do not know


# What slurmctld and slurmstepd write by themselves; each is a whole part. Source: the texts in slurmctld and
# slurmstepd of 22.05.8, 24.11.5 and 26.05.5 (SchedMD/slurm src/slurmctld/{node_mgr,ping_nodes,job_mgr,power_save}.c).
_OWN: Final = (
    r"none|Not responding|Node unexpectedly rebooted|reboot (?:requested|issued|complete|timed out)|Reboot ASAP"
    r"|Powered down(?: after (?:resume|SuspendTimeout))?|ResumeTimeout reached|Low TmpDisk.*|Kill task failed"
    r"|(?:Prolog|Epilog) error|Prolog/Epilog failure|batch job complete failure|Duplicate jobid|Scheduler health.*"
)
# Those of them with which it drains a node because something on it went wrong. Source: the same files, and
# slurmd's req.c (Prolog, Epilog).
_DEFECT: Final = re.compile(
    r"Kill task failed|(?:Prolog|Epilog) error|Prolog/Epilog failure|batch job complete failure|Duplicate jobid"
)
_REBOOTED: Final = "reboot complete"
# Less of it than slurm.conf says. Seen on all three: `gres/gpu count reported lower than configured (1 < 2)`.
_LOST_HARDWARE: Final = (
    r"gres/[\w.:-]+ count (?:reported lower than configured|too low).*"
    r"|Low RealMemory.*|Low CPUs.*|Low socket\*core\*thread count.*"
)
_WRITERS: Final = (
    (re.compile(_OWN), Writer.SLURM),
    (re.compile(_LOST_HARDWARE), Writer.HARDWARE),
    (re.compile(re.escape(REASON_PREFIX) + r"[A-Za-z0-9._-]{1,128}"), Writer.US),  # an id: see `wire.check_id`
    (re.compile(re.escape(ACTION) + ".*"), Writer.HYPERPOD),
)


def parts_of(reason: str) -> tuple[str, ...]:
    """slurmctld adds to a reason that is there: `bob: bad fan : Not responding`. The last part is the newest."""
    return tuple(part.strip() for part in reason.split(_BETWEEN) if part.strip())


def writer_of(part: str) -> Writer:
    return next((writer for pattern, writer in _WRITERS if pattern.fullmatch(part)), Writer.OTHER)


def is_ours(reason: str) -> bool:
    """We wrote it, and only slurmctld has added to it."""
    writers = [writer_of(part) for part in parts_of(reason)]
    return writers[:1] == [Writer.US] and set(writers) <= {Writer.US, Writer.SLURM, Writer.HARDWARE}


def defect_in(reason: str) -> str:
    """The defect for which Slurm itself has drained the node, and after which it was not rebooted; empty for none."""
    found = ""
    for part in parts_of(reason):
        if _DEFECT.fullmatch(part):
            found = part
        elif part == _REBOOTED:
            found = ""
    return found


def mark_in(reason: str) -> Repair | None:
    """HyperPod's own word for a repair, whatever slurmctld has added since."""
    parts = set(parts_of(reason))
    return next((repair for repair in Repair if repair.value in parts), None)


def held_by(state: str, flags: Iterable[str], reason: str) -> str | None:
    """The reason given by a third party that took the node out of service: not slurmctld, HyperPod or Rekindle. None
    where there is none. Such a node is left alone.

    Draining a node requires a reason, and the first one is kept. Versions without accounting keep the reason of a drain
    that was lifted long ago (seen on 24.11.5), so for a node that is only down the last part decides.
    """
    says = meanings_of(words_of(state, flags))
    parts = parts_of(reason)
    if StateMeaning.DRAINED in says or StateMeaning.FAILING in says:
        if any(writer_of(part) is Writer.OTHER for part in parts):
            return reason
        return "no reason given" if not parts and StateMeaning.DRAINED in says else None
    if StateMeaning.DOWN in says and parts and writer_of(parts[-1]) is Writer.OTHER:
        return reason
    return None


def drained_for(state: str, flags: Iterable[str], reason: str) -> str:
    """The defect for which Slurm itself, and nobody else, keeps the node out of service; empty for none."""
    says = meanings_of(words_of(state, flags))
    writers = {writer_of(part) for part in parts_of(reason)}
    return defect_in(reason) if StateMeaning.DRAINED in says and writers == {Writer.SLURM} else ""


def trouble_of(state: str, flags: Iterable[str], reason: str, ending_since: datetime | None = None) -> str:
    """What the cluster itself is in trouble about with the node: it drained it for a defect, or cannot end a job on it;
    empty for nothing."""
    if ending_since is not None:
        return f"its jobs are COMPLETING since {ending_since:%H:%M} UTC: an epilog or a process there does not end"
    return drained_for(state, flags, reason)


# ---- the whole -------------------------------------------------------------------------------------------------------


class NodeStanding(StrEnum):
    """How a node stands, all words and its reason together."""

    IN_SERVICE = "in_service"
    DRAINED = "drained"  # by a person or a program: news only
    AWAY = "away"  # on purpose
    HELD = "held"  # set down by another owner
    LOST = "lost"  # Slurm cannot use it, and that was not intended
    BROKEN = "broken"  # hardware: slurmctld misses some of it, or a repair was asked for
    UNKNOWN = "unknown"


def standing_of(state: str, flags: Iterable[str], reason: str) -> NodeStanding:
    """A node that is down in a reservation is away on purpose, too: its reservation's owner may work on it. Not so
    where we have drained it before, for what we had found."""
    flags = tuple(flags)
    words = words_of(state, flags)
    says = meanings_of(words)
    is_worked_on = (
        "reserved" in words and StateMeaning.DOWN in says and not (StateMeaning.DRAINED in says and is_ours(reason))
    )
    if says & {StateMeaning.AWAY, StateMeaning.REBOOT} or is_worked_on:
        return NodeStanding.AWAY
    newest = [writer_of(part) for part in parts_of(reason)][-1:]
    if StateMeaning.FAILING in says or (StateMeaning.INVALID in says and newest == [Writer.HARDWARE]):
        return NodeStanding.BROKEN
    if StateMeaning.DOWN in says:
        return NodeStanding.LOST if held_by(state, flags, reason) is None else NodeStanding.HELD
    if StateMeaning.DRAINED in says:
        return NodeStanding.DRAINED
    return NodeStanding.IN_SERVICE if StateMeaning.WORKS in says else NodeStanding.UNKNOWN
