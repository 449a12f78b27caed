"""What the Description of a HyperPod Cluster Event means. Data: the text is the only discriminator AWS gives.

The documentation abbreviates "InstanceGroup" to "IG" in some templates where live text spells it out; both are read.
A description that no row knows is unknown, never healthy. FSx, patching and EKS texts are worded from the reference's
list, not quoted there in full, so their rows match the telling words alone.

Source of every row: SageMaker developer guide, sagemaker-hyperpod-cluster-events-reference; of the first and of the
pair of a failed creation: awslabs/awsome-distributed-ai, hyperpod-mental-model.md (field notes).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rekindle.protocol.signals import FaultClass


class Told(StrEnum):
    """What a description says of the runs on its node or cluster."""

    SCALING = "scaling"  # harmless while any group scales, a lost node otherwise
    LOST = "lost"
    PLATFORM = "platform"
    FAILED = "failed"  # something did, which need not concern a run
    NEWS = "news"
    UNKNOWN = "unknown"

    @property
    def fault(self) -> FaultClass | None:
        return _FAULTS.get(self)


_FAULTS: Final = {
    Told.SCALING: FaultClass.NODE_LOST,
    Told.LOST: FaultClass.NODE_LOST,
    Told.PLATFORM: FaultClass.PLATFORM_ERROR,
    Told.FAILED: FaultClass.UNCLEAR,
}

_GROUP = r"(?:InstanceGroup|Instance Group|IG)"
_ID = r"(?P<instance>i-[0-9a-f]{8,17})"
_NAME = r"[A-Za-z0-9-]{1,63}"
_OP = r"[A-Za-z][A-Za-z -]{0,40}?"

# The first row that matches counts.
CATALOGUE: Final[tuple[tuple[Told, str], ...]] = (
    (Told.SCALING, r"\b\d{1,6} node\(?s?\)? lost orchestration-ready status"),
    # Slurm
    (Told.FAILED, r"^Cluster creation failed: controller and login nodes did not become ready"),
    (Told.FAILED, r"^Slurm configuration drift detected"),
    (Told.NEWS, r"^Slurm configuration drift validation passed|^Slurm was reconfigured successfully"),
    (Told.NEWS, r"provisioning_parameters\.json.{0,80}found|munge key.{0,40}created"),
    # Replacement
    (Told.NEWS, rf"Instance {_ID} is starting as part of instance replacement"),
    (Told.LOST, rf"Instance {_ID} (?:failed to start|{_OP} failed) as part of instance replacement"),
    (Told.NEWS, rf"Instance {_ID} {_OP} completed successfully as part of instance replacement"),
    # Reboot and delete
    (Told.NEWS, rf"(?:Reboot|Termination) of EC2 Instance {_ID} is currently in progress"),
    (Told.FAILED, rf"Failed to submit reboot request for EC2 Instance {_ID}"),
    (Told.FAILED, rf"Failed to terminate EC2 Instance {_ID}"),
    # Patching (before the cluster and instance rows)
    (Told.LOST, rf"Failed instances in {_GROUP} {_NAME}.{{0,200}}queued for node replacement"),
    (Told.FAILED, r"root volume replacement.{0,120}failed|Failed.{0,120}root volume replacement"),
    (
        Told.FAILED,
        r"(?:patch|software update|maintenance).{0,160}fail|Failed.{0,80}(?:patch|software update|maintenance)",
    ),
    (
        Told.NEWS,
        r"\bpatch|root volume replacement|PodDisruptionBudget|cordoned and pods evicted|bake time|software update",
    ),
    # FSx
    (Told.FAILED, r"^FSx.{0,20} (?:creation|deletion|update).{0,120}failed|^Failed.{0,60}FSx"),
    (Told.NEWS, r"^FSx.{0,20} (?:creation|deletion|update)"),
    # Lifecycle scripts, which are the user's own
    (Told.FAILED, rf"lifecycle script execution for EC2 Instance {_ID} has Failed"),
    (Told.NEWS, rf"lifecycle script execution for EC2 Instance {_ID} has \w{{1,30}}"),
    # Network and AMI
    (Told.PLATFORM, r"Failed to (?:create|delete|clean).{0,40}\bENI|\bENI\b.{0,60}fail"),
    (Told.NEWS, r"\bENI\b.{0,60}(?:created|deleted|succe)|Successfully (?:created|deleted|cleaned).{0,40}\bENI"),
    (Told.FAILED, rf"Failed to process (?:{_GROUP} Network Configuration|Custom AMI Override)"),
    (
        Told.NEWS,
        r"^Found (?:Subnet|Custom AMI Override)|Using HyperPod Platform provided network configuration"
        r"|network configuration successfully determined",
    ),
    # Creation: one fault of the platform is told by both of these
    (
        Told.PLATFORM,
        r"Failed to provision EC2 Instance"
        rf"|^Instance creation(?: {_ID})? in Cluster {_NAME} and {_GROUP} {_NAME} failed",
    ),
    (Told.PLATFORM, r"Failed to process CapacityReservationDetails"),
    (Told.NEWS, r"(?:Found|No) Capacity ?Reservation"),
    (Told.NEWS, rf"EC2 Instance {_ID} successfully provisioned"),
    (Told.NEWS, rf"^Instance {_OP} started successfully in Cluster {_NAME} and {_GROUP} {_NAME}"),
    # EKS only
    (Told.FAILED, rf"Failed to update Kubernetes config for instance {_ID}"),
    (Told.NEWS, r"Successfully updated Kubernetes config|service-linked role|access entry|CRD"),
    # Groups, clusters, and the generic forms
    (Told.NEWS, r"Minimum capacity reached"),
    (Told.FAILED, r"Rollback initiated"),
    (
        Told.FAILED,
        rf"^Failed to start {_GROUP} {_NAME} {_OP} in Cluster {_NAME}"
        rf"|^{_GROUP} {_NAME} {_OP} in Cluster {_NAME} failed",
    ),
    (Told.NEWS, rf"^{_GROUP} {_NAME} {_OP} in Cluster {_NAME} completed successfully"),
    (Told.NEWS, rf"^{_GROUP} {_NAME} {_OP} started successfully in Cluster {_NAME}"),
    (
        Told.PLATFORM,
        rf"^Failed to start Instance {_OP}(?: in| for|$)"
        rf"|^Instance [A-Za-z]{{1,30}} {_ID} in Cluster {_NAME} and {_GROUP} {_NAME} failed",
    ),
    (Told.NEWS, rf"^Instance {_OP} {_ID} in Cluster {_NAME} and {_GROUP} {_NAME} completed successfully"),
    (Told.FAILED, rf"^Failed to start Cluster {_NAME} {_OP}$|^Cluster {_NAME} {_OP} failed"),
    (Told.NEWS, rf"^Cluster {_NAME} {_OP} started successfully"),
    (Told.NEWS, rf"^Cluster {_NAME} {_OP} completed successfully"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedDescription:
    """A description, read. `pattern`: of the row that knows it; `instance`: None where it names none."""

    told: Told
    pattern: str = ""
    instance: str | None = None


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compiled at its first use: most functions start cold and never see a cluster event."""
    return re.compile(pattern, re.IGNORECASE)


def read_description(description: str | None) -> ParsedDescription:
    """What a description says. A text that no row knows, or none at all, is unknown."""
    text = " ".join((description or "")[:4096].split())
    for told, pattern in CATALOGUE:
        match = _compiled(pattern).search(text)
        if match is not None:
            return ParsedDescription(told=told, pattern=pattern, instance=match.groupdict().get("instance"))
    return ParsedDescription(told=Told.UNKNOWN)
