"""CloudFormation's operations, as far as a tool that deploys by change sets uses them.

Source of the errors' texts: AWS CLI and CDK reports of `ValidationError`; of page sizes: CloudFormation API reference
(DescribeStackEvents and ListStackResources give 100 each).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlparse

from infra.cloudformation.values import BadParameters
from localcloud.aws.answers import AwsError
from localcloud.moto_server import Operation, operations_of
from tests.infra.stacks.account import Account
from tests.infra.stacks.life import ResourceLifecycle
from tests.infra.stacks.plan import BadTemplate, Plan, capabilities, make_plan
from tests.infra.stacks.records import ChangeSet, Resource, StackRecord

OPERATIONS: Final = (
    "CreateChangeSet",
    "DescribeChangeSet",
    "DeleteChangeSet",
    "ExecuteChangeSet",
    "DescribeStacks",
    "DescribeStackEvents",
    "ListStackResources",
    "DescribeStackResources",
    "GetTemplate",
    "DeleteStack",
    "DescribeAccountLimits",
)
PAGE: Final = 100
MAX_TEMPLATE_BYTES: Final = 1_048_576  # given by URL. Source: CloudFormation quotas
NO_CHANGES: Final = (
    "The submitted information didn't contain changes. Submit different information to create a change set."
)
_UPDATABLE: Final = frozenset(
    {"CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE", "IMPORT_ROLLBACK_COMPLETE"}
)


class CloudFormation:
    """The service in one account and Region. `stack_limit`: how many stacks the account may have."""

    def __init__(self, account: Account, *, now: Callable[[], datetime] | None = None, stack_limit: int = 2000) -> None:
        self.account = account
        self.stack_limit = stack_limit
        self._now = now or (lambda: datetime.now(UTC))
        self._stacks: list[StackRecord] = []

    def operations(self) -> Mapping[str, Operation]:
        """By AWS's names."""
        return operations_of(self, OPERATIONS)

    def stack(self, name: str) -> StackRecord:
        """By name, or by id also after its deletion.

        Raises:
            AwsError: there is none.
        """
        for stack in reversed(self._stacks):
            if stack.stack_id == name or (stack.name == name and not stack.is_gone):
                return stack
        raise AwsError("ValidationError", f"Stack with id {name} does not exist")

    # ---- change sets -----------------------------------------------------------------------------------------------

    def create_change_set(self, request: dict[str, Any]) -> dict[str, Any]:
        """A change set of a new stack or of one that is there."""
        is_new = request.get("ChangeSetType", "UPDATE") == "CREATE"
        stack = self._stack_for(request["StackName"], is_new=is_new)
        body = self._body(request)
        given = self._given(stack, request.get("Parameters", []))
        try:
            plan = make_plan(json.loads(body), given, region=self.account.region)
        except (BadTemplate, BadParameters) as err:
            raise AwsError("ValidationError", str(err)) from err
        if missing := capabilities(json.loads(body), plan.template) - set(request.get("Capabilities", [])):
            raise AwsError("InsufficientCapabilitiesException", f"Requires capabilities : {sorted(missing)}")
        imports = self._imports(stack, plan) if request.get("ImportExistingResources") else frozenset()
        tags = request.get("Tags", stack.tags)
        same = stack.body == body and stack.plan is not None and stack.plan.texts == plan.texts and stack.tags == tags
        name = request["ChangeSetName"]
        change = ChangeSet(
            name=name,
            change_set_id=f"{self._arn('changeSet', name)}",
            status="FAILED" if same else "CREATE_COMPLETE",
            reason=NO_CHANGES if same else None,
            plan=plan,
            body=body,
            imports=imports,
            is_new=is_new,
            tags=tags,
        )
        stack.change_sets[name] = change
        return {"Id": change.change_set_id, "StackId": stack.stack_id}

    def describe_change_set(self, request: dict[str, Any]) -> dict[str, Any]:
        """Its state and what it would do."""
        stack = self.stack(request["StackName"])
        change = self._change_set(stack, request["ChangeSetName"])
        answer: dict[str, Any] = {
            "ChangeSetName": change.name,
            "ChangeSetId": change.change_set_id,
            "StackId": stack.stack_id,
            "StackName": stack.name,
            "Status": change.status,
            "ExecutionStatus": "AVAILABLE" if change.status == "CREATE_COMPLETE" else "UNAVAILABLE",
            **_page("Changes", _changes(stack, change), request),
        }
        return answer if change.reason is None else {**answer, "StatusReason": change.reason}

    def delete_change_set(self, request: dict[str, Any]) -> dict[str, Any]:
        """The stack of a change set that was never executed stays, in REVIEW_IN_PROGRESS."""
        stack = self.stack(request["StackName"])
        del stack.change_sets[self._change_set(stack, request["ChangeSetName"]).name]
        return {}

    def execute_change_set(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do it; when this answers, the operation has ended."""
        stack = self.stack(request["StackName"])
        change = self._change_set(stack, request["ChangeSetName"])
        if change.status != "CREATE_COMPLETE":
            raise AwsError("InvalidChangeSetStatus", f"ChangeSet [{change.change_set_id}] cannot be executed")
        stack.change_sets.clear()
        life = ResourceLifecycle(self.account, stack, self._now)
        if change.is_new:
            life.create(change)
        else:
            life.update(change)
        return {}

    # ---- stacks ----------------------------------------------------------------------------------------------------

    def describe_stacks(self, request: dict[str, Any]) -> dict[str, Any]:
        """One stack, or all that are not deleted."""
        name = request.get("StackName")
        found = [self.stack(name)] if name else [stack for stack in self._stacks if not stack.is_gone]
        return {"Stacks": [_described(stack) for stack in found]}

    def describe_stack_events(self, request: dict[str, Any]) -> dict[str, Any]:
        """Newest first, 100 a page."""
        events = self.stack(request["StackName"]).events[::-1]
        return _page("StackEvents", events, request)

    def list_stack_resources(self, request: dict[str, Any]) -> dict[str, Any]:
        """100 a page; a resource that never came to be has no physical id."""
        summaries = []
        for resource in self.stack(request["StackName"]).resources.values():
            summary = {
                "LogicalResourceId": resource.logical_id,
                "ResourceType": resource.kind,
                "LastUpdatedTimestamp": resource.at,
                "ResourceStatus": resource.status,
            }
            if resource.physical_id is not None:
                summary["PhysicalResourceId"] = resource.physical_id
            summaries.append(summary)
        return _page("StackResourceSummaries", summaries, request)

    def describe_stack_resources(self, request: dict[str, Any]) -> dict[str, Any]:
        """Those of the stack that a physical resource belongs to."""
        wanted = request.get("PhysicalResourceId")
        for stack in self._stacks:
            own = [resource for resource in stack.resources.values() if resource.physical_id == wanted]
            if not stack.is_gone and any(resource.status != "DELETE_SKIPPED" for resource in own):
                return {"StackResources": [_resource(stack, resource) for resource in stack.resources.values()][:PAGE]}
        raise AwsError("ValidationError", f"Stack for {wanted} does not exist")

    def get_template(self, request: dict[str, Any]) -> dict[str, Any]:
        """As it was given, or transformed."""
        stack = self.stack(request["StackName"])
        if stack.plan is None:
            raise AwsError("ValidationError", f"Stack {stack.name} has no template: it was never created")
        wants = request.get("TemplateStage", "Original")
        body = json.dumps(stack.plan.template) if wants == "Processed" else stack.body
        return {"TemplateBody": body, "StagesAvailable": ["Original", "Processed"]}

    def delete_stack(self, request: dict[str, Any]) -> dict[str, Any]:
        """Deleting what is not there is no error."""
        try:
            stack = self.stack(request["StackName"])
        except AwsError:
            return {}
        ResourceLifecycle(self.account, stack, self._now).delete()
        return {}

    def describe_account_limits(self, _: dict[str, Any]) -> dict[str, Any]:
        """Of this account and Region."""
        limits = {"StackLimit": self.stack_limit, "StackOutputsLimit": 200, "ConcurrentResourcesLimit": 2500}
        return {"AccountLimits": [{"Name": name, "Value": value} for name, value in limits.items()]}

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _arn(self, kind: str, name: str) -> str:
        own = f"{self.account.region}:{self.account.account_id}"
        return f"arn:aws:cloudformation:{own}:{kind}/{name}/{uuid.uuid4()}"

    def _stack_for(self, name: str, *, is_new: bool) -> StackRecord:
        try:
            stack = self.stack(name)
        except AwsError:
            if not is_new:
                raise AwsError("ValidationError", f"Stack [{name}] does not exist") from None
            if len([stack for stack in self._stacks if not stack.is_gone]) >= self.stack_limit:
                raise AwsError("LimitExceededException", "Limit for stack has been exceeded") from None
            stack = StackRecord(name=name, stack_id=self._arn("stack", name), created=self._now())
            stack.set_status("REVIEW_IN_PROGRESS", self._now, "User Initiated")
            self._stacks.append(stack)
            return stack
        if is_new and stack.status != "REVIEW_IN_PROGRESS":
            raise AwsError("ValidationError", f"Stack [{name}] already exists and cannot be created again")
        if not is_new and stack.status not in _UPDATABLE:
            text = f"Stack:{stack.stack_id} is in {stack.status} state and can not be updated."
            raise AwsError("ValidationError", text)
        return stack

    def _body(self, request: dict[str, Any]) -> str:
        if "TemplateBody" in request:
            return str(request["TemplateBody"])
        url = urlparse(request["TemplateURL"])
        bucket = (url.hostname or "").partition(".s3.")[0]
        answer = self.account.clients("s3").get_object(Bucket=bucket, Key=url.path.lstrip("/"))
        content: bytes = answer["Body"].read()
        if len(content) > MAX_TEMPLATE_BYTES:
            raise AwsError("ValidationError", f"Template may not exceed {MAX_TEMPLATE_BYTES} bytes in size.")
        return content.decode()

    def _given(self, stack: StackRecord, parameters: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        given = {}
        for parameter in parameters:
            name = parameter["ParameterKey"]
            if not parameter.get("UsePreviousValue"):
                given[name] = parameter["ParameterValue"]
            elif stack.plan is None or name not in stack.plan.texts:
                raise AwsError("ValidationError", f"Parameter [{name}] has no previous value")
            else:
                given[name] = stack.plan.texts[name]
        return given

    def _imports(self, stack: StackRecord, plan: Plan) -> frozenset[str]:
        found = set()
        for logical_id in plan.order:
            name, kind = plan.importable(logical_id), plan.resource(logical_id)["Type"]
            if name is None or logical_id in stack.resources or not self.account.exists(kind, name):
                continue
            if (kind, name) not in self.account.owners:  # another stack's stays there, and fails the creation
                found.add(logical_id)
        return frozenset(found)

    def _change_set(self, stack: StackRecord, name: str) -> ChangeSet:
        for change_set in stack.change_sets.values():
            if name in (change_set.name, change_set.change_set_id):
                return change_set
        raise AwsError("ChangeSetNotFound", f"ChangeSet [{name}] does not exist")


def _changes(stack: StackRecord, change: ChangeSet) -> list[dict[str, Any]]:
    """What the change set adds, takes up, changes and removes. Source: API reference, DescribeChangeSet."""
    if change.status != "CREATE_COMPLETE":
        return []
    texts = stack.plan.texts if stack.plan is not None else {}
    other = {name for name, text in change.plan.texts.items() if texts.get(name) != text}
    found = []
    for name in change.plan.order:
        wanted = change.plan.resource(name)
        if name not in stack.resources or stack.plan is None:
            found.append(_change("Import" if name in change.imports else "Add", name, wanted["Type"]))
            continue
        before, after = stack.plan.resource(name).get("Properties", {}), wanted.get("Properties", {})
        changed = sorted(
            key
            for key in before.keys() | after.keys()
            if before.get(key) != after.get(key) or _mentions(after.get(key), other)
        )
        if changed:
            details = [{"Target": {"Attribute": "Properties", "Name": key}} for key in changed]
            found.append(_change("Modify", name, wanted["Type"], Replacement="False", Details=details))
    for name, gone in stack.resources.items():
        if name not in change.plan.order:
            found.append(_change("Remove", name, gone.kind, PolicyAction="Retain" if gone.is_kept else "Delete"))
    return found


def _change(action: str, logical_id: str, kind: str, **more: Any) -> dict[str, Any]:
    about = {"Action": action, "LogicalResourceId": logical_id, "ResourceType": kind, **more}
    return {"Type": "Resource", "ResourceChange": about}


def _mentions(value: Any, parameters: Collection[str]) -> bool:
    text = json.dumps(value)
    return any(f'"Ref": "{name}"' in text or f"${{{name}}}" in text for name in parameters)


def _described(stack: StackRecord) -> dict[str, Any]:
    about: dict[str, Any] = {
        "StackId": stack.stack_id,
        "StackName": stack.name,
        "CreationTime": stack.created,
        "StackStatus": stack.status,
        "Parameters": [
            {"ParameterKey": name, "ParameterValue": text}
            for name, text in (stack.plan.texts if stack.plan else {}).items()
        ],
        "Outputs": [{"OutputKey": name, "OutputValue": text} for name, text in stack.outputs.items()],
        "Tags": stack.tags,
    }
    return about if stack.reason is None else {**about, "StackStatusReason": stack.reason}


def _resource(stack: StackRecord, resource: Resource) -> dict[str, Any]:
    return {
        "StackName": stack.name,
        "StackId": stack.stack_id,
        "LogicalResourceId": resource.logical_id,
        "PhysicalResourceId": resource.physical_id or "",
        "ResourceType": resource.kind,
        "Timestamp": resource.at,
        "ResourceStatus": resource.status,
    }


def _page(member: str, entries: Sequence[dict[str, Any]], request: Mapping[str, Any]) -> dict[str, Any]:
    first = int(request.get("NextToken") or 0)
    rest = {"NextToken": str(first + PAGE)} if first + PAGE < len(entries) else {}
    return {member: list(entries[first : first + PAGE]), **rest}
