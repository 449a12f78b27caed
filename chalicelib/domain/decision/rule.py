"""A rule, and tuples of rules in which the first that decides wins. Pure.

A tuple of rules reads from top to bottom: a rule is asked only where none above it has decided. So precedence is the
order of the rows, and nothing else. docs/rules.md is written from the tuples (rules/tuples.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Concatenate, Generic, ParamSpec

from chalicelib.domain.decision.verdict import Decision, RuleContext

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Rule(Generic[P]):
    """One row of a tuple of rules.

    `names` are the values of `Decision.rule` by which it decides; a rule that only asks another tuple has none. The
    function is called like one of its names or, where rows of several tuples decide by one name, by what it is about.
    `decide` returns a Decision; or None, and the next rule is asked; or a context, with something noted on its
    Incident, with which the next rules are asked.
    """

    names: tuple[str, ...]
    decide: Callable[Concatenate[RuleContext, P], Decision | RuleContext | None]

    def __call__(self, context: RuleContext, /, *args: P.args, **kwargs: P.kwargs) -> Decision | RuleContext | None:
        return self.decide(context, *args, **kwargs)

    @property
    def text(self) -> str:
        """What docs/rules.md says of it: the first line of its docstring."""
        return (self.decide.__doc__ or "").strip().partition("\n")[0]


def rule(
    *names: str,
) -> Callable[[Callable[Concatenate[RuleContext, P], Decision | RuleContext | None]], Rule[P]]:
    """Make a function a row of a tuple of rules; `names` are what it may set `Decision.rule` to."""

    def decorated(decide: Callable[Concatenate[RuleContext, P], Decision | RuleContext | None]) -> Rule[P]:
        return Rule(names, decide)

    return decorated


def first_decision(
    rules: Sequence[Rule[P]], context: RuleContext, /, *args: P.args, **kwargs: P.kwargs
) -> Decision | None:
    """The Decision of the first rule that decides; None where none does."""
    for row in rules:
        found = row(context, *args, **kwargs)
        if isinstance(found, Decision):
            return found
        context = found or context
    return None


def decided_by(rules: Sequence[Rule[P]], context: RuleContext, /, *args: P.args, **kwargs: P.kwargs) -> Decision:
    """The same of a tuple whose last rule always decides. Raises: ValueError: none of them has."""
    decision = first_decision(rules, context, *args, **kwargs)
    if decision is None:
        raise ValueError(f"no rule decides: {', '.join(name for row in rules for name in row.names)}")
    return decision


def changed_by(changes: Sequence[Rule[[Decision]]], context: RuleContext, decision: Decision) -> Decision:
    """What the rows of `changes`, each asked with the Decision as it is by then, have made of it."""
    for row in changes:
        found = row(context, decision)
        if isinstance(found, Decision):
            decision = found
    return decision
