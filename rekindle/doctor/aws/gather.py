"""From an account's answers to facts about one cluster. Asks only for what the cluster names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from rekindle.doctor.aws.account import Account, chunks
from rekindle.doctor.base.facts import (
    AccountFacts,
    FileSystemFacts,
    Found,
    Missing,
    NodeFacts,
    NotInspected,
    PlanFacts,
    Read,
    Reservation,
    RoleFacts,
    Rule,
    S3Route,
    ScriptFacts,
    SecurityGroupFacts,
    SubnetFacts,
    TypeFacts,
)
from rekindle.doctor.base.subject import Mount, Storage, Subject
from rekindle.doctor.cluster.access import needed_actions, role_uses
from rekindle.doctor.cluster.capacity import INTERFACES_CODE, INTERFACES_QUOTA

FILTER_VALUES: Final = 200  # EC2: values per filter
MAX_SCRIPTS: Final = 64  # of one folder whose content is read
MAX_SCRIPT_BYTES: Final = 256 * 1024
_READ_ENDS: Final = (".sh", ".py", ".json")


def gather(account: Account, subject: Subject, mounts: Iterable[Mount] = ()) -> AccountFacts:
    """Everything that can be read about a cluster; `mounts` are file systems that another file names."""
    subnet_ids = dict.fromkeys(subject.subnets)
    group_ids = dict.fromkeys(subject.security_groups)
    for group in subject.groups:
        subnet_ids.update(dict.fromkeys(group.subnets))
        group_ids.update(dict.fromkeys(group.security_groups))
    subnets = read_subnets(account, subnet_ids)
    every_mount = [mount for group in subject.groups for mount in group.mounts] + list(mounts)
    return AccountFacts(
        subnets=subnets,
        security_groups=read_security_groups(account, group_ids),
        types={name: read_type(account, name) for name in {name for group in subject.groups for name in group.types}},
        ways=read_ways(account, [subnet for subnet in subnets.values() if isinstance(subnet, SubnetFacts)]),
        scripts={uri: read_scripts(account, uri, first) for uri, first in _folders(subject).items()},
        roles={
            role: read_role(account, role, folders, has_vpc=has_vpc)
            for role, (_, folders, has_vpc) in role_uses(subject).items()
        },
        file_systems={dns: read_file_system(account, dns) for dns in dict.fromkeys(mount.dns for mount in every_mount)},
        plans={arn: read_plan(account, arn) for arn in {group.plan for group in subject.groups if group.plan}},
        quotas=read_quotas(account),
    )


def read_subnets(account: Account, ids: Iterable[str]) -> dict[str, Found[SubnetFacts]]:
    """By a filter, because naming ids fails the whole call for one that does not exist."""

    def parse(wire: Mapping[str, Any]) -> SubnetFacts:
        return SubnetFacts(
            id=wire["SubnetId"],
            vpc=wire.get("VpcId", ""),
            zone=wire.get("AvailabilityZone", ""),
            zone_id=wire.get("AvailabilityZoneId", ""),
            free=wire.get("AvailableIpAddressCount", 0),
            gives_public=wire.get("MapPublicIpOnLaunch") is True,
        )

    found: dict[str, Found[SubnetFacts]] = {}
    for some in chunks(ids, FILTER_VALUES):
        rows = account.pages("ec2", "describe_subnets", "Subnets", Filters=[{"Name": "subnet-id", "Values": some}])
        found |= dict.fromkeys(some, Missing() if isinstance(rows, list) else rows)
        found |= {row["SubnetId"]: parse(row) for row in rows} if isinstance(rows, list) else {}
    return found


def read_security_groups(account: Account, ids: Iterable[str]) -> dict[str, Found[SecurityGroupFacts]]:
    """With their rules."""

    def rules(wire: Iterable[Mapping[str, Any]]) -> tuple[Rule, ...]:
        return tuple(
            Rule(
                protocol=str(rule.get("IpProtocol", "")),
                groups=tuple(pair.get("GroupId", "") for pair in rule.get("UserIdGroupPairs") or []),
                ranges=tuple(
                    [part.get("CidrIp", "") for part in rule.get("IpRanges") or []]
                    + [part.get("CidrIpv6", "") for part in rule.get("Ipv6Ranges") or []]
                ),
            )
            for rule in wire
        )

    found: dict[str, Found[SecurityGroupFacts]] = {}
    for some in chunks(ids, FILTER_VALUES):
        filters = [{"Name": "group-id", "Values": some}]
        rows = account.pages("ec2", "describe_security_groups", "SecurityGroups", Filters=filters)
        found |= dict.fromkeys(some, Missing() if isinstance(rows, list) else rows)
        for row in rows if isinstance(rows, list) else []:
            found[row["GroupId"]] = SecurityGroupFacts(
                id=row["GroupId"],
                vpc=row.get("VpcId", ""),
                inbound=rules(row.get("IpPermissions") or []),
                outbound=rules(row.get("IpPermissionsEgress") or []),
            )
    return found


def read_type(account: Account, name: str) -> TypeFacts | NotInspected:
    """Where a type is offered, and its network. EC2 does not know HyperPod's `ml.` before the name."""
    plain = name.removeprefix("ml.")
    filters = [{"Name": "instance-type", "Values": [plain]}]
    offers = account.pages(
        "ec2",
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone-id",
        Filters=filters,
    )
    rows = account.pages("ec2", "describe_instance_types", "InstanceTypes", Filters=filters)
    if isinstance(offers, NotInspected) and isinstance(rows, NotInspected):
        return offers
    zones: Read[frozenset[str]] = (
        frozenset(str(offer.get("Location", "")) for offer in offers)
        if isinstance(offers, list)
        else NotInspected(offers.why)
        if isinstance(offers, NotInspected)
        else frozenset()
    )
    network = rows[0].get("NetworkInfo") or {} if isinstance(rows, list) and rows else {}
    return TypeFacts(
        name=name,
        zones=zones,
        cards=network.get("MaximumNetworkCards"),
        addresses_per_interface=network.get("Ipv4AddressesPerInterface"),
        has_efa=network.get("EfaSupported"),
    )


