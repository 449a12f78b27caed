"""A cluster as the checks see it: taken from a CreateCluster request or from DescribeCluster's answer. Pure.

Taking is lenient: what has the wrong type is left out here, because `shapes` has reported it already, and one wrong
field must not hide what is wrong with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rekindle.compat import StrEnum


class Kind(StrEnum):
    """Who schedules. Slurm where nothing is named: the older form of the request (botocore, Orchestrator)."""

    SLURM = "slurm"
    EKS = "eks"


class Storage(StrEnum):
    """File systems that a group can mount."""

    LUSTRE = "Lustre"
    OPENZFS = "OpenZFS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file system that nodes mount. `at` is where it is named."""

    storage: Storage
    dns: str
    at: str
    mount_name: str | None = None
    mount_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One instance group, with the fields of the API's own record (hence their number).

    `to_start` are the instances that have no node yet; None: not known.
    """

    at: str
    name: str | None = None
    types: tuple[str, ...] = ()
    count: int | None = None
    minimum: int | None = None
    to_start: int | None = None
    current: int | None = None
    status: str | None = None
    role: str | None = None
    has_lifecycle: bool = False
    source_uri: str | None = None
    on_create: str | None = None
    overrides_vpc: bool = False
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    plan: str | None = None
    has_slurm: bool = False
    node_type: str | None = None
    partitions: tuple[str, ...] | None = None
    mounts: tuple[Mount, ...] = ()
    root_volumes: int = 0
    has_deep_checks: bool = False
    is_spot: bool = False
    threads: int | None = None
    software: str | None = None
    is_restricted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One cluster. `label` begins every finding's path: the file's name, or the live cluster's."""

    label: str
    kind: Kind = Kind.SLURM
    is_live: bool = False
    name: str | None = None
    arn: str | None = None
    status: str | None = None
    failure: str | None = None
    groups: tuple[Group, ...] = ()
    has_vpc: bool = False
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    is_continuous: bool = False
    strategy: str | None = None
    recovery: str | None = None

    def path(self, at: str) -> str:
        """Where in this cluster."""
        return f"{self.label}:{at}" if at else self.label

    def subnets_of(self, group: Group) -> tuple[str, ...]:
        """The group's own subnets where it overrides the cluster's. Source: botocore, OverrideVpcConfig."""
        return group.subnets if group.overrides_vpc else self.subnets

    def security_groups_of(self, group: Group) -> tuple[str, ...]:
        """The group's own security groups where it overrides the cluster's."""
        return group.security_groups if group.overrides_vpc else self.security_groups

    @property
    def has_slurm_config(self) -> bool:
        """True where the request itself says which group is what."""
        return any(group.has_slurm for group in self.groups)


def from_request(request: Mapping[str, Any], label: str) -> Subject:
    """What a CreateCluster request asks for."""
    return _subject(request, label, is_live=False)


def from_described(described: Mapping[str, Any], label: str) -> Subject:
    """What DescribeCluster says."""
    return _subject(described, label, is_live=True)


def _subject(wire: Mapping[str, Any], label: str, *, is_live: bool) -> Subject:
    orchestrator, vpc = _object(wire, "Orchestrator"), _object(wire, "VpcConfig")
    slurm = _object(orchestrator, "Slurm")
    groups = [_group(member, f"InstanceGroups[{index}]", is_live) for index, member in _objects(wire, "InstanceGroups")]
    groups += [
        _group(member, f"RestrictedInstanceGroups[{index}]", is_live, is_restricted=True)
        for index, member in _objects(wire, "RestrictedInstanceGroups")
    ]
    return Subject(
        label=label,
        kind=Kind.EKS if orchestrator.get("Eks") is not None else Kind.SLURM,
        is_live=is_live,
        name=_text(wire, "ClusterName"),
        arn=_text(wire, "ClusterArn"),
        status=_text(wire, "ClusterStatus"),
        failure=_text(wire, "FailureMessage"),
        groups=tuple(groups),
        has_vpc=bool(vpc),
        subnets=_texts(vpc, "Subnets") or (),
        security_groups=_texts(vpc, "SecurityGroupIds") or (),
        is_continuous=wire.get("NodeProvisioningMode") == "Continuous",
        strategy=_text(slurm, "SlurmConfigStrategy"),
        recovery=_text(wire, "NodeRecovery"),
    )


