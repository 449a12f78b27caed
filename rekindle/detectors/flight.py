"""Which rank holds a stalled run up, from what each rank's flight recorder holds. Pure.

A collective ends when all members of its group have entered it. So a rank waits, from the oldest call of it that has
not ended, for those members that have not entered that call: their last number in the group is lower, or they have told
nothing. Some of those wait themselves, in another group. Who waits for nobody, and is waited for, is the one.
A rank that has entered another operation than the others, or one with another size, or waits in another group while
they wait for it, is named as well; but it is the code that led it there, seldom its node.

"Nobody is missing" is a verdict too: no rank waits, or all have entered. What was not recorded is not seen (gloo's
barrier, send and receive are not), so no confidence reaches `rank_rules.STRONG` here: `rekindle.detectors.ranks` joins
this with the stacks, the steps and the silence.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rekindle.detectors.rank_rules import FlightRule
from rekindle.protocol.flights import MAX_GROUPS, CallState, Flight, GroupFlight, ranks_of

DEFAULT_GROUP: Final = "default_pg"  # Source: torch.distributed.distributed_c10d, the description of the group of all
MAX_NAMED_RANKS: Final = 8
SMALL: Final = 4  # a minority is at most a quarter, or one
# Operations whose tensors have the same shape and type on each rank. Source: torch.distributed, each one's contract.
SAME_TENSORS: Final = frozenset({
    "all_reduce", "allreduce", "broadcast", "reduce", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor",
    "_all_gather_base", "all_gather_into_tensor", "allreduce_coalesced", "barrier",
})  # fmt: skip
_PEER: Final = re.compile(r"(?:send|recv) \d{1,7}(?:->|<-)(?P<peer>\d{1,7})\Z")


# What a run's code leads to, on whichever node the rank is.
OF_THE_CODE: Final = frozenset({FlightRule.MISMATCHED, FlightRule.ELSEWHERE})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A process group at the oldest collective that has not ended somewhere; `seq` is None where all have.

    `missing` have told that they have not entered it, `mute` have told nothing, `odd` have entered something else.
    `members` are those known of, all of them only where `is_whole`.
    """

    name: str
    members: frozenset[int]
    is_whole: bool
    seq: int | None = None
    op: str = ""
    waiting: frozenset[int] = frozenset()
    missing: frozenset[int] = frozenset()
    mute: frozenset[int] = frozenset()
    odd: frozenset[int] = frozenset()
    difference: str = ""

    @property
    def holders(self) -> frozenset[int]:
        """For whom those wait that wait in it."""
        return self.missing | self.mute | self.odd


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightVerdict:
    ranks: tuple[int, ...]
    confidence: float
    rule: FlightRule
    text: str
    groups: tuple[GroupView, ...] = ()


@dataclass(slots=True)
class _Held:
    """One group as the ranks hold it that do."""

    flights: dict[int, GroupFlight] = field(default_factory=dict)


def who_is_missing(flights: Mapping[int, Flight], world_size: int) -> FlightVerdict:
    """The verdict on the ranks' recorders; ranks that `flights` lacks have told nothing. Never raises."""
    told = {rank: flight for rank, flight in flights.items() if 0 <= rank < world_size and flight.groups}
    if world_size < 2:
        return _unknown("there is only one rank")
    if 2 * len(told) <= world_size and not (world_size == 2 and told):
        return _unknown(f"only {len(told)} of {world_size} flight recorders are known")
    groups = tuple(_group_views(told, world_size))
    waits_for = _peers(told, groups)
    waiting = frozenset[int]().union(*(group.waiting for group in groups)) | waits_for.keys()
    blocked = [group for group in groups if group.holders and group.waiting]
    if not waiting:
        return _nobody_waits(told, world_size, groups)
    held_up = frozenset[int]().union(*(group.holders for group in blocked), *waits_for.values())
    roots = frozenset(rank for rank in held_up if rank not in waiting)
    if roots:
        return _not_entered(roots, told, blocked, waits_for, world_size, groups)
    if not blocked:
        return _all_entered(told, groups, world_size)
    return _in_another(blocked, world_size, groups)


def _group_views(told: Mapping[int, Flight], world_size: int) -> Iterable[GroupView]:
    held: dict[tuple[str, str, str, str], _Held] = defaultdict(_Held)
    for rank, flight in sorted(told.items()):
        for group in flight.groups:
            held[group.name, group.desc, group.backend, group.ranks].flights[rank] = group
    for (name, desc, _, ranks), records in held.items():
        members = ranks_of(ranks, world_size) if ranks else frozenset[int]()
        if not members and desc == DEFAULT_GROUP:
            members = frozenset(range(world_size))
        called = f"{name[:16]} ({desc})" if desc and desc != "undefined" else name[:32]
        yield _view(called, members, records.flights, told)