def read_ways(account: Account, subnets: list[SubnetFacts]) -> dict[str, Read[S3Route]]:
    """Each subnet's way to S3, by its own route table or its VPC's main one, and by the VPC's endpoints."""
    found: dict[str, Read[S3Route]] = {}
    for vpc in dict.fromkeys(subnet.vpc for subnet in subnets):
        of_vpc = [{"Name": "vpc-id", "Values": [vpc]}]
        tables = account.pages("ec2", "describe_route_tables", "RouteTables", Filters=of_vpc)
        endpoints = account.pages("ec2", "describe_vpc_endpoints", "VpcEndpoints", Filters=of_vpc)
        for subnet in (subnet for subnet in subnets if subnet.vpc == vpc):
            if isinstance(tables, list) and isinstance(endpoints, list):
                found[subnet.id] = S3Route(subnet=subnet.id, by=_way(subnet.id, tables, endpoints))
                continue
            way = _way(subnet.id, tables, []) if isinstance(tables, list) else None
            unread = tables if isinstance(tables, NotInspected) else endpoints
            why = unread.why if isinstance(unread, NotInspected) else "the VPC is gone"
            found[subnet.id] = S3Route(subnet=subnet.id, by=way) if way else NotInspected(why)
    return found


def _way(subnet: str, tables: list[Any], endpoints: list[Any]) -> str | None:
    """By what the subnet reaches S3: an endpoint of S3 before a route of its table."""
    table = _table_of(subnet, tables)
    return _way_by_endpoint(table, endpoints) or _way_by_route(table)


def _table_of(subnet: str, tables: list[Any]) -> Any:
    """The subnet's own route table, else the VPC's main one."""
    own = [t for t in tables if any(a.get("SubnetId") == subnet for a in t.get("Associations") or [])]
    main = [t for t in tables if any(a.get("Main") for a in t.get("Associations") or [])]
    return (own or main or [{}])[0]


def _way_by_endpoint(table: Any, endpoints: list[Any]) -> str | None:
    for endpoint in endpoints:
        if not str(endpoint.get("ServiceName", "")).endswith(".s3"):
            continue
        if str(endpoint.get("State", "available")).lower() not in ("available", "pending"):
            continue
        if table.get("RouteTableId") in (endpoint.get("RouteTableIds") or []):
            return "gateway endpoint"
        if endpoint.get("VpcEndpointType") == "Interface":
            return "interface endpoint"
    return None


