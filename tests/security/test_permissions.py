"""A function's policy allows what the function does and nothing else: each is run under its role with all that may
come to it, and every action that its policy lists is used.

The other direction needs no list: what a policy does not allow is denied, and fails the test that called it.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.api.operation import PREFIX
from chalicelib.api.operations.routes import BY_NAME
from infra.functions import FUNCTIONS
from infra.grants import policy, statements
from localcloud.aws.roles import USED
from localcloud.cloud import ACCOUNT_ID, STACK
from localcloud.worlds.recoveries import Script, World, crash_at, world
from localcloud.worlds.scenarios import SCENARIOS
from tests.api_fuzz.stage import Stage, stage
from tests.api_fuzz.test_fuzz import GOOD_BODIES, IN_ORDER, path_of
from tests.ingest import golden
from tests.notify.made import SECRET, webhook
from tests.notify.receiver import Receiver
from tests.recovery.test_node_repair import pod
from tests.recovery.test_slurm_playbooks import JOB, slurm

pytestmark = pytest.mark.long

MINUTE = timedelta(minutes=1)
# By the beginning of a golden event's name.
FUNCTION_OF = {
    "agent_": "agent_event",
    "cloudwatch_": "alarm_event",
    "ec2_": "ec2_event",
    "health_": "health_event",
    "logs_": "log_batch",
    "monitor_": "monitor_event",
    "sagemaker_cluster": "hyperpod_event",
    "sagemaker_node": "hyperpod_event",
    "sagemaker_training": "training_job_event",
}
GOLDEN_ACCOUNT = "111122223333"
INSTANCE = re.compile(r"\bi-[0-9a-f]{8,17}\b")
BODIES = GOOD_BODIES | {"register_job": {"training_job": "plain", "alarms": "job"}}
# What Lambda does in the function's name, and the keys of buckets (tests/infra/test_policies.py).
NOT_CALLED = {"Logs", "KeepFailures", "TakeDeliveries", "DurableState", "UseKeysOfBuckets", "UseKeysOfVolumes"}


# Statements with actions that nothing here makes use of, by why they are needed all the same.
NOT_PLAYED: dict[str, set[str]] = {
    "people are told that a run is protected with limits, or left alone since its name is taken": {
        f"{function}_event {statement}"
        for function in ("training_job", "alarm", "monitor", "agent")
        for statement in ("Notices", "Bus")
    }
    | {
        f"{function} {statement}"
        for function in ("log_batch", "sweep", "api_handler")
        for statement in ("Notices", "Bus")
    },
    "a run of Slurm's is looked up in its cluster's documents": {
        f"{function}_event {statement}"
        for function in ("training_job", "monitor")
        for statement in ("ReadCheckpoints", "ListMailbox")
    },
    "a run that goes on as a Job of ours is named in the fence": {
        f"{function} WriteMailbox" for function in ("agent_event", "sweep", "api_handler")
    },
    "an agent's event may name a Job of SageMaker's": {"agent_event TrainingJobs"},
    "an announced end is handed to a Job's Incident": {
        "health_event ReadRegistry",
        "health_event StartRecovery",
        "ec2_event ReadRegistry",
    },
    "a run or a node has an open Incident meanwhile, whose execution waits": {
        f"{function} WakeRecovery" for function in ("sweep", "recover", "ec2_event", "health_event")
    },
    "a cluster's policy is asked for where trouble is found that no event told of": {"sweep Clusters", "sweep Tags"},
    "alarms of Jobs that ask for them": {"sweep JobAlarms", "sweep ReadAlarms", "api_handler JobAlarms"},
    "one process holds all functions here, and another had read it": {
        "deliver Channels",
        "api_handler Prices",
        "recover AgentQueues",
        "api_handler Channels",
    },
    "a channel in Slack, and one that fails (tests/notify, tests/slack)": {
        "deliver ReadRegistry",
        "deliver WriteDeliveries",
        "deliver Prices",
        "deliver Postpone",
        "deliver Undelivered",
        "api_handler Sources",
        "api_handler Secrets",
        "api_handler Enqueue",
        "api_handler SendAgain",
    },
    "a run's recovery opens its node's own, which reboots or checks it": {
        "recover StartRecovery",
        "recover RepairNodes",
    },
    "a drill looks at everything that a recovery looks at": {"api_handler RepairNodes", "api_handler ListTrainingJobs"},
}


@pytest.fixture(scope="module")
def used() -> Iterator[frozenset[tuple[str, str, str]]]:
    """(function, action, statement) of every call that was allowed."""
    before = set(USED)
    USED.clear()
    _play_training_jobs()
    _play_unregistered_jobs()
    _play_clusters()
    _play_the_api()
    _play_notices()
    yield frozenset(USED)
    USED.update(before)


def test_every_action_that_a_policy_lists_is_used(used: frozenset[tuple[str, str, str]]) -> None:
    kept = {statement for each in NOT_PLAYED.values() for statement in each}
    idle = [
        f"{function.name} {statement['Sid']}: {action}"
        for function in FUNCTIONS
        for statement in statements(policy(function.name))
        for action in statement["Action"]
        if statement["Sid"] not in NOT_CALLED and (function.name, action, statement["Sid"]) not in used
    ]
    unexplained = [line for line in idle if line.partition(":")[0] not in kept]
    assert not unexplained, "allowed, and used by nothing:\n" + "\n".join(unexplained)


def test_what_is_not_played_is_still_listed() -> None:
    listed = {
        f"{function.name} {statement['Sid']}"
        for function in FUNCTIONS
        for statement in statements(policy(function.name))
    }
    assert {statement for each in NOT_PLAYED.values() for statement in each} <= listed


def _play_training_jobs() -> None:
    for name in ("crash", "hang", "nan", "capacity"):
        with world() as w:
            SCENARIOS[name](w)
            w.run_until(w.closed(), limit=timedelta(hours=6))
    with world() as w:
        w.submit(scripts=(Script(), Script(), Script()))
        w.cloud.clock.run_for(5 * MINUTE)
        _send(w, {"lm-7b-a3": "lm", "lm-7b": "lm"})
        w.cloud.clock.run_for(10 * MINUTE)
        _send(w, {"lm-7b-a3": "lm", "lm-7b": "lm"})


def _play_unregistered_jobs() -> None:
    """Each function is the first that hears of a run, which goes on as a Job that a person has stopped."""
    for begins in FUNCTION_OF:
        with world() as w:
            w.submit()
            w.cloud.clock.run_for(3 * MINUTE)
            w.cloud.client("sagemaker").stop_training_job(TrainingJobName="lm")
            w.cloud.clock.run_for(3 * MINUTE)
            w.cloud.events.stop_schedules()
            w.cloud.events.rules = []
            place = {
                "REKINDLE_MAILBOX": f"s3://{STACK}-mailbox/jobs/lm",
                "REKINDLE_JOB_ID": "lm",
                "REKINDLE_BUS": STACK,
            }
            w.submit("lm-2", Environment=place)
            w.submit("lm-3", CheckpointConfig={"S3Uri": "s3://elsewhere/lm"})
            w.cloud.clock.run_for(3 * MINUTE)
            _send(w, {"lm-7b-a3": "lm-2", "lm-7b": "lm"}, begins=begins)
            _send(w, {"lm-7b-a3": "lm-3", "lm-7b": "lm-3"}, begins=begins)


def _play_clusters() -> None:
    names = {"slurm.pretrain.4211": JOB, "pretrain": "ml", "lm-7b-a3": JOB, "lm-7b": JOB}
    with slurm() as s:
        _send(s.w, names)
        s.w.cloud.clock.run_for(10 * MINUTE)
    with slurm() as s:
        s.sim.model.lose_node(s.job.nodes[0])  # which the agent is the first to report
        s.recovered()
    with pod() as p:
        _send(p.w, names, instance=p.old)
        p.w.cloud.clock.run_for(5 * MINUTE)
        _send(p.w, names, instance=p.old)
        p.w.cloud.clock.run_for(30 * MINUTE)


def _play_the_api() -> None:
    with stage() as given:
        w = given.world
        for name in golden.names():
            if function := _function_of(name):
                event = _told_here(w, f"{name}.json", {"lm-7b-a3": "lm-calm", "lm-7b": "lm-calm"}, None)
                w.service.quarantine.put(
                    raw=json.dumps(event), function=function, error="x", field="x", at=w.cloud.clock.now()
                )
        for attempt in range(8):  # each takes some of what was quarantined
            _call(given, "redrive_quarantine", key=f"again-{attempt}")
        for name in IN_ORDER:
            _call(given, name, key=name)
        w.cloud.clock.run_for(30 * MINUTE)


def _call(given: Stage, name: str, *, key: str) -> None:
    operation = BY_NAME[name]
    request = urllib.request.Request(  # noqa: S310  our own server
        given.url + PREFIX + path_of(operation, given.known),
        method=operation.method,
        data=json.dumps(BODIES.get(name, {})).encode() if operation.body else None,
        headers={"content-type": "application/json", "idempotency-key": key},
    )
    with suppress(urllib.error.HTTPError), urllib.request.urlopen(request) as answer:  # noqa: S310
        answer.read()


def _play_notices() -> None:
    with Receiver() as receiver, world() as w:
        ssm = w.cloud.client("ssm")
        document = {"channels": {"team": webhook(receiver.url)}, "routes": [{"to": ["team"]}]}
        ssm.put_parameter(Name=f"/{STACK}/channels", Value=json.dumps(document), Type="String")
        ssm.put_parameter(Name=f"/{STACK}/secrets/hook", Value=SECRET, Type="SecureString")
        w.submit(scripts=(Script(faults=(crash_at(25),)), Script()))
        w.recover()
        w.cloud.clock.run_for(5 * MINUTE)


def _send(w: World, names: Mapping[str, str], *, begins: str = "", instance: str | None = None) -> None:
    """Every golden event, or those whose names begin so, to its function, about the runs, cluster and instance here."""
    for name in golden.files():
        stem = name.removeprefix("malformed/")
        function = _function_of(stem)
        if function is not None and stem.startswith(begins) and "crash__no_" not in stem:  # Chalice needs the envelope
            w.cloud.invoke(function, _told_here(w, name, names, instance))


def _function_of(name: str) -> str | None:
    return next((function for start, function in FUNCTION_OF.items() if name.startswith(start)), None)


def _told_here(w: World, name: str, names: Mapping[str, str], instance: str | None) -> Any:
    event = json.loads(_renamed((golden.EVENTS / name).read_text(encoding="utf-8"), names, instance))
    if isinstance(event.get("awslogs"), dict) and not name.startswith("malformed/"):
        lines = gzip.decompress(base64.b64decode(event["awslogs"]["data"])).decode()
        event["awslogs"]["data"] = base64.b64encode(gzip.compress(_renamed(lines, names, instance).encode())).decode()
    if "time" in event:
        event["time"] = w.cloud.clock.now().isoformat()
    return event


def _renamed(text: str, names: Mapping[str, str], instance: str | None) -> str:
    for old, new in {**names, GOLDEN_ACCOUNT: ACCOUNT_ID}.items():
        text = text.replace(old, new)
    return text if instance is None else INSTANCE.sub(instance, text)
