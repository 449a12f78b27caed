"""What can be read in an AWS account, and how a failure to read is reported. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar

from rekindle.doctor.base.subject import Storage


@dataclass(frozen=True, slots=True)
class NotInspected:
    """It could not be looked at. `why` is for a person and names the missing permission where that is the reason."""

    why: str


@dataclass(frozen=True, slots=True)
class Missing:
    """AWS says that there is no such thing."""

    why: str = ""


NOT_ASKED: Final = NotInspected("not asked")

_T = TypeVar("_T")
Read: TypeAlias = _T | NotInspected  # something that is always there, if it can be read
Found: TypeAlias = _T | Missing | NotInspected  # something that may not exist


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetFacts:
    """One subnet. `free` are its free IPv4 addresses."""

    id: str
    vpc: str
    zone: str
    zone_id: str
    free: int
    gives_public: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of a security group, with what it is open to."""

    protocol: str
    groups: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()

    @property
    def is_all(self) -> bool:
        """Every protocol and port. Source: EC2, IpProtocol -1."""
        return self.protocol == "-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityGroupFacts:
    """One security group's rules."""

    id: str
    vpc: str
    inbound: tuple[Rule, ...] = ()
    outbound: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeFacts:
    """One instance type. `zones` are the ids of zones that offer it; the others None where EC2 does not say."""

    name: str
    zones: Read[frozenset[str]]
    cards: int | None = None
    addresses_per_interface: int | None = None
    has_efa: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Route:
    """How a subnet reaches S3: a gateway or interface endpoint, or a way out of the VPC; None where there is none."""

    subnet: str
    by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFacts:
    """What lies below a group's SourceS3Uri. `contents` are the texts that were read, by name below it."""

    names: tuple[str, ...]
    contents: Mapping[str, Read[bytes]]
    is_cut: bool = False  # more objects than were listed


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFacts:
    """One execution role. `denied` are the needed actions that a simulation did not allow."""

    name: str
    trust: Mapping[str, Any]
    attached: Read[tuple[str, ...]]
    denied: Read[tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemFacts:
    """One FSx file system."""

    id: str
    storage: Storage | None
    dns: str
    vpc: str
    state: str
    mount_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """One reserved capacity of a training plan: a stretch of time in one zone."""

    zone: str
    zone_id: str
    starts_at: datetime | None
    ends_at: datetime | None
    instance_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """One training plan. Counts None where SageMaker does not say."""

    status: str
    starts_at: datetime | None
    ends_at: datetime | None
    available: int | None
    spare: int | None
    targets: tuple[str, ...]
    reservations: tuple[Reservation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One instance of a live cluster. Source: botocore, ClusterNodeSummary."""

    id: str
    group: str
    status: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountFacts:
    """Everything about one cluster that was read, by what it is named in the request."""

    subnets: Mapping[str, Found[SubnetFacts]]
    security_groups: Mapping[str, Found[SecurityGroupFacts]]
    types: Mapping[str, TypeFacts | NotInspected]
    ways: Mapping[str, Read[S3Route]]
    scripts: Mapping[str, Found[ScriptFacts]]  # by SourceS3Uri
    roles: Mapping[str, Found[RoleFacts]]  # by ARN
    file_systems: Mapping[str, Found[FileSystemFacts]]  # by DNS name
    plans: Mapping[str, Found[PlanFacts]]  # by ARN
    quotas: Read[Mapping[str, float]]  # by the quota's name
