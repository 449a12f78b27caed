"""Rules about a CreateCluster request that its shape cannot say. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rekindle.doctor.base.checks import BOTO, PREREQUISITES, REFERENCE, SCALING, Area, check
from rekindle.doctor.base.findings import Finding, error, listed, quoted, warning
from rekindle.doctor.base.subject import Group, Kind, Subject

# Families that HyperPod trains on; their groups deserve deep health checks. Source: EC2 instance type naming.
ACCELERATED: Final = re.compile(r"ml\.(?:p\d|trn|g\d|gr\d)")
# Graviton and Grace have one thread per core. Source: EC2 user guide, CPU options, table of supported values.
_ONE_THREAD: Final = re.compile(r"ml\.(?:[cmr]\dg[a-z]*|p6e-gb200)\.")
_CONTROLLER, _LOGIN, _COMPUTE = "Controller", "Login", "Compute"
MANAGED_BUCKET: Final = "sagemaker-"  # what AmazonSageMakerClusterInstanceRolePolicy lets a node read


def is_accelerated(group: Group) -> bool:
    """True for a group with GPUs or Trainium."""
    return any(ACCELERATED.match(name) for name in group.types)


def request_rules(request: Mapping[str, Any], subject: Subject) -> Iterator[Finding]:
    """Everything that can be checked of one request without AWS."""
    yield from _one_of(request, subject)
    yield from _names(subject)
    yield from provisioning_mode(subject)
    yield from _slurm_config(subject)
    yield from cluster_rules(subject)
    for group in subject.groups:
        yield from _counts(group, subject)
        yield from _lifecycle(group, subject)
        yield from _partitions(group, subject)
        yield from _threads(group, subject)
        yield from _storage(group, subject)
        yield from _spot(group, subject)
    if subject.kind is Kind.SLURM and subject.has_slurm_config:
        yield from slurm_controller(subject)
        yield from _login(subject)
        yield from _has_compute(subject)


def cluster_rules(subject: Subject) -> Iterator[Finding]:
    """Rules that hold for a live cluster as well as for a request."""
    yield from _recovery(subject)
    yield from _vpc(subject)
    yield from _health_checks(subject)


@check(
    "request-deep-health-checks",
    Area.REQUEST,
    "SageMaker guide, sagemaker-hyperpod-resiliency-slurm-deep-health-checks",
)
def _health_checks(subject: Subject) -> Iterator[Finding]:
    """Deep health checks on groups with GPUs or Trainium.

    Otherwise the first run finds a bad device.
    """
    for group in subject.groups:
        if is_accelerated(group) and not group.has_deep_checks and not group.is_restricted:
            yield warning(
                subject.path(f"{group.at}.OnStartDeepHealthChecks"),
                "is not set: a GPU that is bad from the start is found by the first run, not before it",
            )


@check("request-one-of", Area.REQUEST, BOTO)
def _one_of(request: Mapping[str, Any], subject: Subject) -> Iterator[Finding]:
    """One orchestrator; InstanceType or InstanceRequirements; Spot or OnDemand; one thing per storage entry.

    The model does not state it, but the service refuses it.
    """
    orchestrator = request.get("Orchestrator")
    if isinstance(orchestrator, dict):
        chosen = [name for name in ("Eks", "Slurm") if orchestrator.get(name) is not None]
        if len(chosen) != 1:
            yield error(subject.path("Orchestrator"), f"needs one of Eks and Slurm, has {len(chosen)}")
    if not isinstance(request.get("InstanceGroups"), list) and "RestrictedInstanceGroups" not in request:
        yield error(subject.path("InstanceGroups"), "is missing: the cluster would have no group")
    groups = request.get("InstanceGroups")
    for index, group in enumerate(groups if isinstance(groups, list) else []):
        if not isinstance(group, dict):
            continue
        at = f"InstanceGroups[{index}]"
        both = ("InstanceType" in group) + ("InstanceRequirements" in group)
        if both != 1:
            yield error(subject.path(at), f"needs one of InstanceType and InstanceRequirements, has {both}")
        capacity = group.get("CapacityRequirements")
        if isinstance(capacity, dict) and len(capacity) != 1:
            where = subject.path(f"{at}.CapacityRequirements")
            yield error(where, f"needs one of Spot and OnDemand, has {len(capacity)}")
        storage = group.get("InstanceStorageConfigs")
        for number, config in enumerate(storage if isinstance(storage, list) else []):
            if isinstance(config, dict) and len(config) != 1:
                where = subject.path(f"{at}.InstanceStorageConfigs[{number}]")
                yield error(where, f"must be one volume or file system, has {len(config)}")


@check("group-names", Area.REQUEST, BOTO)
def _names(subject: Subject) -> Iterator[Finding]:
    """No group's name twice.

    Both files refer to groups by name.
    """
    counted = Counter(group.name for group in subject.groups if group.name is not None)
    for group in subject.groups:
        if group.name is not None and counted[group.name] > 1:
            where = subject.path(f"{group.at}.InstanceGroupName")
            yield error(where, f"{quoted(group.name)} is the name of {counted[group.name]} groups")


@check("provisioning-mode", Area.REQUEST, SCALING)
def provisioning_mode(subject: Subject) -> Iterator[Finding]:
    """Continuous has SlurmConfig, no SlurmConfigStrategy and no provisioning_parameters.json.

    The two ways to configure Slurm exclude each other.
    """
    if subject.kind is Kind.EKS:
        return
    if subject.is_continuous and not subject.has_slurm_config:
        where = subject.path("NodeProvisioningMode")
        yield error(where, "Continuous needs SlurmConfig on every instance group of the request")
    if subject.is_continuous and subject.strategy is not None:
        where = subject.path("Orchestrator.Slurm.SlurmConfigStrategy")
        yield error(where, "cannot be given with Continuous, which always merges")


@check("slurm-config", Area.REQUEST, SCALING)
def _slurm_config(subject: Subject) -> Iterator[Finding]:
    """SlurmConfig on all groups or none, and not on EKS.

    A group would have no part.
    """
    for group in subject.groups:
        where = subject.path(f"{group.at}.SlurmConfig")
        if subject.kind is Kind.EKS and group.has_slurm:
            yield error(where, "is for clusters on Slurm; this one is orchestrated by EKS")
        elif subject.kind is not Kind.EKS and subject.has_slurm_config and not group.has_slurm:
            yield error(where, "is missing, while other groups have one")


@check("slurm-controller", Area.REQUEST, SCALING)
def slurm_controller(subject: Subject) -> Iterator[Finding]:
    """Exactly one Controller group, with one instance.

    Without it nothing schedules.
    """
    controllers = [group for group in subject.groups if group.node_type == _CONTROLLER]
    if len(controllers) != 1:
        names = listed(quoted(group.name) for group in controllers) or "none"
        yield error(subject.path("InstanceGroups"), f"exactly one group must be Controller: {names}")
    for group in controllers:
        where = subject.path(f"{group.at}.InstanceCount")
        if group.count == 0:
            yield error(where, "the controller group has no instance: nothing schedules")
        elif group.count is not None and group.count > 1:
            yield error(where, "SlurmConfig supports one controller instance only")


@check("slurm-login", Area.REQUEST, SCALING)
def _login(subject: Subject) -> Iterator[Finding]:
    """At most one Login group.

    The service refuses a second.
    """
    logins = [group for group in subject.groups if group.node_type == _LOGIN]
    if len(logins) > 1:
        names = listed(quoted(group.name) for group in logins)
        yield error(subject.path("InstanceGroups"), f"at most one group may be Login: {names}")


@check("slurm-partitions", Area.REQUEST, SCALING)
def _partitions(group: Group, subject: Subject) -> Iterator[Finding]:
    """PartitionNames on Compute groups, and only there.

    The service refuses others.
    """
    where = subject.path(f"{group.at}.SlurmConfig.PartitionNames")
    if group.node_type == _COMPUTE and not group.partitions:
        yield error(where, "is required for a Compute group")
    if group.node_type in (_CONTROLLER, _LOGIN) and group.partitions:
        yield error(where, f"is for Compute groups only; this one is {group.node_type}")


@_partitions.also
def _has_compute(subject: Subject) -> Iterator[Finding]:
    if not any(group.node_type == _COMPUTE for group in subject.groups):
        yield warning(subject.path("InstanceGroups"), "no group is Compute: nothing can run")


@check("group-counts", Area.REQUEST, SCALING)
def _counts(group: Group, subject: Subject) -> Iterator[Finding]:
    """MinInstanceCount not above InstanceCount, and only with Continuous.

    The group would be rolled back after three hours.
    """
    if group.count is not None and group.minimum is not None and group.minimum > group.count:
        where = subject.path(f"{group.at}.MinInstanceCount")
        yield error(where, f"{group.minimum} is more than InstanceCount {group.count}")
    if group.minimum and not subject.is_continuous:
        where = subject.path(f"{group.at}.MinInstanceCount")
        yield warning(where, "belongs to NodeProvisioningMode Continuous, which is not set")


@check("request-lifecycle", Area.REQUEST, REFERENCE)
def _lifecycle(group: Group, subject: Subject) -> Iterator[Finding]:
    """Lifecycle folder and script: present, s3://, a bucket that nodes may read.

    A node that cannot fetch or find its script fails to start.
    """
    at = f"{group.at}.LifeCycleConfig"
    if group.is_restricted:
        return
    if not group.has_lifecycle:
        if subject.kind is Kind.SLURM and not subject.has_slurm_config:
            yield error(
                subject.path(at), "is missing: without SlurmConfig the lifecycle scripts are what sets Slurm up"
            )
        return
    if group.source_uri is None or group.on_create is None:
        missing = listed(
            name for name, value in (("SourceS3Uri", group.source_uri), ("OnCreate", group.on_create)) if value is None
        )
        yield warning(subject.path(at), f"has no {missing}: no script runs when a node is made")
    if group.source_uri is not None:
        scheme, _, rest = group.source_uri.partition("://")
        if scheme != "s3":
            where = subject.path(f"{at}.SourceS3Uri")
            yield error(where, f"{quoted(group.source_uri)} must begin with s3://")
        elif not rest.startswith(MANAGED_BUCKET):
            where = subject.path(f"{at}.SourceS3Uri")
            yield warning(
                where,
                "is not s3://sagemaker-…: AmazonSageMakerClusterInstanceRolePolicy reads only such buckets, so the "
                "execution role needs s3:GetObject and s3:ListBucket on this one by a policy of its own",
            )
    if group.on_create is not None and (group.on_create.startswith("/") or "://" in group.on_create):
        where = subject.path(f"{at}.OnCreate")
        yield error(where, "must be a file's name below SourceS3Uri, not a path or an address")


@check("request-node-recovery", Area.REQUEST, "SageMaker guide, sagemaker-hyperpod-resiliency-slurm")
def _recovery(subject: Subject) -> Iterator[Finding]:
    """NodeRecovery, of the request and of the live cluster: set, and what it means.

    None: only Rekindle repairs nodes; not set means Automatic: HyperPod repairs too.
    """
    where = subject.path("NodeRecovery")
    if subject.recovery == "None":
        yield warning(
            where,
            "None: HyperPod repairs nothing automatically. `srun --auto-resume` and an Action: reason in Slurm do "
            "nothing then; nodes are repaired by Rekindle (or a person) through the batch APIs alone",
        )
    elif subject.recovery is None:
        yield warning(
            where,
            "is not set, which means Automatic: HyperPod reboots and replaces nodes automatically, and Rekindle gives "
            "it time first. Say Automatic if that is wanted, None if Rekindle shall decide alone",
        )


@check("request-vpc", Area.REQUEST, PREREQUISITES)
def _vpc(subject: Subject) -> Iterator[Finding]:
    """VpcConfig is there.

    File systems are in a VPC.
    """
    missing = [group for group in subject.groups if not group.overrides_vpc and not group.is_restricted]
    if subject.has_vpc or not missing:
        return
    mounted = [mount for group in missing for mount in group.mounts]
    if mounted:
        where = subject.path("VpcConfig")
        yield error(where, f"is missing, but {mounted[0].at} mounts a file system, which is in a VPC")
    else:
        yield warning(
            subject.path("VpcConfig"),
            "is missing: nodes run in a network of the platform's, where no file system of yours can be mounted",
        )


@check("request-threads", Area.REQUEST, "EC2 guide, cpu-options")
def _threads(group: Group, subject: Subject) -> Iterator[Finding]:
    """ThreadsPerCore suits the type.

    Graviton and Grace have one thread per core.
    """
    bad = [name for name in group.types if _ONE_THREAD.match(name)]
    if group.threads == 2 and bad:
        where = subject.path(f"{group.at}.ThreadsPerCore")
        yield error(where, f"{bad[0]} has one thread per core: 1 is its only value")


@check("request-storage", Area.REQUEST, BOTO)
def _storage(group: Group, subject: Subject) -> Iterator[Finding]:
    """One root volume; no mount path twice.

    The later mount hides the earlier.
    """
    if group.root_volumes > 1:
        where = subject.path(f"{group.at}.InstanceStorageConfigs")
        yield error(where, f"names {group.root_volumes} root volumes; a node has one")
    paths = Counter(mount.mount_path for mount in group.mounts if mount.mount_path is not None)
    for mount in group.mounts:
        if mount.mount_path is not None and paths[mount.mount_path] > 1:
            where = subject.path(f"{mount.at}.MountPath")
            yield error(where, f"{quoted(mount.mount_path)} is used by {paths[mount.mount_path]} mounts")


@check("request-spot", Area.REQUEST, "SageMaker guide, sagemaker-hyperpod-spot")
def _spot(group: Group, subject: Subject) -> Iterator[Finding]:
    """Spot capacity only on EKS with continuous provisioning.

    Elsewhere it is not documented to work.
    """
    if group.is_spot and not (subject.kind is Kind.EKS and subject.is_continuous):
        where = subject.path(f"{group.at}.CapacityRequirements.Spot")
        yield warning(where, "Spot is documented for EKS with continuous provisioning only")
