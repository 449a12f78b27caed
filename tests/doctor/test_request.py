"""create_cluster.json and provisioning_parameters.json, without AWS: one fault each, and none where there is none."""

# ruff: noqa: E501 - a table is read by its rows

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.doctor.conftest import Doctor
from tests.doctor.given import DNS, continuous, legacy, provisioning

Change = Callable[[dict[str, Any]], Any]


def at(*path: str | int, value: Any = None, drop: bool = False) -> Change:
    """Set, or drop, what stands at a path."""

    def change(wire: dict[str, Any]) -> None:
        where: Any = wire
        for step in path[:-1]:
            where = where[step]
        if drop:
            del where[path[-1]]
        else:
            where[path[-1]] = value

    return change


def add(*path: str | int, value: Any) -> Change:
    def change(wire: dict[str, Any]) -> None:
        where: Any = wire
        for step in path:
            where = where[step]
        where.append(value)

    return change


HEAD, LOGIN, GPU = (("InstanceGroups", index) for index in range(3))
LUSTRE = {"DnsName": DNS, "MountName": "abcdefgh", "MountPath": "/fsx"}


def spoiled(wire: dict[str, Any], *changes: Change) -> dict[str, Any]:
    for change in changes:
        change(wire)
    return wire


def test_nothing_is_found_where_nothing_is_wrong(doctor: Doctor) -> None:
    said = doctor("--offline", config=legacy(), provisioning=provisioning())
    assert said.code == 0
    assert {finding["severity"] for finding in said.findings} == {"unknown"}
    assert all("--offline" in finding["message"] for finding in said.findings)


@pytest.mark.parametrize("left", ["${ROLE}", "$ROLE", "{{ role }}", "<your role>", "arn:aws:iam::${ACCOUNT}:role/node"])
def test_what_was_not_filled_in_is_called_that(doctor: Doctor, left: str) -> None:
    request = spoiled(legacy(), at(*GPU, "ExecutionRole", value=left))
    said = doctor("--offline", config=request, provisioning={**provisioning(), "fsx_dns_name": left})
    found = {error["path"].partition(":")[2]: error["message"] for error in said.errors}
    assert found.keys() == {"InstanceGroups[2].ExecutionRole", "fsx_dns_name"}
    assert all("was not filled in" in message for message in found.values())


def test_nothing_is_found_in_a_request_that_says_everything_itself(doctor: Doctor) -> None:
    said = doctor("--offline", config=continuous())
    assert (said.code, {finding["severity"] for finding in said.findings}) == (0, {"unknown"})


