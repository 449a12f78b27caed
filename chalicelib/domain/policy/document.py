"""What the user allows. A validated document; every Decision names the version it used.

A document is JSON; a missing key takes the built-in value, an unknown key is an error (a misspelt limit must not be
silently ignored). Durations are seconds on the wire and timedelta inside. Each field is declared once, here or in
groups.py; docs/reference/policy.md and docs/policy.schema.json are written from the declarations by infra/policy_docs.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from chalicelib.domain.model.errors import InvalidPolicy
from chalicelib.domain.policy.fields import (
    Rows,
    declared,
    group,
    member_path,
    read_record,
    write_record,
)
from chalicelib.domain.policy.groups import Approvals, BreakerLimits, Budgets, Loss, Nodes, Resubmission, Timing
from chalicelib.domain.policy.guard_rules import Window
from chalicelib.domain.policy.kinds import Exactly, Flag, Text
from chalicelib.domain.policy.playbooks import PLAYBOOKS, Deadline, Playbook, PlaybookTable
from rekindle.protocol.signals import FaultClass

SCHEMA: Final = 1
# Fields that bound each other, as paths in the document: the first must not exceed the second.
NOT_ABOVE: Final = (("timing.hang_deadline_s", "timing.checkpoint_deadline_s"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Limits, waits and playbooks, by group. The built-in policy is `Policy()`."""

    schema: int = declared(
        SCHEMA, Exactly(SCHEMA), "version of this format", whom="those who keep documents over upgrades"
    )
    name: str = declared(
        "default",
        Text(1, 64),
        "what people call it; the name under which it is stored",
        whom="those with more than one policy",
    )
    version: str = declared(
        "builtin",
        Text(1, 64),
        "left out, it is a hash of the content, so equal content is equal policy",
        whom="those who keep documents in version control",
    )
    shadow: bool = declared(
        False, Flag(), "decide and tell, do nothing", whom="those who want to see what would be done first"
    )
    budgets: Budgets = group(Budgets)
    timing: Timing = group(Timing)
    resubmission: Resubmission = group(Resubmission)
    loss: Loss = group(Loss)
    nodes: Nodes = group(Nodes)
    approvals: Approvals = group(Approvals)
    breaker: BreakerLimits = group(BreakerLimits)
    windows: tuple[Window, ...] = declared(
        (),
        Rows(Window),
        "at what hours which steps are held",
        whom="those with maintenance, or with hours without staff",
    )
    playbooks: tuple[Playbook, ...] = declared(
        PLAYBOOKS,
        PlaybookTable(),
        "what is done first about each fault",
        whom="those who want another first response to a fault",
    )

    def playbook(self, fault: FaultClass) -> Playbook:
        """The row for `fault`. Total: every fault class has one."""
        return next(row for row in self.playbooks if row.fault is fault)

    def deadline(self, row: Playbook) -> timedelta:
        """How long an emergency checkpoint may take under `row`."""
        match row.deadline:
            case Deadline.SHORT:
                return self.timing.hang_deadline
            case Deadline.FULL:
                return self.timing.checkpoint_deadline
            case Deadline.NONE:
                return timedelta(0)

    @property
    def node_look_min(self) -> timedelta:
        """Shortest interval between two observations of a node."""
        return max(timedelta(seconds=1), self.timing.look_max / 2)

    @property
    def node_look_max(self) -> timedelta:
        """Longest interval between two observations of a node; five times that after two hours."""
        return 3 * self.timing.look_max

    def to_wire(self) -> dict[str, Any]:
        """The document, complete; `from_wire` gives the same Policy back."""
        return write_record(self)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Policy:
        """Read a complete or partial document.

        Raises:
            InvalidPolicy: names the first field that is wrong, unknown or out of range.
        """
        policy = read_record(cls, "", wire)
        for field, problem in contradictions(policy):
            raise InvalidPolicy(field, problem)
        return policy if "version" in wire else dataclasses.replace(policy, version=content_version(policy))


def pinned(document: Mapping[str, Any]) -> Policy:
    """`Policy.from_wire` of a document that an Incident carries: each observation reads the same one, so it is cached.

    Raises: InvalidPolicy.
    """
    return _pinned(json.dumps(document))


def readable(document: Mapping[str, Any] | None) -> Policy | None:
    """`pinned`; None without a document, and for one in a form of another version that this one cannot read.

    After an upgrade or a rollback an open Incident may carry such a document. The Job's policy of now counts then.
    """
    if document is None:
        return None
    try:
        return pinned(document)
    except InvalidPolicy:
        return None


@functools.lru_cache(maxsize=64)
def _pinned(text: str) -> Policy:
    return Policy.from_wire(json.loads(text))


def content_version(policy: Policy) -> str:
    """A short hash of what the policy says, whatever it is called."""
    body = policy.to_wire()
    body.pop("version")
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return "sha-" + hashlib.sha256(text.encode()).hexdigest()[:12]


def contradictions(policy: Policy) -> Iterator[tuple[str, str]]:
    """Fields that cannot both count, each with what is wrong; every single one is in its range."""
    values = flat(policy.to_wire())
    for low, high in NOT_ABOVE:
        if values[low] > values[high]:
            yield low, f"is {values[low]} and must not exceed {high}, which is {values[high]}"


def flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document's values by path, `budgets.max_attempts`; a list is one value."""
    return dict(_flat("", document))


def overlaid(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`document` with the values of `changes` in place of its own, group by group; a list is replaced whole."""
    merged = dict(document)
    for key, value in changes.items():
        own = merged.get(key)
        merged[key] = overlaid(own, value) if isinstance(own, Mapping) and isinstance(value, Mapping) else value
    return merged


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(member_path(path, str(name)), inner)
    else:
        yield path, value


DEFAULT_POLICY: Final = Policy()
