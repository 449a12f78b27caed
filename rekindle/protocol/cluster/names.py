"""Names of attempts and of the cluster state's objects. Pure; standard library only.

An attempt on Slurm is one start of one Slurm job: `slurm.<cluster>.<base>` for the first start of a submission,
`slurm.<cluster>.<base>.r<N>` for its N-th restart (`SLURM_RESTART_COUNT`, `Restarts=` of scontrol). `base` is the
Slurm job's id, or the name that a resubmission of ours was given (REKINDLE_ATTEMPT_NAME in its environment,
`attempt=<name>` in its comment). So both sides, the agent from scontrol and the monitor from its environment, come to
the same name without a request; and a zombie of an earlier start has another name than its successor.

The dots tell such a name from a SageMaker training job's, which has none (botocore, TrainingJobName).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from rekindle.protocol.bounds import Text
from rekindle.protocol.launch_orders import (
    ENV_ATTEMPT,
    ENV_INCIDENT,
    ENV_RESUME_MANIFEST,
    ENV_RESUME_STEP,
    ENV_RESUME_URI,
    ENV_SKIP,
)
from rekindle.protocol.wire import MailboxError, check_id

PREFIX: Final = "slurm"
ENV_CLUSTER: Final = "REKINDLE_CLUSTER"
ENV_SLURM_ATTEMPT: Final = "REKINDLE_ATTEMPT_NAME"  # set for a fresh submission of ours: its attempt's whole name
# On which host that was submitted. What the run submits itself inherits both, and has another SLURM_SUBMIT_HOST.
ENV_SUBMITTED_ON: Final = "REKINDLE_SUBMITTED_ON"
# What the environment of one attempt says of that attempt alone: no word about another one, which may inherit it.
OF_ONE_ATTEMPT: Final = (
    ENV_ATTEMPT,
    ENV_INCIDENT,
    ENV_RESUME_MANIFEST,
    ENV_RESUME_STEP,
    ENV_RESUME_URI,
    ENV_SKIP,
    ENV_SLURM_ATTEMPT,
    ENV_SUBMITTED_ON,
)
MAX_CLUSTER_CHARS: Final = 63  # Source: botocore sagemaker ClusterName; Slurm's own ClusterName is at most 40
MAX_QUEUE_CHARS: Final = 80
_CLUSTER: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
_NAME: Final = re.compile(
    r"slurm\.(?P<cluster>[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?)"
    r"\.(?P<base>[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?)(?:\.r(?P<restart>[1-9][0-9]{0,5}))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmAttempt:
    """The parts of an attempt's name. `restart` is 0 for the first start."""

    cluster: str
    base: str
    restart: int = 0

    @property
    def name(self) -> str:
        """The whole name. Raises: MailboxError where it would be too long."""
        suffix = f".r{self.restart}" if self.restart else ""
        return check_id(f"{PREFIX}.{self.cluster}.{self.base}{suffix}", "attempt")

    def restarted(self, restart: int) -> SlurmAttempt:
        """The same submission's start number `restart`."""
        return SlurmAttempt(cluster=self.cluster, base=self.base, restart=restart)


def is_slurm(attempt: str) -> bool:
    """True for an attempt's name that is Slurm's."""
    return _NAME.fullmatch(attempt) is not None


def parse_attempt(attempt: str) -> SlurmAttempt:
    """Raises: MailboxError for a name that is not Slurm's."""
    found = _NAME.fullmatch(attempt)
    if found is None or len(attempt) > 128:
        raise MailboxError("attempt", "is no name of an attempt on Slurm")
    return SlurmAttempt(cluster=found["cluster"], base=found["base"], restart=int(found["restart"] or 0))


def undeclared_job_ids(attempt: str) -> tuple[str, ...]:
    """What the monitor of an attempt takes for its Job's id where it is given none: the attempt's own name; on Slurm
    that of the first start of its submission.
    """
    if not is_slurm(attempt):
        return (attempt,)
    return tuple(dict.fromkeys((attempt, parse_attempt(attempt).restarted(0).name)))


def check_cluster(cluster: object, field: str = "cluster") -> str:
    """The name itself. Raises: MailboxError."""
    if not isinstance(cluster, str) or _CLUSTER.fullmatch(cluster) is None:
        raise MailboxError(field, f"must be 1 to {MAX_CLUSTER_CHARS} characters of A-Z a-z 0-9 _ -")
    return cluster