# Each row: what is changed, which check must say so, how, and where.
REQUEST: list[tuple[str, Change, str, str, str]] = [
    ("no name", at("ClusterName", drop=True), "request-shape", "error", "ClusterName"),
    ("a name with _", at("ClusterName", value="pre_train"), "request-shape", "error", "ClusterName"),
    ("a long name", at("ClusterName", value="a" * 64), "request-shape", "error", "ClusterName"),
    ("a name that is a number", at("ClusterName", value=7), "request-shape", "error", "ClusterName"),
    ("a name that is null", at("ClusterName", value=None), "request-shape", "error", "ClusterName"),
    ("an unknown member", at("NodeRecover", value="None"), "request-shape", "error", "NodeRecover"),
    ("groups that are no list", at("InstanceGroups", value={}), "request-shape", "error", "InstanceGroups"),
    ("no groups", at("InstanceGroups", drop=True), "request-one-of", "error", "InstanceGroups"),
    ("an empty list of groups", at("InstanceGroups", value=[]), "request-shape", "error", "InstanceGroups"),
    ("a group that is a text", at(*GPU, value="gpu"), "request-shape", "error", "InstanceGroups[2]"),
    ("101 groups", at("InstanceGroups", value=[{}] * 101), "request-shape", "error", "InstanceGroups"),
    ("a mistyped type", at(*GPU, "InstanceType", value="ml.p5.48xlagre"), "request-shape", "error", "InstanceType"),
    ("a count below 0", at(*GPU, "InstanceCount", value=-1), "request-shape", "error", "InstanceCount"),
    ("a count too high", at(*GPU, "InstanceCount", value=6759), "request-shape", "error", "InstanceCount"),
    ("a count that is a text", at(*GPU, "InstanceCount", value="4"), "request-shape", "error", "InstanceCount"),
    ("a count that is true", at(*GPU, "InstanceCount", value=True), "request-shape", "error", "InstanceCount"),
    ("a count of 2.5", at(*GPU, "InstanceCount", value=2.5), "request-shape", "error", "InstanceCount"),
    ("no role", at(*GPU, "ExecutionRole", drop=True), "request-shape", "error", "ExecutionRole"),
    ("a role's name", at(*GPU, "ExecutionRole", value="a-role-of-some-name"), "request-shape", "error", "ExecutionRole"),
    ("three threads", at(*GPU, "ThreadsPerCore", value=3), "request-shape", "error", "ThreadsPerCore"),
    ("six subnets as a text", at("VpcConfig", "Subnets", value="subnet-1"), "request-shape", "error", "Subnets"),
    ("six security groups", at("VpcConfig", "SecurityGroupIds", value=["sg-1"] * 6), "request-shape", "error", "Security"),
    ("a recovery of its own", at("NodeRecovery", value="automatic"), "request-shape", "error", "NodeRecovery"),
    ("four health checks", at(*GPU, "OnStartDeepHealthChecks", value=["InstanceStress"] * 4), "request-shape", "error", "Deep"),
    ("a mount name of nine", at(*GPU, "InstanceStorageConfigs", value=[{"FsxLustreConfig": LUSTRE | {"MountName": "123456789"}}]), "request-shape", "error", "MountName"),
    ("a volume too large", at(*GPU, "InstanceStorageConfigs", value=[{"EbsVolumeConfig": {"VolumeSizeInGB": 16385}}]), "request-shape", "error", "VolumeSizeInGB"),
    ("both orchestrators", at("Orchestrator", value={"Slurm": {}, "Eks": {"ClusterArn": "arn:aws:eks:us-west-2:123456789012:cluster/c"}}), "request-one-of", "error", "Orchestrator"),
    ("no orchestrator in it", at("Orchestrator", value={}), "request-one-of", "error", "Orchestrator"),
    ("no type", at(*GPU, "InstanceType", drop=True), "request-one-of", "error", "InstanceGroups[2]"),
    ("two ways to name types", at(*GPU, "InstanceRequirements", value={"InstanceTypes": ["ml.p5.48xlarge"]}), "request-one-of", "error", "InstanceGroups[2]"),
    ("spot and on demand", at(*GPU, "CapacityRequirements", value={"Spot": {}, "OnDemand": {}}), "request-one-of", "error", "CapacityRequirements"),
    ("an empty storage entry", at(*GPU, "InstanceStorageConfigs", value=[{}]), "request-one-of", "error", "InstanceStorageConfigs[0]"),
    ("no lifecycle", at(*GPU, "LifeCycleConfig", drop=True), "request-lifecycle", "error", "LifeCycleConfig"),
    ("an https folder", at(*GPU, "LifeCycleConfig", "SourceS3Uri", value="https://b/x"), "request-lifecycle", "error", "SourceS3Uri"),
    ("a bucket of another name", at(*GPU, "LifeCycleConfig", "SourceS3Uri", value="s3://mine/x"), "request-lifecycle", "warning", "SourceS3Uri"),
    ("a script with a path", at(*GPU, "LifeCycleConfig", "OnCreate", value="/opt/on_create.sh"), "request-lifecycle", "error", "OnCreate"),
    ("no script", at(*GPU, "LifeCycleConfig", "OnCreate", drop=True), "request-lifecycle", "warning", "LifeCycleConfig"),
    ("recovery off", at("NodeRecovery", value="None"), "request-node-recovery", "warning", "NodeRecovery"),
    ("recovery not said", at("NodeRecovery", drop=True), "request-node-recovery", "warning", "NodeRecovery"),
    ("no deep check", at(*GPU, "OnStartDeepHealthChecks", drop=True), "request-deep-health-checks", "warning", "[2]"),
    ("no VPC", at("VpcConfig", drop=True), "request-vpc", "warning", "VpcConfig"),
    ("two threads on Graviton", lambda r: (at(*HEAD, "InstanceType", value="ml.m7g.4xlarge")(r), at(*HEAD, "ThreadsPerCore", value=2)(r)), "request-threads", "error", "[0].ThreadsPerCore"),
    ("two root volumes", at(*GPU, "InstanceStorageConfigs", value=[{"EbsVolumeConfig": {"RootVolume": True}}] * 2), "request-storage", "error", "InstanceStorageConfigs"),
    ("one path for two mounts", at(*GPU, "InstanceStorageConfigs", value=[{"FsxLustreConfig": LUSTRE}] * 2), "request-storage", "error", "MountPath"),
    ("spot on Slurm", at(*GPU, "CapacityRequirements", value={"Spot": {}}), "request-spot", "warning", "Spot"),
    ("one name twice", at(*LOGIN, "InstanceGroupName", value="gpu"), "group-names", "error", "InstanceGroups[1]"),
    ("more than there are", at(*GPU, "MinInstanceCount", value=5), "group-counts", "error", "MinInstanceCount"),
    ("two controllers", at(*LOGIN, "SlurmConfig", value={"NodeType": "Controller"}), "slurm-controller", "error", "InstanceGroups"),
    ("no controller", at(*HEAD, "SlurmConfig", value={"NodeType": "Login"}), "slurm-controller", "error", "InstanceGroups"),
    ("a controller of none", at(*HEAD, "InstanceCount", value=0), "slurm-controller", "error", "InstanceCount"),
    ("a controller of two", at(*HEAD, "InstanceCount", value=2), "slurm-controller", "error", "InstanceCount"),
    ("two logins", add("InstanceGroups", value=continuous()["InstanceGroups"][1] | {"InstanceGroupName": "l2"}), "slurm-login", "error", "InstanceGroups"),
    ("no partition", at(*GPU, "SlurmConfig", value={"NodeType": "Compute"}), "slurm-partitions", "error", "PartitionNames"),
    ("a login's partition", at(*LOGIN, "SlurmConfig", "PartitionNames", value=["p"]), "slurm-partitions", "error", "[1]"),
    ("no group that computes", at("InstanceGroups", value=continuous()["InstanceGroups"][:2]), "slurm-partitions", "warning", "InstanceGroups"),
    ("a group without a part", at(*GPU, "SlurmConfig", drop=True), "slurm-config", "error", "InstanceGroups[2]"),
    ("parts on EKS", at("Orchestrator", value={"Eks": {"ClusterArn": "arn:aws:eks:us-west-2:123456789012:cluster/c"}}), "slurm-config", "error", "[0].SlurmConfig"),
    ("a strategy", at("Orchestrator", value={"Slurm": {"SlurmConfigStrategy": "Merge"}}), "provisioning-mode", "error", "SlurmConfigStrategy"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "check", "severity", "where"), [row[1:] for row in REQUEST], ids=[row[0] for row in REQUEST]
)
def test_each_fault_of_a_request_is_found(
    doctor: Doctor, change: Change, check: str, severity: str, where: str
) -> None:
    base = legacy() if check in ("request-lifecycle",) else continuous()
    said = doctor("--offline", config=spoiled(base, change))
    found = said.of(check, severity)
    assert any(where in finding["path"] for finding in found), said.findings
    assert said.code == (1 if said.errors else 0)
    assert severity != "error" or said.code == 1