def _group(wire: Mapping[str, Any], at: str, is_live: bool, *, is_restricted: bool = False) -> Group:
    lifecycle, override, slurm = (
        _object(wire, "LifeCycleConfig"),
        _object(wire, "OverrideVpcConfig"),
        _object(wire, "SlurmConfig"),
    )
    own = _text(wire, "InstanceType")
    types = (own,) if own else _texts(_object(wire, "InstanceRequirements"), "InstanceTypes") or ()
    count = _whole(wire, "TargetCount" if is_live else "InstanceCount")
    current = _whole(wire, "CurrentCount") if is_live else 0
    volumes = [_object(member, "EbsVolumeConfig") for _, member in _objects(wire, "InstanceStorageConfigs")]
    return Group(
        at=at,
        name=_text(wire, "InstanceGroupName"),
        types=types,
        count=count,
        minimum=_whole(wire, "MinCount" if is_live else "MinInstanceCount"),
        to_start=None if count is None or current is None else max(count - current, 0),
        current=current,
        status=_text(wire, "Status"),
        role=_text(wire, "ExecutionRole"),
        has_lifecycle=bool(lifecycle),
        source_uri=_text(lifecycle, "SourceS3Uri"),
        on_create=_text(lifecycle, "OnCreate"),
        overrides_vpc=bool(override),
        subnets=_texts(override, "Subnets") or (),
        security_groups=_texts(override, "SecurityGroupIds") or (),
        plan=_text(wire, "TrainingPlanArn"),
        has_slurm=bool(slurm),
        node_type=_text(slurm, "NodeType"),
        partitions=_texts(slurm, "PartitionNames"),
        mounts=tuple(_mounts(wire, at)),
        root_volumes=sum(volume.get("RootVolume") is True for volume in volumes),
        has_deep_checks=bool(_texts(wire, "OnStartDeepHealthChecks")),
        is_spot=_object(wire, "CapacityRequirements").get("Spot") is not None,
        threads=_whole(wire, "ThreadsPerCore"),
        software=_text(wire, "SoftwareUpdateStatus"),
        is_restricted=is_restricted,
    )


def _mounts(wire: Mapping[str, Any], at: str) -> list[Mount]:
    found = []
    for index, volume in _objects(wire, "InstanceStorageConfigs"):
        for member, storage in (("FsxLustreConfig", Storage.LUSTRE), ("FsxOpenZfsConfig", Storage.OPENZFS)):
            config = _object(volume, member)
            dns = _text(config, "DnsName")
            if dns is not None:
                found.append(
                    Mount(
                        storage=storage,
                        dns=dns,
                        at=f"{at}.InstanceStorageConfigs[{index}].{member}",
                        mount_name=_text(config, "MountName"),
                        mount_path=_text(config, "MountPath"),
                    )
                )
    return found


def _object(wire: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = wire.get(name)
    return value if isinstance(value, dict) else {}


def _objects(wire: Mapping[str, Any], name: str) -> list[tuple[int, Mapping[str, Any]]]:
    value = wire.get(name)
    return [(i, item) for i, item in enumerate(value) if isinstance(item, dict)] if isinstance(value, list) else []


def _text(wire: Mapping[str, Any], name: str) -> str | None:
    value = wire.get(name)
    return value if isinstance(value, str) else None


def _texts(wire: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    value = wire.get(name)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else None


def _whole(wire: Mapping[str, Any], name: str) -> int | None:
    value = wire.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
