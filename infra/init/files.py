"""Plans the files that `rekindle init` writes, from its answers and from what the account shows. Pure.

`init/command.py` asks, calls `plan`, and writes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from infra import grants, lifecycle
from infra.init import answers as read
from infra.init import lines
from infra.init.answers import Answers, Runs
from infra.init.look import TAG, AccountState, Deployed, Service, other_buckets
from infra.slack.app import manifest

POLICY: Final = "policy.json"
ROLE_POLICY: Final = "training-role-policy.json"
SLACK: Final = "slack-manifest.json"
STEPS: Final = "NEXT.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """files: name -> text. left_out: (name, why) of files that are not made. commands: what to run next, in order."""

    files: Mapping[str, str]
    left_out: tuple[tuple[str, str], ...]
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitInputs:
    """What a plan is made from. service: the deployed service, or why it is not known. out: the folder of the files."""

    answers: Answers
    seen: AccountState
    service: Service | str
    stack: str
    is_policy_stored: bool
    api: str
    region: str
    out: str
    target: tuple[str, ...] = ()


def plan(given: InitInputs) -> Plan:
    """The files that are missing for this job, and the commands that follow."""
    files: dict[str, str] = {}
    left_out: list[tuple[str, str]] = []
    answers = given.answers
    if given.is_policy_stored:
        left_out.append(
            (POLICY, f"the policy {answers.policy} is stored already: rekindle policy get {answers.policy}")
        )
    else:
        files[POLICY] = lines.as_text({"schema": 1, "name": answers.policy, "shadow": answers.is_shadow})
    files[lines.SCRIPT] = lines.script(answers)
    if answers.runs.is_slurm:
        files[lines.HEADER] = lines.header(answers)
    else:
        bus = given.stack if isinstance(given.service, str) else given.service.bus
        files[lines.SETTINGS] = lines.as_text(lines.settings(answers, stage=read.stage_of(given.stack), bus=bus))
    _add_role_policies(given, files, left_out)
    if answers.wants_slack:
        if given.api.startswith("https://"):
            files[SLACK] = lines.as_text(manifest(given.api))
        else:
            left_out.append((SLACK, "the API has no address yet: after the deployment, this command again"))
    commands = tuple(_commands(given, files))
    files[STEPS] = _steps(given, files, left_out, commands)
    return Plan(files=files, left_out=tuple(left_out), commands=commands)


def role_policy(service: Service, bucket: str) -> dict[str, Any]:
    """infra/policies/training-role.json with the names of one service and one bucket in it."""
    names = {
        "${MailboxBucket.Arn}": f"arn:{service.partition}:s3:::{bucket}",
        "${MonitorBus.Arn}": ":".join(
            ["arn", service.partition, "events", service.region, service.account, f"event-bus/{service.bus}"]
        ),
    }
    return dict(_filled(grants.policy("training-role"), names))


def parameters(given: InitInputs) -> dict[str, str]:
    """The template's parameters that the answers change, with their new values. Lists grow; nothing is removed."""
    before = given.seen.stack.parameters if isinstance(given.seen.stack, Deployed) else {}
    own = "" if isinstance(given.service, str) else given.service.bucket
    wanted = {
        "TrainingRoleArns": [given.answers.role] if given.answers.role else [],
        "TrainingBuckets": other_buckets(given.answers, own),
    }
    found: dict[str, str] = {}
    for name, added in wanted.items():
        there = [value.strip() for value in before.get(name, "").split(",") if value.strip()]
        merged = list(dict.fromkeys([*there, *added]))
        if merged != there:
            found[name] = ",".join(merged)
    if given.answers.email and given.answers.email != before.get("NoticeEmail", ""):
        found["NoticeEmail"] = given.answers.email
    return found


def _add_role_policies(given: InitInputs, files: dict[str, str], left_out: list[tuple[str, str]]) -> None:
    """Add what the roles of the ranks and of the head node need, or why it cannot be written yet."""
    answers, service = given.answers, given.service
    wanted = []
    if read.bucket(answers.mailbox):
        wanted.append(ROLE_POLICY)
    if answers.runs.is_slurm:
        wanted.append(lifecycle.POLICY)
    if isinstance(service, str):
        left_out += [(name, f"account and Region are not known: {service}") for name in wanted]
        return
    if ROLE_POLICY in wanted:
        files[ROLE_POLICY] = lines.as_text(role_policy(service, read.bucket(answers.mailbox)))
    if lifecycle.POLICY in wanted:
        place = lifecycle.ServiceLocation(
            cluster=answers.cluster,
            stack=service.stack,
            bucket=service.bucket,
            bus=service.bus,
            region=service.region,
            account=service.account,
            partition=service.partition,
        )
        files[lifecycle.POLICY] = lines.as_text(lifecycle.policy(place))


