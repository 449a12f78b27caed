"""Files in which nothing is wrong, to be spoiled in one place each."""

from __future__ import annotations

from typing import Any

ROLE = "arn:aws:iam::123456789012:role/node"
DNS = "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com"
PLAN = "arn:aws:sagemaker:us-west-2:123456789012:training-plan/big"
FOLDER = "s3://sagemaker-lcs/base"


def group(name: str, type_: str, count: int, **more: Any) -> dict[str, Any]:
    return {
        "InstanceGroupName": name,
        "InstanceType": type_,
        "InstanceCount": count,
        "LifeCycleConfig": {"SourceS3Uri": FOLDER, "OnCreate": "on_create.sh"},
        "ExecutionRole": ROLE,
        "ThreadsPerCore": 1,
        **more,
    }


def legacy() -> dict[str, Any]:
    """A request whose groups get their parts from provisioning_parameters.json."""
    return {
        "ClusterName": "pretrain",
        "NodeRecovery": "Automatic",
        "VpcConfig": {"SecurityGroupIds": ["sg-0a"], "Subnets": ["subnet-0a"]},
        "InstanceGroups": [
            group("head", "ml.m5.12xlarge", 1),
            group("login", "ml.m5.4xlarge", 1),
            group("gpu", "ml.p5.48xlarge", 4, OnStartDeepHealthChecks=["InstanceStress"]),
        ],
    }


def continuous() -> dict[str, Any]:
    """A request that says everything itself."""
    request = legacy() | {"NodeProvisioningMode": "Continuous", "Orchestrator": {"Slurm": {}}}
    for one, slurm in zip(
        request["InstanceGroups"],
        ({"NodeType": "Controller"}, {"NodeType": "Login"}, {"NodeType": "Compute", "PartitionNames": ["train"]}),
        strict=True,
    ):
        one["SlurmConfig"] = slurm
    return request


def provisioning() -> dict[str, Any]:
    return {
        "version": "1.0.0",
        "workload_manager": "slurm",
        "controller_group": "head",
        "login_group": "login",
        "worker_groups": [{"instance_group_name": "gpu", "partition_name": "dev"}],
        "fsx_dns_name": DNS,
        "fsx_mountname": "abcdefgh",
    }


SCRIPT = """\
#!/bin/bash
# A run of four nodes.
#SBATCH --job-name=lm-7b # a name
#SBATCH --nodes=4 --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=2-00:00:00
#SBATCH --output logs/%x_%j.out
#SBATCH --open-mode=append
#SBATCH --comment=rekindle:default,signal=USR1

set -euo pipefail

AUTO_RESUME=""
if [ -d /opt/sagemaker_cluster ]; then
    AUTO_RESUME="--auto-resume=1"
fi

declare -a LAUNCH=(
    --nproc_per_node=8 # GPUs
    --nnodes=$SLURM_JOB_NUM_NODES
    --rdzv_id=$SLURM_JOB_ID
    --rdzv_backend=c10d
    --rdzv_endpoint=$(hostname):29500
)

trap 'kill -USR1 "$step"' USR1
srun $AUTO_RESUME --kill-on-bad-exit=1 torchrun "${LAUNCH[@]}" train.py \\
    --checkpoint-dir /fsx/runs/lm-7b/checkpoints &
step=$!
while kill -0 "$step" 2>/dev/null; do wait "$step" || true; done
wait "$step"
"""
