"""Every branch of every rule's pattern is reached: a text made for it is found, past the prefilter and the harmless.

A rule's `needs` are written by hand beside its pattern; a branch without its literal would be dead and look alive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from re import _constants, _parser  # type: ignore[attr-defined]  # the parse of a pattern has no public face
from typing import Any, Final

import pytest

from rekindle.signatures import Label, classify
from rekindle.signatures.rule import Rule, skeleton
from rekindle.signatures.rules import HARDWARE, OTHERS

CLASSES: Final = {
    _constants.CATEGORY_DIGIT: "1",
    _constants.CATEGORY_WORD: "q",
    _constants.CATEGORY_SPACE: " ",
    _constants.CATEGORY_NOT_SPACE: "q",
    _constants.CATEGORY_NOT_WORD: " ",
    _constants.CATEGORY_NOT_DIGIT: "q",
}


def texts_of(pattern: str) -> list[str]:
    """Texts that between them take each branch of a pattern once; each is checked to match."""
    return [text for text in dict.fromkeys(_sequence(_parser.parse(pattern))) if re.search(pattern, text)]


def _sequence(items: Any) -> list[str]:
    """Of each item all its texts, the others at their first."""
    options = [_item(operation, argument) for operation, argument in items]
    firsts = [option[0] for option in options]
    made = ["".join(firsts)]
    for place, option in enumerate(options):
        made += ["".join((*firsts[:place], text, *firsts[place + 1 :])) for text in option[1:]]
    return made


def _item(operation: Any, argument: Any) -> list[str]:
    if operation is _constants.LITERAL:
        return [chr(argument)]
    if operation is _constants.ANY:
        return [" "]
    if operation is _constants.NOT_LITERAL:
        return ["q"]
    if operation is _constants.IN:
        return [_one_of(argument)]
    if operation is _constants.BRANCH:
        return [text for branch in argument[1] for text in _sequence(branch)]
    if operation is _constants.SUBPATTERN:
        return _sequence(argument[3])
    if operation in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
        least, most, item = argument
        if not least and item[0][0] is _constants.ANY:
            return [" "]  # a gap stands between words
        once = _sequence(item)
        return [text * least for text in once] if least else ["", *(once if most else ())]
    return [""]  # places and look-arounds have no text of their own


def _one_of(members: Any) -> str:
    kind, value = members[0]
    if kind is _constants.NEGATE:
        return "q"
    if kind is _constants.RANGE:
        return chr(value[0])
    return chr(value) if kind is _constants.LITERAL else CLASSES[value]


def _texts() -> Iterator[tuple[Rule, str]]:
    for rule in (*HARDWARE, *OTHERS):
        yield from ((rule, text) for text in texts_of(rule.pattern))


def test_each_branch_has_its_literal() -> None:
    dead = [
        (rule.name, text)
        for rule, text in _texts()
        if not any(skeleton(need.encode()) in skeleton(text.encode()) for need in rule.needs)
    ]
    assert not dead


@pytest.mark.parametrize("rule", [*HARDWARE, *OTHERS], ids=lambda rule: rule.name)
def test_texts_are_made_of_every_rule(rule: Rule) -> None:
    assert texts_of(rule.pattern)


def test_what_a_branch_finds_is_no_ordinary_line() -> None:
    benign = [(rule.name, text) for rule, text in _texts() if classify(text).label is Label.BENIGN]
    assert not benign