def _view(name: str, members: frozenset[int], held: Mapping[int, GroupFlight], told: Mapping[int, Flight]) -> GroupView:
    is_whole, everybody = bool(members), members | held.keys()
    waits = {rank: call for rank, group in held.items() if (call := group.first_waiting) is not None}
    if not waits:
        return GroupView(name=name, members=everybody, is_whole=is_whole)
    seq = min(call.seq for call in waits.values())
    waiting = frozenset(rank for rank, call in waits.items())
    # Of a rank that has more groups than it tells of, one that it does not name is not known.
    knows = {rank for rank in everybody if rank in held or (rank in told and len(told[rank].groups) < MAX_GROUPS)}
    missing = frozenset(rank for rank in knows if rank not in held or held[rank].entered < seq)
    odd, op, difference = _odd(seq, {rank: group for rank, group in held.items() if rank not in missing})
    return GroupView(
        name=name,
        members=everybody,
        is_whole=is_whole,
        seq=seq,
        op=op,
        waiting=waiting,
        missing=missing,
        mute=frozenset(rank for rank in everybody if rank not in told),
        odd=frozenset() if missing else odd,
        difference=difference,
    )


def _odd(seq: int, held: Mapping[int, GroupFlight]) -> tuple[frozenset[int], str, str]:
    """Who has entered something else under that number, what most have entered, and the difference in words."""
    calls = {rank: call for rank, group in held.items() if (call := group.at(seq)) is not None}
    kinds = {rank: (call.op, call.tensors if call.op in SAME_TENSORS else "") for rank, call in calls.items()}
    counted = Counter(kinds.values()).most_common()
    if not counted:
        return frozenset(), "", ""
    common, count = counted[0]
    if len(counted) == 1:
        return frozenset(), common[0], ""
    odd = frozenset(rank for rank, kind in kinds.items() if kind != common)
    if 2 * count <= len(kinds):
        odd = frozenset(kinds)  # no side is the larger one
    other = next(kind for kind in kinds.values() if kind != common)
    return odd, common[0], f"{' '.join(other).strip()}, the others {' '.join(common).strip()}"


def _peers(told: Mapping[int, Flight], groups: Iterable[GroupView]) -> dict[int, frozenset[int]]:
    """For whom a rank waits in a send or a receive; empty where the recorder does not say."""
    members = {group.name: sorted(group.members) for group in groups if group.is_whole}
    found: dict[int, frozenset[int]] = {}
    for rank, flight in told.items():
        for group in flight.groups:
            for call in group.calls:
                if not call.is_p2p or call.state is CallState.DONE:
                    continue
                match = _PEER.search(call.op)
                place = None if match is None else int(match["peer"])
                of = next((ranks for name, ranks in members.items() if name.startswith(group.name[:16])), None)
                peer = of[place] if of is not None and place is not None and place < len(of) else None
                found[rank] = found.get(rank, frozenset()) | ({peer} if peer is not None else frozenset())
    return found


def _not_entered(
    roots: frozenset[int],
    told: Mapping[int, Flight],
    blocked: Iterable[GroupView],
    waits_for: Mapping[int, frozenset[int]],
    world_size: int,
    groups: tuple[GroupView, ...],
) -> FlightVerdict:
    blocked = [group for group in blocked if group.holders & roots]
    if not blocked:
        waiting = sorted(rank for rank, peers in waits_for.items() if peers & roots)
        text = f"{ranks_word(waiting)} {_verb(waiting, 'waits', 'wait')} in a send or receive for {ranks_word(roots)}"
        return _verdict(roots, 0.6, FlightRule.NOT_ENTERED, text, world_size, groups)
    group = max(blocked, key=lambda group: len(group.waiting))
    if roots <= group.odd:
        return _mismatched(group, world_size, groups)
    detail = f"{ranks_word(roots)} {_verb(roots, 'has', 'have')} not entered {_call(group)}, "
    detail += f"in which {len(group.waiting)} of {len(group.members)} ranks wait"
    mute = roots - told.keys()
    if mute:
        detail += f"; of {ranks_word(mute)} no recorder is known"
    return _verdict(roots, 0.6 if mute else 0.75, FlightRule.NOT_ENTERED, detail, world_size, groups)


