"""Actions of a node's own Incident. Each is safe to repeat: `number` and the instance seen when it was decided tell a
repetition from a second repair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chalicelib.domain.model.codec import Record
from chalicelib.domain.model.repair import Route
from rekindle.signatures.words import labelled_action


class ActionBase(Record):
    """What every Action has.

    `harmful`: it may cost more than it saves, so that guards can hold it back (docs/guardrails.md); the others ask,
    tell or undo.
    """

    __slots__ = ()
    wire_tag: ClassVar[str] = "action"
    harmful: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """What it does, in words, and the name by which a policy knows it: `stop the run (StopJob)`."""
        return labelled_action(type(self).__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebootNode(ActionBase):
    """Reboot the instance: its id, address and volumes stay. Order `number` of its Incident."""

    harmful: ClassVar[bool] = True

    cluster: str
    node: str
    instance_id: str | None
    route: Route
    number: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceNode(ActionBase):
    """Terminate `instance_id` and launch another in its place: every volume of it is lost. Never of a controller.

    An instance id that is no longer the node's means that it was replaced already.
    """

    harmful: ClassVar[bool] = True

    cluster: str
    node: str
    instance_id: str | None
    route: Route
    number: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckNode(ActionBase):
    """Start a deep health check of the instance; one runs in a cluster at a time. `number` of its Incident."""

    harmful: ClassVar[bool] = True

    cluster: str
    node: str
    instance_id: str
    group: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UncordonNode(ActionBase):
    """Give the node jobs again. Undoes a drain of ours; another owner's is refused."""

    cluster: str
    node: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRuns(ActionBase):
    """Ask each protected run on the node to save, and to go on elsewhere once it has. `number` is the order's own.

    A run that cannot save stays where it is.
    """

    cluster: str
    node: str
    number: int
    who: str
    why: str


NodeAction = RebootNode | ReplaceNode | CheckNode | UncordonNode | MoveRuns
