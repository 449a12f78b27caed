"""Rules about a CreateCluster request that its shape cannot say. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rekindle.doctor.base.findings import Finding, error, listed, quoted, warning
from rekindle.doctor.base.ids import Id
from rekindle.doctor.base.subject import Group, Kind, Subject

# Families that HyperPod trains on; their groups deserve deep health checks. Source: EC2 instance type naming.
ACCELERATED: Final = re.compile(r"ml\.(?:p\d|trn|g\d|gr\d)")
# Graviton and Grace have one thread per core. Source: EC2 user guide, CPU options, table of supported values.
_ONE_THREAD: Final = re.compile(r"ml\.(?:[cmr]\dg[a-z]*|p6e-gb200)\.")
_CONTROLLER, _LOGIN, _COMPUTE = "Controller", "Login", "Compute"
MANAGED_BUCKET: Final = "sagemaker-"  # what AmazonSageMakerClusterInstanceRolePolicy lets a node read


def is_accelerated(group: Group) -> bool:
    """True for a group with GPUs or Trainium."""
    return any(ACCELERATED.match(one) for one in group.types)


def request_rules(request: Mapping[str, Any], subject: Subject) -> Iterator[Finding]:
    """Everything that can be checked of one request without AWS."""
    yield from _one_of(request, subject)
    yield from _names(subject)
    yield from _mode(subject)
    yield from cluster_rules(subject)
    for group in subject.groups:
        yield from _counts(group, subject)
        yield from _lifecycle(group, subject)
        yield from _partitions(group, subject)
        yield from _threads(group, subject)
        yield from _storage(group, subject)
        yield from _spot(group, subject)
    if subject.kind is Kind.SLURM:
        yield from _slurm_nodes(subject)


def cluster_rules(subject: Subject) -> Iterator[Finding]:
    """Rules that hold for a live cluster as well as for a request."""
    yield from _recovery(subject)
    yield from _vpc(subject)
    for group in subject.groups:
        if is_accelerated(group) and not group.has_deep_checks and not group.is_restricted:
            yield warning(
                Id.REQUEST_HEALTH_CHECKS,
                subject.path(f"{group.at}.OnStartDeepHealthChecks"),
                "is not set: a GPU that is bad from the start is found by the first run, not before it",
            )


def _one_of(request: Mapping[str, Any], subject: Subject) -> Iterator[Finding]:
    """Members of which exactly one, or at most one, may be set. Source: botocore's documentation of each."""
    orchestrator = request.get("Orchestrator")
    if isinstance(orchestrator, dict):
        chosen = [name for name in ("Eks", "Slurm") if orchestrator.get(name) is not None]
        if len(chosen) != 1:
            yield error(
                Id.REQUEST_ONE_OF, subject.path("Orchestrator"), f"needs one of Eks and Slurm, has {len(chosen)}"
            )
    if not isinstance(request.get("InstanceGroups"), list) and "RestrictedInstanceGroups" not in request:
        yield error(Id.REQUEST_ONE_OF, subject.path("InstanceGroups"), "is missing: the cluster would have no group")
    groups = request.get("InstanceGroups")
    for index, group in enumerate(groups if isinstance(groups, list) else []):
        if not isinstance(group, dict):
            continue
        at = f"InstanceGroups[{index}]"
        both = ("InstanceType" in group) + ("InstanceRequirements" in group)
        if both != 1:
            yield error(
                Id.REQUEST_ONE_OF, subject.path(at), f"needs one of InstanceType and InstanceRequirements, has {both}"
            )
        capacity = group.get("CapacityRequirements")
        if isinstance(capacity, dict) and len(capacity) != 1:
            where = subject.path(f"{at}.CapacityRequirements")
            yield error(Id.REQUEST_ONE_OF, where, f"needs one of Spot and OnDemand, has {len(capacity)}")
        storage = group.get("InstanceStorageConfigs")
        for number, config in enumerate(storage if isinstance(storage, list) else []):
            if isinstance(config, dict) and len(config) != 1:
                where = subject.path(f"{at}.InstanceStorageConfigs[{number}]")
                yield error(Id.REQUEST_ONE_OF, where, f"must be one volume or file system, has {len(config)}")


