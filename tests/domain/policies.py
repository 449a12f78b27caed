"""Policies that differ from another one in a few fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy


def changed(policy: Policy = DEFAULT_POLICY, **fields: Any) -> Policy:
    """`policy` with these values, given as they are inside; those of a group as `loss={"skip_steps": 5}`."""
    values = {
        name: dataclasses.replace(getattr(policy, name), **value) if isinstance(value, Mapping) else value
        for name, value in fields.items()
    }
    return dataclasses.replace(policy, **values)