PROVISIONING: list[tuple[str, Change, str, str, str]] = [
    *((f"no {name}", at(name, drop=True), "provisioning-shape", "error", name) for name in ("workload_manager", "controller_group", "worker_groups")),
    ("no version", at("version", drop=True), "provisioning-shape", "warning", "version"),
    *((f"{name} is a number", at(name, value=1), "provisioning-shape", "error", name) for name in ("version", "workload_manager", "controller_group", "login_group", "worker_groups", "fsx_dns_name", "fsx_mountname")),
    ("an empty controller", at("controller_group", value=""), "provisioning-shape", "error", "controller_group"),
    ("another version", at("version", value="2"), "provisioning-shape", "warning", "version"),
    ("another scheduler", at("workload_manager", value="pbs"), "provisioning-shape", "error", "workload_manager"),
    ("an unknown member", at("fsx_mount_name", value="x"), "provisioning-shape", "warning", "fsx_mount_name"),
    ("a worker that is a text", at("worker_groups", value=["gpu"]), "provisioning-shape", "error", "worker_groups[0]"),
    ("a worker without a partition", at("worker_groups", 0, "partition_name", drop=True), "provisioning-shape", "error", "partition_name"),
    ("a worker with a list for a name", at("worker_groups", 0, "instance_group_name", value=["gpu"]), "provisioning-shape", "error", "instance_group_name"),
    ("a controller that is not there", at("controller_group", value="haed"), "provisioning-groups", "error", "controller_group"),
    ("a login that is not there", at("login_group", value="logon"), "provisioning-groups", "error", "login_group"),
    ("a worker that is not there", at("worker_groups", 0, "instance_group_name", value="cpu"), "provisioning-groups", "error", "worker_groups[0]"),
    ("a group without a part", at("login_group", drop=True), "provisioning-groups", "error", "InstanceGroups[1]"),
    ("a group with two parts", at("login_group", value="gpu"), "provisioning-groups", "error", "login_group"),
    ("a worker twice", add("worker_groups", value={"instance_group_name": "gpu", "partition_name": "p"}), "provisioning-groups", "error", "worker_groups[1]"),
    ("no mount name", at("fsx_mountname", drop=True), "provisioning-fsx", "error", "fsx_mountname"),
    ("no DNS name", at("fsx_dns_name", drop=True), "provisioning-fsx", "error", "fsx_dns_name"),
    ("a DNS name that is none", at("fsx_dns_name", value="my-fs"), "provisioning-fsx", "error", "fsx_dns_name"),
    ("a mount name that is none", at("fsx_mountname", value="/fsx"), "provisioning-fsx", "error", "fsx_mountname"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "check", "severity", "where"), [row[1:] for row in PROVISIONING], ids=[row[0] for row in PROVISIONING]
)
def test_each_fault_of_the_parameters_is_found(
    doctor: Doctor, change: Change, check: str, severity: str, where: str
) -> None:
    said = doctor("--offline", config=legacy(), provisioning=spoiled(provisioning(), change))
    assert any(where in finding["path"] for finding in said.of(check, severity)), said.findings
    assert said.code == (1 if said.errors else 0)
    assert severity != "error" or said.code == 1


