"""What the toy cluster can do: a mixture that no real platform has."""

from __future__ import annotations

from typing import Final

from chalicelib.domain.model.platform import Platform

TOY: Final = Platform(
    name="toy",
    title="the toy cluster",
    accepts_at_once=True,
    can_exclude_nodes=True,
    relays_heartbeats=True,
)