def _names(subject: Subject) -> Iterator[Finding]:
    counted = Counter(group.name for group in subject.groups if group.name is not None)
    for group in subject.groups:
        if group.name is not None and counted[group.name] > 1:
            where = subject.path(f"{group.at}.InstanceGroupName")
            yield error(Id.GROUP_NAMES, where, f"{quoted(group.name)} is the name of {counted[group.name]} groups")


def _mode(subject: Subject) -> Iterator[Finding]:
    """Continuous provisioning, and who says which group is what. Source: docs/facts-sagemaker.md#cluster-requests."""
    configured = subject.has_slurm_config
    if subject.kind is Kind.EKS:
        for group in subject.groups:
            if group.has_slurm:
                where = subject.path(f"{group.at}.SlurmConfig")
                yield error(Id.SLURM_CONFIG, where, "is for clusters on Slurm; this one is orchestrated by EKS")
        return
    if subject.is_continuous and not configured:
        where = subject.path("NodeProvisioningMode")
        yield error(Id.PROVISIONING_MODE, where, "Continuous needs SlurmConfig on every instance group of the request")
    if subject.is_continuous and subject.strategy is not None:
        where = subject.path("Orchestrator.Slurm.SlurmConfigStrategy")
        yield error(Id.PROVISIONING_MODE, where, "cannot be given with Continuous, which always merges")
    if configured:
        for group in subject.groups:
            if not group.has_slurm:
                where = subject.path(f"{group.at}.SlurmConfig")
                yield error(Id.SLURM_CONFIG, where, "is missing, while other groups have one")


def _slurm_nodes(subject: Subject) -> Iterator[Finding]:
    if not subject.has_slurm_config:
        return
    controllers = [group for group in subject.groups if group.node_type == _CONTROLLER]
    if len(controllers) != 1:
        names = listed(quoted(group.name) for group in controllers) or "none"
        yield error(
            Id.SLURM_CONTROLLER, subject.path("InstanceGroups"), f"exactly one group must be Controller: {names}"
        )
    for group in controllers:
        where = subject.path(f"{group.at}.InstanceCount")
        if group.count == 0:
            yield error(Id.SLURM_CONTROLLER, where, "the controller group has no instance: nothing schedules")
        elif group.count is not None and group.count > 1:
            yield error(Id.SLURM_CONTROLLER, where, "SlurmConfig supports one controller instance only")
    logins = [group for group in subject.groups if group.node_type == _LOGIN]
    if len(logins) > 1:
        names = listed(quoted(group.name) for group in logins)
        yield error(Id.SLURM_LOGIN, subject.path("InstanceGroups"), f"at most one group may be Login: {names}")
    if not any(group.node_type == _COMPUTE for group in subject.groups):
        yield warning(Id.SLURM_PARTITIONS, subject.path("InstanceGroups"), "no group is Compute: nothing can run")


def _partitions(group: Group, subject: Subject) -> Iterator[Finding]:
    """PartitionNames stand on compute groups, and only there. Source: docs/facts-sagemaker.md#cluster-requests."""
    where = subject.path(f"{group.at}.SlurmConfig.PartitionNames")
    if group.node_type == _COMPUTE and not group.partitions:
        yield error(Id.SLURM_PARTITIONS, where, "is required for a Compute group")
    if group.node_type in (_CONTROLLER, _LOGIN) and group.partitions:
        yield error(Id.SLURM_PARTITIONS, where, f"is for Compute groups only; this one is {group.node_type}")


def _counts(group: Group, subject: Subject) -> Iterator[Finding]:
    if group.count is not None and group.minimum is not None and group.minimum > group.count:
        where = subject.path(f"{group.at}.MinInstanceCount")
        yield error(Id.GROUP_COUNTS, where, f"{group.minimum} is more than InstanceCount {group.count}")
    if group.minimum and not subject.is_continuous:
        where = subject.path(f"{group.at}.MinInstanceCount")
        yield warning(Id.GROUP_COUNTS, where, "belongs to NodeProvisioningMode Continuous, which is not set")


