"""`rekindle init` against the embedded cloud over HTTP, and without any account: files, questions, wrong input."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chalicelib.domain.policy.document import Policy
from infra.init import answers as read
from infra.init.answers import Integration, Runs
from infra.init.command import INTEGRATIONS, RUNS
from infra.init.lines import SCRIPTS
from infra.package import ROOT
from localcloud.cloud import Cloud
from rekindle.cli.main import main
from rekindle.slurm_agent.reading import comment as comments
from tests.localcloud.test_cloud_sagemaker import training_job

TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}}],
}
TEMPLATE: dict[str, Any] = {
    # A String: moto answers DescribeStacks with the repr of a list, AWS with the text that was given.
    "Parameters": {"TrainingRoleArns": {"Type": "String", "Default": ""}},
    "Resources": {"Queue": {"Type": "AWS::SQS::Queue"}},
    "Outputs": {
        "ApiUrl": {"Value": "https://abc123.execute-api.us-west-2.amazonaws.com/api/"},
        "BucketName": {"Value": "rekindle-own"},
        "BusName": {"Value": "rekindle"},
        "TrainingPolicyArn": {"Value": "arn:aws:iam::123456789012:policy/training"},
    },
}
OLD_ROLE, ROLE = (f"arn:aws:iam::123456789012:role/{name}" for name in ("old", "train"))
SLURM = ("--runs", "slurm", "--job", "lm", "--cluster", "ml", "--mailbox", "/fsx/runs/lm")
TRAINING = ("--runs", "training-job", "--job", "lm-7b", "--role", ROLE)


@pytest.fixture(autouse=True)
def _shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "REKINDLE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    with Cloud(http=True) as cloud:
        yield cloud


def call(*argv: str) -> int:
    try:
        return main(["init", *argv])
    except SystemExit as end:
        return int(end.code or 0)


def document(name: str, folder: str = "rekindle-setup") -> Any:
    return json.loads(Path(folder, name).read_text(encoding="utf-8"))


def deployed(cloud: Cloud, **parameters: str) -> None:
    given = [{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()]
    cloud.client("cloudformation").create_stack(
        StackName="rekindle", TemplateBody=json.dumps(TEMPLATE), Parameters=given
    )


def test_an_account_without_rekindle_is_looked_at_and_the_deployment_named(
    cloud: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    iam = cloud.client("iam")
    tags = [{"Key": "rekindle-mailbox", "Value": "training"}]
    iam.create_role(RoleName="train", AssumeRolePolicyDocument=json.dumps(TRUST), Tags=tags)
    cloud.client("sagemaker").create_training_job(**{**training_job("before"), "RoleArn": ROLE})
    assert call("--yes", *TRAINING, "--email", "ops@example.org") == 0
    said = capsys.readouterr().out
    assert "account: 123456789012 in us-west-2" in said
    assert "stack rekindle: not deployed yet" in said
    assert f"training roles: {ROLE}" in said
    assert f"role: {ROLE}: tag rekindle-mailbox=training" in said
    assert "35 CloudWatch::Alarm" in said
    assert re.search(r"idle +7\.57 a month", said)
    deploy = "rekindle stack deploy --stage prod --region us-west-2"
    assert f"Next: {deploy} --parameter TrainingRoleArns={ROLE} --parameter NoticeEmail=" in said
    assert document("training-job.json") == {
        "Environment": {
            "REKINDLE_MAILBOX": "s3://rekindle-123456789012-us-west-2/training/lm-7b",
            "REKINDLE_JOB_ID": "lm-7b",
            "REKINDLE_BUS": "rekindle",
        },
        "Tags": [{"Key": "rekindle:policy", "Value": "default"}],
    }
    assert Policy.from_wire(document("policy.json")).shadow is True
    steps = Path("rekindle-setup/NEXT.md").read_text(encoding="utf-8")
    assert "aws iam tag-role --role-name train --tags Key=rekindle-mailbox,Value=training" in steps


def test_the_roles_policy_is_the_stacks_own_with_names_in_place_of_functions(cloud: Cloud) -> None:
    assert call("--yes", *TRAINING) == 0
    found = document("training-role-policy.json")
    source = (ROOT / "infra" / "policies" / "training-role.json").read_text(encoding="utf-8")
    assert [statement["Action"] for statement in found["Statement"]] == [
        statement["Action"] for statement in json.loads(source)["Statement"]
    ]
    text = json.dumps(found)
    assert "Fn::" not in text
    assert "MailboxBucket" not in text
    reads = "arn:aws:s3:::rekindle-123456789012-us-west-2/${aws:PrincipalTag/rekindle-mailbox}/*/rekindle/*"
    assert reads in found["Statement"][0]["Resource"]
    assert '"arn:aws:events:us-west-2:123456789012:event-bus/rekindle"' in text


def test_what_is_deployed_and_stored_is_not_written_again_and_no_role_is_taken_out(
    cloud: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed(cloud, TrainingRoleArns=OLD_ROLE)
    cloud.client("ssm").put_parameter(Name="/rekindle/policies/default", Value="{}", Type="String")
    assert call("--yes", *TRAINING, "--slack", "--mailbox", "s3://mine/team-a/lm-7b") == 0
    said = capsys.readouterr().out
    assert "Rekindle is deployed: https://abc123" in said
    assert "policy.json: the policy default is stored already" in said
    assert f"--parameter TrainingRoleArns={OLD_ROLE},{ROLE} --parameter TrainingBuckets=mine" in said
    assert "bucket mine: does not exist" in said
    assert not Path("rekindle-setup/policy.json").exists()
    manifest = json.dumps(document("slack-manifest.json"))
    assert "https://abc123.execute-api.us-west-2.amazonaws.com/api/hooks/slack/actions" in manifest
    assert "Value=team-a" in Path("rekindle-setup/NEXT.md").read_text(encoding="utf-8")


def test_the_account_is_only_read(cloud: Cloud) -> None:
    deployed(cloud)
    cloud.wire.calls.clear()
    assert call("--yes", *TRAINING) == 0
    asked = {str(call).rpartition(".")[2] for call in cloud.wire.calls}
    assert asked
    assert all(name.startswith(("Get", "List", "Describe")) for name in asked), asked


@pytest.mark.parametrize("integration", list(Integration))
def test_the_lines_of_a_script_are_the_pages_own(integration: Integration) -> None:
    page, block = SCRIPTS[integration]
    assert f"```python\n{block}```" in (ROOT / page).read_text(encoding="utf-8")


def test_every_choice_of_the_command_line_is_one_of_the_vocabulary() -> None:
    assert tuple(RUNS) == tuple(Runs)
    assert tuple(INTEGRATIONS) == tuple(Integration)


def test_on_slurm_the_header_is_what_the_agent_and_the_doctor_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--yes", *SLURM, "--policy", "careful", "--with", "ddp", "--checkpoints", "/fsx/ckpt") == 0
    said = capsys.readouterr().out
    assert "account: unknown: no AWS credentials" in said
    assert "iam-head-node.json: account and Region are not known" in said
    header = Path("rekindle-setup/batch-header.sh").read_text(encoding="utf-8")
    (text,) = re.findall(r"^#SBATCH --comment=(.*)$", header, re.MULTILINE)
    comment = comments.parse(text)
    assert comment is not None
    assert (comment.policy, comment.mailbox, comment.checkpoints, comment.problems) == (
        "careful",
        "/fsx/runs/lm",
        "/fsx/ckpt",
        (),
    )
    whole = Path("whole.sbatch")
    whole.write_text(header + "srun python train.py & wait\n")
    assert main(["doctor", "cluster", "--script", str(whole), "--offline"]) == 0


def test_a_hyperpod_cluster_gets_the_head_nodes_policy(cloud: Cloud) -> None:
    argv = ["--yes", "--runs", "hyperpod-slurm", "--job", "lm", "--cluster", "ml", "--mailbox", "/fsx/lm"]
    assert call(*argv) == 0
    assert "rekindle-agent-ml" in json.dumps(document("iam-head-node.json"))
    assert "rekindle slurm-agent install --cluster ml" in Path("rekindle-setup/NEXT.md").read_text(encoding="utf-8")


def test_no_file_is_overwritten_without_force(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--yes", *SLURM) == 0
    mine = Path("rekindle-setup/policy.json")
    mine.write_text("mine")
    capsys.readouterr()
    assert call("--yes", *SLURM) == 0
    said = capsys.readouterr().out
    assert "kept      rekindle-setup/policy.json: it differs" in said
    assert "unchanged rekindle-setup/train-lines.py" in said
    assert mine.read_text() == "mine"
    assert call("--yes", *SLURM, "--force") == 0
    assert document("policy.json")["schema"] == 1
    assert {entry.name for entry in mine.parent.iterdir()} == {
        "policy.json",
        "train-lines.py",
        "batch-header.sh",
        "NEXT.md",
    }


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ((), "--runs, --job"),
        (("--runs", "slurm"), "--job, --cluster, --mailbox"),
        (("--runs", "training-job", "--job", "lm"), "--role"),
        (("--runs", "eks"), "argument --runs: invalid choice"),
        ((*SLURM, "--role", ROLE), "--role: is not for --runs slurm"),
        ((*TRAINING, "--cluster", "ml"), "--cluster: is not for --runs training-job"),
        ((*TRAINING[:-1], "train"), "--role: 'train' must be a role's ARN"),
        (TRAINING, "--mailbox: is needed, because the stack's bucket is not known"),
        ((*TRAINING, "--mailbox", "s3://b/only"), "--mailbox: 's3://b/only' must be s3://BUCKET/PREFIX/JOB"),
        ((*TRAINING, "--mailbox", "/fsx/a"), "--mailbox: '/fsx/a' must be s3://"),
        ((*SLURM[:-1], "/fsx/$(reboot)"), "--mailbox: "),
        ((*SLURM[:-1], "/fsx/a,signal=TERM"), "--mailbox: "),
        ((*SLURM[:-1], "relative"), "--mailbox: "),
        ((*SLURM, "--job", "a b"), "--job: 'a b' must be"),
        ((*SLURM, "--policy", "../x"), "--policy: "),
        ((*SLURM, "--email", "nobody"), "--email: "),
        ((*SLURM, "--stack", "other"), "--stack: 'other' must be rekindle"),
        ((*SLURM, "--out", "/dev/null"), "--out: /dev/null is no folder"),
        ((*SLURM, "--profile", "absent"), "--profile: "),
    ],
)
def test_what_is_wrong_or_missing_is_2_and_named_and_nothing_is_written(
    argv: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--yes", *argv) == 2
    assert named in capsys.readouterr().err
    assert not Path("rekindle-setup").exists()


def test_a_service_that_was_named_and_does_not_answer_is_4() -> None:
    assert call("--yes", *SLURM, "--store", "no-such-store") == 4
    assert not Path("rekindle-setup").exists()


@pytest.mark.parametrize(("stack", "stage"), [("rekindle", "prod"), ("rekindle-dev", "dev")])
def test_a_stack_has_the_stage_that_deploy_makes_it_by(stack: str, stage: str) -> None:
    assert read.stage_of(stack) == stage


@pytest.mark.process
@pytest.mark.long
def test_on_a_terminal_it_asks_and_a_no_writes_nothing(tmp_path: Path) -> None:
    # slurm, plain, a job that is none and one that is, cluster, mailbox, then defaults, and at the end no.
    answers = ["2", "1", "a b", "lm", "ml", "/fsx/lm", "", "", "", "", "", "n"]
    ours, theirs = pty.openpty()
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "rekindle.cli.main", "init"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as process:
        os.close(theirs)
        os.write(ours, "".join(f"{answer}\n" for answer in answers).encode())
        said = b""
        try:
            while chunk := os.read(ours, 4096):
                said += chunk
        except OSError:  # Linux: the other end is closed
            pass
        os.close(ours)
        assert process.wait(timeout=60) == 1
    text = said.decode()
    assert "must be 1 to 128 characters" in text
    assert "Write into rekindle-setup: policy.json" in text
    assert "nothing was written" in text
    assert not (tmp_path / "rekindle-setup").exists()