def _way_by_route(table: Any) -> str | None:
    for route in table.get("Routes") or []:
        if str(route.get("GatewayId", "")).startswith("vpce-") and route.get("DestinationPrefixListId"):
            return "gateway endpoint"
        if _leads_out(route):
            return "route out"
    return None


def _leads_out(route: Mapping[str, Any]) -> bool:
    """An active default route. One through an internet gateway (igw-) only serves instances with public addresses,
    which nodes do not have.
    """
    if route.get("DestinationCidrBlock") != "0.0.0.0/0" or route.get("State", "active") != "active":
        return False
    outside = ("NatGatewayId", "TransitGatewayId", "NetworkInterfaceId", "InstanceId", "VpcPeeringConnectionId")
    return any(map(route.get, outside)) or str(route.get("GatewayId", "")).startswith(("vgw-", "nat-"))


def _folders(subject: Subject) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for group in subject.groups:
        if group.source_uri is not None:
            found.setdefault(group.source_uri, set()).update({group.on_create} if group.on_create else set())
    return found


def read_scripts(account: Account, uri: str, first: set[str]) -> Found[ScriptFacts]:
    """What lies below a folder in S3. `first` are the scripts that are run: they are read before others."""
    bucket, _, prefix = uri.partition("://")[2].partition("/")
    if not bucket or not uri.startswith("s3://"):
        return NotInspected("this is no s3:// address")
    folder = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""
    answer = account.ask("s3", "list_objects_v2", Bucket=bucket, Prefix=folder, MaxKeys=1000)
    if not isinstance(answer, dict):
        return answer
    sizes = {str(item["Key"])[len(folder) :]: int(item.get("Size", 0)) for item in answer.get("Contents") or []}
    sizes.pop("", None)
    wanted = [name for name in sizes if name in first]
    wanted += [name for name in sizes if name.endswith(_READ_ENDS) and name not in first][:MAX_SCRIPTS]
    contents: dict[str, Read[bytes]] = {}
    for name in wanted:
        if sizes[name] > MAX_SCRIPT_BYTES:
            contents[name] = NotInspected(f"it is larger than {MAX_SCRIPT_BYTES} bytes")
            continue
        got = account.ask("s3", "get_object", Bucket=bucket, Key=folder + name)
        contents[name] = _body(got) if isinstance(got, dict) else NotInspected(got.why)
        if isinstance(got, NotInspected):
            break  # not allowed once is not allowed for the others
    return ScriptFacts(names=tuple(sizes), contents=contents, is_cut=answer.get("IsTruncated") is True)


def _body(answer: Mapping[str, Any]) -> Read[bytes]:
    from botocore.exceptions import BotoCoreError

    try:
        return bytes(answer["Body"].read(MAX_SCRIPT_BYTES + 1))
    except (BotoCoreError, OSError) as err:
        return NotInspected(f"reading it broke off: {type(err).__name__}")


def read_role(account: Account, arn: str, folders: tuple[str, ...], *, has_vpc: bool) -> Found[RoleFacts]:
    """A role with its trust, its managed policies, and what a simulation of the needed actions denies."""
    name = arn.rpartition("/")[2]
    answer = account.ask("iam", "get_role", RoleName=name)
    if not isinstance(answer, dict):
        return answer
    trust = (answer.get("Role") or {}).get("AssumeRolePolicyDocument")
    attached = account.pages("iam", "list_attached_role_policies", "AttachedPolicies", marker="Marker", RoleName=name)
    own = arn.split(":")[4] if arn.count(":") > 4 else ""
    context = [
        {"ContextKeyName": key, "ContextKeyValues": [own], "ContextKeyType": "string"}
        for key in ("aws:PrincipalAccount", "aws:ResourceAccount")
    ]
    found: list[str] = []
    broke_off: NotInspected | None = None
    for actions, resource in needed_actions(arn, folders, has_vpc=has_vpc):
        result = account.ask(
            "iam",
            "simulate_principal_policy",
            PolicySourceArn=arn,
            ActionNames=list(actions),
            ResourceArns=[resource],
            ContextEntries=context,
        )
        if not isinstance(result, dict):
            broke_off = NotInspected(result.why)
            break
        refused = tuple(
            f"{evaluation.get('EvalActionName')} on {resource}"
            if resource != "*"
            else str(evaluation.get("EvalActionName"))
            for evaluation in result.get("EvaluationResults") or []
            if evaluation.get("EvalDecision") != "allowed"
        )
        found += refused
    return RoleFacts(
        name=name,
        trust=trust if isinstance(trust, dict) else {},
        attached=tuple(str(policy.get("PolicyName")) for policy in attached)
        if isinstance(attached, list)
        else NotInspected(attached.why),
        denied=broke_off or tuple(found),
    )