def _mismatched(group: GroupView, world_size: int, groups: tuple[GroupView, ...]) -> FlightVerdict:
    odd, is_even = group.odd, 2 * len(group.odd) >= len(group.members)
    text = f"{ranks_word(odd)} {_verb(odd, 'has', 'have')} entered {_call(group)} as {group.difference}"
    if is_even:
        text = f"the ranks have entered {_call(group)} differently: {group.difference}; no side is the larger one"
    return _verdict(odd, 0.4 if is_even else 0.7, FlightRule.MISMATCHED, text, world_size, groups)


def _in_another(blocked: list[GroupView], world_size: int, groups: tuple[GroupView, ...]) -> FlightVerdict:
    """Those who are waited for all wait themselves: the group in which most wait is held against the others."""
    blocked = sorted(blocked, key=lambda group: len(group.waiting), reverse=True)
    group = blocked[0]
    if group.odd:
        return _mismatched(group, world_size, groups)
    if len(blocked) > 1 and len(blocked[1].waiting) == len(group.waiting):
        return _unknown(f"groups {group.name} and {blocked[1].name} wait for each other's ranks", groups)
    where = next((other for other in groups if other is not group and other.waiting & group.holders), None)
    place = f" and {_verb(group.holders, 'waits', 'wait')} in {_call(where)}" if where is not None else ""
    text = f"{ranks_word(group.holders)} {_verb(group.holders, 'has', 'have')} not entered {_call(group)}{place}"
    text += f"; {len(group.waiting)} ranks wait there"
    return _verdict(group.holders, 0.7, FlightRule.ELSEWHERE, text, world_size, groups)


def _all_entered(told: Mapping[int, Flight], groups: tuple[GroupView, ...], world_size: int) -> FlightVerdict:
    """Nobody is missing on the hosts. Where the device of a few has not begun what it has begun elsewhere, they are."""
    waited_in = [group for group in groups if group.waiting]
    group = max(waited_in, key=lambda group: len(group.waiting), default=None)
    if group is None:
        return _unknown("ranks wait in sends and receives whose other side is not known", groups)
    states = {
        rank: call.state
        for rank in group.waiting
        for own in told[rank].groups
        if (call := own.first_waiting) is not None and call.seq == group.seq
    }
    late = frozenset(rank for rank, state in states.items() if state is CallState.WAITING)
    if late and CallState.STARTED in states.values() and _is_few(len(late), world_size):
        text = f"all have entered {_call(group)}; {ranks_word(late)} {_verb(late, 'has', 'have')} not begun it"
        return _verdict(late, 0.6, FlightRule.NOT_STARTED, text, world_size, groups)
    known = "all" if group.is_whole else "all known"
    text = f"nobody is missing: {known} {len(group.members)} ranks have entered {_call(group)}, and it does not end"
    return _verdict(frozenset(), 0.6, FlightRule.ALL_ENTERED, text, world_size, groups)


def _nobody_waits(told: Mapping[int, Flight], world_size: int, groups: tuple[GroupView, ...]) -> FlightVerdict:
    if len(told) < world_size:
        text = f"none of the {len(told)} ranks that are known waits in a collective; {world_size - len(told)} are mute"
        return _unknown(text, groups)
    text = f"nobody is missing: none of {world_size} ranks waits in a collective that is recorded"
    return _verdict(frozenset(), 0.7, FlightRule.NOBODY_WAITS, text, world_size, groups)


def _verdict(
    ranks: frozenset[int],
    confidence: float,
    rule: FlightRule,
    text: str,
    world_size: int,
    groups: tuple[GroupView, ...],
) -> FlightVerdict:
    if ranks and not _is_few(len(ranks), world_size):
        confidence = min(confidence, 0.4)
    return FlightVerdict(ranks=tuple(sorted(ranks)), confidence=confidence, rule=rule, text=text, groups=groups)


def _unknown(text: str, groups: tuple[GroupView, ...] = ()) -> FlightVerdict:
    return FlightVerdict(ranks=(), confidence=0.0, rule=FlightRule.UNKNOWN, text=text, groups=groups)


def _is_few(count: int, world_size: int) -> bool:
    return count * SMALL <= world_size or count == 1


def _call(group: GroupView) -> str:
    return f"{group.op or 'collective'} {group.seq} of group {group.name}"


def _verb(ranks: Iterable[int], one: str, more: str) -> str:
    return one if len(list(ranks)) == 1 else more


def ranks_word(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0, 1, 2 and 9 more`."""
    listed = sorted(ranks)
    shown = ", ".join(map(str, listed[:MAX_NAMED_RANKS]))
    more = f" and {len(listed) - MAX_NAMED_RANKS} more" if len(listed) > MAX_NAMED_RANKS else ""
    return f"rank{'s' if len(listed) != 1 else ''} {shown}{more}"
