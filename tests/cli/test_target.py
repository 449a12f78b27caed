"""Which service a command speaks to, and that an order says so first."""

from __future__ import annotations

import json

import boto3
import pytest
from moto import mock_aws

from tests.cli.conftest import Run
from tests.cli.service import FakeService, serve


@pytest.fixture
def _account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")


def _stack(name: str, url: str) -> None:
    template = {
        "Resources": {"Queue": {"Type": "AWS::SQS::Queue"}},
        "Outputs": {"ApiUrl": {"Value": url}},
    }
    boto3.client("cloudformation").create_stack(StackName=name, TemplateBody=json.dumps(template))


@pytest.mark.usefixtures("_account")
@pytest.mark.parametrize("variable", ["REKINDLE_API", "REKINDLE_STACK"])
def test_the_stack_on_the_command_line_precedes_the_environment(
    run: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    other = FakeService()
    with serve(other) as elsewhere, mock_aws():
        _stack("mine", service.url)
        _stack("theirs", elsewhere)
        named = {"REKINDLE_API": elsewhere, "REKINDLE_STACK": "theirs"}
        monkeypatch.setenv(variable, named[variable])
        ended = run("--stack", "mine", "pause")
        assert ended.code == 0
    assert other.requests == []
    assert [seen.path for seen in service.requests] == ["/pause"]
    first = ended.err.splitlines()[0]
    assert first == "rekindle: target: stack mine, account 123456789012, region us-west-2"


@pytest.mark.parametrize(
    "argv",
    [("--api", "http://127.0.0.1:1", "--stack", "x"), ("--store", "d", "--stack", "x"), ("--api", "a", "--store", "d")],
)
def test_two_services_on_one_command_line_are_wrong_usage(run: Run, argv: tuple[str, ...]) -> None:
    ended = run(*argv, "status")
    assert ended.code == 2
    assert "give one" in ended.err


def test_an_api_names_its_region(run: Run) -> None:
    url = "https://abc123.execute-api.eu-west-1.amazonaws.com/api"
    ended = run("--api", url, "pause")
    assert ended.code == 4  # there are no credentials here
    assert ended.err.splitlines()[0] == f"rekindle: target: API {url} in eu-west-1"


def test_a_command_that_only_looks_prints_no_target(rekindle: Run) -> None:
    assert rekindle("status").err == ""
