"""Rules in the platforms' own words: SageMaker's FailureReason, EC2's capacity, Slurm's launches."""

from __future__ import annotations

from typing import Final

from rekindle.protocol.signals import FaultClass
from rekindle.signatures.labels import CausalClass, Label
from rekindle.signatures.responses import FirstResponse
from rekindle.signatures.rule import Rule

PLATFORM: Final[tuple[Rule, ...]] = (
    Rule(
        name="capacity",
        label=Label.CAPACITY,
        pattern=r"unable to provision requested (?:ml )?compute capacity|insufficient ?instance ?capacity"
        r"|do not have sufficient (?:\S{1,40} )?capacity|(?:\A|\n|\.|reason: )\s{0,3}capacityerror\b",
        example="CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML "
        "instance type.",
        source="sagemaker-python-sdk session.py raises CapacityError on this word in FailureReason; EC2 error codes",
    ),
    Rule(
        name="internal_server_error",
        label=Label.PLATFORM_FAILURE,
        pattern=r"(?:\A|\n|reason: )\s{0,3}internalservererror\b",
        example="InternalServerError: We encountered an internal error. Please try again.",
        source="CreateTrainingJob RetryStrategy: retries cover InternalServerError only",
    ),
    Rule(
        name="cluster_repair",
        label=Label.PLATFORM_FAILURE,
        pattern=r"due to (?:a )?hardware failure",
        example="Repairing training cluster due to hardware failure",
        source="SageMaker developer guide, model-checkpoints-cluster-repair",
        fault=FaultClass.NODE_HARDWARE,
        order=CausalClass.DEVICE,
    ),
    Rule(
        name="job_credential",
        label=Label.LAUNCH_FAILED,
        pattern=r"\bjob credential (?:expired|revoked|has expired)\b|\binvalid job credential\b"
        r"|\bcredential .{0,40}\bmunge\b.{0,60}\b(?:expired|rewound|invalid)\b",
        example="srun: error: Task launch for StepId=51.0 failed on node p5-2: Job credential expired",
        source="Slurm slurm_errno.c ESLURMD_CREDENTIAL_EXPIRED: the nodes' clocks differ, or the launch took too long",
    ),
    Rule(
        name="topology",
        label=Label.LAUNCH_FAILED,
        pattern=r"\brequested (?:topology|node) configuration is not available\b",
        example="sbatch: error: Batch job submission failed: Requested topology configuration is not available",
        source="Slurm slurm_errno.c ESLURM_REQUESTED_TOPO_CONFIG_UNAVAILABLE",
        response=FirstResponse.ASK_OWNER,
    ),
    Rule(
        name="execve",
        label=Label.LAUNCH_FAILED,
        pattern=r"\bexecve\(\):? .{1,300}(?:no such file|permission denied|exec format error)"
        r"|\bslurmstepd: error: couldn't chdir to\b",
        example="slurmstepd: error: execve(): train.py: No such file or directory",
        source="Slurm slurmstepd task.c: the same command fails the same way",
        fault=FaultClass.SOFTWARE_CRASH,
        response=FirstResponse.ASK_OWNER,
    ),
    Rule(
        name="task_launch",
        label=Label.LAUNCH_FAILED,
        pattern=r"\btask launch for \S{1,40}\b.{0,80}\bfailed\b|\bapplication launch failed\b|\bslurm boot_fail\b",
        example="srun: error: Task launch for StepId=51.0 failed on node p5-2: Communication connection failure",
        source="Slurm srun launch; squeue, JOB STATE CODES",
    ),
    Rule(
        name="image_pull",
        label=Label.LAUNCH_FAILED,
        pattern=r"\b(?:errimagepull|imagepullbackoff|failed to (?:pull|import docker) image)\b",
        example="Warning  Failed  kubelet  Error: ImagePullBackOff",
        source="Kubernetes kubelet; NVIDIA pyxis importer.c",
    ),
    Rule(
        name="slurm_controller",
        label=Label.LAUNCH_FAILED,
        pattern=r"\bunable to contact slurm controller\b",
        example="srun: error: Unable to contact slurm controller (connect failure)",
        source="Slurm slurm_errno.c SLURMCTLD_COMMUNICATIONS_CONNECTION_ERROR: clients try again for a while",
        order=CausalClass.ECHO,
    ),
    Rule(
        name="refused_submission",
        label=Label.BAD_REQUEST,
        pattern=r"\b(?:batch job submission failed|unable to create step for job \d{1,10}"
        r"|unable to allocate resources): "
        r"(?!.{0,80}(?:temporarily|retr|again|contact|timed out|credential|already complet))",
        example="srun: error: Unable to create step for job 123: Invalid generic resource (gres) specification",
        source="Slurm sbatch, srun, salloc; slurm_errno.c",
    ),
    Rule(
        name="client_error",
        label=Label.BAD_REQUEST,
        pattern=r"(?:\A|\n|reason: )\s{0,9}(?:clienterror|validationexception|accessdenied\w{0,20})\b"
        r"|\bresourcelimitexceeded\b",
        example="ClientError: Data download failed: no S3 objects found under the prefix",
        source="SageMaker FailureReason prefix for bad input or configuration; a quota that is used up",
    ),
    Rule(
        name="time_limit",
        label=Label.PREEMPTION,
        pattern=r"\bmax(?:runtime|waittime)exceeded\b|exceeded (?:the )?max(?:imum)? ?(?:run ?time|wait ?time)",
        example="MaxRuntimeExceeded: the job ran longer than MaxRuntimeInSeconds",
        source="DescribeTrainingJob SecondaryStatus MaxRuntimeExceeded, MaxWaitTimeExceeded",
    ),
)
