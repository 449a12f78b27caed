"""Reading an account: on moto where it has the API, by botocore's Stubber (which checks shapes) where it has not."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError
from botocore.stub import Stubber
from moto import mock_aws

from rekindle.doctor.aws import gather
from rekindle.doctor.aws.account import Account, action_of
from rekindle.doctor.aws.cluster_state import find_bucket
from rekindle.doctor.base.facts import (
    FileSystemFacts,
    Missing,
    NotInspected,
    PlanFacts,
    RoleFacts,
    S3Route,
    ScriptFacts,
    TypeFacts,
)
from rekindle.doctor.base.subject import Storage, from_request
from rekindle.doctor.cluster.network import network_findings
from tests.doctor.given import DNS, PLAN, ROLE, continuous

REGION = "us-west-2"


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield Account(clients=session().client, region=REGION)


@cache
def session() -> boto3.session.Session:
    """One for all: it keeps the services' models, which take long to load."""
    return boto3.session.Session(region_name=REGION)


class Stubbed:
    """A client that answers as told, each answer checked against the service's model."""

    def __init__(self, service: str) -> None:
        self.client = session().client(service, aws_access_key_id="testing", aws_secret_access_key="testing")
        self.stub = Stubber(self.client)
        self.stub.activate()
        self.account = Account(clients=lambda _: self.client, region=REGION)

    def answers(self, operation: str, answer: dict[str, Any], **request: Any) -> Stubbed:
        self.stub.add_response(operation, answer, request or None)
        return self

    def refuses(self, operation: str, code: str) -> Stubbed:
        self.stub.add_client_error(operation, code, "because")
        return self


def ec2(account: Account) -> Any:
    assert account.clients is not None
    return account.clients("ec2")


def network(account: Account) -> tuple[str, str, str]:
    """A VPC with a private and a public subnet."""
    vpc = ec2(account).create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    made = [
        ec2(account).create_subnet(VpcId=vpc, CidrBlock=f"10.0.{index}.0/24", AvailabilityZone="us-west-2a")
        for index in range(2)
    ]
    private, public = (answer["Subnet"]["SubnetId"] for answer in made)
    ec2(account).modify_subnet_attribute(SubnetId=public, MapPublicIpOnLaunch={"Value": True})
    return vpc, private, public


def test_all_subnets_are_read_and_one_that_is_missing_hides_none(account: Account) -> None:
    vpc, private, public = network(account)
    found = gather.read_subnets(account, [private, "subnet-00000000", public])
    assert found["subnet-00000000"] == Missing()
    one, other = found[private], found[public]
    assert not isinstance(one, Missing | NotInspected)
    assert not isinstance(other, Missing | NotInspected)
    assert (one.vpc, one.zone, one.zone_id, one.free, one.gives_public) == (vpc, "us-west-2a", "usw2-az2", 251, False)
    assert other.gives_public


def test_the_rules_of_security_groups_are_read(account: Account) -> None:
    vpc, private, _ = network(account)
    made = ec2(account).create_security_group(GroupName="nodes", Description="nodes", VpcId=vpc)["GroupId"]
    request = continuous()
    request["VpcConfig"] = {"SecurityGroupIds": [made], "Subnets": [private]}
    subject = from_request(request, "c.json")

    def said() -> list[tuple[str, str]]:
        facts = gather.gather(Account(clients=lambda service: ec2(account) if service == "ec2" else nothing()), subject)
        return [
            (finding.check, finding.severity)
            for finding in network_findings(subject, facts)
            if "group" in finding.check
        ]

    def nothing() -> Any:
        raise EndpointConnectionError(endpoint_url="https://nowhere")

    # As EC2 makes a group: nothing in, everything out. The P5 group of the request needs EFA, the others do not.
    assert said() == [
        ("security-group-efa", "error"),
        ("security-group-efa", "error"),
        ("security-group-efa", "error"),
    ]
    itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": made}]}]
    ec2(account).authorize_security_group_ingress(GroupId=made, IpPermissions=itself)
    assert said() == [("security-group-efa", "error")]
    ec2(account).authorize_security_group_egress(GroupId=made, IpPermissions=itself)
    assert said() == []


def test_a_types_zones_and_network_are_read(account: Account) -> None:
    p5, nowhere = gather.read_type(account, "ml.p5.48xlarge"), gather.read_type(account, "ml.p99.large")
    assert isinstance(p5, TypeFacts)
    assert isinstance(p5.zones, frozenset)
    assert "usw2-az2" in p5.zones
    assert (p5.cards, p5.addresses_per_interface, p5.has_efa) == (32, 50, True)
    assert nowhere == TypeFacts(name="ml.p99.large", zones=frozenset())


