"""Files that cannot be read, and wrong usage: one clear finding each, and the other files are read all the same."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rekindle.cli.main import main
from tests.doctor.conftest import Doctor
from tests.doctor.given import SCRIPT, legacy, provisioning

BAD_JSON: list[tuple[str, Any]] = [
    ("empty", b""),
    ("no JSON", b"ClusterName: pretrain"),
    ("cut off", b'{"ClusterName": "pre'),
    ("binary", bytes(range(256))),
    ("UTF-16", '{"ClusterName": "a"}'.encode("utf-16")),
    ("NaN", b'{"ClusterName": NaN}'),
    ("minus infinity", b'{"ClusterName": -Infinity}'),
    ("a name twice", b'{"ClusterName": "a", "ClusterName": "b"}'),
    ("an inner name twice", b'{"VpcConfig": {"Subnets": [], "Subnets": ["s"]}}'),
    ("a list", b"[]"),
    ("a text", b'"a"'),
    ("null", b"null"),
    ("brackets without end", b"[" * 200_000),
    ("nested deep", b'{"a":' * 60 + b"1" + b"}" * 60),
    ("a number of 5000 digits", b'{"a": ' + b"9" * 5000 + b"}"),
    ("two objects", b"{}{}"),
    ("trailing comma", b'{"a": 1,}'),
]


@pytest.mark.parametrize("option", ["config", "provisioning"])
@pytest.mark.parametrize("content", [row[1] for row in BAD_JSON], ids=[row[0] for row in BAD_JSON])
def test_what_is_no_json_object_is_one_finding(doctor: Doctor, option: str, content: bytes) -> None:
    said = doctor("--offline", script=SCRIPT, **{option: content})
    assert [error["check"] for error in said.errors] == ["json"]
    assert said.errors[0]["path"] in ("create_cluster.json", "provisioning_parameters.json")
    assert said.code == 1
    assert said.err == ""


def test_a_byte_order_mark_is_no_fault(doctor: Doctor) -> None:
    content = b"\xef\xbb\xbf" + json.dumps(legacy()).encode()
    assert not doctor("--offline", config=content, provisioning=provisioning()).errors


@pytest.mark.parametrize("option", ["--config", "--provisioning", "--script"])
def test_a_missing_file_is_named(doctor: Doctor, option: str) -> None:
    said = doctor("--offline", option, "nowhere.json")
    assert [(finding["check"], finding["path"]) for finding in said.findings] == [("file", "nowhere.json")]
    assert said.code == 1


@pytest.mark.parametrize("option", ["--config", "--provisioning", "--script"])
def test_what_is_no_file_is_named(doctor: Doctor, option: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")  # opening it must not wait for a writer
    (tmp_path / "large").write_bytes(b" " * (4 * 1024 * 1024 + 1))
    for name in ("folder", "pipe", "large", "/dev/null", "a\nb", "x" * 300):
        said = doctor("--offline", option, name)
        assert [finding["check"] for finding in said.findings] == ["file"], name
        assert said.code == 1


def test_one_unreadable_file_does_not_hide_the_others(doctor: Doctor) -> None:
    said = doctor("--offline", "--config", "nowhere.json", provisioning={"version": 1}, script="echo\n")
    assert {"file", "provisioning-shape", "batch-shebang"} <= {error["check"] for error in said.errors}


PARALLEL_CLUSTER = "Region: us-west-2\nImage:\n  Os: ubuntu2204\nHeadNode:\n  InstanceType: m5.large\nScheduling:\n"
DESCRIBED = {
    "ClusterArn": "arn:aws:sagemaker:us-west-2:123456789012:cluster/a1b2c3d4e5f6",
    "ClusterStatus": "InService",
}


@pytest.mark.parametrize(
    ("option", "content", "name"),
    [
        ("config", PARALLEL_CLUSTER, "ParallelCluster"),
        ("script", PARALLEL_CLUSTER, "ParallelCluster"),
        ("provisioning", PARALLEL_CLUSTER, "ParallelCluster"),
        ("config", {"HeadNode": {}, "Scheduling": {}}, "ParallelCluster"),
        ("config", legacy() | DESCRIBED, "DescribeCluster"),
        ("config", {"AWSTemplateFormatVersion": "2010-09-09", "Resources": {}}, "CloudFormation"),
        ("config", provisioning(), "--provisioning"),
        ("provisioning", legacy(), "--config"),
        ("config", "ClusterName: pretrain\nInstanceGroups:\n- InstanceGroupName: gpu\n", "JSON"),
    ],
)
def test_another_kind_of_file_is_named(doctor: Doctor, option: str, content: Any, name: str) -> None:
    (finding,) = doctor("--offline", **{option: content}).findings
    assert (finding["check"], finding["severity"]) == ("file-kind", "error")
    assert name in finding["message"]


def test_something_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "cluster"]) == 2
    assert "--config" in capsys.readouterr().err


def test_a_live_cluster_is_not_looked_at_offline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "cluster", "--live", "c", "--offline"]) == 2
    assert "--offline" in capsys.readouterr().err


def test_a_profile_that_does_not_exist_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "cluster", "--live", "c", "--profile", "nobody"]) == 2
    assert "nobody" in capsys.readouterr().err


def test_without_credentials_everything_in_the_account_is_unknown(doctor: Doctor) -> None:
    said = doctor("--live", "pretrain", config=legacy(), provisioning=provisioning())
    assert {finding["severity"] for finding in said.findings} == {"unknown"}
    assert all("no AWS credentials" in finding["message"] for finding in said.findings)
    assert {"cluster-exists", "subnet-exists", "role-exists", "agent-heartbeat", "quota"} <= {
        finding["check"] for finding in said.findings
    }
    assert said.code == 0


def test_a_script_alone_asks_nothing_of_aws(doctor: Doctor) -> None:
    assert doctor(script=SCRIPT).findings == []


def test_people_get_a_table_and_a_sum(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    long = tmp_path / "a folder with a long name" / "job.sbatch"
    long.parent.mkdir()
    long.write_text("#!/bin/bash\n#SBATCH --nodez=2\nsrun train\n")
    assert main(["doctor", "cluster", "--script", str(long)]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"script: {long}\n")
    assert out.count(str(long)) == 1
    assert " script:2 " in out
    found, _, layers = out.partition("\n\nIf this job fails, these may act on it, in this order:\n")
    assert found.endswith("0 unknown (could not be looked at)")
    assert layers.startswith("- ")
    (tmp_path / "good.sbatch").write_text(SCRIPT)
    assert main(["doctor", "cluster", "--script", "good.sbatch"]) == 0
    assert capsys.readouterr().out.startswith("Everything was looked at, and nothing is wrong.\n\nIf this job fails")


def test_what_a_file_says_cannot_forge_a_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    request = legacy() | {"ClusterName": "a\nerror  forged\x1b[2J"}
    (tmp_path / "c.json").write_text(json.dumps(request))
    assert main(["doctor", "cluster", "--offline", "--config", "c.json"]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert not any(line.startswith("error  forged") for line in out.splitlines())
