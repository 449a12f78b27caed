"""Every label on lines of its own, and no ordinary line called a fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rekindle.signatures import BENIGN, LABELS, Label, classify
from rekindle.signatures.harmless import HARMLESS
from rekindle.signatures.rule import Harmless, Rule
from rekindle.signatures.rules import RULES
from tests.signatures.corpus_benign import BENIGN_LINES
from tests.signatures.corpus_faults import FAULTS
from tests.signatures.corpus_kernel import KERNEL_FAULTS, KERNEL_LINES

TABLES = (FAULTS, KERNEL_FAULTS)
# Written from the same drivers' format strings, one a line: LABEL|TEXT.
LINES = [
    (Label(label), text)
    for label, _, text in (
        line.partition("|") for line in Path(__file__).with_name("kernel_lines.txt").read_text("utf-8").splitlines()
    )
]
EXCERPTS = [
    *((label, text) for table in TABLES for label, texts in table.items() for text in texts),
    *((label, text) for label, text in LINES if label is not Label.BENIGN),
]
ORDINARY = (*BENIGN_LINES, *KERNEL_LINES, *(text for label, text in LINES if label is Label.BENIGN))


def _shown(value: object) -> str:
    return str(value)[:60]


def test_the_corpus_is_large_and_knows_every_label() -> None:
    assert {label for label, _ in EXCERPTS} | {Label.BENIGN} == set(Label)
    assert len(EXCERPTS) > 350
    assert len(ORDINARY) > 200


@pytest.mark.parametrize(("label", "text"), EXCERPTS, ids=_shown)
def test_an_excerpt_has_its_label(label: Label, text: str) -> None:
    assert classify(text).label is label


@pytest.mark.parametrize(("label", "text"), [item for item in EXCERPTS if "\n" in item[1]], ids=_shown)
def test_several_lines_may_come_as_one(label: Label, text: str) -> None:
    """A log line cannot hold line ends: they arrive as spaces, written out, or inside a JSON record."""
    for joined in (text.replace("\n", " "), text.replace("\n", "\\n"), json.dumps({"log": text, "stream": "stderr"})):
        assert classify(joined).label is label


@pytest.mark.parametrize("text", ORDINARY, ids=_shown)
def test_an_ordinary_line_is_benign(text: str) -> None:
    assert classify(text) == BENIGN
    assert classify(text.replace("\n", " ")) == BENIGN


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.name))
def test_a_rule_speaks_for_its_own_example(rule: Rule) -> None:
    verdict = classify(rule.example)
    assert (verdict.rule, verdict.label) == (rule.name, rule.label)
    assert rule.source


@pytest.mark.parametrize("row", HARMLESS, ids=lambda row: str(row.name))
def test_a_harmless_phrase_is_benign_and_names_its_source(row: Harmless) -> None:
    assert classify(row.example) == BENIGN
    assert row.source


def test_names_of_rules_are_unique_and_every_label_has_a_row() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert set(LABELS) == set(Label)
    assert all(row.source for row in LABELS.values())
    by_xid_alone = {
        Label.XID_31_MMU_FAULT,
        Label.XID_13_SM_EXCEPTION,
        Label.XID_GPU_FAULT,
        Label.XID_APPLICATION_FAULT,
    }
    assert {rule.label for rule in RULES} | {Label.BENIGN} | by_xid_alone == set(Label)


def test_only_benign_has_no_fault() -> None:
    assert [label for label, row in LABELS.items() if row.fault is None] == [Label.BENIGN]


@pytest.mark.long
def test_between_ordinary_lines_the_fault_is_still_found() -> None:
    noise = "\n".join((*BENIGN_LINES[:20], *KERNEL_LINES[:20]))[-1500:]
    for label, text in EXCERPTS:
        assert classify(f"{noise}\n{text}\n{noise}").label is label
