"""The policies of the functions' roles: infra/policies/<function>.json, written by hand and deployed as they are.

Each names what its function calls and on what. The embedded cloud denies a function every other call, which fails the
test that made it; tests/security/test_permissions.py names what is allowed and not used.
docs/reference/iam.md is written from the same files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from infra.functions import INFRA

POLICIES: Final = INFRA / "policies"

# Policies that functions share, for the buckets of the parameter: a role's inline policies hold 10,240 characters in
# all, too few for thirty long names beside the function's own statements. Source: IAM user guide, IAM and STS quotas.
# With each: the statement of a function's own policy that gives the same rights on the stack's bucket.
SHARED: Final[Mapping[str, str]] = {
    "training_buckets_read": "ReadCheckpoints",
    "training_buckets_write": "WriteMailbox",
}


def policy(name: str) -> dict[str, Any]:
    """The policy of a function, or one that several roles carry."""
    return dict(json.loads((POLICIES / f"{name}.json").read_text(encoding="utf-8")))


def statements(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A policy's statements, also those that depend on a condition of the template."""
    for entry in document["Statement"]:
        yield dict(entry["Fn::If"][1] if "Fn::If" in entry else entry)


def shared_policies(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Which of the shared policies a function with this policy of its own carries, where there are other buckets."""
    own = {statement["Sid"] for statement in statements(document)}
    return tuple(name for name, sid in SHARED.items() if sid in own)
