"""What CloudFormation remembers of a stack: its resources, events and change sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from tests.infra.stacks.plan import Plan

Now = Callable[[], datetime]
# States of a stack that are none of ResourceStatus. Source: botocore, cloudformation, ResourceStatus and StackStatus.
_UNTOLD: Final = frozenset(
    {
        "REVIEW_IN_PROGRESS",
        "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS",
        "UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS",
    }
)


@dataclass(slots=True)
class Resource:
    """One resource of a stack. properties: as they were last made or changed. imported: it was there before."""

    logical_id: str
    kind: str
    physical_id: str | None
    status: str
    at: datetime
    properties: dict[str, Any] = field(default_factory=dict)
    is_kept: bool = False
    reason: str | None = None


@dataclass(slots=True, kw_only=True)
class ChangeSet:
    """One change set; `reason` says why it failed. imports: logical ids of resources that are taken up."""

    name: str
    change_set_id: str
    status: str
    reason: str | None
    plan: Plan
    body: str
    imports: frozenset[str]
    is_new: bool
    tags: list[dict[str, str]]


@dataclass(slots=True, kw_only=True)
class StackRecord:
    """One stack. body: the template as it was given. events: oldest first."""

    name: str
    stack_id: str
    created: datetime
    status: str = "REVIEW_IN_PROGRESS"
    reason: str | None = None
    plan: Plan | None = None
    body: str = ""
    tags: list[dict[str, str]] = field(default_factory=list)
    outputs: Mapping[str, str] = field(default_factory=dict)
    resources: dict[str, Resource] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    change_sets: dict[str, ChangeSet] = field(default_factory=dict)

    @property
    def is_gone(self) -> bool:
        """True once it is deleted: it is found by its id only."""
        return self.status == "DELETE_COMPLETE"

    def set_status(self, status: str, now: Now, reason: str | None = None) -> None:
        """Change the stack's own state, with an event where botocore's model has a name for it."""
        self.status, self.reason = status, reason
        if status not in _UNTOLD:
            self._event(self.name, "AWS::CloudFormation::Stack", self.stack_id, status, now(), reason)

    def add_event(self, resource: Resource, status: str, now: Now, reason: str | None = None) -> None:
        """Change a resource's state, with an event."""
        resource.status, resource.reason, resource.at = status, reason, now()
        self._event(resource.logical_id, resource.kind, resource.physical_id or "", status, resource.at, reason)

    def _event(
        self, logical_id: str, kind: str, physical_id: str, status: str, at: datetime, reason: str | None
    ) -> None:
        event = {
            "StackId": self.stack_id,
            "EventId": f"{logical_id}-{status}-{len(self.events):06d}",
            "StackName": self.name,
            "LogicalResourceId": logical_id,
            "PhysicalResourceId": physical_id,
            "ResourceType": kind,
            "Timestamp": at,
            "ResourceStatus": status,
        }
        self.events.append(event if reason is None else {**event, "ResourceStatusReason": reason})
