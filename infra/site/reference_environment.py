"""docs/reference/environment.md: the environment variables that people set, and those that the product sets itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from infra.tables import code, page, table

PAGE: Final = "docs/reference/environment.md"


@dataclass(frozen=True, slots=True)
class Variable:
    """One that people set. `read_by`: which programs read it. `whom` completes "for ...": who would set it."""

    name: str
    read_by: str
    default: str
    says: str
    whom: str


VARIABLES: Final = (
    Variable(
        "REKINDLE_API",
        "commands",
        "the stack's",
        "the address of the REST API",
        "those without a right to read the stack",
    ),
    Variable(
        "REKINDLE_STACK", "commands, agent", "`rekindle`", "the CloudFormation stack", "those with more than one stage"
    ),
    Variable(
        "REKINDLE_MAILBOX",
        "monitor, `run`",
        "none: the monitor keeps silent",
        "where a run and the service meet: `s3://…`, or a path that all nodes share",
        "every protected run",
    ),
    Variable(
        "REKINDLE_JOB_ID",
        "monitor",
        "on Slurm the job's own",
        "the Job's id, the same for all its attempts",
        "the first submission of a training job",
    ),
    Variable(
        "REKINDLE_BUS",
        "monitor, agent",
        "monitor: none; agent: the stack's name",
        "the EventBridge bus for signals",
        "training jobs",
    ),
    Variable(
        "REKINDLE_CHECKPOINT_DIR",
        "monitor",
        "none",
        "the local folder of checkpoints",
        "runs whose checkpoints are uploaded by SageMaker",
    ),
    Variable(
        "REKINDLE_CHECKPOINT_URI",
        "monitor, `run`",
        "`CheckpointConfig.S3Uri`",
        "where that folder is uploaded to",
        "the same; and runs whose checkpoints lie outside of the mailbox",
    ),
    Variable(
        "REKINDLE_LINKS",
        "monitor",
        "none",
        "the run in W&B, MLflow, or TensorBoard ([links](../run-links.md))",
        "those who look at their runs there",
    ),
    Variable(
        "REKINDLE_CLUSTER",
        "monitor, agent",
        "HyperPod's resource_config.json, `/etc/rekindle/cluster`, Slurm's own name",
        "the Slurm cluster's name, the same everywhere",
        "clusters where none of these can be read",
    ),
    Variable(
        "REKINDLE_MONITOR",
        "monitor",
        "on",
        "`off` makes the monitor silent",
        "those who run the same script unprotected",
    ),
    Variable(
        "REKINDLE_METRICS",
        "monitor",
        "on where AWS is in use",
        "`off` sends no CloudWatch metrics",
        "those who have metrics elsewhere",
    ),
    Variable(
        "REKINDLE_HEARTBEAT_S",
        "monitor",
        "15",
        "seconds between two heartbeats",
        "those with many runs: [cost](../monitor.md#cost) against speed",
    ),
    Variable(
        "REKINDLE_POLL_S",
        "monitor, agent",
        "5; agent: 10",
        "seconds between two readings of orders; of Slurm's queue",
        "the same; and clusters whose controller is busy",
    ),
    Variable(
        "REKINDLE_STALL_FLOOR_S",
        "monitor",
        "60",
        "silence between two steps, in seconds, that is never a hang",
        "runs that pause for longer between steps",
    ),
    Variable(
        "REKINDLE_STALL_STARTUP_S",
        "monitor",
        "1800",
        "the same before the first step, and at least as long in an evaluation; half of it in a save",
        "runs that load, compile, or evaluate for more than half an hour",
    ),
    Variable(
        "REKINDLE_BUCKET",
        "agent, `doctor`",
        "agent: needed",
        "the stack's bucket, output `BucketName`",
        "every head node",
    ),
    Variable(
        "REKINDLE_PARTITIONS",
        "agent",
        "none",
        "partitions, separated by commas, whose batch jobs are [protected by default](../slurm.md#a-protected-job)",
        "administrators of a cluster",
    ),
    Variable("REKINDLE_ACCOUNTS", "agent", "none", "the same for accounts", "administrators of a cluster"),
    Variable(
        "REKINDLE_PROTECT",
        "agent",
        "none",
        "in a submission's environment: [protects the job](../slurm.md#a-protected-job)",
        "workflow engines that cannot set a comment",
    ),
    Variable(
        "REKINDLE_PYTHON",
        "the agent's installation",
        "the newest that is found",
        "the Python of the agent's environment",
        "head nodes whose Python is older than 3.10",
    ),
)
# What the service gives to an attempt; a script without the monitor reads the first two.
GIVEN: Final = (
    "REKINDLE_RESUME_STEP",
    "REKINDLE_RESUME_URI",
    "REKINDLE_RESUME_MANIFEST",
    "REKINDLE_ATTEMPT",
    "REKINDLE_SKIP",
    "REKINDLE_INCIDENT",
)
# What the template gives to the functions, the agent to a copy of a job, the installation and the demo to what they
# start: no setting, and not kept from one version to the next.
INTERNAL: Final = (
    *(
        f"REKINDLE_{name}"
        for name in ("TABLE", "QUARANTINE_URL", "RECOVER_FUNCTION", "POLICY_PREFIX", "SETTINGS_PREFIX")
    ),
    *(
        f"REKINDLE_{name}"
        for name in ("TOPIC", "STAGE", "LOG_LEVEL", "ACCOUNT", "SWEEP_METRICS_MINUTES", "CONSOLE_URL")
    ),
    *(f"REKINDLE_{name}" for name in ("DELIVERIES_URL", "UNDELIVERED_URL", "NOTICE_LINK_HOURS", "TRAINING_ROLES")),
    *(f"REKINDLE_{name}" for name in ("METRICS_S", "WATCH_S", "AGREE_S", "ABANDON_S")),
    *(f"REKINDLE_{name}" for name in ("STATE_DIR", "LEASE_S", "CLUSTER_FILE", "EXCLUDED_NODES", "ATTEMPT_NAME")),
    *(f"REKINDLE_{name}" for name in ("ROOT", "ADDRESSES", "SETTLE_S")),
)


def page_text() -> str:
    """The page."""
    about = [
        "An option on the command line precedes its variable. AWS's own, `AWS_PROFILE` and `AWS_REGION`, count too.",
        "",
        *table(
            ("variable", "read by", "default", "meaning", "who sets it"),
            ((code(each.name), each.read_by, each.default, each.says, each.whom) for each in VARIABLES),
        ),
    ]
    return page("Environment variables", about, _given())


def _given() -> Iterator[str]:
    step, uri = map(code, GIVEN[:2])
    yield from ("## What an attempt is given", "")
    yield f"The service gives each attempt {step} and {uri}: where to resume. The monitor reads them, and others."
