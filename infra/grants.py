"""One policy per function: `python -m infra.grants` writes infra/policies/<function>.json.

The actions come from the code (infra/reach.py); the resources that each may be used on are listed here. The files are
committed, so that a code change that needs more permissions shows the new permission in its diff, and a test fails
until the files are written again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from infra.functions import ALIAS, FUNCTIONS, INFRA, Function, Trigger
from infra.options import no_options
from infra.reach import actions_of_functions

POLICIES: Final = INFRA / "policies"

# Actions that AWS offers for no smaller resource than all of them.
# Source: service authorization reference (the copy that cfn-lint carries).
EVERYWHERE: Final[Mapping[str, str]] = {
    "cloudwatch:GetMetricData": "metrics have no ARN; the sweep reads numbers only",
    "sagemaker:ListTrainingJobs": "a listing is of the whole account; it gives names and states",
    "cloudwatch:PutMetricData": "a plain metric has no ARN, only a data set has; narrowed to one namespace",
}


def _arn(service: str, resource: str) -> dict[str, str]:
    return {"Fn::Sub": f"arn:${{AWS::Partition}}:{service}:${{AWS::Region}}:${{AWS::AccountId}}:{resource}"}


def _own(resource: str) -> dict[str, list[str]]:
    return {"Fn::GetAtt": [resource, "Arn"]}


def _in_training_buckets(*suffixes: str) -> dict[str, Any]:
    """The same objects in each bucket of the parameter; Split makes a list of what Join has put together.

    The partition is a wildcard, because Join takes no function as its delimiter.
    """
    start = "arn:*:s3:::"
    each = [
        {"Fn::Join": ["", [start, {"Fn::Join": [f"{suffix},{start}", {"Ref": "TrainingBuckets"}]}, suffix]]}
        for suffix in suffixes
    ]
    return {"Fn::Split": [",", {"Fn::Join": [",", each]}]}


# A fixed name instead of a reference: the role must exist before the function that it belongs to.
_RECOVER: Final = _arn("lambda", "function:${AWS::StackName}-recover")
_RECOVER_ALIAS: Final = _arn("lambda", f"function:${{AWS::StackName}}-recover:{ALIAS}")
_EXECUTIONS: Final = _arn(
    "lambda", "function:${AWS::StackName}-recover:*"
)  # a durable execution's ARN continues from here
_TRAINING_JOBS: Final = _arn("sagemaker", "training-job/*")
_CLUSTERS: Final = _arn("sagemaker", "cluster/*")
_PAGES: Final = {"Fn::Sub": "${MailboxBucket.Arn}/incident-pages/*"}
_MAILBOXES: Final = ("/rekindle/*", "/*/rekindle/*")  # at the bucket's root, or under a Job's prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Where some actions may be used: one statement of a policy."""

    sid: str
    actions: tuple[str, ...]
    resource: Any
    condition: Mapping[str, Any] | None = None
    only_if: str | None = None  # a condition of the template
    only_with: str | None = None  # an action that tells who needs it, where the actions themselves do not
    only_for: tuple[str, ...] = ()  # functions, where no action tells: several queues take messages
    not_for: tuple[str, ...] = ()

    def statement(self, wanted: frozenset[str], *, function: str = "") -> dict[str, Any] | None:
        """The statement with those of its actions that are wanted, None without any."""
        actions = [action for action in self.actions if action in wanted]
        if not actions or self.only_with not in (None, *wanted):
            return None
        if function in self.not_for or (self.only_for and function not in self.only_for):
            return None
        body: dict[str, Any] = {"Sid": self.sid, "Effect": "Allow", "Action": actions, "Resource": self.resource}
        if self.condition is not None:
            body["Condition"] = dict(self.condition)
        return {"Fn::If": [self.only_if, body, {"Ref": "AWS::NoValue"}]} if self.only_if else body


_S3_READ: Final = ("s3:GetObject",)
_S3_WRITE: Final = ("s3:PutObject",)
_S3_LIST: Final = ("s3:ListBucket",)
_KEYS: Final = {"Ref": "KmsKeyArns"}

# Events of every kind come in by one way, which calls what any of them may need; but each kind has a function of its
# own, and what was put into quarantine comes back through the API's. These actions are for one kind's functions alone.
ONE_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "sqs:CreateQueue": ("agent_event", "api_handler"),
    "sagemaker:DescribeClusterEvent": ("hyperpod_event", "api_handler"),
    "cloudwatch:ListTagsForResource": ("alarm_event", "api_handler"),
}
_DELIVERING: Final = ("notice_event", "deliver")  # notices go out; nothing of theirs goes to quarantine

