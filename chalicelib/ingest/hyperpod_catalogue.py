"""What the Description of a HyperPod Cluster Event means. Data: the text is the only discriminator AWS gives.

The documentation abbreviates "InstanceGroup" to "IG" in some templates where live text spells it out; both are read.
A description that no row knows is unknown, never healthy. `fault` is what the row suggests for the runs on that node or
cluster; None where it is only news. FSx, patching and EKS texts are worded from the reference's list, not quoted
there in full, so their rows match the telling words alone.

Source of every row: SageMaker developer guide, sagemaker-hyperpod-cluster-events-reference, the section in `source`;
the noise row: awslabs/awsome-distributed-ai, hyperpod-mental-model.md (field notes).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rekindle.protocol.signals import FaultClass


class Area(StrEnum):
    """Which part of the cluster a description speaks of."""

    CLUSTER = "cluster"
    GROUP = "group"
    NETWORK = "network"
    CREATE = "create"
    LIFECYCLE = "lifecycle"
    DELETE = "delete"
    REBOOT = "reboot"
    REPLACE = "replace"
    INSTANCE = "instance"
    FSX = "fsx"
    PATCHING = "patching"
    EKS = "eks"
    SLURM = "slurm"
    SCALING = "scaling"
    UNKNOWN = "unknown"


class Outcome(StrEnum):
    """How far the operation has come."""

    STARTED = "started"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    NOTED = "noted"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueRow:
    """One template. `op` is the operation where the template fixes it; else the group `op` of the pattern names it."""

    pattern: str
    area: Area
    op: str
    outcome: Outcome
    fault: FaultClass | None
    source: str
    example: str


_GROUP = r"(?:InstanceGroup|Instance Group|IG)"
_ID = r"(?P<instance>i-[0-9a-f]{8,17})"
_NAME = r"[A-Za-z0-9-]{1,63}"
_OP = r"(?P<op>[A-Za-z][A-Za-z -]{0,40}?)"


def _row(
    area: Area,
    op: str,
    outcome: Outcome,
    pattern: str,
    example: str,
    *,
    fault: FaultClass | None = None,
    source: str,
) -> CatalogueRow:
    return CatalogueRow(
        pattern=pattern,
        area=area,
        op=op,
        outcome=outcome,
        fault=fault,
        source=source,
        example=example,
    )


_LOST, _PLATFORM, _UNCLEAR = FaultClass.NODE_LOST, FaultClass.PLATFORM_ERROR, FaultClass.UNCLEAR

CATALOGUE: Final[tuple[CatalogueRow, ...]] = (
    # Scaling chatter
    _row(
        Area.SCALING,
        "orchestration",
        Outcome.NOTED,
        r"\b\d{1,6} node\(?s?\)? lost orchestration-ready status",
        "2 node(s) lost orchestration-ready status. Current: 14/16 orchestration-ready across 1 instance group(s).",
        fault=_LOST,
        source="field notes: harmless while any group scales, a lost node otherwise",
    ),
    # Slurm (before the cluster rows, which would swallow "Cluster creation failed")
    _row(
        Area.SLURM,
        "create",
        Outcome.FAILED,
        r"^Cluster creation failed: controller and login nodes did not become ready",
        "Cluster creation failed: controller and login nodes did not become ready within the expected time",
        fault=_UNCLEAR,
        source="Slurm",
    ),
    _row(
        Area.SLURM,
        "drift",
        Outcome.FAILED,
        r"^Slurm configuration drift detected",
        "Slurm configuration drift detected: slurm.conf differs on 1 node",
        fault=_UNCLEAR,
        source="Slurm",
    ),
    _row(
        Area.SLURM,
        "drift",
        Outcome.DONE,
        r"^Slurm configuration drift validation passed",
        "Slurm configuration drift validation passed",
        source="Slurm",
    ),
    _row(
        Area.SLURM,
        "reconfigure",
        Outcome.DONE,
        r"^Slurm was reconfigured successfully",
        "Slurm was reconfigured successfully. All nodes answered.",
        source="Slurm",
    ),
    _row(
        Area.SLURM,
        "provisioning-parameters",
        Outcome.NOTED,
        r"provisioning_parameters\.json.{0,80}found",
        "provisioning_parameters.json not found in the lifecycle script location",
        source="Slurm",
    ),
    _row(Area.SLURM, "munge", Outcome.DONE, r"munge key.{0,40}created", "munge key created", source="Slurm"),
    # Replacement
    _row(
        Area.REPLACE,
        "replace",
        Outcome.STARTED,
        rf"Instance {_ID} is starting as part of instance replacement",
        "Instance i-0a1b2c3d4e5f60718 is starting as part of instance replacement in Cluster pretrain and IG gpu",
        source="Replace",
    ),
    _row(
        Area.REPLACE,
        "replace",
        Outcome.FAILED,
        rf"Instance {_ID} (?:failed to start|{_OP} failed) as part of instance replacement",
        "Instance i-0a1b2c3d4e5f60718 failed to start as part of instance replacement in Cluster pretrain and IG gpu",
        fault=_LOST,
        source="Replace",
    ),
    _row(
        Area.REPLACE,
        "replace",
        Outcome.DONE,
        rf"Instance {_ID} {_OP} completed successfully as part of instance replacement",
        "Instance i-0a1b2c3d4e5f60718 creation completed successfully as part of instance replacement in Cluster "
        "pretrain and IG gpu",
        source="Replace",
    ),
    # Reboot and delete
    _row(
        Area.REBOOT,
        "reboot",
        Outcome.RUNNING,
        rf"Reboot of EC2 Instance {_ID} is currently in progress",
        "Reboot of EC2 Instance i-0a1b2c3d4e5f60718 is currently in progress on Cluster pretrain and IG gpu",
        source="Reboot",
    ),
    _row(
        Area.REBOOT,
        "reboot",
        Outcome.FAILED,
        rf"Failed to submit reboot request for EC2 Instance {_ID}",
        "Failed to submit reboot request for EC2 Instance i-0a1b2c3d4e5f60718 on Cluster pretrain and IG gpu",
        fault=_UNCLEAR,
        source="Reboot",
    ),
    _row(
        Area.DELETE,
        "delete",
        Outcome.RUNNING,
        rf"Termination of EC2 Instance {_ID} is currently in progress",
        "Termination of EC2 Instance i-0a1b2c3d4e5f60718 is currently in progress in Cluster pretrain and IG gpu",
        source="Delete",
    ),
    _row(
        Area.DELETE,
        "delete",
        Outcome.FAILED,
        rf"Failed to terminate EC2 Instance {_ID}",
        "Failed to terminate EC2 Instance i-0a1b2c3d4e5f60718 in Cluster pretrain and IG gpu",
        fault=_UNCLEAR,
        source="Delete",
    ),
    # Patching (before the cluster and instance rows)
    _row(
        Area.PATCHING,
        "patch",
        Outcome.FAILED,
        rf"Failed instances in {_GROUP} {_NAME}.{{0,200}}queued for node replacement",
        "Failed instances in IG gpu of Cluster pretrain are queued for node replacement.",
        fault=_LOST,
        source="Patching",
    ),
    _row(
        Area.PATCHING,
        "root-volume",
        Outcome.FAILED,
        r"root volume replacement.{0,120}failed|Failed.{0,120}root volume replacement",
        "Root volume replacement for instance i-0a1b2c3d4e5f60718 failed",
        fault=_UNCLEAR,
        source="Patching",
    ),
    _row(
        Area.PATCHING,
        "patch",
        Outcome.FAILED,
        r"(?:patch|software update|maintenance).{0,160}fail|Failed.{0,80}(?:patch|software update|maintenance)",
        "Patching of Cluster pretrain failed",
        fault=_UNCLEAR,
        source="Patching",
    ),
    _row(
        Area.PATCHING,
        "patch",
        Outcome.NOTED,
        r"\bpatch|root volume replacement|PodDisruptionBudget|cordoned and pods evicted|bake time|software update",
        "Patching of Cluster pretrain is scheduled",
        source="Patching; EKS",
    ),
    # FSx
    _row(
        Area.FSX,
        "fsx",
        Outcome.FAILED,
        r"^FSx.{0,20} (?:creation|deletion|update).{0,120}failed|^Failed.{0,60}FSx",
        "FSx creation failed for Cluster pretrain",
        fault=_UNCLEAR,
        source="FSx",
    ),
    _row(
        Area.FSX,
        "fsx",
        Outcome.NOTED,
        r"^FSx.{0,20} (?:creation|deletion|update)",
        "FSx creation started for Cluster pretrain",
        source="FSx",
    ),
    # Lifecycle scripts
    _row(
        Area.LIFECYCLE,
        "lifecycle",
        Outcome.FAILED,
        rf"lifecycle script execution for EC2 Instance {_ID} has Failed",
        "Instance lifecycle script execution for EC2 Instance i-0a1b2c3d4e5f60718 has Failed. To view lifecycle script "
        "logs, visit log group /aws/sagemaker/Clusters/pretrain/k3v9m2x7q1ab",
        fault=_UNCLEAR,
        source="Create: the script is the user's own",
    ),
    _row(
        Area.LIFECYCLE,
        "lifecycle",
        Outcome.NOTED,
        rf"lifecycle script execution for EC2 Instance {_ID} has \w{{1,30}}",
        "Instance lifecycle script execution for EC2 Instance i-0a1b2c3d4e5f60718 has Succeeded",
        source="Create",
    ),
    # Network and AMI
    _row(
        Area.NETWORK,
        "eni",
        Outcome.FAILED,
        r"Failed to (?:create|delete|clean).{0,40}\bENI|\bENI\b.{0,60}fail",
        "Failed to create Customer ENI in Cluster pretrain and IG gpu",
        fault=_PLATFORM,
        source="Create, Delete",
    ),
    _row(
        Area.NETWORK,
        "eni",
        Outcome.DONE,
        r"\bENI\b.{0,60}(?:created|deleted|succe)|Successfully (?:created|deleted|cleaned).{0,40}\bENI",
        "Successfully created Customer ENI eni-0a1b in Cluster pretrain and IG gpu",
        source="Create, Delete",
    ),
    _row(
        Area.NETWORK,
        "network",
        Outcome.FAILED,
        rf"Failed to process (?:{_GROUP} Network Configuration|Custom AMI Override)",
        "Failed to process Instance Group Network Configuration details for IG gpu in Cluster pretrain",
        fault=_UNCLEAR,
        source="Network, AMI",
    ),
    _row(
        Area.NETWORK,
        "network",
        Outcome.NOTED,
        r"^Found (?:Subnet|Custom AMI Override)|Using HyperPod Platform provided network configuration"
        r"|network configuration successfully determined",
        "Found Subnet subnet-0bb for IG gpu",
        source="Network, AMI",
    ),
    # Creation: a fault of the platform gives the pair "Failed to provision …" and "Instance creation … failed"
    _row(
        Area.CREATE,
        "create",
        Outcome.FAILED,
        r"Failed to provision EC2 Instance",
        "Failed to provision EC2 Instance in Cluster pretrain and IG gpu",
        fault=_PLATFORM,
        source="Create; pairs: field notes",
    ),
    _row(
        Area.CREATE,
        "create",
        Outcome.FAILED,
        rf"^Instance creation(?: {_ID})? in Cluster {_NAME} and {_GROUP} {_NAME} failed",
        "Instance creation in Cluster pretrain and InstanceGroup gpu failed",
        fault=_PLATFORM,
        source="Create; pairs: field notes",
    ),
    _row(
        Area.CREATE,
        "capacity-reservation",
        Outcome.FAILED,
        r"Failed to process CapacityReservationDetails",
        "Failed to process CapacityReservationDetails for Cluster pretrain and IG gpu",
        fault=_PLATFORM,
        source="Create",
    ),
    _row(
        Area.CREATE,
        "capacity-reservation",
        Outcome.NOTED,
        r"(?:Found|No) Capacity ?Reservation",
        "No CapacityReservation found for Cluster pretrain and IG gpu, using on-demand pool",
        source="Create",
    ),
    _row(
        Area.CREATE,
        "create",
        Outcome.DONE,
        rf"EC2 Instance {_ID} successfully provisioned",
        "EC2 Instance i-0a1b2c3d4e5f60718 successfully provisioned in Cluster pretrain and IG gpu",
        source="Create",
    ),
    _row(
        Area.INSTANCE,
        "",
        Outcome.STARTED,
        rf"^Instance {_OP} started successfully in Cluster {_NAME} and {_GROUP} {_NAME}",
        "Instance creation started successfully in Cluster pretrain and IG gpu",
        source="Create",
    ),
    # EKS only
    _row(
        Area.EKS,
        "kubernetes-config",
        Outcome.FAILED,
        rf"Failed to update Kubernetes config for instance {_ID}",
        "Failed to update Kubernetes config for instance i-0a1b2c3d4e5f60718",
        fault=_UNCLEAR,
        source="EKS",
    ),
    _row(
        Area.EKS,
        "kubernetes",
        Outcome.NOTED,
        r"Successfully updated Kubernetes config|service-linked role|access entry|CRD",
        "Successfully updated Kubernetes config for instance i-0a1b2c3d4e5f60718",
        source="EKS",
    ),
    # Groups, clusters, and the generic forms
    _row(
        Area.GROUP,
        "minimum-capacity",
        Outcome.NOTED,
        r"Minimum capacity reached",
        "Minimum capacity reached for InstanceGroup gpu in Cluster pretrain",
        source="Group",
    ),
    _row(
        Area.GROUP,
        "rollback",
        Outcome.FAILED,
        r"Rollback initiated",
        "Rollback initiated for InstanceGroup gpu in Cluster pretrain",
        fault=_UNCLEAR,
        source="Group",
    ),
    _row(
        Area.GROUP,
        "",
        Outcome.FAILED,
        rf"^Failed to start {_GROUP} {_NAME} {_OP} in Cluster {_NAME}"
        rf"|^{_GROUP} {_NAME} (?P<op2>[A-Za-z][A-Za-z -]{{0,40}}?) in Cluster {_NAME} failed",
        "Instance Group gpu update in Cluster pretrain failed",
        fault=_UNCLEAR,
        source="Group",
    ),
    _row(
        Area.GROUP,
        "",
        Outcome.DONE,
        rf"^{_GROUP} {_NAME} {_OP} in Cluster {_NAME} completed successfully",
        "Instance Group gpu update in Cluster pretrain completed successfully",
        source="Group",
    ),
    _row(
        Area.GROUP,
        "",
        Outcome.STARTED,
        rf"^{_GROUP} {_NAME} {_OP} started successfully in Cluster {_NAME}",
        "InstanceGroup gpu update started successfully in Cluster pretrain",
        source="Group",
    ),
    _row(
        Area.INSTANCE,
        "",
        Outcome.FAILED,
        rf"^Failed to start Instance {_OP}(?: in| for|$)"
        rf"|^Instance (?P<op2>[A-Za-z]{{1,30}}) {_ID} in Cluster {_NAME} and {_GROUP} {_NAME} failed",
        "Instance deletion i-0a1b2c3d4e5f60718 in Cluster pretrain and IG gpu failed",
        fault=_PLATFORM,
        source="Generic",
    ),
    _row(
        Area.INSTANCE,
        "",
        Outcome.DONE,
        rf"^Instance {_OP} {_ID} in Cluster {_NAME} and {_GROUP} {_NAME} completed successfully",
        "Instance deletion i-0a1b2c3d4e5f60718 in Cluster pretrain and IG gpu completed successfully",
        source="Generic",
    ),
    _row(
        Area.CLUSTER,
        "",
        Outcome.FAILED,
        rf"^Failed to start Cluster {_NAME} {_OP}$|^Cluster {_NAME} (?P<op2>[A-Za-z][A-Za-z -]{{0,40}}?) failed",
        "Cluster pretrain update failed",
        fault=_UNCLEAR,
        source="Cluster",
    ),
    _row(
        Area.CLUSTER,
        "",
        Outcome.STARTED,
        rf"^Cluster {_NAME} {_OP} started successfully",
        "Cluster pretrain update started successfully",
        source="Cluster",
    ),
    _row(
        Area.CLUSTER,
        "",
        Outcome.DONE,
        rf"^Cluster {_NAME} {_OP} completed successfully",
        "Cluster pretrain update completed successfully",
        source="Cluster",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedDescription:
    """A description, read: the row's words, the operation, and the instance it names (None: it names none)."""

    area: Area
    op: str
    outcome: Outcome
    fault: FaultClass | None
    instance: str | None
    is_known: bool = True


UNKNOWN_MEANING: Final = ParsedDescription(
    area=Area.UNKNOWN, op="", outcome=Outcome.NOTED, fault=None, instance=None, is_known=False
)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compiled at its first use: most functions start cold and never see a cluster event."""
    return re.compile(pattern, re.IGNORECASE)


def find_row(description: str) -> tuple[CatalogueRow, re.Match[str]] | None:
    """The first row that knows this text."""
    for row in CATALOGUE:
        match = _compiled(row.pattern).search(description)
        if match is not None:
            return row, match
    return None


def read_description(description: str | None) -> ParsedDescription:
    """What a description says. A text that no row knows, or none at all, is UNKNOWN_MEANING."""
    found = find_row(" ".join(description[:4096].split())) if description else None
    if found is None:
        return UNKNOWN_MEANING
    row, match = found
    named = match.groupdict()
    op = row.op or named.get("op") or named.get("op2") or ""
    return ParsedDescription(
        area=row.area, op=op.lower(), outcome=row.outcome, fault=row.fault, instance=named.get("instance")
    )
