"""What is found in an account, from facts: one fault each, and none where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rekindle.doctor.base.facts import (
    AccountFacts,
    FileSystemFacts,
    Missing,
    NotInspected,
    PlanFacts,
    Reservation,
    RoleFacts,
    Rule,
    S3Route,
    ScriptFacts,
    SecurityGroupFacts,
    SubnetFacts,
    TypeFacts,
)
from rekindle.doctor.base.findings import Finding
from rekindle.doctor.base.subject import Kind, Storage, Subject, from_request
from rekindle.doctor.cluster.access import is_trusted, role_findings
from rekindle.doctor.cluster.capacity import plan_findings, quota_findings
from rekindle.doctor.cluster.network import network_findings
from rekindle.doctor.cluster.storage import fsx_findings, script_findings
from tests.doctor.given import DNS, FOLDER, PLAN, ROLE, continuous

# ruff: noqa: E501 - a table is read by its rows

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
ITSELF = (Rule(protocol="-1", groups=("sg-0a",)),)
OPEN = (Rule(protocol="-1", ranges=("0.0.0.0/0",)),)
TRUST = {
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}]
}


def subnet(id_: str, **changes: Any) -> SubnetFacts:
    usual = SubnetFacts(id=id_, vpc="vpc-1", zone="us-west-2a", zone_id="usw2-az1", free=1000, gives_public=False)
    return replace(usual, **changes)


def security_group(id_: str, **changes: Any) -> SecurityGroupFacts:
    own = (Rule(protocol="-1", groups=(id_,)),)
    return replace(SecurityGroupFacts(id=id_, vpc="vpc-1", inbound=own, outbound=own), **changes)


def kind(name: str, cards: int, *, efa: bool) -> TypeFacts:
    return TypeFacts(
        name=name, zones=frozenset({"usw2-az1", "usw2-az2"}), cards=cards, addresses_per_interface=50, has_efa=efa
    )


def plan(**changes: Any) -> PlanFacts:
    ends = NOW + timedelta(days=30)
    usual = PlanFacts(
        status="Active",
        starts_at=NOW - timedelta(days=1),
        ends_at=ends,
        available=4,  # as many as the group starts
        spare=1,
        targets=("hyperpod-cluster",),
        reservations=(reservation(NOW - timedelta(days=1), ends),),
    )
    return replace(usual, **changes)


def reservation(starts: datetime, ends: datetime, zone: str = "usw2-az1", type_: str = "ml.p5.48xlarge") -> Reservation:
    return Reservation(zone="", zone_id=zone, starts_at=starts, ends_at=ends, instance_type=type_)


def good_request() -> dict[str, Any]:
    """Two subnets, a group with a network of its own, a plan and a file system."""
    request = continuous()
    request["VpcConfig"] = {"SecurityGroupIds": ["sg-0a"], "Subnets": ["subnet-0a", "subnet-0b"]}
    gpu = request["InstanceGroups"][2]
    gpu["OverrideVpcConfig"] = {"SecurityGroupIds": ["sg-0b"], "Subnets": ["subnet-0c"]}
    gpu["TrainingPlanArn"] = PLAN
    gpu["InstanceStorageConfigs"] = [{"FsxLustreConfig": {"DnsName": DNS, "MountName": "abcdefgh"}}]
    return request


def good_facts() -> AccountFacts:
    return AccountFacts(
        subnets={one: subnet(one) for one in ("subnet-0a", "subnet-0b", "subnet-0c")},
        security_groups={one: security_group(one) for one in ("sg-0a", "sg-0b")},
        types={
            "ml.p5.48xlarge": kind("ml.p5.48xlarge", 32, efa=True),
            "ml.m5.12xlarge": kind("ml.m5.12xlarge", 1, efa=False),
            "ml.m5.4xlarge": kind("ml.m5.4xlarge", 1, efa=False),
        },
        ways={one: S3Route(subnet=one, by="gateway endpoint") for one in ("subnet-0a", "subnet-0b", "subnet-0c")},
        scripts={FOLDER: ScriptFacts(names=("on_create.sh", "a/b.sh"), contents={"on_create.sh": b"#!/bin/sh\n", "a/b.sh": b"#!/bin/sh\n"})},
        roles={ROLE: RoleFacts(name="node", trust=TRUST, attached=("AmazonSageMakerClusterInstanceRolePolicy",), denied=())},
        file_systems={DNS: FileSystemFacts(id="fs-0123456789abcdef0", storage=Storage.LUSTRE, dns=DNS, vpc="vpc-1", state="AVAILABLE", mount_name="abcdefgh")},
        plans={PLAN: plan()},
        quotas={"ml.m5.12xlarge for cluster usage": 1.0, "ml.m5.4xlarge for cluster usage": 4.0, "ml.p5.48xlarge for cluster usage": 0.0},
    )  # fmt: skip


def found(facts: AccountFacts, request: dict[str, Any] | None = None, **more: Any) -> list[Finding]:
    subject = from_request(request or good_request(), "c.json")
    return [*_found(subject, facts, **more)]


def _found(subject: Subject, facts: AccountFacts, run_time: timedelta | None = None) -> Iterator[Finding]:
    yield from network_findings(subject, facts)
    yield from script_findings(subject, facts)
    yield from role_findings(subject, facts)
    yield from fsx_findings(subject, facts)
    yield from plan_findings(subject, facts, now=NOW, run_time=run_time)
    yield from quota_findings(subject, facts)


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert found(good_facts()) == []


Spoil = Callable[[AccountFacts], AccountFacts]


def put(member: str, key: str, value: Any) -> Spoil:
    return lambda facts: replace(facts, **{member: {**getattr(facts, member), key: value}})


NO = NotInspected("not allowed; x:Y is missing")
FAULTS: list[tuple[str, Spoil, str, str, str]] = [
    ("the second subnet is not there", put("subnets", "subnet-0b", Missing()), "subnet-exists", "error", "VpcConfig.Subnets[1]"),
    ("a group's subnet is not there", put("subnets", "subnet-0c", Missing()), "subnet-exists", "error", "[2].OverrideVpcConfig.Subnets[0]"),
    ("a subnet may not be read", put("subnets", "subnet-0a", NO), "subnet-exists", "unknown", "VpcConfig.Subnets[0]"),
    ("the second subnet is public", put("subnets", "subnet-0b", subnet("subnet-0b", gives_public=True)), "subnet-private", "error", "VpcConfig.Subnets[1]"),
    ("a group's subnet is public", put("subnets", "subnet-0c", subnet("subnet-0c", gives_public=True)), "subnet-private", "error", "OverrideVpcConfig"),
    ("two VPCs", put("subnets", "subnet-0c", subnet("subnet-0c", vpc="vpc-2")), "subnet-vpc", "error", "VpcConfig.Subnets"),
    ("a zone without the type", put("subnets", "subnet-0c", subnet("subnet-0c", zone_id="usw2-az4")), "subnet-zone", "error", "[2].InstanceType"),
    ("one of two zones without the type", put("subnets", "subnet-0b", subnet("subnet-0b", zone_id="usw2-az4")), "subnet-zone", "warning", "[0].InstanceType"),
    ("a type that is nowhere", put("types", "ml.m5.4xlarge", TypeFacts(name="ml.m5.4xlarge", zones=frozenset(), cards=1)), "subnet-zone", "error", "[1].InstanceType"),
    ("a type that may not be read", put("types", "ml.m5.4xlarge", NO), "subnet-zone", "unknown", "[1].InstanceType"),
    ("addresses of a type not known", put("types", "ml.m5.4xlarge", NO), "subnet-addresses", "unknown", "[1].InstanceCount"),
    ("too few addresses", put("subnets", "subnet-0c", subnet("subnet-0c", free=127)), "subnet-addresses", "error", "Subnets"),
    ("no security group", put("security_groups", "sg-0b", Missing()), "security-group-exists", "error", "[2].OverrideVpcConfig.SecurityGroupIds[0]"),
    ("a security group unread", put("security_groups", "sg-0a", NO), "security-group-exists", "unknown", "VpcConfig.SecurityGroupIds[0]"),
    ("a security group elsewhere", put("security_groups", "sg-0a", security_group("sg-0a", vpc="vpc-9")), "security-group-exists", "error", "VpcConfig"),
    ("nothing in from itself", put("security_groups", "sg-0b", security_group("sg-0b", inbound=())), "security-group-efa", "error", "[2].OverrideVpcConfig"),
    ("in from another only", put("security_groups", "sg-0b", security_group("sg-0b", inbound=ITSELF)), "security-group-efa", "error", "[2].OverrideVpcConfig"),
    ("only TCP in", put("security_groups", "sg-0b", security_group("sg-0b", inbound=(Rule(protocol="tcp", groups=("sg-0b",)),))), "security-group-efa", "error", "[2]."),
    ("open outbound is not enough for EFA", put("security_groups", "sg-0b", security_group("sg-0b", outbound=OPEN)), "security-group-efa", "error", "[2]."),
    ("nothing out", put("security_groups", "sg-0a", security_group("sg-0a", outbound=())), "security-group-efa", "error", "VpcConfig"),
    ("no way to S3", put("ways", "subnet-0c", S3Route(subnet="subnet-0c", by=None)), "s3-route", "error", "OverrideVpcConfig"),
    ("a way unread", put("ways", "subnet-0a", NO), "s3-route", "unknown", "VpcConfig.Subnets[0]"),
    ("no bucket", put("scripts", FOLDER, Missing()), "script-objects", "error", "SourceS3Uri"),
    ("scripts unread", put("scripts", FOLDER, NO), "script-objects", "unknown", "SourceS3Uri"),
    ("an empty folder", put("scripts", FOLDER, ScriptFacts(names=(), contents={})), "script-objects", "error", "SourceS3Uri"),
    ("no script", put("scripts", FOLDER, ScriptFacts(names=("x.sh",), contents={})), "script-objects", "error", "OnCreate"),
    ("DOS line ends", put("scripts", FOLDER, ScriptFacts(names=("on_create.sh",), contents={"on_create.sh": b"#!/bin/sh\r\n"})), "script-content", "error", "on_create.sh"),
    ("no interpreter", put("scripts", FOLDER, ScriptFacts(names=("on_create.sh",), contents={"on_create.sh": b"echo\n"})), "script-content", "error", "on_create.sh"),
    ("no interpreter elsewhere", put("scripts", FOLDER, ScriptFacts(names=("on_create.sh", "b.sh"), contents={"b.sh": b"echo\n"})), "script-content", "warning", "b.sh"),
    ("a script unread", put("scripts", FOLDER, ScriptFacts(names=("on_create.sh",), contents={"on_create.sh": NO})), "script-content", "unknown", "on_create.sh"),
    ("no role", put("roles", ROLE, Missing()), "role-exists", "error", "ExecutionRole"),
    ("a role unread", put("roles", ROLE, NO), "role-exists", "unknown", "ExecutionRole"),
    ("no trust", put("roles", ROLE, RoleFacts(name="node", trust={}, attached=(), denied=())), "role-trust", "error", "ExecutionRole"),
    ("an action denied", put("roles", ROLE, RoleFacts(name="node", trust=TRUST, attached=(), denied=("s3:GetObject on x",))), "role-actions", "error", "ExecutionRole"),
    ("no simulation", put("roles", ROLE, RoleFacts(name="node", trust=TRUST, attached=("AmazonSageMakerClusterInstanceRolePolicy",), denied=NO)), "role-actions", "unknown", "ExecutionRole"),
    ("no simulation, no managed policy", put("roles", ROLE, RoleFacts(name="node", trust=TRUST, attached=(), denied=NO)), "role-actions", "unknown", "ExecutionRole"),
    ("nothing of the role", put("roles", ROLE, RoleFacts(name="node", trust=TRUST, attached=NO, denied=NO)), "role-actions", "unknown", "ExecutionRole"),
    ("no file system", put("file_systems", DNS, Missing()), "fsx-exists", "error", "FsxLustreConfig"),
    ("a file system unread", put("file_systems", DNS, NO), "fsx-exists", "unknown", "FsxLustreConfig"),
    ("no plan", put("plans", PLAN, Missing()), "plan-status", "error", "TrainingPlanArn"),
    ("a plan unread", put("plans", PLAN, NO), "plan-status", "unknown", "TrainingPlanArn"),
    ("a plan expired", put("plans", PLAN, plan(status="Expired")), "plan-status", "error", "TrainingPlanArn"),
    ("a plan failed", put("plans", PLAN, plan(status="Failed")), "plan-status", "error", "TrainingPlanArn"),
    ("a plan to come", put("plans", PLAN, plan(status="Scheduled", starts_at=NOW + timedelta(days=1))), "plan-status", "warning", "TrainingPlanArn"),
    ("a plan pending", put("plans", PLAN, plan(status="Pending")), "plan-status", "warning", "TrainingPlanArn"),
    ("a plan with a gap", put("plans", PLAN, plan(reservations=(reservation(NOW + timedelta(days=3), NOW + timedelta(days=9)), reservation(NOW, NOW + timedelta(days=1))))), "plan-status", "warning", "TrainingPlanArn"),
    ("a plan that is over", put("plans", PLAN, plan(ends_at=NOW + timedelta(minutes=60))), "plan-end", "error", "TrainingPlanArn"),
    ("a plan that ends soon", put("plans", PLAN, plan(ends_at=NOW + timedelta(minutes=61))), "plan-end", "warning", "TrainingPlanArn"),
    ("a plan without an end", put("plans", PLAN, plan(ends_at=None)), "plan-end", "unknown", "TrainingPlanArn"),
    ("a plan elsewhere", put("plans", PLAN, plan(reservations=(reservation(NOW, NOW, zone="usw2-az2"),))), "plan-zone", "error", "TrainingPlanArn"),
    ("a plan for jobs", put("plans", PLAN, plan(targets=("training-job",))), "plan-size", "error", "TrainingPlanArn"),
    ("a plan of another type", put("plans", PLAN, plan(reservations=(reservation(NOW, NOW, type_="ml.p4d.24xlarge"),))), "plan-size", "error", "TrainingPlanArn"),
    ("a plan too small", put("plans", PLAN, plan(available=3)), "plan-size", "error", "TrainingPlanArn"),
    ("a plan that does not count", put("plans", PLAN, plan(available=None)), "plan-size", "unknown", "TrainingPlanArn"),
    ("a plan without a spare", put("plans", PLAN, plan(spare=0)), "plan-size", "warning", "TrainingPlanArn"),
    ("a quota too small", put("quotas", "ml.m5.12xlarge for cluster usage", 0.0), "quota", "error", "[0].InstanceCount"),
    ("too few interfaces", put("quotas", "Network interfaces per Region", 129.0), "quota", "error", "InstanceGroups"),
    ("quotas unread", lambda facts: replace(facts, quotas=NO), "quota", "unknown", "InstanceGroups"),
    ("no such quota", lambda facts: replace(facts, quotas={"ml.m5.4xlarge for cluster usage": 9.0}), "quota", "unknown", "[0].InstanceCount"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "check", "severity", "where"),
    [row[1:] for row in FAULTS],
    ids=[row[0].replace(" ", "-") for row in FAULTS],
)
def test_each_fault_of_the_account_is_found(spoil: Spoil, check: str, severity: str, where: str) -> None:
    every = found(spoil(good_facts()))
    assert any(
        finding.check == check and finding.severity == severity and where in finding.path for finding in every
    ), every
    others = {(finding.check, finding.severity) for finding in every if finding.severity != "unknown"} - {
        (check, severity)
    }
    assert others <= {("script-objects", "error"), ("plan-zone", "error")}, others


@pytest.mark.parametrize(
    "change", [{"state": "DELETING"}, {"dns": "fs-0123456789abcdef0.other"}, {"storage": Storage.OPENZFS}]
)
def test_a_file_system_must_be_the_one_that_is_meant(change: dict[str, Any]) -> None:
    facts = good_facts()
    spoiled = put("file_systems", DNS, replace(facts.file_systems[DNS], **change))(facts)  # type: ignore[type-var]
    assert [(finding.check, finding.severity) for finding in found(spoiled)] == [("fsx-exists", "error")]


@pytest.mark.parametrize(
    ("change", "check"), [({"mount_name": "other"}, "fsx-mount-name"), ({"vpc": "vpc-9"}, "fsx-vpc")]
)
def test_a_file_system_must_have_the_mount_name_and_the_vpc(change: dict[str, Any], check: str) -> None:
    facts = good_facts()
    spoiled = put("file_systems", DNS, replace(facts.file_systems[DNS], **change))(facts)  # type: ignore[type-var]
    assert [(finding.check, finding.severity) for finding in found(spoiled)] == [(check, "error")]


def test_a_plan_is_measured_by_the_scripts_time_limit() -> None:
    facts = put("plans", PLAN, plan(ends_at=NOW + timedelta(days=10)))(good_facts())
    assert found(facts, run_time=timedelta(days=9)) == []
    assert [finding.check for finding in found(facts, run_time=timedelta(days=10))] == ["plan-end"]


@pytest.mark.parametrize(
    ("free", "kind_", "is_enough"),
    [(128, Kind.SLURM, True), (127, Kind.SLURM, False), (324, Kind.EKS, True), (323, Kind.EKS, False)],
)
def test_a_p5_needs_32_addresses_on_slurm_and_81_on_eks(free: int, kind_: Kind, is_enough: bool) -> None:
    facts = put("subnets", "subnet-0c", subnet("subnet-0c", free=free))(good_facts())
    subject = replace(from_request(good_request(), "c.json"), kind=kind_)
    checks = [finding.check for finding in network_findings(subject, facts)]
    assert checks == ([] if is_enough else ["subnet-addresses"])


def test_a_p5s_need_is_known_without_ec2() -> None:
    facts = put("types", "ml.p5.48xlarge", NO)(put("subnets", "subnet-0c", subnet("subnet-0c", free=127))(good_facts()))
    assert ("subnet-addresses", "error") in [(finding.check, finding.severity) for finding in found(facts)]


def test_groups_that_share_subnets_share_their_addresses() -> None:
    request = good_request()
    request["InstanceGroups"][1]["InstanceCount"] = 60  # 60 and 1 of one address each in 0a and 0b
    enough = put("subnets", "subnet-0a", subnet("subnet-0a", free=31))(
        put("subnets", "subnet-0b", subnet("subnet-0b", free=30))(good_facts())
    )
    enough = replace(enough, quotas=NO)
    assert [finding.check for finding in found(enough, request)] == ["quota"]
    few = put("subnets", "subnet-0b", subnet("subnet-0b", free=29))(enough)
    assert [finding.check for finding in found(few, request)] == ["subnet-addresses", "quota"]


def test_open_outbound_is_enough_without_efa() -> None:
    facts = put("security_groups", "sg-0a", security_group("sg-0a", outbound=OPEN))(good_facts())
    assert found(facts) == []


def test_a_second_security_group_that_does_not_refer_to_itself_is_told() -> None:
    request = good_request()
    request["InstanceGroups"][2]["OverrideVpcConfig"]["SecurityGroupIds"] = ["sg-0b", "sg-0c"]
    facts = put("security_groups", "sg-0c", security_group("sg-0c", inbound=(), outbound=OPEN))(good_facts())
    assert [(finding.check, finding.severity) for finding in found(facts, request)] == [
        ("security-group-efa", "warning")
    ]


@pytest.mark.parametrize(
    ("statement", "trusted"),
    [
        ({"Effect": "Allow", "Principal": {"Service": ["ec2.amazonaws.com", "sagemaker.amazonaws.com"]}, "Action": ["sts:AssumeRole", "sts:TagSession"]}, True),
        ({"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:*", "Condition": {}}, True),
        ({"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}, False),
        ({"Effect": "Deny", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}, False),
        ({"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::1:root"}, "Action": "sts:AssumeRole"}, False),
        ({"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:TagSession"}, False),
        (None, False),
        ("Allow", False),
    ],
)  # fmt: skip
def test_trust_is_read_in_all_its_forms(statement: Any, trusted: bool) -> None:
    assert is_trusted({"Statement": [statement]}, "sagemaker.amazonaws.com") is trusted
    assert is_trusted({"Statement": statement}, "sagemaker.amazonaws.com") is trusted


def test_the_copy_of_the_parameters_beside_the_scripts_is_compared() -> None:
    subject = from_request({"InstanceGroups": [{"LifeCycleConfig": {"SourceS3Uri": FOLDER}}]}, "c.json")

    def looked(names: tuple[str, ...], content: bytes) -> list[tuple[str, str]]:
        facts = replace(
            good_facts(), scripts={FOLDER: ScriptFacts(names=names, contents={"provisioning_parameters.json": content})}
        )
        return [(finding.check, finding.severity) for finding in script_findings(subject, facts, {"version": "1.0.0"})]

    here = ("provisioning_parameters.json",)
    assert looked(here, b'{"version": "1.0.0"}') == []
    assert looked(here, b'{"version": "1.0.1"}') == [("script-objects", "warning")]
    assert looked(here, b"{") == [("script-objects", "warning")]
    assert looked(("on_create.sh",), b"") == [("script-objects", "error")]
