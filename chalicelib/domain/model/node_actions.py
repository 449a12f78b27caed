"""Actions of a node's own Incident. Each is safe to repeat: `number` and the instance seen when it was decided tell a
repetition from a second repair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chalicelib.domain.model.repair import Route


@dataclass(frozen=True, slots=True, kw_only=True)
class RebootNode:
    """Reboot the instance: its id, address and volumes stay. Order `number` of its Incident."""

    cluster: str
    node: str
    instance_id: str | None
    route: Route
    number: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceNode:
    """Terminate `instance_id` and launch another in its place: every volume of it is lost. Never of a controller.

    An instance id that is no longer the node's means that it was replaced already.
    """

    cluster: str
    node: str
    instance_id: str | None
    route: Route
    number: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckNode:
    """Start a deep health check of the instance; one runs in a cluster at a time. `number` of its Incident."""

    cluster: str
    node: str
    instance_id: str
    group: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UncordonNode:
    """Give the node jobs again. Undoes a drain of ours; anybody else's is refused."""

    cluster: str
    node: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRuns:
    """Ask each protected run on the node to save, and to go on elsewhere once it has. `number` is the order's own.

    A run that cannot save stays where it is.
    """

    cluster: str
    node: str
    number: int
    who: str
    why: str


NodeAction = RebootNode | ReplaceNode | CheckNode | UncordonNode | MoveRuns
NODE_ACTIONS = (RebootNode, ReplaceNode, CheckNode, UncordonNode, MoveRuns)


def node_action_to_wire(action: NodeAction) -> dict[str, Any]:
    """The action's own fields, as JSON."""
    body = {name: getattr(action, name) for name in action.__dataclass_fields__}
    return {name: value.value if isinstance(value, Route) else value for name, value in body.items()}


def node_action_from_wire(wire: Mapping[str, Any]) -> NodeAction:
    """Inverse of `node_action_to_wire`, given the name under "action"."""
    kind = next((one for one in NODE_ACTIONS if one.__name__ == wire["action"]), None)
    if kind is None:
        raise ValueError(f"unknown action {wire['action']!r}")
    body = {name: wire[name] for name in kind.__dataclass_fields__}
    if "route" in body:
        body["route"] = Route(body["route"])
    return kind(**body)
