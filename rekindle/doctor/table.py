"""Every check: what it looks at, why, and where that is from. docs/reference/doctor.md is generated from this table.

`twin` names the check of AWS's validate-config.py (1.architectures/5.sagemaker-hyperpod) that a row stands for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rekindle.compat import StrEnum
from rekindle.doctor.base.ids import Id


class Area(StrEnum):
    """What has to be given for a check to be made."""

    FILES = "Any file"
    REQUEST = "`--config`"
    PROVISIONING = "`--provisioning`"
    ACCOUNT = "`--config` or `--live`, in the AWS account"
    LIVE = "`--live`"
    SCRIPT = "`--script`"
    STACK = "Rekindle's own stack (`rekindle doctor`)"
    RUNS = "Protected Jobs (`rekindle doctor`)"


@dataclass(frozen=True, slots=True)
class Check:
    """One row."""

    id: Id
    area: Area
    what: str
    why: str
    source: str
    twin: str = ""


_F, _R, _P, _A, _L, _S, _T, _J = Area
_BOTO = "botocore, CreateCluster"
_SBATCH = "sbatch(1); tried on 22.05"
_AUTO = "SageMaker guide, sagemaker-hyperpod-resiliency-slurm-auto-resume"
_EC2 = "EC2 API reference"
_REF = "SageMaker guide, sagemaker-hyperpod-ref"
_PRE = "SageMaker guide, sagemaker-hyperpod-prerequisites"
_SCALE = "SageMaker guide, sagemaker-hyperpod-scaling-slurm"
_OURS = "this repository"

CHECKS: Final = (
    Check(
        Id.FILE, _F, "the file is there, regular, not larger than 4 MiB", "no other check can run without it", _SBATCH
    ),
    Check(
        Id.JSON,
        _F,
        "UTF-8, JSON, an object; no NaN, no name twice, not deeper than 50",
        "readers disagree on what such a file says",
        "RFC 8259",
        "JSON parse",
    ),
    Check(
        Id.REQUEST_SHAPE,
        _R,
        "members, types, lengths, patterns, enum values",
        "the service checks most of them only after the call",
        _BOTO,
        "schema",
    ),
    Check(
        Id.REQUEST_ONE_OF,
        _R,
        "one orchestrator; InstanceType or InstanceRequirements; Spot or OnDemand; one thing per storage entry",
        "the model does not state it, but the service refuses it",
        _BOTO,
    ),
    Check(
        Id.REQUEST_LIFECYCLE,
        _R,
        "lifecycle folder and script: present, s3://, a bucket that nodes may read",
        "a node that cannot fetch or find its script fails to start",
        _REF,
    ),
    Check(
        Id.REQUEST_RECOVERY,
        _R,
        "NodeRecovery, of the request and of the live cluster: set, and what it means",
        "None: only Rekindle repairs nodes; not set means Automatic: HyperPod repairs too",
        "SageMaker guide, sagemaker-hyperpod-resiliency-slurm",
    ),
    Check(
        Id.REQUEST_HEALTH_CHECKS,
        _R,
        "deep health checks on groups with GPUs or Trainium",
        "otherwise the first run finds a bad device",
        "SageMaker guide, sagemaker-hyperpod-resiliency-slurm-deep-health-checks",
    ),
    Check(Id.REQUEST_VPC, _R, "VpcConfig is there", "file systems are in a VPC", _PRE),
    Check(
        Id.REQUEST_THREADS,
        _R,
        "ThreadsPerCore suits the type",
        "Graviton and Grace have one thread per core",
        "EC2 guide, cpu-options",
    ),
    Check(Id.REQUEST_STORAGE, _R, "one root volume; no mount path twice", "the later mount hides the earlier", _BOTO),
    Check(
        Id.REQUEST_SPOT,
        _R,
        "Spot capacity only on EKS with continuous provisioning",
        "elsewhere it is not documented to work",
        "SageMaker guide, sagemaker-hyperpod-spot",
    ),
    Check(Id.GROUP_NAMES, _R, "no group's name twice", "both files refer to groups by name", _BOTO),
    Check(
        Id.GROUP_COUNTS,
        _R,
        "MinInstanceCount not above InstanceCount, and only with Continuous",
        "the group would be rolled back after three hours",
        _SCALE,
    ),
    Check(
        Id.SLURM_CONTROLLER,
        _R,
        "exactly one Controller group, with one instance",
        "without it nothing schedules",
        _SCALE,
    ),
    Check(Id.SLURM_LOGIN, _R, "at most one Login group", "the service refuses a second", _SCALE),
    Check(
        Id.SLURM_PARTITIONS,
        _R,
        "PartitionNames on Compute groups, and only there",
        "the service refuses others",
        _SCALE,
    ),
    Check(
        Id.SLURM_CONFIG, _R, "SlurmConfig on all groups or none, and not on EKS", "a group would have no part", _SCALE
    ),
    Check(
        Id.PROVISIONING_MODE,
        _R,
        "Continuous has SlurmConfig, no SlurmConfigStrategy and no provisioning_parameters.json",
        "the two ways to configure Slurm exclude each other",
        _SCALE,
    ),
    Check(
        Id.PROVISIONING_SHAPE,
        _P,
        "required members, types (lists and what is in them too), known names",
        "lifecycle scripts fail on the node, twenty minutes later",
        _REF,
        "schema; FSx members are optional here",
    ),
    Check(
        Id.PROVISIONING_GROUPS,
        _P,
        "controller, login and worker groups exist in the request; each group has one part; none is left out",
        "HyperPod rolls the cluster back on a mismatch",
        _REF,
        "group names; controller and login too",
    ),
    Check(
        Id.PROVISIONING_FSX,
        _P,
        "DNS name and mount name together and well formed; the same file system in both files",
        "nodes fail to mount",
        _REF,
        "schema",
    ),
    Check(
        Id.SUBNET_EXISTS,
        _A,
        "every subnet of VpcConfig and of every OverrideVpcConfig exists",
        "no node starts",
        _EC2,
        "subnet; all of them",
    ),
    Check(
        Id.SUBNET_PRIVATE,
        _A,
        "none of them gives public addresses at launch",
        "cluster creation fails in a public subnet",
        _PRE,
        "subnet; all of them",
    ),
    Check(Id.SUBNET_VPC, _A, "all subnets are in one VPC", "nodes in two VPCs do not reach each other", _EC2),
    Check(
        Id.SUBNET_ZONE,
        _A,
        "the zones of a group's subnets offer its instance type",
        "capacity never comes where it is not offered",
        "EC2, DescribeInstanceTypeOfferings",
    ),
    Check(
        Id.SUBNET_ADDRESSES,
        _A,
        "free addresses for all instances that are to start (P5: 32 each on Slurm, 81 on EKS; others by network cards)",
        "the last nodes fail to start",
        _PRE,
    ),
    Check(
        Id.SECURITY_GROUP_EXISTS,
        _A,
        "every security group exists, in the subnets' VPC",
        "no node starts",
        _EC2,
        "security group",
    ),
    Check(
        Id.SECURITY_GROUP_EFA,
        _A,
        "every group's security groups allow all traffic from and to themselves, by a rule that names them",
        "EFA's health check fails; an open outbound rule does not let EFA traffic out",
        "EC2 guide, efa-start",
        "security group; all of them, both ways, and no pass without a rule",
    ),
    Check(
        Id.S3_ROUTE,
        _A,
        "every subnet reaches S3: gateway endpoint, interface endpoint, or a way out that is no internet gateway",
        "lifecycle scripts cannot be fetched",
        _PRE,
    ),
    Check(
        Id.SCRIPT_OBJECTS,
        _A,
        "the folder has objects, OnCreate is among them, provisioning_parameters.json beside it is the local one",
        "the usual reason why a cluster is rolled back",
        _REF,
    ),
    Check(
        Id.SCRIPT_CONTENT,
        _A,
        "lifecycle scripts have Unix line ends and name their interpreter",
        "the kernel cannot run them",
        "execve(2)",
    ),
    Check(Id.ROLE_EXISTS, _A, "every execution role exists", "no node starts", "IAM, GetRole"),
    Check(Id.ROLE_TRUST, _A, "it lets sagemaker.amazonaws.com assume it", "no node starts", _PRE),
    Check(
        Id.ROLE_ACTIONS,
        _A,
        "it may read the scripts, write logs, and make network interfaces (IAM's own simulation)",
        "nodes fail one by one, each with another message",
        "SageMaker guide, sagemaker-hyperpod-prerequisites-iam",
        "S3 access of the role (in some versions); of all roles",
    ),
    Check(
        Id.FSX_EXISTS,
        _A,
        "every file system exists, is of the right kind, and available",
        "nodes fail to mount",
        "FSx API",
        "FSx DNS name; OpenZFS too",
    ),
    Check(
        Id.FSX_MOUNT_NAME,
        _A,
        "FSx for Lustre has the mount name that is given",
        "nodes fail to mount",
        "FSx API",
        "FSx mount name",
    ),
    Check(Id.FSX_VPC, _A, "it is in the subnets' VPC", "nodes fail to mount", "FSx API"),
    Check(
        Id.PLAN_STATUS,
        _A,
        "the training plan is active, and has no gap",
        "an inactive plan has no capacity",
        "SageMaker guide, reserve-capacity-with-training-plans",
    ),
    Check(
        Id.PLAN_END,
        _A,
        "its end, less the hour by which HyperPod takes nodes earlier; against the script's time limit too",
        "plans end at 11:30 UTC, and no event is sent",
        "SageMaker guide, reserve-capacity-with-training-plans",
    ),
    Check(
        Id.PLAN_ZONE,
        _A,
        "its zone is among the group's subnets'",
        "reserved capacity cannot be used elsewhere",
        "botocore, DescribeTrainingPlan",
    ),
    Check(
        Id.PLAN_SIZE,
        _A,
        "it is for HyperPod, for the type, and large enough; a spare is left",
        "a replacement waits without a spare",
        "botocore, DescribeTrainingPlan",
    ),
    Check(
        Id.QUOTA,
        _A,
        "the quotas for clusters and for network interfaces allow what is to start",
        "creation stops half-way",
        "Service Quotas",
    ),
    Check(Id.CLUSTER_EXISTS, _L, "the cluster exists", "the name may be mistyped", "botocore, DescribeCluster"),
    Check(
        Id.CLUSTER_STATUS,
        _L,
        "it and its groups are in service",
        "repairs wait until they are",
        "botocore, DescribeCluster",
    ),
    Check(
        Id.CLUSTER_COUNTS,
        _L,
        "each group has as many instances as it should",
        "InService does not say so under Continuous",
        _SCALE,
    ),
    Check(Id.CLUSTER_NODES, _L, "every node runs", "a failed node reduces capacity", "botocore, ListClusterNodes"),
    Check(
        Id.CLUSTER_SOFTWARE,
        _L,
        "the software was updated once, and the last update went well",
        "BatchReplaceClusterNodes and BatchRebootClusterNodes refuse the cluster otherwise",
        "SageMaker API, BatchReplaceClusterNodes",
    ),
    Check(
        Id.CLUSTER_MATCHES,
        _L,
        "groups, counts, types, roles and plans are those of `--config`",
        "the next update would revert manual changes",
        _OURS,
    ),
    Check(
        Id.AGENT_HEARTBEAT,
        _L,
        "Rekindle's agent on the head node lives and reads Slurm",
        "without it Rekindle cannot observe or act there",
        _OURS,
    ),
    Check(Id.AGENT_QUEUE, _L, "the queue of its orders exists", "orders cannot reach it", _OURS),
    Check(Id.AGENT_NODES, _L, "no node is drained, failed or down in Slurm", "such a node takes no job", _OURS),
    Check(Id.BATCH_TEXT, _S, "not empty, no NUL, Unix line ends, UTF-8", "sbatch refuses the script", _SBATCH),
    Check(Id.BATCH_SHEBANG, _S, "the first line names an interpreter", "sbatch refuses the script", _SBATCH),
    Check(
        Id.BATCH_OPTIONS,
        _S,
        "every `#SBATCH` option is one, unambiguous, with a value where it needs one",
        "sbatch refuses the script",
        _SBATCH,
    ),
    Check(Id.BATCH_LATE_OPTIONS, _S, "no `#SBATCH` line after the first command", "sbatch does not read it", _SBATCH),
    Check(
        Id.BATCH_AUTO_RESUME,
        _S,
        "srun has --auto-resume=1; it stands on no `#SBATCH` line",
        "HyperPod runs the step again after a bad node only then",
        _AUTO,
    ),
    Check(
        Id.BATCH_AUTO_RESUME_PORTABLE,
        _S,
        "it is given only where /opt/sagemaker_cluster exists",
        "srun refuses it elsewhere",
        _AUTO,
    ),
    Check(Id.BATCH_STEPS, _S, "one srun holds everything", "only a step is run again", _AUTO),
    Check(
        Id.BATCH_SIGNAL,
        _S,
        "the script handles a signal: a trap, --signal, the monitor",
        "no emergency checkpoint otherwise",
        "sbatch(1), --signal",
    ),
    Check(
        Id.BATCH_TRAP,
        _S,
        "a trap can run: srun is in the background",
        "bash runs a trap when the command in the foreground has ended",
        "bash(1), SIGNALS",
    ),
    Check(
        Id.BATCH_WAIT, _S, "what runs in the background is waited for", "the job ends with the script", "bash(1), wait"
    ),
    Check(
        Id.BATCH_CHECKPOINT,
        _S,
        "a checkpoint path, on shared storage",
        "a replaced node's disks are gone",
        "SageMaker API, BatchReplaceClusterNodes",
    ),
    Check(Id.BATCH_OUTPUT, _S, "--open-mode=append", "a requeued job overwrites its output", "sbatch(1), --open-mode"),
    Check(
        Id.BATCH_EXCLUSIVE,
        _S,
        "--exclusive",
        "auto-resume needs it; a repair ends whatever else runs on the node",
        _AUTO,
    ),
    Check(Id.BATCH_REQUEUE, _S, "no --no-requeue", "auto-resume on GPU nodes is a requeue", _AUTO),
    Check(
        Id.BATCH_RENDEZVOUS,
        _S,
        "on several nodes: no localhost, no fixed host, torchrun with nnodes and endpoint, no rank of the batch shell",
        "ranks never meet, or only where they ran first",
        "torch.distributed.run",
    ),
    Check(
        Id.BATCH_PORT,
        _S,
        "no fixed port without --exclusive",
        "another job on the node may have it",
        "torch.distributed.run",
    ),
    Check(
        Id.BATCH_NODELIST, _S, "SLURM_JOB_NODELIST is not used with auto-resume", "it is stale after a resume", _AUTO
    ),
    Check(
        Id.BATCH_TIME,
        _S,
        "--time is two hours or more with auto-resume",
        "a resumed step waits half an hour for its node",
        _AUTO,
    ),
    Check(Id.BATCH_COMMENT, _S, "--comment=rekindle…, well formed", "the agent finds protected jobs by it", _OURS),
    Check(
        Id.BATCH_BAD_EXIT,
        _S,
        "srun has --kill-on-bad-exit=1",
        "the others wait for a dead task until a time-out",
        "srun(1)",
    ),
    Check(
        Id.BATCH_EXIT_CODE,
        _S,
        "`set -e`; no `||` or pipe hides srun's exit code",
        "a failed run looks complete",
        "bash(1)",
    ),
    Check(Id.BATCH_RESUBMIT, _S, "no array, no heterogeneous job", "it cannot be submitted again as it was", _OURS),
    Check(
        Id.STACK,
        _T,
        "the stack is there, and its last change ended well",
        "an incomplete stack does not protect Jobs, and reports no error",
        "CloudFormation user guide, stack status codes",
    ),
    Check(
        Id.STACK_API,
        _T,
        "the API answers you, with your credentials",
        "without the API you cannot pause, cancel or approve",
        _OURS,
    ),
    Check(
        Id.STACK_RULES,
        _T,
        "every rule of the stack is there, ENABLED, and has its target",
        "a disabled rule drops every event silently",
        "EventBridge API, DescribeRule, ListTargetsByRule",
    ),
    Check(
        Id.STACK_FUNCTIONS,
        _T,
        "every function is Active, its last update went well, its concurrency is not 0; no errors of late",
        "a function that cannot start fails every event it gets",
        "Lambda API, GetFunction",
    ),
    Check(
        Id.STACK_MAPPINGS,
        _T,
        "every queue that feeds a function is Enabled",
        "messages behind a disabled mapping are not processed",
        "Lambda API, GetEventSourceMapping",
    ),
    Check(
        Id.STACK_SWEEP,
        _T,
        "the sweep has run in the last 15 minutes",
        "only the sweep finds faults whose events were lost",
        "CloudWatch, AWS/Lambda Invocations",
    ),
    Check(
        Id.STACK_EVENTS,
        _T,
        "what each rule has matched, and failed to deliver, in 7 days",
        "an event that could not be delivered is lost after a day",
        "EventBridge user guide, eb-monitoring",
    ),
    Check(
        Id.STACK_QUEUES,
        _T,
        "queues of what could not be read, delivered or sent are empty",
        "each message is an event or a notification that was not processed",
        "SQS API, GetQueueAttributes",
    ),
    Check(
        Id.STACK_ALARMS,
        _T,
        "every alarm on Rekindle itself exists, is enabled, has a subscriber, and is not in ALARM",
        "otherwise a failure of Rekindle itself goes unnoticed",
        "CloudWatch API, DescribeAlarms",
    ),
    Check(
        Id.STACK_PEOPLE,
        _T,
        "notifications have a receiver: a confirmed subscription, or a channel whose secrets exist",
        "a page without a receiver is lost",
        "SNS API, ListSubscriptionsByTopic; docs/notifications.md",
    ),
    Check(
        Id.STACK_NOTIFICATIONS,
        _T,
        "buckets of mailboxes send their events to EventBridge",
        "without them a reply is noticed only at the next observation",
        "S3 API, GetBucketNotificationConfiguration",
    ),
    Check(
        Id.STACK_PERMISSIONS,
        _T,
        "no boundary, organization policy or Deny removes what the functions' own policies grant",
        "otherwise a recovery fails halfway",
        "IAM API, SimulatePrincipalPolicy",
    ),
    Check(
        Id.STACK_SWITCHES,
        _T,
        "no global pause, no shadow mode everywhere",
        "Rekindle takes no action while a pause is left on",
        _OURS,
    ),
    Check(
        Id.RUN_MAILBOX,
        _J,
        "the Job has a mailbox",
        "without one there is no emergency checkpoint and no proof of progress",
        _OURS,
    ),
    Check(
        Id.RUN_HEARTBEAT,
        _J,
        "its current attempt has a heartbeat of the last ten minutes",
        "a silent monitor detects no hang and no NaN",
        _OURS,
    ),
    Check(
        Id.RUN_CADENCE,
        _J,
        "how often it saves, against the best interval for its failure rate",
        "half an interval is lost at each hard failure, and each save costs training time",
        "Young 1974, Daly 2006: the interval is sqrt(2 x save time x time between failures)",
    ),
    Check(
        Id.RUN_POLICY,
        _J,
        "its policy exists and can be used",
        "an Incident with an unusable policy runs in shadow mode",
        _OURS,
    ),
    Check(
        Id.RUN_PLAN,
        _J,
        "a training job's training plan is active and does not end within two days",
        "instances are removed half an hour before a plan's end, and no event is sent",
        "SageMaker guide, reserve-capacity-with-training-plans",
    ),
)


def markdown() -> str:
    """The tables of docs/reference/doctor.md."""
    parts = []
    for area in Area:
        rows = [check for check in CHECKS if check.area is area]
        lines = [f"### {area.value}", "", "| check | looks at | why | source |", "|---|---|---|---|"]
        lines += [f"| `{row.id}` | {row.what} | {row.why} | {row.source} |" for row in rows]
        parts.append("\n".join(lines))
    twins = [f"| {row.twin} | `{row.id}` |" for row in CHECKS if row.twin]
    parts.append(
        "\n".join(
            [
                "### Equivalents of AWS's validate-config.py",
                "",
                "| validate-config.py | Rekindle |",
                "|---|---|",
                *twins,
            ]
        )
    )
    return "\n\n".join(parts)