GRANTS: Final = (
    Grant(
        sid="ReadRegistry",
        actions=("dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query"),
        resource=_own("RegistryTable"),
    ),
    Grant(
        sid="WriteRegistry",
        actions=("dynamodb:PutItem", "dynamodb:UpdateItem"),
        resource=_own("RegistryTable"),
        not_for=("deliver",),
    ),
    # What speaks to other people's servers writes what it has delivered, and nothing that anything is decided by.
    Grant(
        sid="WriteDeliveries",
        actions=("dynamodb:PutItem", "dynamodb:UpdateItem"),
        resource=_own("RegistryTable"),
        condition={"ForAllValues:StringLike": {"dynamodb:LeadingKeys": ["NOTICE#*", "CHANNEL#*", "SLACK#*"]}},
        only_for=("deliver",),
    ),
    Grant(
        sid="RegistryIndex",
        actions=("dynamodb:Query",),
        resource={"Fn::Sub": "${RegistryTable.Arn}/index/GSI1"},
        not_for=("notice_event",),  # it reads one Incident with its timeline
    ),
    Grant(sid="StartRecovery", actions=("lambda:InvokeFunction",), resource=_RECOVER_ALIAS),
    Grant(
        sid="WakeRecovery",
        actions=("lambda:SendDurableExecutionCallbackSuccess",),
        resource=_EXECUTIONS,
    ),
    Grant(
        sid="ListRecoveries",
        actions=("lambda:ListDurableExecutionsByFunction",),
        resource=[_RECOVER, _EXECUTIONS],
    ),
    Grant(
        sid="TrainingJobs",
        actions=("sagemaker:DescribeTrainingJob", "sagemaker:StopTrainingJob"),
        resource=_TRAINING_JOBS,
    ),
    Grant(
        sid="Resubmit",
        actions=("sagemaker:CreateTrainingJob", "sagemaker:AddTags"),
        # A job on reserved capacity names its plan, and the plan must allow it too.
        resource=[_TRAINING_JOBS, _arn("sagemaker", "training-plan/*"), _arn("sagemaker", "reserved-capacity/*")],
    ),
    Grant(
        sid="HandOverTrainingRole",
        actions=("iam:PassRole",),
        # A role that nobody has named is handed to no job: with it, whoever may write a tag could have any code run.
        resource={"Ref": "TrainingRoleArns"},
        condition={"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}},
        only_if="HasTrainingRoles",
    ),
    Grant(
        sid="UseKeysOfBuckets",
        actions=("kms:Decrypt", "kms:GenerateDataKey"),
        resource=_KEYS,
        condition={"StringEquals": {"kms:ViaService": {"Fn::Sub": "s3.${AWS::Region}.amazonaws.com"}}},
        only_if="HasKmsKeys",
    ),
    Grant(
        sid="UseKeysOfVolumes",
        actions=("kms:CreateGrant",),
        resource=_KEYS,
        condition={"Bool": {"kms:GrantIsForAWSResource": "true"}},
        only_if="HasKmsKeys",
    ),
    Grant(sid="ListTrainingJobs", actions=("sagemaker:ListTrainingJobs",), resource="*"),
    Grant(sid="ReadMetrics", actions=("cloudwatch:GetMetricData",), resource="*"),
    Grant(
        sid="JobAlarms",
        actions=("cloudwatch:PutMetricAlarm", "cloudwatch:DeleteAlarms", "cloudwatch:TagResource"),
        # "-job-…" are the Jobs' own, "-jobs-…" the shared ones; the stack's own alarms have other names.
        resource=_arn("cloudwatch", "alarm:${AWS::StackName}-job*"),
    ),
    # Listing by a prefix asks for the right on all alarms; users' own alarms may name their Job by a tag.
    Grant(
        sid="ReadAlarms",
        actions=("cloudwatch:DescribeAlarms",),
        resource=_arn("cloudwatch", "alarm:*"),
    ),
    Grant(
        sid="ReadAlarmsTags",
        actions=("cloudwatch:ListTagsForResource",),
        resource=_arn("cloudwatch", "alarm:*"),
        only_for=ONE_KINDS["cloudwatch:ListTagsForResource"],
    ),
    Grant(sid="Clusters", actions=("sagemaker:DescribeCluster",), resource=_CLUSTERS),
    Grant(
        sid="ClustersEvents",
        actions=("sagemaker:DescribeClusterEvent",),
        resource=_CLUSTERS,
        only_for=ONE_KINDS["sagemaker:DescribeClusterEvent"],
    ),
    # A cluster's nodes have no ARN of their own; that no controller is repaired, the code sees to.
    Grant(
        sid="RepairNodes",
        actions=(
            "sagemaker:DescribeClusterNode",
            "sagemaker:ListClusterNodes",
            "sagemaker:BatchRebootClusterNodes",
            "sagemaker:BatchReplaceClusterNodes",
            "sagemaker:StartClusterHealthCheck",
        ),
        resource=_CLUSTERS,
    ),
    Grant(sid="Tags", actions=("sagemaker:ListTags",), resource=[_TRAINING_JOBS, _CLUSTERS]),
    # Manifests name files anywhere under the Job's prefix; their sizes are compared before a resume.
    Grant(sid="ReadCheckpoints", actions=_S3_READ, resource={"Fn::Sub": "${MailboxBucket.Arn}/*"}, not_for=_DELIVERING),
    # What a role may read here, its signed links open: of what goes out, Incidents' pages and nothing else.
    Grant(sid="ReadPages", actions=_S3_READ, resource=_PAGES, only_for=("deliver",)),
    Grant(sid="WritePages", actions=_S3_WRITE, resource=_PAGES, only_for=("notice_event",)),
    Grant(
        sid="FindPages",
        actions=_S3_LIST,
        resource=_own("MailboxBucket"),
        condition={"StringLikeIfExists": {"s3:prefix": ["incident-pages/*"]}},
        only_for=("deliver",),
    ),
    Grant(
        sid="WriteMailbox",
        actions=_S3_WRITE,
        resource=[{"Fn::Sub": f"${{MailboxBucket.Arn}}{keys}"} for keys in _MAILBOXES],
        not_for=_DELIVERING,
    ),
    Grant(
        sid="OrderAgents",
        actions=_S3_WRITE,
        resource={"Fn::Sub": "${MailboxBucket.Arn}/clusters/*/orders/*"},
        only_with="sqs:GetQueueUrl",
    ),
    Grant(
        sid="AgentQueues",
        actions=("sqs:GetQueueUrl", "sqs:SendMessage"),
        resource=_arn("sqs", "${AWS::StackName}-agent-*"),
        only_with="sqs:GetQueueUrl",
    ),
    Grant(
        sid="MakeAgentQueues",
        actions=("sqs:CreateQueue",),
        resource=_arn("sqs", "${AWS::StackName}-agent-*"),
        only_for=ONE_KINDS["sqs:CreateQueue"],
    ),
    Grant(sid="ListMailbox", actions=_S3_LIST, resource=_own("MailboxBucket"), not_for=_DELIVERING),
    Grant(
        sid="Policies",
        actions=("ssm:GetParameter",),
        resource=_arn("ssm", "parameter/${AWS::StackName}/policies/*"),
        not_for=_DELIVERING,
    ),
    Grant(
        sid="Channels",
        actions=("ssm:GetParameter",),
        resource=_arn("ssm", "parameter/${AWS::StackName}/channels"),
        only_for=(*_DELIVERING, "api_handler"),
    ),
    Grant(
        sid="Sources",
        actions=("ssm:GetParameter",),
        resource=_arn("ssm", "parameter/${AWS::StackName}/sources"),
        only_for=("api_handler",),
    ),
    Grant(
        sid="EditPolicies",
        actions=("ssm:PutParameter",),
        resource=_arn("ssm", "parameter/${AWS::StackName}/policies/*"),
    ),
    Grant(
        sid="ListPolicies",
        actions=("ssm:GetParametersByPath",),
        # The path itself is what the call is about; the documents lie below it.
        resource=[_arn("ssm", f"parameter/${{AWS::StackName}}/policies{below}") for below in ("", "/*")],
    ),
    Grant(
        sid="Prices",
        actions=("ssm:GetParameter",),
        resource=_arn("ssm", "parameter/${AWS::StackName}/prices"),
        only_for=("api_handler", "deliver", "notice_event"),
    ),
    Grant(
        sid="EditPrices",
        actions=("ssm:PutParameter",),
        resource=_arn("ssm", "parameter/${AWS::StackName}/prices"),
        only_for=("api_handler",),
    ),
    Grant(
        sid="Quarantine",
        actions=("sqs:SendMessage", "sqs:ReceiveMessage", "sqs:DeleteMessage"),
        resource=_own("QuarantineQueue"),
        not_for=_DELIVERING,
    ),
    Grant(
        sid="Enqueue",
        actions=("sqs:SendMessage",),
        resource=_own("DeliveriesQueue"),
        only_for=("notice_event", "api_handler"),
    ),
    Grant(
        sid="SendAgain",
        actions=("sqs:ReceiveMessage", "sqs:DeleteMessage"),
        resource=_own("UndeliveredQueue"),
        only_for=("api_handler",),
    ),
    Grant(sid="Postpone", actions=("sqs:ChangeMessageVisibility",), resource=_own("DeliveriesQueue")),
    Grant(sid="Undelivered", actions=("sqs:SendMessage",), resource=_own("UndeliveredQueue"), only_for=("deliver",)),
    # Encrypted with the account's own key of Parameter Store, whose policy lets whoever may read the parameter decrypt.
    Grant(sid="Secrets", actions=("ssm:GetParameters",), resource=_arn("ssm", "parameter/${AWS::StackName}/secrets/*")),
    Grant(sid="Notices", actions=("sns:Publish",), resource={"Ref": "NoticesTopic"}),
    Grant(sid="Bus", actions=("events:PutEvents",), resource=_own("MonitorBus")),
)


# Policies that functions share: the buckets of the parameter. A role's inline policies hold 10,240 characters in all,
# too few for thirty long names beside the function's own statements. Source: IAM user guide, IAM and STS quotas.
SHARED: Final[Mapping[str, tuple[Grant, ...]]] = {
    "training_buckets_read": (
        Grant(sid="ReadOtherCheckpoints", actions=_S3_READ, resource=_in_training_buckets("/*")),
        Grant(sid="ListOtherMailboxes", actions=_S3_LIST, resource=_in_training_buckets("")),
    ),
    "training_buckets_write": (
        Grant(sid="WriteOtherMailboxes", actions=_S3_WRITE, resource=_in_training_buckets(*_MAILBOXES)),
    ),
}


# The statement of a function's own policy that tells that it needs the shared one.
_NEEDS: Final[Mapping[str, str]] = {
    "training_buckets_read": "ReadCheckpoints",
    "training_buckets_write": "WriteMailbox",
}


def shared_policies(policy: Mapping[str, Any]) -> tuple[str, ...]:
    """Which of the shared policies a function with this policy of its own carries, where there are other buckets."""
    own = {_statement(statement)["Sid"] for statement in policy["Statement"]}
    return tuple(name for name in SHARED if _NEEDS[name] in own)


def _statement(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return dict(entry["Fn::If"][1] if "Fn::If" in entry else entry)


def withheld(function: str) -> frozenset[str]:
    """Actions that the code of a function could reach, and that no event which comes to it asks for."""
    return frozenset(action for action, functions in ONE_KINDS.items() if function not in functions)


def platform_grants(function: Function) -> Iterator[Grant]:
    """What Lambda itself does in the function's name, and no code of ours calls."""
    yield Grant(
        sid="Logs",
        actions=("logs:CreateLogStream", "logs:PutLogEvents"),
        resource=_arn("logs", f"log-group:/aws/lambda/${{AWS::StackName}}-{function.name}:*"),
    )
    if function.is_asynchronous:
        yield Grant(sid="KeepFailures", actions=("sqs:SendMessage",), resource=_own("FailuresQueue"))
    if function.trigger is Trigger.QUEUE:
        yield Grant(
            sid="TakeDeliveries",
            actions=("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"),
            resource=_own("DeliveriesQueue"),
        )
    if function.trigger is Trigger.DURABLE:
        yield Grant(
            sid="DurableState",
            actions=("lambda:CheckpointDurableExecution", "lambda:GetDurableExecutionState"),
            resource=_EXECUTIONS,
        )


def policy_of(function: Function, actions: frozenset[str]) -> dict[str, Any]:
    """The function's whole policy.

    Raises:
        ValueError: the code calls an action that has no row of resources here.
    """
    granted = {action for grant in GRANTS for action in grant.actions}
    if unknown := sorted(actions - granted):
        raise ValueError(f"{function.name} calls {', '.join(unknown)}: say in infra/grants.py on what")
    statements = [
        statement
        for grant in platform_grants(function)
        if (statement := grant.statement(frozenset(grant.actions))) is not None
    ]
    statements += [
        statement for grant in GRANTS if (statement := grant.statement(actions, function=function.name)) is not None
    ]
    return {"Version": "2012-10-17", "Statement": statements}


def policies() -> dict[str, dict[str, Any]]:
    """Function or shared policy -> its document, from the code as it is."""
    reached = actions_of_functions()
    own = {function.name: policy_of(function, reached[function.name].actions()) for function in FUNCTIONS}
    return own | shared_documents()


def shared_documents() -> dict[str, dict[str, Any]]:
    """Name -> document of the policies that functions share."""
    return {name: _shared(grants) for name, grants in SHARED.items()}


def _shared(grants: tuple[Grant, ...]) -> dict[str, Any]:
    statements = [statement for grant in grants if (statement := grant.statement(frozenset(grant.actions))) is not None]
    return {"Version": "2012-10-17", "Statement": statements}


def main(folder: Path = POLICIES) -> int:
    """Write all files; prints those that changed."""
    for name, policy in policies().items():
        path, text = folder / f"{name}.json", json.dumps(policy, indent=2) + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"changed: {path.relative_to(INFRA.parent)}")
    return 0


if __name__ == "__main__":
    no_options("infra.grants", __doc__)
    sys.exit(main())
