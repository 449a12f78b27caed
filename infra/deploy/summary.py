"""What a deployment or a removal will do, in words: for the question before it, and for `stack deploy --plan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from infra.target_stack import TargetStack
from rekindle.cli.service.target import OUTPUT_KEYS
from rekindle.client.api import Client, check_url, signer
from rekindle.client.errors import CliError
from rekindle.client.shapes import word
from rekindle.client.table import clean

# Types that say who may do what.
_RIGHTS: Final = ("AWS::IAM::", "AWS::Lambda::Permission")
_POLICY: Final = "Policy"  # the end of every type that is a resource's policy: queue, topic, bucket, event bus
# Source: CloudFormation API reference, ResourceChange: Action, Replacement, PolicyAction.
_REPLACED: Final = {"True": "replace", "Conditional": "replace?"}


def deployment_summary(target: TargetStack, where: str) -> str:
    """What `deploy` will do. `where`: stack, stage, account, Region."""
    lines = [
        f"{'Create' if target.is_new else 'Update'} {where}:",
        "  1. the bundle goes into the account's bucket of bundles, which is made where it is missing",
        "  2. a change set is made and executed: roles, functions, API, queues, alarms (--plan shows it alone)",
    ]
    if target.is_new:
        lines.append("  3. from then on it watches the runs that ask for protection, and acts as their policies allow")
    else:
        lines.append(f"  3. it is {target.status} now; {_standing(target.existing, 'go over to the new version')}")
    return "\n".join(lines)


def removal_summary(target: TargetStack, where: str) -> str:
    """What `undeploy` will do."""
    ends = _standing(target.existing, "are not protected any more")
    return "\n".join(
        [
            f"Remove {where}:",
            f"  1. all protection ends: {ends}",
            "  2. its functions, API, queues, and alarms are deleted",
            "  3. the table and the mailbox bucket stay; the next deployment takes them up again",
        ]
    )


def _standing(stack: Any, then: str) -> str:
    """What the stack protects now."""
    outputs = {output["OutputKey"]: str(output["OutputValue"]) for output in stack.get("Outputs", ())}
    url = next((outputs[key] for key in OUTPUT_KEYS if key in outputs), None)
    if url is None:
        return "what it protects now is not known, the stack names no API"
    try:
        status = Client(url=check_url(url), sign=signer(url)).get("/status")
    except CliError as err:
        return f"what it protects now is not known: {clean(err)}"
    jobs, incidents = clean(word(status, "jobs_active")), clean(word(status, "incidents_open"))
    return f"{jobs} active Jobs and {incidents} open Incidents {then}"


def plan_text(where: str, changes: Sequence[Mapping[str, Any]]) -> str:
    """A change set as text: who may do what first, then the rest."""
    if not changes:
        return f"{where}: nothing would change."
    rights = [change for change in changes if _is_a_right(change)]
    others = [change for change in changes if not _is_a_right(change)]
    lines = [f"{where}: {len(changes)} changes, none of them made."]
    for title, part in (("IAM and resource policies", rights), ("everything else", others)):
        lines += ["", f"{title}: {len(part)}", *_rows(part)]
    return "\n".join(lines)


def _is_a_right(change: Mapping[str, Any]) -> bool:
    kind = str(change["ResourceType"])
    return kind.startswith(_RIGHTS) or kind.endswith(_POLICY)


def _rows(changes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    ordered = sorted(changes, key=lambda change: (change["ResourceType"], change["LogicalResourceId"]))
    for change in ordered:
        what = _REPLACED.get(str(change.get("Replacement")), str(change["Action"]).lower())
        if change.get("PolicyAction"):
            what += f" ({change['PolicyAction']})"
        parts = sorted(
            {str(detail["Target"].get("Name") or detail["Target"]["Attribute"]) for detail in _details(change)}
        )
        changed = f"  {', '.join(parts)}" if parts else ""
        yield clean(f"  {what:<8}  {change['ResourceType']:<34}  {change['LogicalResourceId']}{changed}")


def _details(change: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [detail for detail in change.get("Details", ()) if detail.get("Target")]