def _lifecycle(group: Group, subject: Subject) -> Iterator[Finding]:
    at = f"{group.at}.LifeCycleConfig"
    if group.is_restricted:
        return
    if not group.has_lifecycle:
        if subject.kind is Kind.SLURM and not subject.has_slurm_config:
            yield error(
                Id.REQUEST_LIFECYCLE,
                subject.path(at),
                "is missing: without SlurmConfig the lifecycle scripts are what sets Slurm up",
            )
        return
    if group.source_uri is None or group.on_create is None:
        missing = listed(
            name for name, value in (("SourceS3Uri", group.source_uri), ("OnCreate", group.on_create)) if value is None
        )
        yield warning(Id.REQUEST_LIFECYCLE, subject.path(at), f"has no {missing}: no script runs when a node is made")
    if group.source_uri is not None:
        scheme, _, rest = group.source_uri.partition("://")
        if scheme != "s3":
            where = subject.path(f"{at}.SourceS3Uri")
            yield error(Id.REQUEST_LIFECYCLE, where, f"{quoted(group.source_uri)} must begin with s3://")
        elif not rest.startswith(MANAGED_BUCKET):
            where = subject.path(f"{at}.SourceS3Uri")
            yield warning(
                Id.REQUEST_LIFECYCLE,
                where,
                "is not s3://sagemaker-…: AmazonSageMakerClusterInstanceRolePolicy reads only such buckets, so the "
                "execution role needs s3:GetObject and s3:ListBucket on this one by a policy of its own",
            )
    if group.on_create is not None and (group.on_create.startswith("/") or "://" in group.on_create):
        where = subject.path(f"{at}.OnCreate")
        yield error(Id.REQUEST_LIFECYCLE, where, "must be a file's name below SourceS3Uri, not a path or an address")


def _recovery(subject: Subject) -> Iterator[Finding]:
    """Who repairs a node. Source: docs/facts-sagemaker.md#health-agent."""
    where = subject.path("NodeRecovery")
    if subject.recovery == "None":
        yield warning(
            Id.REQUEST_RECOVERY,
            where,
            "None: HyperPod repairs nothing automatically. `srun --auto-resume` and an Action: reason in Slurm do "
            "nothing then; nodes are repaired by Rekindle (or a person) through the batch APIs alone",
        )
    elif subject.recovery is None:
        yield warning(
            Id.REQUEST_RECOVERY,
            where,
            "is not set, which means Automatic: HyperPod reboots and replaces nodes automatically, and Rekindle gives "
            "it time first. Say Automatic if that is wanted, None if Rekindle shall decide alone",
        )


def _vpc(subject: Subject) -> Iterator[Finding]:
    missing = [group for group in subject.groups if not group.overrides_vpc and not group.is_restricted]
    if subject.has_vpc or not missing:
        return
    mounted = [mount for group in missing for mount in group.mounts]
    if mounted:
        where = subject.path("VpcConfig")
        yield error(Id.REQUEST_VPC, where, f"is missing, but {mounted[0].at} mounts a file system, which is in a VPC")
    else:
        yield warning(
            Id.REQUEST_VPC,
            subject.path("VpcConfig"),
            "is missing: nodes run in a network of the platform's, where no file system of yours can be mounted",
        )


def _threads(group: Group, subject: Subject) -> Iterator[Finding]:
    bad = [one for one in group.types if _ONE_THREAD.match(one)]
    if group.threads == 2 and bad:
        where = subject.path(f"{group.at}.ThreadsPerCore")
        yield error(Id.REQUEST_THREADS, where, f"{bad[0]} has one thread per core: 1 is its only value")


def _storage(group: Group, subject: Subject) -> Iterator[Finding]:
    if group.root_volumes > 1:
        where = subject.path(f"{group.at}.InstanceStorageConfigs")
        yield error(Id.REQUEST_STORAGE, where, f"names {group.root_volumes} root volumes; a node has one")
    paths = Counter(mount.mount_path for mount in group.mounts if mount.mount_path is not None)
    for mount in group.mounts:
        if mount.mount_path is not None and paths[mount.mount_path] > 1:
            where = subject.path(f"{mount.at}.MountPath")
            yield error(
                Id.REQUEST_STORAGE, where, f"{quoted(mount.mount_path)} is used by {paths[mount.mount_path]} mounts"
            )


def _spot(group: Group, subject: Subject) -> Iterator[Finding]:
    if group.is_spot and not (subject.kind is Kind.EKS and subject.is_continuous):
        where = subject.path(f"{group.at}.CapacityRequirements.Spot")
        yield warning(Id.REQUEST_SPOT, where, "Spot is documented for EKS with continuous provisioning only")
