"""Which policy counts for an Incident, or by its name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from chalicelib.domain.model.errors import Permanent
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy, readable

if TYPE_CHECKING:
    from chalicelib.ports.operator import Policies


def incident_policy(incident: Incident, policies: Policies) -> Policy:
    """The policy pinned on the Incident, else (none, or one that only another version can read) the one of its name."""
    return readable(incident.policy_document) or named_policy(incident.policy_name, policies)


def named_policy(name: str, policies: Policies) -> Policy:
    """The policy of this name as it is stored now.

    A policy that is missing or invalid must not stop protection, and must not act beyond what the user meant: the
    built-in limits apply, in shadow mode.
    """
    try:
        return policies.load(name)
    except Permanent as err:
        # Cut to what a policy document may hold: this one is pinned on the Incident and read again.
        name = name[:64] or DEFAULT_POLICY.name
        return replace(DEFAULT_POLICY, name=name, version=f"unusable: {err}"[:64], shadow=True)
