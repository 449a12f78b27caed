"""The way onto a head node: what a session says is read by its marks; the same folder is the same archive."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.lifecycle.head_node import _read, packed, targets_of
from rekindle.client.errors import TryAgain, Unreachable, UsageError

BANNER = "\r\nStarting session with SessionId: ops-1\r\n"


def test_what_stands_between_the_marks_counts_and_the_last_has_the_exit_code() -> None:
    said = f"{BANNER}begin-ab\r\nline one\r\nend-cd-0\r\nline two\r\nend-ab-3\r\nExiting session\r\n"
    ran = _read(said, "", "ab", "t")
    assert ran.code == 3
    assert ran.output.splitlines() == ["line one", "end-cd-0", "line two"], "another call's mark is text"


def test_without_the_last_mark_it_is_not_known_how_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TryAgain, match="not known"):
        _read(f"{BANNER}begin-ab\r\nhalf a li", "Cannot perform start session: EOF", "ab", "t")
    assert "half a li" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("errors", "kind"),
    [("(TargetNotConnected): t is not connected", Unreachable), ("(ThrottlingException): Rate exceeded", TryAgain)],
)
def test_a_session_that_never_began_says_why(errors: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"not connected|Rate exceeded"):
        _read(BANNER, errors, "ab", "t")


def test_the_same_folder_is_the_same_archive(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    for name in ("rekindle_agent.sh", "wheels/a.whl"):
        (tmp_path / name).write_text(name)
    first = packed(tmp_path)
    os.utime(tmp_path / "rekindle_agent.sh", (1, 1))
    assert packed(tmp_path) == first
    (tmp_path / "rekindle_agent.sh").write_text("other")
    assert packed(tmp_path) != first


class Cluster:
    """SageMaker's two calls about a cluster whose groups do not say what they are for."""

    def __init__(self, *groups: str) -> None:
        self._groups = groups

    def describe_cluster(self, **_: str) -> dict[str, object]:
        groups = [{"InstanceGroupName": name} for name in self._groups]
        return {"ClusterArn": "arn:aws:sagemaker:r:1:cluster/abc", "InstanceGroups": groups}

    def get_paginator(self, _: str) -> Cluster:
        return self

    def paginate(self, **_: str) -> list[dict[str, object]]:
        node = {"InstanceStatus": {"Status": "Running"}, "LaunchTime": "2026-01-01"}
        return [
            {"ClusterNodeSummaries": [node | {"InstanceGroupName": n, "InstanceId": f"i-{n}"} for n in self._groups]}
        ]


def test_an_older_cluster_does_not_say_which_group_has_the_head_node() -> None:
    with pytest.raises(UsageError, match="--group NAME, one of: head, gpu"):
        targets_of(Cluster("head", "gpu"), "ml", None)
    assert targets_of(Cluster("head", "gpu"), "ml", "head") == ["sagemaker-cluster:abc_head-i-head"]


def test_every_head_node_that_runs_is_reached_the_oldest_first() -> None:
    assert targets_of(Cluster("head", "gpu", "head"), "ml", "head") == ["sagemaker-cluster:abc_head-i-head"] * 2
