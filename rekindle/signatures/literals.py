"""Which literals a pattern needs: at least one of them stands in every text that the pattern matches.

The patterns of the tables use a part of the syntax of `re`: literals, escapes, classes, groups, repetitions and
look-arounds. Anything else raises ValueError, so that a new pattern cannot be read wrongly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

MAX_SPELLINGS: Final = 32  # of one run of literals and groups; beyond it a group is a run of its own

_TOKEN: Final = re.compile(
    r"(?P<look>\(\?<?[=!])|(?P<group>\((?:\?:)?)|(?P<place>\\[bBAZ]|[\^$])"
    r"|(?P<any>\[\^?\]?(?:\\.|[^\]\\])*\]|\\[dDsSwWnrt]|\.)"
    r"|\\(?P<escaped>[^a-zA-Z0-9])|(?P<literal>[^\\()|?*+{.^$\[]+(?![?*+{])|[^\\()|?*+.^$\[])"
)
_REPEAT: Final = re.compile(r"(?P<sign>[?*+])\??|\{(?P<least>\d*)(?:,\d*)?\}\??")


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a sequence: the literals of which one stands there, () for unknown text.

    `is_whole`: the part is one of its literals and nothing else, so that it joins its neighbours. "" among them: it
    may be left out.
    """

    literals: tuple[str, ...] = ()
    is_whole: bool = False


def needs_of(pattern: str, rarity: Callable[[str], int]) -> tuple[str, ...]:
    """The rarest literals, by `rarity`, of which one stands in each match; () where the pattern needs none.

    Raises: ValueError for syntax that is not read here.
    """
    part, end = _alternatives(pattern, 0, rarity)
    if end != len(pattern):
        raise ValueError(f"unmatched ')' at {end}: {pattern!r}")
    return () if "" in part.literals else tuple(dict.fromkeys(part.literals))


def _alternatives(pattern: str, at: int, rarity: Callable[[str], int]) -> tuple[_Part, int]:
    """The alternatives from `at` to the end of their group, as one part; it has literals only if each of them has."""
    found: list[_Part] = []
    while True:
        parts, at = _sequence(pattern, at, rarity)
        found.append(_rarest(parts, rarity))
        if at == len(pattern) or pattern[at] == ")":
            break
        at += 1  # the bar
    if not all(part.literals for part in found):
        return _Part(), at  # one of them may be anything
    literals = tuple(literal for part in found for literal in part.literals)
    return _Part(literals, is_whole=all(part.is_whole for part in found)), at


def _sequence(pattern: str, at: int, rarity: Callable[[str], int]) -> tuple[list[_Part], int]:
    parts: list[_Part] = []
    while at < len(pattern) and pattern[at] not in "|)":
        token = _TOKEN.match(pattern, at)
        if token is None:
            raise ValueError(f"cannot be read at {at}: {pattern!r}")
        at = token.end()
        literal = token["escaped"] or token["literal"]
        part = _Part((literal,), is_whole=True) if literal else _Part()
        if token["look"] or token["group"]:
            inner, at = _alternatives(pattern, at, rarity)
            at += 1  # the closing parenthesis
            part = inner
        repeat = _REPEAT.match(pattern, at)
        if repeat is not None:
            at = repeat.end()
            part = _repeated(part, repeat)
        if not token["look"] and not token["place"]:
            parts.append(part)
    return parts, at


def _repeated(part: _Part, repeat: re.Match[str]) -> _Part:
    if repeat["sign"] == "?" and part.is_whole:
        return _Part(("", *part.literals), is_whole=True)
    is_needed = repeat["sign"] == "+" or (repeat["sign"] is None and int(repeat["least"] or 0) > 0)
    return _Part(part.literals) if is_needed else _Part()


def _rarest(parts: Iterable[_Part], rarity: Callable[[str], int]) -> _Part:
    """Of a sequence the run of whole parts, or the other part, whose commonest literal is rarest."""
    candidates: list[_Part] = []
    run: tuple[str, ...] = ()
    is_one_run = True
    for part in parts:
        joined = tuple(before + literal for before in run or ("",) for literal in part.literals)
        if part.is_whole and len(joined) <= MAX_SPELLINGS:
            run = joined
            continue
        is_one_run = False
        candidates += [_Part(literals) for literals in (run, part.literals)]
        run = ()
    if is_one_run:
        return _Part(run, is_whole=True)
    candidates.append(_Part(run))
    needed = [part for part in candidates if part.literals and "" not in part.literals]
    return max(needed, key=lambda part: min(map(rarity, part.literals)), default=_Part())