def _commands(given: InitInputs, files: Mapping[str, str]) -> Iterator[str]:
    answers, seen = given.answers, given.seen
    wanted = parameters(given)
    target = given.target or (() if given.stack == "rekindle" else ("--stack", given.stack))
    named = ("--stack", given.stack) if given.stack != "rekindle" else ()
    if not given.api or wanted:
        words = ["rekindle", "stack", "deploy", "--stage", read.stage_of(given.stack)]
        words += ["--region", given.region] if given.region else []
        for name, text in wanted.items():
            words += ["--parameter", f"{name}={text}"]
        yield shlex.join(words)
    if read.bucket(answers.mailbox):
        yield from _role_commands(answers, seen)
    if answers.runs.is_slurm:
        role = "CONTROLLER_ROLE"
        document = f"file://{given.out}/{lifecycle.POLICY}"
        words = ["aws", "iam", "put-role-policy", "--role-name", role, "--policy-name", "rekindle-agent"]
        yield shlex.join([*words, "--policy-document", document])
        yield shlex.join(["rekindle", "slurm-agent", "install", "--cluster", answers.cluster, *named])
    if POLICY in files:
        yield shlex.join(["rekindle", "policy", "put", answers.policy, f"{given.out}/{POLICY}", *target])
    yield shlex.join(["rekindle", "doctor", *target])


def _role_commands(answers: Answers, seen: AccountState) -> Iterator[str]:
    name = answers.role.rpartition("/")[2] or "WORKER_ROLE"
    tag = f"Key={TAG},Value={read.prefix(answers.mailbox)}"
    yield shlex.join(["aws", "iam", "tag-role", "--role-name", name, "--tags", tag])
    arn = seen.stack.outputs.get("TrainingPolicyArn", "") if isinstance(seen.stack, Deployed) else ""
    note = "" if arn else "   # the stack's output TrainingPolicyArn"
    policy = arn or "TRAINING_POLICY_ARN"
    yield shlex.join(["aws", "iam", "attach-role-policy", "--role-name", name, "--policy-arn", policy]) + note


def _steps(
    given: InitInputs, files: Mapping[str, str], left_out: list[tuple[str, str]], commands: tuple[str, ...]
) -> str:
    """NEXT.md: what each file is for, and the commands in order."""
    answers = given.answers
    uses = {
        POLICY: "what Rekindle may do (docs/policy.md)"
        + ("; in shadow mode it decides and tells, and does nothing" if answers.is_shadow else ""),
        ROLE_POLICY: "what the role of the ranks needs: the stack's managed policy TrainingPolicyArn, for those who may"
        f" attach none. It opens mailboxes only to a role with the tag {TAG} (docs/deploy.md)",
        lifecycle.POLICY: "what the head node's role needs (docs/hyperpod-slurm.md#2-rights)",
        lines.SETTINGS: "Environment and Tags for CreateTrainingJob, beside the job's own",
        lines.HEADER: "the top of the batch script; `rekindle doctor cluster --script FILE` checks the whole one",
        lines.SCRIPT: "lines for the training script",
        SLACK: 'for api.slack.com/apps, "From a manifest" (docs/slack.md)',
    }
    text = [f"# {answers.job}: from here to a protected job", ""]
    text += [f"- `{name}`: {uses[name]}" for name in files]
    text += [f"- `{name}` is not here: {why}" for name, why in left_out]
    text += ["", "In this order:", "", "```sh", *commands, "```", ""]
    if answers.runs is Runs.TRAINING_JOB:
        text += ["Then submit the job with the settings and lines above; its first event protects it.", ""]
    else:
        text += ["Then submit the batch script; a minute later `rekindle jobs` shows the run.", ""]
    return "\n".join(text)


def _filled(value: Any, names: Mapping[str, str]) -> Any:
    """The document with CloudFormation's functions replaced by what they will give."""
    if isinstance(value, dict):
        if set(value) == {"Fn::Sub"}:
            return _replaced(value["Fn::Sub"], names)
        if set(value) == {"Fn::GetAtt"}:
            return _replaced(f"${{{'.'.join(value['Fn::GetAtt'])}}}", names)
        return {key: _filled(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, names) for item in value]
    return value


def _replaced(text: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(name, value)
    return text.replace("${!", "${")  # Source: CloudFormation, Fn::Sub: ${!Literal} is ${Literal}
