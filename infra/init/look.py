"""What `rekindle init` sees in an account: who asks, training jobs' roles, clusters, buckets, the stack. Only reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from infra.init.answers import Answers, bucket
from rekindle.doctor.aws.account import Account
from rekindle.doctor.base.facts import Found, Missing, NotInspected, Read

MAX_JOBS: Final = 20  # the newest training jobs, each asked for its role
MAX_CLUSTERS: Final = 20
TAG: Final = "rekindle-mailbox"
_ARN_PARTS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks, and where."""

    arn: str
    account: str
    region: str
    partition: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A HyperPod cluster. is_slurm None: not known."""

    name: str
    is_slurm: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """The stack as CloudFormation has it."""

    status: str
    outputs: dict[str, str]
    parameters: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A training role: the tag that names its mailboxes' prefix ("" without), its managed policies."""

    mailbox: str
    policies: Read[tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountState:
    """The account, as far as it could be read. stack: Missing where Rekindle is not deployed."""

    caller: Read[Caller]
    roles: Read[tuple[str, ...]]
    clusters: Read[tuple[Cluster, ...]]
    stack: Found[Deployed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Where the service is, or will be once it is deployed: both have the same names."""

    stack: str
    bucket: str
    bus: str
    account: str
    region: str
    partition: str


def service(seen: AccountState, stack: str) -> Read[Service]:
    """By the stack's outputs, else by the names that the template gives (infra/template). Unread without an account."""
    if isinstance(seen.caller, NotInspected):
        return seen.caller
    if isinstance(seen.stack, NotInspected):
        return seen.stack
    outputs = seen.stack.outputs if isinstance(seen.stack, Deployed) else {}
    caller = seen.caller
    return Service(
        stack=stack,
        bucket=outputs.get("BucketName", f"{stack}-{caller.account}-{caller.region}"),
        bus=outputs.get("BusName", stack),
        account=caller.account,
        region=caller.region,
        partition=caller.partition,
    )


def look(account: Account, stack: str) -> AccountState:
    """Everything that does not depend on an answer. Raises nothing that AWS or the network could cause."""
    caller = _caller(account)
    return AccountState(caller=caller, roles=_roles(account), clusters=_clusters(account), stack=_stack(account, stack))


def role(account: Account, arn: str) -> Found[Role]:
    """One role, by its ARN."""
    name = arn.rpartition("/")[2]
    answer = account.ask("iam", "get_role", RoleName=name)
    if not isinstance(answer, dict):
        return answer
    tags = account.pages("iam", "list_role_tags", "Tags", marker="Marker", RoleName=name)
    if not isinstance(tags, list):
        return tags
    attached = account.pages("iam", "list_attached_role_policies", "AttachedPolicies", marker="Marker", RoleName=name)
    policies = attached if isinstance(attached, NotInspected) else _named(attached, "PolicyArn")
    return Role(mailbox=_named([tag for tag in tags if tag.get("Key") == TAG], "Value", "")[0], policies=policies)


def has_policy(account: Account, stack: str, name: str) -> Read[bool]:
    """Whether a policy document of that name is stored."""
    answer = account.ask("ssm", "get_parameter", Name=f"/{stack}/policies/{name}")
    if isinstance(answer, NotInspected) and "ParameterNotFound" in answer.why:
        return False
    return answer if isinstance(answer, NotInspected) else isinstance(answer, dict)


def stack_rows(seen: AccountState, stack: str) -> Iterator[tuple[str, str]]:
    """(what was looked at, what was seen), for a person."""
    match seen.caller:
        case NotInspected(why):
            yield "account", f"unknown: {why}"
        case caller:
            yield "account", f"{caller.account} in {caller.region}, asked as {caller.arn}"
    match seen.stack:
        case Deployed(status=status):
            yield f"stack {stack}", status
        case Missing():
            yield f"stack {stack}", "not deployed yet"
        case NotInspected(why):
            yield f"stack {stack}", f"unknown: {why}"
    match seen.roles:
        case NotInspected(why):
            yield "training roles", f"unknown: {why}"
        case roles:
            yield "training roles", ", ".join(roles) or f"none: no training job among the newest {MAX_JOBS}"
    match seen.clusters:
        case NotInspected(why):
            yield "clusters", f"unknown: {why}"
        case clusters:
            yield "clusters", ", ".join(_cluster(cluster) for cluster in clusters) or "none of HyperPod"


def account_rows(account: Account, answers: Answers, seen: AccountState, own: str) -> Iterator[tuple[str, str]]:
    """The same about what was answered: the role, and buckets beside the stack's `own`."""
    if answers.role:
        match role(account, answers.role):
            case Role(mailbox=mailbox, policies=policies):
                tag = f"tag {TAG}={mailbox}" if mailbox else f"no tag {TAG}"
                yield "role", f"{answers.role}: {tag}, {_attached(policies, seen)}"
            case Missing():
                yield "role", f"{answers.role}: does not exist"
            case NotInspected(why):
                yield "role", f"{answers.role}: unknown: {why}"
    for name in other_buckets(answers, own):
        match account.ask("s3", "list_objects_v2", Bucket=name, MaxKeys=1):
            case NotInspected(why):
                yield f"bucket {name}", f"unknown: {why}"
            case Missing():
                yield f"bucket {name}", "does not exist"
            case _:
                yield f"bucket {name}", "exists"


def other_buckets(answers: Answers, own: str) -> list[str]:
    """Buckets of the answers beside the stack's own."""
    named = dict.fromkeys(bucket(uri) for uri in (answers.mailbox, answers.checkpoints))
    return [name for name in named if name and name != own]


def _attached(policies: Read[tuple[str, ...]], seen: AccountState) -> str:
    if isinstance(policies, NotInspected):
        return f"its policies are unknown: {policies.why}"
    wanted = seen.stack.outputs.get("TrainingPolicyArn") if isinstance(seen.stack, Deployed) else None
    if wanted is None:
        return f"{len(policies)} managed policies"
    return "has the stack's training policy" if wanted in policies else "has not the stack's training policy"


def _cluster(cluster: Cluster) -> str:
    kind = {True: "Slurm", False: "EKS, which Rekindle does not support", None: "unknown kind"}[cluster.is_slurm]
    return f"{cluster.name} ({kind})"


def _caller(account: Account) -> Read[Caller]:
    answer = account.ask("sts", "get_caller_identity")
    if not isinstance(answer, dict):
        return _unread(answer)
    arn = str(answer.get("Arn") or "")
    parts = arn.split(":")
    if len(parts) < _ARN_PARTS:
        return NotInspected("STS named no caller")
    return Caller(arn=arn, account=str(answer.get("Account") or ""), region=account.region, partition=parts[1])


def _roles(account: Account) -> Read[tuple[str, ...]]:
    listed = account.ask(
        "sagemaker", "list_training_jobs", MaxResults=MAX_JOBS, SortBy="CreationTime", SortOrder="Descending"
    )
    if not isinstance(listed, dict):
        return _unread(listed)
    found: dict[str, None] = {}
    for job in listed.get("TrainingJobSummaries") or []:
        answer = account.ask("sagemaker", "describe_training_job", TrainingJobName=str(job.get("TrainingJobName")))
        if isinstance(answer, NotInspected):
            return answer
        if isinstance(answer, dict) and answer.get("RoleArn"):
            found[str(answer["RoleArn"])] = None
    return tuple(found)


def _clusters(account: Account) -> Read[tuple[Cluster, ...]]:
    listed = account.ask("sagemaker", "list_clusters", MaxResults=MAX_CLUSTERS)
    if not isinstance(listed, dict):
        return _unread(listed)
    names = _named(listed.get("ClusterSummaries") or [], "ClusterName")
    return tuple(Cluster(name=name, is_slurm=_is_slurm(account, name)) for name in names)


def _is_slurm(account: Account, name: str) -> bool | None:
    answer = account.ask("sagemaker", "describe_cluster", ClusterName=name)
    if not isinstance(answer, dict):
        return None
    return not (answer.get("Orchestrator") or {}).get("Eks")


def _stack(account: Account, name: str) -> Found[Deployed]:
    answer = account.ask("cloudformation", "describe_stacks", StackName=name)
    if isinstance(answer, NotInspected) and "does not exist" in answer.why:
        return Missing()
    if not isinstance(answer, dict):
        return answer
    for stack in answer.get("Stacks") or []:
        if stack.get("StackStatus") not in ("DELETE_COMPLETE", "REVIEW_IN_PROGRESS"):
            outputs = {str(pair.get("OutputKey")): str(pair.get("OutputValue")) for pair in stack.get("Outputs") or []}
            chosen = {
                str(pair.get("ParameterKey")): str(pair.get("ParameterValue")) for pair in stack.get("Parameters") or []
            }
            return Deployed(status=str(stack.get("StackStatus")), outputs=outputs, parameters=chosen)
    return Missing()


def _unread(answer: Any) -> NotInspected:
    return answer if isinstance(answer, NotInspected) else NotInspected("AWS gave no answer")


def _named(rows: Any, key: str, *otherwise: str) -> tuple[str, ...]:
    return tuple(str(row[key]) for row in rows if isinstance(row, dict) and key in row) or otherwise
