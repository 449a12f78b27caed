"""Every Action and every fault has words for people, and no words are left of those that are gone."""

from __future__ import annotations

from typing import get_args

from chalicelib.domain.model.action import Action
from rekindle.signatures.faults import FaultClass
from rekindle.signatures.words import ACTIONS, FAULTS, action_word, fault_word


def test_every_action_has_words_of_its_own() -> None:
    assert set(ACTIONS) == {one.__name__ for one in get_args(Action)}
    assert len(set(ACTIONS.values())) == len(ACTIONS)


def test_every_fault_reads_as_words() -> None:
    assert set(FAULTS) <= {fault.value for fault in FaultClass}
    words = [fault_word(fault.value) for fault in FaultClass]
    assert len(set(words)) == len(words)
    assert not any("_" in word for word in words)


def test_what_is_not_known_is_told_as_it_is() -> None:
    assert action_word("NewAction") == "NewAction"
    assert fault_word("brand_new") == "brand new"
