"""Several stages of Rekindle in one account: which of them a run or a cluster belongs to.

The tag `rekindle:stage` says so; what has no such tag belongs to `prod`. Stages see the same events of the same
account, and two that acted on one run would have it live twice. The owner follows from the tags alone: no stage needs
to ask another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TAG_STAGE: Final = "rekindle:stage"
PROD: Final = "prod"
_STACK: Final = "rekindle"


def stage_of(stack: str) -> str:
    """The stage that a stack is: `rekindle` is prod, `rekindle-dev` is dev. Source: infra/target_stack.py."""
    return PROD if stack == _STACK else stack.removeprefix(f"{_STACK}-")


def owner_of(tags: Mapping[str, str]) -> str:
    """The stage to which what has these tags belongs."""
    return tags.get(TAG_STAGE) or PROD
