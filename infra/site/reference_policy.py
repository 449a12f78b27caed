"""docs/reference/policy.md: every field of a policy, from its declaration."""

from __future__ import annotations

from infra.policy_docs import PAGE, page

__all__ = ["PAGE", "made"]


def made() -> str:
    """The page."""
    return page()