def read_file_system(account: Account, dns: str) -> Found[FileSystemFacts]:
    """By the id that begins the DNS name."""
    identity = dns.partition(".")[0]
    if identity.startswith("fc"):
        return NotInspected("it is a file cache, which is not looked at")
    answer = account.ask("fsx", "describe_file_systems", FileSystemIds=[identity])
    if not isinstance(answer, dict):
        return answer
    for described in answer.get("FileSystems") or []:
        kinds = {"LUSTRE": Storage.LUSTRE, "OPENZFS": Storage.OPENZFS}
        return FileSystemFacts(
            id=str(described.get("FileSystemId", identity)),
            storage=kinds.get(str(described.get("FileSystemType"))),
            dns=str(described.get("DNSName", "")),
            vpc=str(described.get("VpcId", "")),
            state=str(described.get("Lifecycle", "")),
            mount_name=(described.get("LustreConfiguration") or {}).get("MountName"),
        )
    return Missing()


def read_plan(account: Account, arn: str) -> Found[PlanFacts]:
    """By its name, which ends the ARN."""
    answer = account.ask("sagemaker", "describe_training_plan", TrainingPlanName=arn.rpartition("/")[2])
    if not isinstance(answer, dict):
        return answer
    return PlanFacts(
        status=str(answer.get("Status", "unknown")),
        starts_at=_moment(answer.get("StartTime")),
        ends_at=_moment(answer.get("EndTime")),
        available=answer.get("AvailableInstanceCount"),
        spare=answer.get("AvailableSpareInstanceCount"),
        targets=tuple(answer.get("TargetResources") or ()),
        reservations=tuple(
            Reservation(
                zone=str(reserved.get("AvailabilityZone", "")),
                zone_id=str(reserved.get("AvailabilityZoneId", "")),
                starts_at=_moment(reserved.get("StartTime")),
                ends_at=_moment(reserved.get("EndTime")),
                instance_type=str(reserved.get("InstanceType", "")),
            )
            for reserved in answer.get("ReservedCapacitySummaries") or []
        ),
    )


def read_quotas(account: Account) -> Read[Mapping[str, float]]:
    """SageMaker's quotas in this account, by name, and that of network interfaces."""
    rows = account.pages("service-quotas", "list_service_quotas", "Quotas", ServiceCode="sagemaker")
    if not isinstance(rows, list):
        return NotInspected(rows.why)
    found = {str(row.get("QuotaName")): float(row["Value"]) for row in rows if row.get("Value") is not None}
    interfaces = account.ask("service-quotas", "get_service_quota", ServiceCode="vpc", QuotaCode=INTERFACES_CODE)
    value = (interfaces.get("Quota") or {}).get("Value") if isinstance(interfaces, dict) else None
    return found | ({INTERFACES_QUOTA: float(value)} if value is not None else {})


def read_nodes(account: Account, cluster: str) -> list[NodeFacts] | NotInspected:
    """Every instance of a live cluster."""
    rows = account.pages("sagemaker", "list_cluster_nodes", "ClusterNodeSummaries", ClusterName=cluster, MaxResults=100)
    if not isinstance(rows, list):
        return NotInspected(rows.why)
    return [
        NodeFacts(
            id=str(row.get("InstanceId") or row.get("NodeLogicalId") or "?"),
            group=str(row.get("InstanceGroupName", "")),
            status=str((row.get("InstanceStatus") or {}).get("Status", "unknown")),
            message=str((row.get("InstanceStatus") or {}).get("Message") or ""),
        )
        for row in rows
    ]


def _moment(value: object) -> datetime | None:
    return value if isinstance(value, datetime) and value.tzinfo is not None else None
