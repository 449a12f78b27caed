"""docs/reference/costs.md: what a deployment costs, and the built-in prices of instances."""

from __future__ import annotations

from infra.costs import PAGE, made

__all__ = ["PAGE", "made"]