def test_each_way_to_s3_is_seen_and_an_internet_gateway_is_none(account: Account) -> None:
    client = ec2(account)
    vpc, private, _ = network(account)

    def way() -> str | None:
        subnets = gather.read_subnets(account, [private])
        fresh = Account(clients=account.clients)  # an account remembers what it was asked
        found = gather.read_ways(fresh, list(subnets.values()))[private]  # type: ignore[arg-type]
        assert isinstance(found, S3Route)
        return found.by

    assert way() is None
    table = client.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    client.associate_route_table(RouteTableId=table, SubnetId=private)
    gateway = client.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    client.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    client.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    assert way() is None
    main = client.describe_route_tables(Filters=[{"Name": "association.main", "Values": ["true"]}])["RouteTables"]
    of_main = next(table["RouteTableId"] for table in main if table["VpcId"] == vpc)
    service = f"com.amazonaws.{REGION}.s3"
    client.create_vpc_endpoint(VpcId=vpc, ServiceName=service, RouteTableIds=[of_main])
    assert way() is None, "an endpoint in another table"
    client.create_vpc_endpoint(VpcId=vpc, ServiceName=service, RouteTableIds=[table])
    assert way() == "gateway endpoint"


def test_a_nat_gateway_is_a_way_to_s3(account: Account) -> None:
    client = ec2(account)
    vpc, private, public = network(account)
    address = client.allocate_address(Domain="vpc")["AllocationId"]
    nat = client.create_nat_gateway(SubnetId=public, AllocationId=address)["NatGateway"]["NatGatewayId"]
    table = client.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    client.associate_route_table(RouteTableId=table, SubnetId=private)
    client.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", NatGatewayId=nat)
    subnets = gather.read_subnets(account, [private])
    assert gather.read_ways(account, list(subnets.values()))[private] == S3Route(subnet=private, by="route out")  # type: ignore[arg-type]


def test_scripts_are_listed_and_read_below_their_folder(account: Account) -> None:
    assert account.clients is not None
    s3 = account.clients("s3")
    s3.create_bucket(Bucket="sagemaker-lcs", CreateBucketConfiguration={"LocationConstraint": REGION})
    for key, content in (
        ("a/on_create.sh", b"#!/bin/sh\r\n"),
        ("a/deep/x.py", b"1"),
        ("a/image.bin", b"\0"),
        ("ab/no", b""),
    ):
        s3.put_object(Bucket="sagemaker-lcs", Key=key, Body=content)
    s3.put_object(Bucket="sagemaker-lcs", Key="a/long.sh", Body=b"x" * (gather.MAX_SCRIPT_BYTES + 1))
    for uri in ("s3://sagemaker-lcs/a", "s3://sagemaker-lcs/a/"):
        found = gather.read_scripts(account, uri, {"on_create.sh"})
        assert isinstance(found, ScriptFacts)
        assert sorted(found.names) == ["deep/x.py", "image.bin", "long.sh", "on_create.sh"]
        assert found.contents["on_create.sh"] == b"#!/bin/sh\r\n"
        assert found.contents["deep/x.py"] == b"1"
        assert isinstance(found.contents["long.sh"], NotInspected)
        assert "image.bin" not in found.contents
    assert isinstance(gather.read_scripts(account, "s3://nowhere/a", set()), Missing)
    assert isinstance(gather.read_scripts(account, "https://b/a", set()), NotInspected)
    empty = gather.read_scripts(account, "s3://sagemaker-lcs/other", set())
    assert isinstance(empty, ScriptFacts)
    assert empty.names == ()


