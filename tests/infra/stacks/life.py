"""What happens to a stack's resources: made, rolled back, changed, kept, taken up, deleted.

Everything happens at once: when ExecuteChangeSet or DeleteStack answers, the operation has ended.
Source of the states, their order and the reasons' texts: CloudFormation guide, "Stack status codes", "Stack failure
options", "DeletionPolicy", and the reports of the teams that met them.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from tests.infra.stacks.account import Account
from tests.infra.stacks.makers import Refusal
from tests.infra.stacks.plan import Resolver
from tests.infra.stacks.records import ChangeSet, Now, Resource, StackRecord
from tests.infra.stacks.types import resource_type


class _Stopped(Exception):
    """One resource has failed; the stack goes back."""


class ResourceLifecycle:
    """Operations on one stack's resources."""

    def __init__(self, account: Account, stack: StackRecord, now: Now) -> None:
        self._account = account
        self._stack = stack
        self._now = now

    def create(self, change: ChangeSet) -> None:
        """Create the stack: every resource, or a rollback that retains what the template retains."""
        stack = self._stack
        stack.plan, stack.body, stack.tags = change.plan, change.body, change.tags
        stack.set_status("CREATE_IN_PROGRESS", self._now, "User Initiated")
        try:
            resolver = self._make_all(change, {})
        except _Stopped as stopped:
            failed = str(stopped)
            stack.set_status(
                "ROLLBACK_IN_PROGRESS", self._now, f"The following resource(s) failed to create: [{failed}]."
            )
            lost = self._delete(list(stack.resources.values()))
            stack.set_status("ROLLBACK_FAILED" if lost else "ROLLBACK_COMPLETE", self._now)
            return
        self._settle(change, resolver)
        stack.set_status("CREATE_COMPLETE", self._now)

    def update(self, change: ChangeSet) -> None:
        """What differs is changed, what is new is made, what is gone is deleted last; or everything as it was."""
        stack = self._stack
        stack.set_status("UPDATE_IN_PROGRESS", self._now, "User Initiated")
        before = {name: replace(resource) for name, resource in stack.resources.items()}
        try:
            resolver = self._make_all(change, before)
        except _Stopped as stopped:
            reason = f"The following resource(s) failed to update: [{stopped}]."
            stack.set_status("UPDATE_ROLLBACK_IN_PROGRESS", self._now, reason)
            self._restore(before)
            return
        stack.set_status("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", self._now)
        self._delete([resource for name, resource in stack.resources.items() if name not in change.plan.order])
        self._delete_replaced(before)
        self._settle(change, resolver)
        stack.set_status("UPDATE_COMPLETE", self._now)

    def delete(self) -> None:
        """Everything but what is kept. One resource that the service keeps stops the rest."""
        stack = self._stack
        stack.set_status("DELETE_IN_PROGRESS", self._now, "User Initiated")
        lost = self._delete([resource for resource in stack.resources.values() if resource.status not in _GONE])
        if lost:
            names = ", ".join(lost)
            stack.set_status("DELETE_FAILED", self._now, f"The following resource(s) failed to delete: [{names}].")
        else:
            stack.set_status("DELETE_COMPLETE", self._now)

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _settle(self, change: ChangeSet, resolver: Resolver) -> None:
        stack = self._stack
        stack.plan, stack.body, stack.tags = change.plan, change.body, change.tags
        stack.outputs = resolver.outputs()
        stack.resources = {name: resource for name, resource in stack.resources.items() if name in change.plan.order}

    def _make_all(self, change: ChangeSet, before: dict[str, Resource]) -> Resolver:
        stack = self._stack
        resolver = Resolver(change.plan, self._account, stack.name, stack.stack_id)
        for logical_id in change.plan.order:
            properties = resolver.properties(logical_id)
            there = before.get(logical_id)
            if there is None or there.kind != change.plan.resource(logical_id)["Type"]:
                self._make(change, logical_id, properties)
            elif there.properties != properties:
                self._change(stack.resources[logical_id], properties)
            stack.resources[logical_id].is_kept = change.plan.is_kept(logical_id)
            made = stack.resources[logical_id].physical_id
            resolver.physical[logical_id] = made or ""
        return resolver

    def _make(self, change: ChangeSet, logical_id: str, properties: dict[str, Any]) -> None:
        kind = change.plan.resource(logical_id)["Type"]
        name = self._name(kind, logical_id, properties)
        one = Resource(logical_id, kind, None, "", self._now(), is_kept=change.plan.is_kept(logical_id))
        self._stack.resources[logical_id] = one
        if logical_id in change.imports:
            one.physical_id, one.properties = name, properties
            self._stack.add_event(one, "IMPORT_IN_PROGRESS", self._now, "Resource import started.")
            self._account.take_up(kind, name)
            self._account.owners[kind, name] = self._stack.stack_id
            self._stack.add_event(one, "IMPORT_COMPLETE", self._now, "Resource import completed.")
            return
        self._stack.add_event(one, "CREATE_IN_PROGRESS", self._now)
        try:
            self._account.create(kind, name, properties)
        except Refusal as refusal:
            self._stack.add_event(one, "CREATE_FAILED", self._now, f'Resource handler returned message: "{refusal}"')
            raise _Stopped(logical_id) from refusal
        one.physical_id, one.properties = name, properties
        self._account.owners[kind, name] = self._stack.stack_id
        self._stack.add_event(one, "CREATE_IN_PROGRESS", self._now, "Resource creation Initiated")
        self._stack.add_event(one, "CREATE_COMPLETE", self._now)

    def _change(self, one: Resource, properties: dict[str, Any]) -> None:
        self._stack.add_event(one, "UPDATE_IN_PROGRESS", self._now)
        try:
            one.physical_id = self._changed(one, properties)
        except Refusal as refusal:
            self._stack.add_event(one, "UPDATE_FAILED", self._now, str(refusal))
            raise _Stopped(one.logical_id) from refusal
        one.properties = properties
        self._stack.add_event(one, "UPDATE_COMPLETE", self._now)

    def _changed(self, one: Resource, properties: dict[str, Any]) -> str:
        """Update a resource in place or replace it; returns its physical id.

        Raises:
            Refusal: the service rejects the change, or a replacement would need a name that is still in use.
        """
        kind, before = resource_type(one.kind), str(one.physical_id)
        if not kind.is_replaced(one.properties, properties):
            self._account.update(one.kind, before, properties)
            return before
        if kind.identity(properties) == before:
            raise Refusal(
                "CloudFormation cannot update a stack when a custom-named resource requires replacing. "
                f"Rename {before} and update the stack again."
            )
        name = self._name(one.kind, one.logical_id, properties)
        self._account.create(one.kind, name, properties)
        self._account.owners[one.kind, name] = self._stack.stack_id
        return name

    def _name(self, kind: str, logical_id: str, properties: dict[str, Any]) -> str:
        """A new physical name for each creation, with a random suffix as CloudFormation gives it."""
        drawn = f"{self._stack.stack_id}/{logical_id}/{len(self._stack.events)}"
        letters = hashlib.sha256(drawn.encode()).hexdigest()[:12].upper()
        return self._account.physical_id(
            kind, stack=self._stack.name, logical_id=logical_id, letters=letters, properties=properties
        )

    def _restore(self, before: dict[str, Resource]) -> None:
        """Back to what was before the update."""
        stack = self._stack
        made = [resource for name, resource in stack.resources.items() if name not in before]
        for name, old in before.items():
            new = stack.resources[name]
            if new.properties == old.properties and new.status != "UPDATE_FAILED":
                continue
            stack.add_event(new, "UPDATE_IN_PROGRESS", self._now)
            if new.physical_id == old.physical_id:
                self._account.update(old.kind, str(old.physical_id), old.properties)
            else:
                self._account.delete(new.kind, str(new.physical_id))
            new.physical_id, new.properties = old.physical_id, old.properties
            stack.add_event(new, "UPDATE_COMPLETE", self._now)
        stack.set_status("UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS", self._now)
        lost = self._delete(made)
        for resource in made:
            stack.resources.pop(resource.logical_id, None)
        stack.set_status("UPDATE_ROLLBACK_FAILED" if lost else "UPDATE_ROLLBACK_COMPLETE", self._now)

    def _delete_replaced(self, before: dict[str, Resource]) -> None:
        for name, old in before.items():
            new = self._stack.resources.get(name)
            if new is not None and old.physical_id != new.physical_id:
                self._delete([old])

    def _delete(self, resources: list[Resource]) -> list[str]:
        """In the opposite order; the logical ids of those that could not be deleted."""
        lost = []
        for resource in reversed(resources):
            if resource.physical_id is None:  # it never came to be
                continue
            if resource.is_kept:
                self._account.owners.pop((resource.kind, resource.physical_id), None)
                self._stack.add_event(resource, "DELETE_SKIPPED", self._now)
                continue
            self._stack.add_event(resource, "DELETE_IN_PROGRESS", self._now)
            try:
                self._account.delete(resource.kind, resource.physical_id)
            except Refusal as refusal:
                self._stack.add_event(resource, "DELETE_FAILED", self._now, str(refusal))
                lost.append(resource.logical_id)
                continue
            self._stack.add_event(resource, "DELETE_COMPLETE", self._now)
        return lost


_GONE = frozenset({"DELETE_COMPLETE", "DELETE_SKIPPED"})