def test_parameters_without_fsx_are_right(doctor: Doctor) -> None:
    wire = spoiled(provisioning(), at("fsx_dns_name", drop=True), at("fsx_mountname", drop=True))
    assert not doctor("--offline", config=legacy(), provisioning=wire).errors


def test_parameters_and_a_continuous_cluster_exclude_each_other(doctor: Doctor) -> None:
    assert doctor("--offline", config=continuous(), provisioning=provisioning()).of("provisioning-mode", "error")


def test_two_places_that_say_a_groups_part_are_one_too_many(doctor: Doctor) -> None:
    request = spoiled(continuous(), at("NodeProvisioningMode", drop=True))
    assert doctor("--offline", config=request, provisioning=provisioning()).of("provisioning-mode", "warning")


def test_continuous_without_parts_is_an_error(doctor: Doctor) -> None:
    request = legacy() | {"NodeProvisioningMode": "Continuous", "Orchestrator": {"Slurm": {}}}
    assert doctor("--offline", config=request).of("provisioning-mode", "error")


def test_parameters_alone_leave_the_groups_unknown(doctor: Doctor) -> None:
    said = doctor("--offline", provisioning=provisioning())
    assert said.of("provisioning-groups", "unknown")
    assert said.code == 0


def test_another_file_system_in_the_other_file_is_told(doctor: Doctor) -> None:
    other = LUSTRE | {"DnsName": "fs-00000000000000000.fsx.us-west-2.amazonaws.com"}
    request = spoiled(legacy(), at(*GPU, "InstanceStorageConfigs", value=[{"FsxLustreConfig": other}]))
    assert doctor("--offline", config=request, provisioning=provisioning()).of("provisioning-fsx", "warning")


def test_another_mount_name_in_the_other_file_is_an_error(doctor: Doctor) -> None:
    request = spoiled(legacy(), at(*GPU, "InstanceStorageConfigs", value=[{"FsxLustreConfig": LUSTRE}]))
    assert not doctor("--offline", config=request, provisioning=provisioning()).of("provisioning-fsx")
    wire = spoiled(provisioning(), at("fsx_mountname", value="other"))
    assert doctor("--offline", config=request, provisioning=wire).of("provisioning-fsx", "error")


def test_every_finding_is_told_not_only_the_first(doctor: Doctor) -> None:
    """AWS's validator lets a later check hide what an earlier one found."""
    request = spoiled(
        legacy(),
        at("ClusterName", value="_"),
        at(*HEAD, "ThreadsPerCore", value=9),
        at(*GPU, "InstanceType", value="ml.x"),
    )
    said = doctor("--offline", config=request, provisioning=spoiled(provisioning(), at("controller_group", value="x")))
    paths = " ".join(error["path"] for error in said.errors)
    for part in ("ClusterName", "[0].ThreadsPerCore", "[2].InstanceType", "controller_group", "[0].InstanceGroupName"):
        assert part in paths
    assert said.code == 1


def test_of_very_many_faults_of_a_kind_200_are_told_and_the_others_counted(doctor: Doctor) -> None:
    request = spoiled(legacy(), at("InstanceGroups", value=[{}] * 5000))
    said = doctor("--offline", config=request)
    shapes = said.of("request-shape", "error")
    assert len(shapes) == 201
    assert "more of this kind" in shapes[-1]["message"]
    assert said.code == 1


def test_errors_come_first(doctor: Doctor) -> None:
    request = spoiled(legacy(), at("NodeRecovery", value="None"), at("ClusterName", value="_"))
    order = [finding["severity"] for finding in doctor("--offline", config=request).findings]
    assert order == sorted(order, key=["error", "warning", "unknown"].index)
    assert set(order) == {"error", "warning", "unknown"}
