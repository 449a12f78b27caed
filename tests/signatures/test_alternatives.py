"""Each alternative of a rule's pattern has an example that it alone matches, in its row or in the corpora."""

from __future__ import annotations

import re
from typing import Final

import pytest

from rekindle.signatures import classify
from rekindle.signatures.rule import Rule
from rekindle.signatures.rules import RULES
from tests.signatures.corpus_alternatives import ALTERNATIVES
from tests.signatures.test_corpus import EXCERPTS

_PIECE: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)


def alternatives(pattern: str) -> list[str]:
    """The pattern's parts between the bars outside its groups."""
    found, depth = [""], 0
    for piece in _PIECE.findall(pattern):
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and depth == 0:
            found.append("")
        else:
            found[-1] += piece
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.name))
def test_each_alternative_has_an_example_of_its_own(rule: Rule) -> None:
    own = ALTERNATIVES.get(rule.name, [])
    assert [text for text in own if classify(text).rule != rule.name] == []
    every = alternatives(rule.pattern)
    assert "|".join(every) == rule.pattern
    compiled = [re.compile(one) for one in every]
    texts = [text if rule.is_cased else text.lower() for text in (rule.example, *own, *(text for _, text in EXCERPTS))]
    matched = [{place for place, pattern in enumerate(compiled) if pattern.search(text)} for text in texts]
    without = [one for place, one in enumerate(every) if {place} not in matched]
    assert without == []
