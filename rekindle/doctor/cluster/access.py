"""The execution role: it exists, SageMaker may assume it, and it may do what a node needs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rekindle.doctor.base.checks import PREREQUISITES, Area, check
from rekindle.doctor.base.facts import NOT_ASKED, AccountFacts, Found, Missing, NotInspected, RoleFacts
from rekindle.doctor.base.findings import Finding, error, listed, quoted, unknown
from rekindle.doctor.base.subject import Subject

SERVICE: Final = "sagemaker.amazonaws.com"
MANAGED_POLICY: Final = "AmazonSageMakerClusterInstanceRolePolicy"
# What a node with a VPC of its own needs beyond the managed policy. Source: SageMaker developer guide,
# sagemaker-hyperpod-prerequisites-iam, "IAM role for SageMaker HyperPod".
_VPC_ACTIONS: Final = (
    "ec2:CreateNetworkInterface",
    "ec2:CreateNetworkInterfacePermission",
    "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeVpcs",
    "ec2:DescribeDhcpOptions",
    "ec2:DescribeSubnets",
    "ec2:DescribeSecurityGroups",
    "ec2:DetachNetworkInterface",
)
_LOG_ACTIONS: Final = ("logs:CreateLogStream", "logs:PutLogEvents")


def role_uses(subject: Subject) -> dict[str, tuple[str, tuple[str, ...], bool]]:
    """By role: where it is named first, the script folders that its nodes read, and whether they have a VPC."""
    found: dict[str, tuple[str, tuple[str, ...], bool]] = {}
    for group in subject.groups:
        if group.role is None:
            continue
        at, folders, has_vpc = found.get(group.role, (subject.path(f"{group.at}.ExecutionRole"), (), False))
        if group.source_uri is not None and group.source_uri not in folders:
            folders = (*folders, group.source_uri)
        found[group.role] = (at, folders, has_vpc or bool(subject.subnets_of(group)))
    return found


def needed_actions(role: str, folders: tuple[str, ...], *, has_vpc: bool) -> list[tuple[tuple[str, ...], str]]:
    """Actions with the resource that each is needed on."""
    partition = role.split(":")[1] if role.count(":") > 1 else "aws"
    needed: list[tuple[tuple[str, ...], str]] = []
    for folder in folders:
        bucket, _, prefix = folder.partition("://")[2].partition("/")
        inside = f"{prefix.rstrip('/')}/*" if prefix.strip("/") else "*"
        if bucket:
            needed.append((("s3:ListBucket",), f"arn:{partition}:s3:::{bucket}"))
            needed.append((("s3:GetObject",), f"arn:{partition}:s3:::{bucket}/{inside}"))
    account = role.split(":")[4] if role.count(":") > 4 else "*"
    needed.append((_LOG_ACTIONS, f"arn:{partition}:logs:*:{account}:log-group:/aws/sagemaker/Clusters/*"))
    if has_vpc:
        needed.append((_VPC_ACTIONS, "*"))
    return needed


def role_findings(subject: Subject, facts: AccountFacts) -> Iterator[Finding]:
    """Every execution role that a group names."""
    for role, (where, _, _) in role_uses(subject).items():
        found = facts.roles.get(role, NOT_ASKED)
        yield from _exists(role, found, where)
        if isinstance(found, RoleFacts):
            yield from _trust(found, where)
            yield from _actions(found, where)


@check("role-exists", Area.ACCOUNT, "IAM, GetRole")
def _exists(role: str, found: Found[RoleFacts], where: str) -> Iterator[Finding]:
    """Every execution role exists.

    No node starts.
    """
    match found:
        case Missing():
            yield error(where, f"{quoted(role)} does not exist")
        case NotInspected(why):
            yield unknown(where, f"the role was not looked at: {why}")


@check("role-trust", Area.ACCOUNT, PREREQUISITES)
def _trust(role: RoleFacts, where: str) -> Iterator[Finding]:
    """It lets sagemaker.amazonaws.com assume it.

    No node starts.
    """
    if not is_trusted(role.trust, SERVICE):
        yield error(where, f"{role.name} does not let {SERVICE} assume it (sts:AssumeRole)")


@check(
    "role-actions",
    Area.ACCOUNT,
    "SageMaker guide, sagemaker-hyperpod-prerequisites-iam",
    twin="S3 access of the role (in some versions); of all roles",
)
def _actions(role: RoleFacts, where: str) -> Iterator[Finding]:
    """It may read the scripts, write logs, and make network interfaces (IAM's own simulation).

    Nodes fail one by one, each with another message.
    """
    if not isinstance(role.denied, NotInspected):
        if role.denied:
            yield error(where, f"{role.name} lacks {listed(role.denied, 12)}")
        return
    if isinstance(role.attached, NotInspected):
        why = role.denied.why if role.denied.why == role.attached.why else f"{role.denied.why}; {role.attached.why}"
        yield unknown(where, f"what {role.name} may do was not looked at: {why}")
    elif MANAGED_POLICY in role.attached:
        yield unknown(
            where,
            f"{role.name} has {MANAGED_POLICY}; whether it may also make network interfaces was not looked at: "
            f"{role.denied.why}",
        )
    else:
        yield unknown(
            where,
            f"{role.name} does not have {MANAGED_POLICY}; whether its own policies are enough was not looked at: "
            f"{role.denied.why}",
        )


def is_trusted(policy: Mapping[str, Any], service: str) -> bool:
    """True if a statement lets the service assume the role. Conditions are not judged; a Deny of it wins."""
    statements = policy.get("Statement")
    rows = [
        statement
        for statement in (statements if isinstance(statements, list) else [statements])
        if isinstance(statement, dict)
    ]
    about = [
        statement
        for statement in rows
        if _names(statement.get("Action"), "sts:assumerole") and _serves(statement.get("Principal"), service)
    ]
    if any(statement.get("Effect") == "Deny" and not statement.get("Condition") for statement in about):
        return False
    return any(statement.get("Effect") == "Allow" for statement in about)


def _names(value: object, action: str) -> bool:
    every = value if isinstance(value, list) else [value]
    return any(isinstance(name, str) and name.lower() in (action, "sts:*", "*") for name in every)


def _serves(principal: object, service: str) -> bool:
    value = principal.get("Service") if isinstance(principal, dict) else principal
    every = value if isinstance(value, list) else [value]
    return any(name in (service, "*") for name in every)
