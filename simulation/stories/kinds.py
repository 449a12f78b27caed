"""The words of a story, each with what it stands for. Times are seconds since the story's beginning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chalicelib.domain.model.incident import Phase

# What truly goes wrong with a run at a step.
TROUBLES: Final[Mapping[str, str]] = {
    "crash": "the container ends with `text`",
    "silent": "its training crashes, and its script or container ends with 0 all the same",
    "oom": "the container runs out of memory",
    "hang": "it makes no step, for `after_s`",
    "rests": "it makes no step for `after_s` and is well: its monitor says that it evaluates or saves",
    "nan": "this step's update poisons the weights, and its loss is NaN",
    "quiet_nan": "this step's update poisons the weights, and the first NaN is the next step's loss",
    "blip": "this step's loss is NaN and its update is left out",
    "spike": "the loss rises, for `heals` steps",
    "torn_save": "the next checkpoint lacks bytes",
    "flipped_save": "the next checkpoint's weights are poisoned and nothing shows it",
    "skips": "for `heals` steps in a row the gradient scaler of fp16 leaves the update out",
    "saves_deleted": "the newest `heals` checkpoints, or all, are deleted with their manifests",
    "slow": "a step takes `times` as long from there on, `heals` steps long",
    "interrupted": "of a training job on managed Spot: its instances are taken, and it starts again `after_s` later "
    "from what it has saved; None: no capacity until MaxWaitTimeInSeconds is over",
    "foreign_save": "another experiment saves under the same root, further on, or with step 0 did so a month ago: with "
    "a manifest by its own monitor",
    "foreign_file": "the same without a monitor: a plain file",
    # on Slurm only
    "node_dies": "the machine of its first node is off",
    "node_sick": "the hardware of its first node fails whatever runs on it",
    "node_hangs": "what runs on its first node stands still, and its ranks are mute",
    "node_leaves": "AWS announces that the instance of its first node is taken away `after_s` later, and takes it; the "
    "node comes back",
    "slurmd_dies": "Slurm loses its first node, whose processes train on and save for `after_s`; then the node is back",
    "suspended": "its processes are stopped for `after_s`",
    "preempted": "another job has its nodes for `after_s`",
    "time_limit": "Slurm ends the job",
}
CURES: Final[Mapping[str, str]] = {"reboot": "a reboot repairs the node", "replace": "only a replacement does"}

PLATFORMS: Final[Mapping[str, str]] = {
    "sagemaker": "a training job",
    "slurm": "a job on the story's HyperPod cluster",
}
PLANS: Final[Mapping[str, str]] = {
    "obeyed": "its trainer begins where its plan says",
    "latest": "its trainer loads its own newest checkpoint whatever its plan",
    "nothing": "it begins at step 0",
}
WATCHES: Final[Mapping[str, str]] = {
    "monitor": "beside the trainer, with a mailbox",
    "metrics": "the job's own loss and step, no monitor, and checkpoints without manifests",
}
# How the next link of a run's chain is submitted.
CHAINS: Final[Mapping[str, str]] = {
    "": "there is none",
    "afterany": "it begins when the link before has ended",
    "afternotok": "it begins when the link before has failed",
    "afterok": "it begins when the link before has completed",
    "singleton": "it begins when no job of its name and user is left before it",
    "within": "the link before submits it, by plain sbatch, as it begins: with `afterany`",
}
RECOVERIES: Final[Mapping[str, str]] = {
    "None": "HyperPod repairs no node by itself",
    "Automatic": "HyperPod repairs nodes by itself",
}

# What a person does.
ACTIONS: Final[Mapping[str, str]] = {
    "resubmit": "submits the run as the launch script does it: the same mailbox, a new name",
    "retry": "the owner's pipeline submits the run again as it does at first, whatever lives",
    "stop": "stops the live attempt in the console",
    "order_stop": "orders Rekindle to stop the run",
    "order_save_stop": "orders Rekindle to stop the run, with a checkpoint first",
    "order_resubmit": "orders Rekindle to submit the run again",
    "order_reboot": "orders Rekindle to reboot the node of its first rank; Slurm only",
    "cancel": "cancels the open Incident",
    "pause": "pauses Rekindle",
    "unpause": "lifts the pause",
    "approve": "approves the newest question of the run's newest Incident, open or not",
    "deny": "denies it",
    "hang_cancel": "no person's: HyperPod's hung-job detection cancels the job as root, if it stands still; Slurm only",
    "requeue": "an administrator, or another recovery layer, puts the running job back into the queue; Slurm only",
    "time_limit": "no person's: the platform ends the live attempt at its time limit",
}
MOMENTS: Final[Mapping[str, str]] = {
    "start": "as the story begins",
    "dead": "no attempt lives",
    "incident": "an Incident has opened",
    "asked": "a person is asked to approve a step",
    **{phase.value: f"the run's Incident enters {phase.value}" for phase in Phase},
}
TAGS: Final[Mapping[str, str]] = {
    "job": "a copy of the old job, all our tags with it",
    "policy": "as the run was first submitted",
    "other_stage": "the same, but the tag names another stage of Rekindle",
    "none": "without our tags",
}

# How a source goes wrong.
_OF_NODES: Final = (
    "DescribeCluster",
    "DescribeClusterNode",
    "ListClusterNodes",
    "BatchRebootClusterNodes",
    "BatchReplaceClusterNodes",
)
# Lies that answer a call of the service's with an error: (service, operations or none for all, error code).
REFUSALS: Final[Mapping[str, tuple[str, tuple[str, ...], str]]] = {
    "s3_away": ("s3", (), "ServiceUnavailable"),
    "listing_away": ("s3", ("ListObjectsV2",), "SlowDown"),
    "sagemaker_away": ("sagemaker", (), "ServiceUnavailable"),
    "sagemaker_throttled": ("sagemaker", (), "ThrottlingException"),
    "create_throttled": ("sagemaker", ("CreateTrainingJob",), "ThrottlingException"),
    "no_quota": ("sagemaker", ("CreateTrainingJob",), "ResourceLimitExceeded"),
    "list_throttled": ("sagemaker", ("ListTrainingJobs",), "ThrottlingException"),
    "nodes_throttled": ("sagemaker", _OF_NODES, "ThrottlingException"),
    "metrics_away": ("cloudwatch", (), "InternalServiceFault"),
    "s3_denied": ("s3", (), "AccessDenied"),
    "sagemaker_denied": ("sagemaker", (), "AccessDeniedException"),
}
# What the others do:
SOURCE_FAULTS: Final[Mapping[str, str]] = {
    **{
        kind: f"{service} answers {', '.join(names) or 'every call'} with {code}"
        for kind, (service, names, code) in REFUSALS.items()
    },
    "answers_lost": "this share of the calls that create, stop, reboot, replace or order take effect without an answer",
    "events_lost": "this share of the events of AWS and of the monitors never arrives",
    "events_late": "this share of them arrives `by_s` late",
    "events_doubled": "this share of them arrives twice, `by_s` apart",
    "events_reordered": "each arrives up to `by_s` late",
    "metrics_down": "no data point of these minutes ever arrives, of any run",
    "heartbeats_frozen": "the run's heartbeat stays as it was when this began",
    "heartbeats_lost": "the run's heartbeat cannot be found",
    "heartbeats_late": "the run's heartbeat is the one of `by_s` ago",
    "heartbeats_torn": "the run's heartbeat ends in the middle",
    "reports_lost": "this share of the ranks' own reports never appears in the mailbox",
    "tables_throttled": "DynamoDB answers this share of the calls with Throttling",
    "functions_throttled": "no function runs; what was to run does so afterwards",
    "head_away": "the head node's agent neither writes, nor speaks, nor takes orders; it does so afterwards",
    "head_late": "what the head node's documents say of Slurm is `by_s` old; the agent says so in its heartbeat",
    "slurm_clock": "the times that Slurm itself shows, of jobs and boots, are off by `by_s`; it may be negative",
    "nodes_hidden": "Slurm shows this share of its nodes (a rack, or all) as down and not responding; they are well",
    "health_false": "HyperPod's health agent says that a well node has to be rebooted, and takes it back at `to_s`",
    "notice_false": "AWS announces that the instance of a well node is taken away `by_s` later; it never is",
    "orders_doubled": "each order to the head node's agent arrives twice",
    "rolled_back": "the service goes back to an older version: executions end, open Incidents hold an unknown field",
    "executions_lost": "all durable executions that run when this begins are lost",
    "metrics_late": "each data point arrives `by_s` late, of any run",
    "dev_beside": "a second stage of Rekindle, dev, stands in the account; the runs belong to ours, which is prod",
    "prod_beside": "ours is the stage dev, whose tag the runs carry; a stage prod stands beside it",
}
