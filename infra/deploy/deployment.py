"""Deploy or remove the stack: `rekindle stack deploy` and `stack undeploy` (`commands`).

Before anything is created, infra/preflight looks for what would stop it. Deploying twice changes nothing; a second
run after a change shows and applies the change. Removing leaves the table and the mailbox bucket in place, names them
and whatever else stays (infra/leftovers.py), and the next deployment takes them up again.
"""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from infra.deploy.artefacts import Artefacts
from infra.deploy.summary import deployment_summary, plan_text
from infra.leftovers import deletion_blockers, leftover_resources
from infra.package import BUNDLE, TEMPLATE
from infra.preflight.checks import CANNOT_BE_UPDATED, print_findings, read_stack, run_checks
from infra.session import SessionError, open_session
from infra.target_stack import NOT_MADE, DeploymentError, Finding, TargetStack, existing_stack, stack_name
from rekindle.cli.terminal.confirm import ask as confirm

CAPABILITIES: Final = ("CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND")  # roles per function; the SAM transform
_NO_CHANGES: Final = ("didn't contain changes", "No updates are to be performed")
_BEGINNINGS: Final = frozenset({"CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS"})
# What CloudFormation writes beside every resource that another one's failure has ended.
_CONSEQUENCES: Final = frozenset({"Resource creation cancelled", "Resource update cancelled"})
_WAIT: Final = {"Delay": 5, "MaxAttempts": 360}  # half an hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One stack in one account and Region. `session` is a boto3 Session with both settled."""

    session: Any
    stack: str

    def deploy(self, package: Path, *, parameters: Mapping[str, str], bucket: str | None = None) -> dict[str, str]:
        """Create or update the stack from the files in `package`; returns its outputs.

        Raises:
            DeploymentError: no package there, or CloudFormation refused; with the resources' own reasons.
        """
        _check_package(package)
        url = self._artefacts().upload(package, bucket)
        is_new = self._updatable_status() in NOT_MADE
        name = self._make_change_set(url, package, parameters, is_new=is_new)
        if name is not None:
            self._cloud().execute_change_set(StackName=self.stack, ChangeSetName=name)
            self._wait("stack_create_complete" if is_new else "stack_update_complete")
        return self.outputs()

    def plan(
        self, package: Path, *, parameters: Mapping[str, str], bucket: str | None = None
    ) -> tuple[Mapping[str, Any], ...]:
        """What `deploy` would change: CloudFormation's ResourceChange of each resource. Nothing is left behind: not the
        change set, not the empty stack that the change set of a new stack makes, and not the template.

        Raises:
            DeploymentError: as `deploy`.
        """
        _check_package(package)
        status = self._updatable_status()
        cloud, is_new = self._cloud(), status in NOT_MADE
        with self._artefacts().lent_template(package, bucket) as url:
            try:
                name = self._make_change_set(url, package, parameters, is_new=is_new)
                if name is None:
                    return ()
                pages = cloud.get_paginator("describe_change_set").paginate(StackName=self.stack, ChangeSetName=name)
                changes = tuple(change["ResourceChange"] for page in pages for change in page["Changes"])
                cloud.delete_change_set(StackName=self.stack, ChangeSetName=name)
                return changes
            finally:
                # Source: CloudFormation guide, deleting a change set: that of a new stack leaves its stack behind.
                if status is None and self._status() == "REVIEW_IN_PROGRESS":
                    cloud.delete_stack(StackName=self.stack)

    def remove(self) -> tuple[str, ...]:
        """Delete the stack; returns the physical names of what it keeps. Removing what is not there is no error.

        Raises:
            DeploymentError: something of others depends on the stack, so that nothing was deleted; or CloudFormation
                could not delete everything else.
        """
        target = self.target()
        if target.status is None:
            return ()
        if target.is_busy:
            raise DeploymentError(f"{self.stack} is {target.status}: wait until that has ended, then remove it again")
        if found := tuple(deletion_blockers(target)):
            lines = "\n".join(f"  {finding}" for finding in found)
            raise DeploymentError(f"{self.stack} is not removed: it would stop half way.\n{lines}")
        cloud = self._cloud()
        # A change set that was never executed has made nothing.
        kept = () if target.is_new else self._kept()
        cloud.delete_stack(StackName=self.stack)
        self._wait("stack_delete_complete")
        return kept

    def leftovers(self) -> tuple[Finding, ...]:
        """What is still there, besides what the stack kept, once it is removed."""
        return leftover_resources(self.target())

    def outputs(self) -> dict[str, str]:
        """The stack's outputs, by name."""
        stack = self._cloud().describe_stacks(StackName=self.stack)["Stacks"][0]
        return {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}

    def target(self) -> TargetStack:
        """The stack as it is now."""
        return read_stack(self.session, self.stack, package=None, parameters={})

    def _updatable_status(self) -> str | None:
        """The stack's status. Raises: DeploymentError where it can only be removed."""
        status = self._status()
        if status in CANNOT_BE_UPDATED:
            raise DeploymentError(
                f"{self.stack} is {status}: remove it first (`rekindle stack undeploy`), then deploy again"
            )
        return status

    def _artefacts(self) -> Artefacts:
        return Artefacts(session=self.session, stack=self.stack)

    def _cloud(self) -> Any:
        return self.session.client("cloudformation")

    def _status(self) -> str | None:
        found = existing_stack(self._cloud(), self.stack)
        return str(found["StackStatus"]) if found is not None else None

    def _kept(self) -> tuple[str, ...]:
        """What the template retains, by type and physical name; not function versions, which go with the function."""
        cloud = self._cloud()
        body = cloud.get_template(StackName=self.stack, TemplateStage="Processed")["TemplateBody"]
        template = json.loads(body) if isinstance(body, str) else body
        retained = {
            name for name, resource in template["Resources"].items() if resource.get("DeletionPolicy") == "Retain"
        }
        pages = cloud.get_paginator("list_stack_resources").paginate(StackName=self.stack)
        return tuple(
            f"{found['ResourceType']} {found['PhysicalResourceId']}"
            for page in pages
            for found in page["StackResourceSummaries"]
            if found["LogicalResourceId"] in retained
            and found["ResourceType"] != "AWS::Lambda::Version"
            and found.get("PhysicalResourceId")  # else it never came to be: a creation that failed before it
        )

    def _make_change_set(self, url: str, package: Path, parameters: Mapping[str, str], *, is_new: bool) -> str | None:
        """The name of a change set that can be executed. None when there is nothing to change."""
        from botocore.exceptions import WaiterError

        cloud = self._cloud()
        declared = json.loads((package / TEMPLATE).read_text(encoding="utf-8")).get("Parameters", {})
        name = f"deploy-{uuid.uuid4().hex[:12]}"  # an interrupted deployment may have left one behind
        request: dict[str, Any] = {
            "StackName": self.stack,
            "ChangeSetName": name,
            "ChangeSetType": "CREATE" if is_new else "UPDATE",
            "TemplateURL": url,
            "Capabilities": list(CAPABILITIES),
            "Parameters": self._parameters(parameters, is_new=is_new, declared=declared.keys()),
            "Tags": [{"Key": "rekindle:stack", "Value": self.stack}],
        }
        if is_new:
            request["ImportExistingResources"] = True  # the table and the bucket of an earlier deployment
        cloud.create_change_set(**request)
        try:
            cloud.get_waiter("change_set_create_complete").wait(
                StackName=self.stack, ChangeSetName=name, WaiterConfig=_WAIT
            )
        except WaiterError as err:
            reason = cloud.describe_change_set(StackName=self.stack, ChangeSetName=name).get("StatusReason", "")
            cloud.delete_change_set(StackName=self.stack, ChangeSetName=name)
            if any(text in reason for text in _NO_CHANGES):
                return None
            raise DeploymentError(f"CloudFormation refused the template: {reason or err}") from err
        return name

    def _parameters(self, given: Mapping[str, str], *, is_new: bool, declared: Collection[str]) -> list[dict[str, Any]]:
        """The stack's parameters: previous values unless given again; a parameter that the template no longer has is
        dropped.
        """
        wanted: list[dict[str, Any]] = [
            {"ParameterKey": key, "ParameterValue": value} for key, value in sorted(given.items())
        ]
        if not is_new:
            stack = self._cloud().describe_stacks(StackName=self.stack)["Stacks"][0]
            earlier = {parameter["ParameterKey"] for parameter in stack.get("Parameters", [])}
            wanted += [
                {"ParameterKey": key, "UsePreviousValue": True}
                for key in sorted((earlier & set(declared)) - given.keys())
            ]
        return wanted

    def _wait(self, waiter: str) -> None:
        from botocore.exceptions import WaiterError

        try:
            self._cloud().get_waiter(waiter).wait(StackName=self.stack, WaiterConfig=_WAIT)
        except WaiterError as err:
            raise DeploymentError(f"{self.stack}: {err}\n{self._failures()}") from err

    def _failures(self) -> str:
        """The resource failures of the operation that has just ended, oldest first.

        Events are read from the newest back to the operation's beginning: a page has 100 of them, and one create and
        its rollback have several hundred.
        """
        failed = []
        for event in self._events():
            status = str(event["ResourceStatus"])
            if event["LogicalResourceId"] == self.stack and status in _BEGINNINGS:
                break
            if status.endswith("_FAILED") and event.get("ResourceStatusReason") not in _CONSEQUENCES:
                failed.append(event)
        return "\n".join(
            f"  {event['LogicalResourceId']}: {event.get('ResourceStatusReason', 'no reason given')}"
            for event in reversed(failed)
        )

    def _events(self) -> Iterator[dict[str, Any]]:
        """The stack's events, newest first."""
        for page in self._cloud().get_paginator("describe_stack_events").paginate(StackName=self.stack):
            yield from page["StackEvents"]