def check_attempt(attempt: str, field: str = "attempt") -> str:
    """The name itself. Raises: MailboxError for one that is not Slurm's."""
    if not is_slurm(attempt):
        raise MailboxError(field, "is no name of an attempt on Slurm")
    return attempt


def first_attempt(cluster: str, slurm_job: int) -> SlurmAttempt:
    """The default name of a Slurm job's first start."""
    return SlurmAttempt(cluster=check_cluster(cluster), base=str(slurm_job))


def attempt_from_env(env: Mapping[str, str], cluster: str) -> SlurmAttempt | None:
    """Which attempt this process belongs to; None outside a Slurm job.

    Source: sbatch, OUTPUT ENVIRONMENT VARIABLES: SLURM_JOB_ID; SLURM_RESTART_COUNT is unset at the first start.
    """
    job = env.get("SLURM_JOB_ID", "")
    if not (job.isascii() and job.isdigit() and len(job) < 12):
        return None
    count = env.get("SLURM_RESTART_COUNT", "")
    restart = int(count) if count.isascii() and count.isdigit() and len(count) < 7 else 0
    if is_submission_of_ours(env):
        return parse_attempt(env[ENV_SLURM_ATTEMPT]).restarted(restart)
    return first_attempt(cluster, int(job)).restarted(restart)


def is_submission_of_ours(env: Mapping[str, str]) -> bool:
    """The attempt's name in the environment is this job's own, and not inherited from the job that submitted it.

    Source: sbatch, OUTPUT ENVIRONMENT VARIABLES: SLURM_SUBMIT_HOST, which sbatch sets anew at each submission.
    """
    host = env.get(ENV_SUBMITTED_ON, "")
    return is_slurm(env.get(ENV_SLURM_ATTEMPT, "")) and host != "" and env.get("SLURM_SUBMIT_HOST", host) == host


# ---- the cluster state: keys in the stack's bucket -------------------------------------------------------------------


def cluster_prefix(cluster: str) -> str:
    """Everything about one cluster; the only part of the bucket that its head node may use."""
    return f"clusters/{check_cluster(cluster)}/"


def agent_key(cluster: str) -> str:
    return f"{cluster_prefix(cluster)}agent.json"


def nodes_key(cluster: str) -> str:
    return f"{cluster_prefix(cluster)}nodes.json"


def attempts_prefix(cluster: str) -> str:
    """The folder of the cluster's attempts."""
    return f"{cluster_prefix(cluster)}attempts"


def attempt_key(attempt: str) -> str:
    return f"{attempts_prefix(parse_attempt(attempt).cluster)}/{attempt}.json"


def order_key(cluster: str, token: str) -> str:
    return f"{cluster_prefix(cluster)}orders/{check_id(token, 'token')}.json"


def answer_key(cluster: str, token: str) -> str:
    return f"{cluster_prefix(cluster)}answers/{check_id(token, 'token')}.json"


def relay_prefix(cluster: str, job_id: str) -> str:
    """The copy in S3 of a mailbox that lies on a shared path: a mailbox's prefix, without a slash at its end."""
    return f"{cluster_prefix(cluster)}jobs/{check_id(job_id, 'job_id')}"


def found_key(cluster: str, job_id: str) -> str:
    """The checkpoints that the agent sees on a shared path, see `documents.FoundDoc`."""
    return f"{relay_prefix(cluster, job_id)}/found.json"


def queue_name(stack: str, cluster: str) -> str:
    """The cluster's queue of orders; no two clusters of a stack have the same, however long their names are.

    Source: SQS, a queue's name has at most 80 characters of A-Z a-z 0-9 _ -.
    """
    name = f"{stack}-agent-{check_cluster(cluster)}"
    if len(name) <= MAX_QUEUE_CHARS:
        return name
    return f"{name[: MAX_QUEUE_CHARS - 17]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


# ---- types of fields -------------------------------------------------------------------------------------------------

AttemptName = Annotated[str, Text(128, check=check_attempt)]
ClusterName = Annotated[str, Text(MAX_CLUSTER_CHARS, check=check_cluster)]