def role_answers(stub: Stubbed) -> Stubbed:
    policy = {
        "Statement": [
            {"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}
        ]
    }
    role = {
        "Path": "/",
        "RoleName": "node",
        "RoleId": "A" * 20,
        "Arn": ROLE,
        "CreateDate": datetime(2026, 1, 1, tzinfo=UTC),
        "AssumeRolePolicyDocument": json.dumps(policy),
    }
    attached = {"AttachedPolicies": [{"PolicyName": "AmazonSageMakerClusterInstanceRolePolicy"}]}
    return stub.answers("get_role", {"Role": role}).answers("list_attached_role_policies", attached)


def test_what_a_simulation_denies_is_what_the_role_lacks() -> None:
    stub = role_answers(Stubbed("iam"))
    for decisions in (
        [("s3:ListBucket", "allowed")],
        [("s3:GetObject", "implicitDeny")],
        [("logs:PutLogEvents", "explicitDeny")],
    ):
        rows = [{"EvalActionName": action, "EvalDecision": decision} for action, decision in decisions]
        stub.answers("simulate_principal_policy", {"EvaluationResults": rows})
    found = gather.read_role(stub.account, ROLE, ("s3://sagemaker-lcs/base",), has_vpc=False)
    assert isinstance(found, RoleFacts)
    assert found.attached == ("AmazonSageMakerClusterInstanceRolePolicy",)
    assert found.denied == (
        "s3:GetObject on arn:aws:s3:::sagemaker-lcs/base/*",
        "logs:PutLogEvents on arn:aws:logs:*:123456789012:log-group:/aws/sagemaker/Clusters/*",
    )
    stub.stub.assert_no_pending_responses()


def test_a_missing_permission_is_named_by_its_action() -> None:
    stub = role_answers(Stubbed("iam")).refuses("simulate_principal_policy", "AccessDenied")
    found = gather.read_role(stub.account, ROLE, (), has_vpc=True)
    assert isinstance(found, RoleFacts)
    assert found.denied == NotInspected("not allowed; iam:SimulatePrincipalPolicy is missing")
    stub = Stubbed("ec2").refuses("describe_subnets", "UnauthorizedOperation")
    assert gather.read_subnets(stub.account, ["subnet-1"]) == {
        "subnet-1": NotInspected("not allowed; ec2:DescribeSubnets is missing")
    }
    stub = Stubbed("s3").refuses("list_objects_v2", "AccessDenied")
    assert gather.read_scripts(stub.account, "s3://b/a", set()) == NotInspected("not allowed; s3:ListBucket is missing")
    assert action_of("fsx", "describe_file_systems") == "fsx:DescribeFileSystems"
    assert action_of("service-quotas", "list_service_quotas") == "servicequotas:ListServiceQuotas"


def test_a_role_that_is_not_there_is_missing() -> None:
    assert isinstance(
        gather.read_role(Stubbed("iam").refuses("get_role", "NoSuchEntity").account, ROLE, (), has_vpc=False), Missing
    )


def test_a_file_system_is_read_by_the_id_in_its_dns_name() -> None:
    row = {
        "FileSystemId": "fs-0123456789abcdef0",
        "FileSystemType": "LUSTRE",
        "DNSName": DNS,
        "VpcId": "vpc-11111111",
        "Lifecycle": "AVAILABLE",
        "LustreConfiguration": {"MountName": "abcdefgh"},
    }
    stub = Stubbed("fsx").answers(
        "describe_file_systems", {"FileSystems": [row]}, FileSystemIds=["fs-0123456789abcdef0"]
    )
    assert gather.read_file_system(stub.account, DNS) == FileSystemFacts(
        id="fs-0123456789abcdef0",
        storage=Storage.LUSTRE,
        dns=DNS,
        vpc="vpc-11111111",
        state="AVAILABLE",
        mount_name="abcdefgh",
    )
    zfs = {"FileSystemId": "fs-0123456789abcdef0", "FileSystemType": "OPENZFS", "DNSName": DNS, "Lifecycle": "CREATING"}
    found = gather.read_file_system(
        Stubbed("fsx").answers("describe_file_systems", {"FileSystems": [zfs]}).account, DNS
    )
    assert isinstance(found, FileSystemFacts)
    assert (found.storage, found.state) == (Storage.OPENZFS, "CREATING")
    assert isinstance(
        gather.read_file_system(Stubbed("fsx").refuses("describe_file_systems", "FileSystemNotFound").account, DNS),
        Missing,
    )


def test_a_training_plan_is_read_with_its_reservations() -> None:
    start = datetime(2026, 11, 20, 11, 30, tzinfo=UTC)
    answer = {
        "TrainingPlanArn": PLAN,
        "TrainingPlanName": "big",
        "Status": "Active",
        "StartTime": start,
        "EndTime": start + timedelta(days=7),
        "AvailableInstanceCount": 4,
        "AvailableSpareInstanceCount": 1,
        "TargetResources": ["hyperpod-cluster"],
        "ReservedCapacitySummaries": [
            {
                "ReservedCapacityArn": "arn:aws:sagemaker:us-west-2:123456789012:reserved-capacity/a",
                "InstanceType": "ml.p5.48xlarge",
                "TotalInstanceCount": 4,
                "Status": "Active",
                "AvailabilityZoneId": "usw2-az1",
                "StartTime": start,
                "EndTime": start + timedelta(days=7),
            }
        ],
    }
    stub = Stubbed("sagemaker").answers("describe_training_plan", answer, TrainingPlanName="big")
    found = gather.read_plan(stub.account, PLAN)
    assert isinstance(found, PlanFacts)
    assert (found.status, found.ends_at, found.available, found.spare) == ("Active", start + timedelta(days=7), 4, 1)
    assert (found.reservations[0].zone_id, found.reservations[0].instance_type) == ("usw2-az1", "ml.p5.48xlarge")
    assert isinstance(
        gather.read_plan(Stubbed("sagemaker").refuses("describe_training_plan", "ResourceNotFound").account, PLAN),
        Missing,
    )


def test_quotas_are_read_page_by_page() -> None:
    stub = Stubbed("service-quotas")
    stub.answers(
        "list_service_quotas", {"NextToken": "n", "Quotas": [{"QuotaName": "a", "Value": 1.0}, {"QuotaName": "b"}]}
    )
    stub.answers(
        "list_service_quotas", {"Quotas": [{"QuotaName": "c", "Value": 2.0}]}, ServiceCode="sagemaker", NextToken="n"
    )
    stub.answers(
        "get_service_quota",
        {"Quota": {"QuotaName": "Network interfaces per Region", "Value": 5000.0}},
        ServiceCode="vpc",
        QuotaCode="L-DF5E4CA3",
    )
    assert gather.read_quotas(stub.account) == {"a": 1.0, "c": 2.0, "Network interfaces per Region": 5000.0}


def test_the_stacks_bucket_is_in_its_outputs() -> None:
    row = {"StackName": "rekindle", "CreationTime": datetime(2026, 1, 1, tzinfo=UTC), "StackStatus": "CREATE_COMPLETE"}
    outputs = [{"OutputKey": "BucketName", "OutputValue": "the-bucket"}]
    stub = Stubbed("cloudformation").answers("describe_stacks", {"Stacks": [row | {"Outputs": outputs}]})
    assert find_bucket(stub.account, "rekindle", None) == "the-bucket"
    assert find_bucket(stub.account, "rekindle", "given") == "given"
    assert isinstance(
        find_bucket(Stubbed("cloudformation").answers("describe_stacks", {"Stacks": [row]}).account, "r", None),
        NotInspected,
    )
    assert isinstance(
        find_bucket(Stubbed("cloudformation").refuses("describe_stacks", "ValidationError").account, "r", None),
        NotInspected,
    )


class Silent:
    """A client whose network is gone; counts how often it was tried."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.tried = 0

    def describe_subnets(self, **_: Any) -> Any:
        self.tried += 1
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        EndpointConnectionError(endpoint_url="https://ec2"),
        ConnectTimeoutError(endpoint_url="https://ec2"),
        ClientError({"Error": {"Code": "ExpiredToken", "Message": "gone"}}, "DescribeSubnets"),
    ],
)
def test_a_service_that_cannot_be_reached_is_asked_once(error: Exception) -> None:
    silent = Silent(error)
    account = Account(clients=lambda _: silent)
    for _ in range(3):
        assert isinstance(account.ask("ec2", "describe_subnets"), NotInspected)
    assert silent.tried == 1


@pytest.mark.parametrize("code", ["Throttling", "InternalError", "ValidationException", ""])
def test_any_other_refusal_leaves_it_unread(code: str) -> None:
    silent = Silent(ClientError({"Error": {"Code": code, "Message": "m\nn" * 200}}, "DescribeSubnets"))
    answer = Account(clients=lambda _: silent).ask("ec2", "describe_subnets")
    assert isinstance(answer, NotInspected)
    assert len(answer.why) < 300
    assert "\n" not in answer.why


def test_an_object_whose_reading_breaks_off_is_unread() -> None:
    class Broken(io.BytesIO):
        def read(self, *_: Any) -> bytes:
            raise OSError("reset")

    class Half:
        def list_objects_v2(self, **_: Any) -> dict[str, Any]:
            return {"Contents": [{"Key": "a/on_create.sh", "Size": 3}]}

        def get_object(self, **_: Any) -> dict[str, Any]:
            return {"Body": Broken()}

    found = gather.read_scripts(Account(clients=lambda _: Half()), "s3://b/a", {"on_create.sh"})
    assert isinstance(found, ScriptFacts)
    assert isinstance(found.contents["on_create.sh"], NotInspected)