def _check_package(package: Path) -> None:
    for name in (TEMPLATE, BUNDLE):
        if not (package / name).is_file():
            raise DeploymentError(f"{package / name} is missing: run `make package` first")


def _parse_parameter(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return key, value


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `stack deploy` that `run` reads, without the package."""
    add_stack_options(parser)
    parser.add_argument("--bucket", help="bucket for the bundle; one is made when not given")
    parser.add_argument("--plan", action="store_true", help="show what would be changed; nothing is made")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--parameter", type=_parse_parameter, action="append", default=[], help="NAME=VALUE, may be repeated"
    )


def add_stack_options(parser: argparse.ArgumentParser) -> None:
    """The options that name the stack."""
    parser.add_argument("--stage", default="prod", help="prod makes the stack `rekindle`, any other `rekindle-<stage>`")
    parser.add_argument("--region", help="AWS Region; the profile's when not given")


def run(args: argparse.Namespace, *, package: Path) -> None:
    """Deploy what lies in `package`, once that is confirmed; prints the stack's outputs. With --plan: what it would do.

    Raises:
        CommandFailed: it was not confirmed.
        DeploymentError: it stopped; the message says why and what to do.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        deployment = Deployment(stack=stack_name(args.stage), session=open_session(args.region))
        target = deployment.target()
        where = f"stack {deployment.stack} (stage {args.stage}), account {target.account_id}, region {target.region}"
        print(f"rekindle: target: {where}", file=sys.stderr, flush=True)
        parameters = dict(args.parameter)
        _preflight(deployment, package, parameters)
        if args.plan:
            print(plan_text(where, deployment.plan(package, parameters=parameters, bucket=args.bucket)))
            return
        confirm(args, deployment_summary(target, where))
        outputs = deployment.deploy(package, parameters=parameters, bucket=args.bucket)
    except (SessionError, BotoCoreError, ClientError) as err:
        raise DeploymentError(str(err)) from err
    for key, value in sorted(outputs.items()):
        print(f"{key:20} {value}")


def _preflight(deployment: Deployment, package: Path, parameters: Mapping[str, str]) -> None:
    _check_package(package)
    if not print_findings(run_checks(deployment.session, deployment.stack, package=package, parameters=parameters)):
        raise DeploymentError("nothing was created: fix what is named above, then deploy again")
