"""Every Action and every fault has words for people of its own, and no words are left of those that are gone."""

from __future__ import annotations

from typing import get_args

from chalicelib.domain.model.action import Action
from rekindle.protocol.signals import FaultClass
from rekindle.signatures.words import ACTIONS, FAULTS, action_word, fault_word, labelled_action


def test_every_action_has_words_of_its_own() -> None:
    names = {member.__name__ for member in get_args(Action)}
    assert set(ACTIONS) <= names
    assert len({action_word(name) for name in names}) == len(names)


def test_every_fault_reads_as_words() -> None:
    assert set(FAULTS) <= {fault.value for fault in FaultClass}
    words = [fault_word(fault.value) for fault in FaultClass]
    assert len(set(words)) == len(words)
    assert not any("_" in word for word in words)


def test_a_name_without_words_is_shown_as_the_words_that_it_is_made_of() -> None:
    assert action_word("NewAction") == "new action"
    assert labelled_action("NewAction") == "new action (NewAction)"
    assert fault_word("brand_new") == "brand new"
