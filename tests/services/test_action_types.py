"""Each type of Action has one handler, words, and a word of the guards where it may harm."""

from __future__ import annotations

import inspect
import typing

import pytest

from chalicelib.domain.model.action import ACTIONS
from chalicelib.domain.model.node_actions import ActionBase
from chalicelib.domain.policy.guard_rules import Harm
from chalicelib.services.perform import perform
from chalicelib.services.perform.perform import HANDLERS
from rekindle.signatures import words


def test_each_type_of_action_is_carried_out_by_one_handler() -> None:
    assert set(HANDLERS) == set(ACTIONS)
    assert len(set(ACTIONS)) == len(ACTIONS)


@pytest.mark.parametrize("kind", ACTIONS, ids=lambda kind: kind.__name__)
def test_its_handler_takes_it(kind: type[ActionBase]) -> None:
    handler = HANDLERS[kind]  # type: ignore[index]
    hint = typing.get_type_hints(handler, vars(perform))["action"]
    assert kind in (typing.get_args(hint) or (hint,)), inspect.signature(handler)


@pytest.mark.parametrize("kind", ACTIONS, ids=lambda kind: kind.__name__)
def test_it_has_words_and_says_whether_it_may_harm(kind: type[ActionBase]) -> None:
    label = kind.label.fget(object.__new__(kind))  # type: ignore[attr-defined]
    assert label == f"{words.action_word(kind.__name__)} ({kind.__name__})"
    assert (kind.__name__ in set(Harm)) is kind.harmful


def test_every_class_of_an_action_is_in_the_one_list() -> None:
    written = {kind.__name__ for kind in ActionBase.__subclasses__() if kind.__module__.startswith("chalicelib.")}
    assert written == {action.__name__ for action in ACTIONS}
