"""What the prefilter takes from a pattern: in every text that the pattern matches, one of its literals stands."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.signatures.harmless import HARMLESS
from rekindle.signatures.literals import needs_of
from rekindle.signatures.prefilter import needs, rarity
from rekindle.signatures.rule import Harmless, Rule, skeleton
from rekindle.signatures.rules import RULES
from tests.signatures.corpus_benign import BENIGN_LINES
from tests.signatures.corpus_faults import FAULTS
from tests.signatures.corpus_kernel import KERNEL_FAULTS, KERNEL_LINES
from tests.sizes import examples


@pytest.mark.parametrize(
    ("pattern", "literals"),
    [
        ("out of memory", {"out of memory"}),
        (r"\bhard lockup on cpu\b|\bdetected hard lockup\b", {"hard lockup on cpu", "detected hard lockup"}),
        ("exit(?:ed with)? code", {"exit code", "exited with code"}),
        ("(?:mlx4|mlx5)_core", {"mlx4_core", "mlx5_core"}),
        (r"ata\d{1,3}: failed command", {": failed command"}),
        ("colou?r", {"color", "colour"}),
        ("(?:ab+c)+ end", {" end"}),
        (r"serror: \{", {"serror: {"}),
        (r"[^\n]{0,80}panic(?! now)", {"panic"}),
        ("(?:a|.{3})", set()),
        ("x?", set()),
        (r"\d+|fatal", set()),
    ],
)
def test_the_rarest_literals_of_each_alternative(pattern: str, literals: set[str]) -> None:
    assert set(needs_of(pattern, len)) == literals


@pytest.mark.parametrize("pattern", [r"\d{3}", r"fatal|\d+", "--", "x?"])
def test_a_rule_that_would_be_tried_on_every_line_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="needs no literal"):
        needs(replace(RULES[0], pattern=pattern))


@pytest.mark.parametrize("pattern", ["(?P<name>x)", r"\1", "(?i)x", "[a", "a)", "*"])
def test_syntax_that_is_not_read_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be read|unmatched"):
        needs_of(pattern, rarity)


@pytest.mark.parametrize("rule", [*RULES, *HARMLESS], ids=lambda rule: str(rule.name))
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_each_text_that_a_rule_matches_holds_one_of_its_literals(rule: Rule | Harmless, data: st.DataObject) -> None:
    text = data.draw(st.from_regex(rule.pattern))
    assert _may_match(rule, text)


@pytest.mark.parametrize("rule", [*RULES, *HARMLESS], ids=lambda rule: str(rule.name))
def test_no_text_of_the_corpora_is_lost(rule: Rule | Harmless) -> None:
    faults = [text for table in (FAULTS, KERNEL_FAULTS) for texts in table.values() for text in texts]
    lost = [
        text
        for text in (rule.example, *faults, *KERNEL_LINES, *BENIGN_LINES)
        if re.search(rule.pattern, text if isinstance(rule, Rule) and rule.is_cased else text.lower())
        and not _may_match(rule, text)
    ]
    assert not lost


def _may_match(rule: Rule | Harmless, text: str) -> bool:
    shape = skeleton(text.encode("utf-8", "replace"))
    return any(skeleton(literal.encode()) in shape for literal in needs(rule))
