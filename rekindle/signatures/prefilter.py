"""Selects the rules that could match a line: by the words it holds, cached by its shape.

A training log repeats a few hundred messages with changing numbers. The rules whose literals occur in a line's skeleton
(lower case, without digits) are cached under that skeleton, mostly none, so the next line of the same shape costs one
lookup. A new shape is split into words, and only words that hold the core of a literal are examined further. The result
never depends on the filter: the rules left out could not have matched (tests/signatures compares it with the plain
search). Both caches are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from rekindle.signatures.literals import needs_of
from rekindle.signatures.rule import Harmless, Rule, skeleton

MAX_SHAPES: Final = 4096
MAX_SHAPE_BYTES: Final = 1024  # longer lines are looked at afresh each time
MAX_WORDS: Final = 32_768
MAX_WORD_BYTES: Final = 48
MIN_KEYWORD: Final = 2  # one letter stands in nearly every word: such a literal is looked for as it is

_WORD: Final = re.compile(rb"[a-z_]+")
_LETTERS: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz_")
_TO_SPACE: Final = bytes(byte if byte in _LETTERS else 0x20 for byte in range(256))
# Words of any training log; a literal's keyword is another of its words, where it has one.
_COMMON: Final = frozenset(
    b"loss norm scale memory device grad node gpu model by user to in is on the of at a no not job limit time data"
    b" worker shared launch space down code with has been context nccl work net can cannot be scaler line info signal"
    b" or are rows row page file state store socket read".split()
)


class Prefilter:
    """Finds the rules (by their place in the list given) that could match a line. Not for use from several threads at
    once, except that the worst of it would be a look-up done twice.
    """

    def __init__(self, rules: Sequence[Rule | Harmless], *, extra: Sequence[str] = ()) -> None:
        """`extra` literals stand behind the rules, each with its own place, for what is not a table."""
        self._needs: list[tuple[bytes, int]] = [
            (skeleton(need.encode()), place) for place, rule in enumerate(rules) for need in needs(rule)
        ]
        self._needs += [(skeleton(need.encode()), len(rules) + place) for place, need in enumerate(extra)]
        self._by_keyword: dict[bytes, list[tuple[bytes, int]]] = {}
        self._without_keyword: list[tuple[bytes, int]] = []
        for need, place in self._needs:
            keyword = _keyword(need) if _WORD.search(need) else b""
            if len(keyword) < MIN_KEYWORD:
                self._without_keyword.append((need, place))
            else:
                self._by_keyword.setdefault(keyword, []).append((need, place))
        self._shapes: dict[bytes, tuple[int, ...]] = {}
        self._words: dict[bytes, tuple[bytes, ...]] = {}
        self._plain: set[bytes] = set()

    def candidates(self, shape: bytes) -> tuple[int, ...]:
        """The places of the rules of which a literal stands in this skeleton, in order."""
        known = self._shapes.get(shape)
        if known is not None:
            return known
        found = self._search(shape)
        if len(shape) <= MAX_SHAPE_BYTES:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            self._shapes[shape] = found
        return found

    def search_all(self, shape: bytes) -> tuple[int, ...]:
        """The same answer by the plain way: every literal, one after the other."""
        return tuple(sorted({place for need, place in self._needs if need in shape}))

    def _search(self, shape: bytes) -> tuple[int, ...]:
        found: set[int] = set()
        for need, place in self._without_keyword:
            if need in shape:
                found.add(place)
        words = shape.translate(_TO_SPACE).split()
        if not self._plain.issuperset(words):
            keywords: set[bytes] = set()
            for word in words:
                if word not in self._plain:
                    keywords.update(self._keywords_in(word))
            found.update(place for keyword in keywords for need, place in self._by_keyword[keyword] if need in shape)
        return tuple(sorted(found)) if found else ()

    def _keywords_in(self, word: bytes) -> tuple[bytes, ...]:
        known = self._words.get(word)
        if known is not None:
            return known
        found = tuple(keyword for keyword in self._by_keyword if keyword in word)
        if len(word) <= MAX_WORD_BYTES:
            if len(self._words) + len(self._plain) >= MAX_WORDS:
                self._words.clear()
                self._plain.clear()
            if found:
                self._words[word] = found
            else:
                self._plain.add(word)
        return found


def needs(rule: Rule | Harmless) -> tuple[str, ...]:
    """Literals of which one stands in every text that the rule matches.

    Raises: ValueError for a rule's pattern that needs no letters: it would have to be tried on every line. A harmless
    phrase may do without them, since it is looked for only where a rule has matched.
    """
    found = needs_of(rule.pattern, rarity)
    if not found or (isinstance(rule, Rule) and not all(map(rarity, found))):
        raise ValueError(f"the pattern of {rule.name} needs no literal")
    return found


def rarity(literal: str) -> int:
    """How rarely a literal stands in ordinary lines: by the length of its keyword, then its own; 0 without letters."""
    letters = skeleton(literal.encode("utf-8", "replace"))
    if not _WORD.search(letters):
        return 0
    keyword = _keyword(letters)
    return 1 if keyword in _COMMON else 2 * len(keyword) + len(letters)


def _keyword(need: bytes) -> bytes:
    """The word of a literal that ordinary lines hold least often; it lies within one word of any line that holds it."""
    words: list[bytes] = _WORD.findall(need)
    if not words:
        raise ValueError(f"a literal needs a letter: {need!r}")
    telling: list[bytes] = [word for word in words if word not in _COMMON] or words
    return max(telling, key=len)
