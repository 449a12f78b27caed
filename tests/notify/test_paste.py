"""What an on-call person pastes next, and the news that an Incident stands elsewhere."""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from chalicelib.domain.model.action import AskApproval
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.model.urgency import sequence_of
from chalicelib.domain.policy.document import DEFAULT_POLICY
from chalicelib.domain.reporting.paste import MAX_NODES, needs_arn, paste_of
from chalicelib.services.perform.perform import ActionExecutor, stands_elsewhere
from rekindle.protocol.signals import FaultClass
from tests.fakes.world import FakeAnnouncer

AT = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
ARN = "arn:aws:sagemaker:us-west-2:111122223333:cluster/k3v9m2x7q1ab"
NODE = "i-0a1b2c3d4e5f60718"


def incident(**changes: Any) -> Incident:
    one = Incident(
        incident_id="inc-1", job_id="lm", cluster="pretrain", opened_at=AT, phase=Phase.OPEN, phase_entered_at=AT
    )
    return one.changed(**changes)


def fault(**evidence: Any) -> Signal:
    return Signal(
        kind=SignalKind.NODE_HEALTH,
        source=SignalSource.SAGEMAKER,
        occurred_at=AT,
        dedupe_key="k",
        summary="s",
        fault=FaultClass.NODE_HARDWARE,
        evidence=evidence,
    )


def test_a_training_job_s_page_has_its_story_and_its_logs() -> None:
    assert paste_of(incident(attempt="lm-2", cluster=None), region="us-west-2") == (
        ("Story", "rekindle show inc-1"),
        (
            "Logs",
            "aws logs tail /aws/sagemaker/TrainingJobs --log-stream-name-prefix lm-2 --since 1h --region us-west-2",
        ),
        (
            "Logs in the console",
            "https://us-west-2.console.aws.amazon.com/cloudwatch/home?region=us-west-2#logsV2:log-groups/log-group/"
            "$252Faws$252Fsagemaker$252FTrainingJobs$3FlogStreamNameFilter$3Dlm-2",
        ),
    )


def test_a_node_s_page_has_its_shell_and_what_the_health_agent_wrote() -> None:
    lines = dict(paste_of(incident(signals=(fault(instance_id=NODE, group="gpu", cluster_arn=ARN),)), region=""))
    assert lines[f"Shell on {NODE}"] == f"aws ssm start-session --target sagemaker-cluster:k3v9m2x7q1ab_gpu-{NODE}"
    assert lines[f"Health agent on {NODE}"] == (
        "aws logs tail /aws/sagemaker/Clusters/pretrain/k3v9m2x7q1ab "
        f"--log-stream-name-prefix SagemakerHealthMonitoringAgent/gpu/{NODE} --since 1h"
    )


def test_the_cluster_s_arn_is_asked_for_only_where_it_is_wanted_and_without_it_no_shell_is_offered() -> None:
    unknown = incident(signals=(fault(instance_id=NODE, group="gpu"),))
    assert needs_arn(unknown)
    assert not needs_arn(incident(signals=(fault(instance_id=NODE, group="gpu", cluster_arn=ARN),)))
    assert not needs_arn(incident())
    assert paste_of(unknown, region="") == (("Story", "rekindle show inc-1"),)
    assert f"Shell on {NODE}" in dict(paste_of(unknown, region="", cluster_arn=ARN))


def test_a_storm_of_nodes_gives_a_few_shells() -> None:
    many = tuple(fault(instance_id=f"i-{n:017x}", group="gpu", cluster_arn=ARN) for n in range(20))
    assert sum(label.startswith("Shell") for label, _ in paste_of(incident(signals=many), region="")) == MAX_NODES


@pytest.mark.parametrize("word", ["a; rm -rf ~", "$(reboot)", "`id`", "a\nb", "'x'"])
def test_other_people_s_words_stay_one_word_of_a_command(word: str) -> None:
    lines = dict(paste_of(incident(incident_id=word, attempt=word, cluster=None), region="eu-west-1"))
    assert shlex.split(lines["Story"]) == ["rekindle", "show", word]
    assert word in shlex.split(lines["Logs"])
    assert lines["Logs in the console"].isascii()
    assert not set(lines["Logs in the console"]) & set(" ;`'\n")


def test_on_slurm_the_job_is_named_as_slurm_names_it() -> None:
    lines = dict(paste_of(incident(attempt="slurm.pretrain.4711.r2"), region="us-west-2"))
    assert lines == {"Story": "rekindle show inc-1", "Slurm job": "scontrol show job 4711"}


class Broken(FakeAnnouncer):
    """Nobody listens."""

    def announce(self, notice: Any) -> None:
        from chalicelib.domain.model.errors import DependencyUnavailable

        raise DependencyUnavailable("no bus")


def telling(announcer: Any) -> ActionExecutor:
    nothing: Any = None

    class Clock:
        def now(self) -> datetime:
            return AT

    return ActionExecutor(
        registry=nothing, scheduler=nothing, mailbox=nothing, announcer=nothing, clock=Clock(), changes=announcer
    )


def test_a_change_is_told_once_it_is_one_and_never_fails_a_recovery() -> None:
    announcer = FakeAnnouncer()
    before = incident()
    after = replace(before, phase=Phase.STOPPING)
    telling(announcer).tell_change(before, before, why="x", token="t")
    telling(announcer).tell_change(before, after, why="stopping lm", token="t")
    (told,) = announcer.notices
    assert (told.kind.value, told.severity.value, told.phase, told.token) == ("change", "info", "stopping", "t.change")
    telling(Broken()).tell_change(before, after, why="x", token="t")


def test_what_is_shown_is_phase_fault_questions_and_holds() -> None:
    assert not stands_elsewhere(incident(), incident(version=7, signals_seen=3))
    assert stands_elsewhere(incident(), incident(fault=FaultClass.HANG))


def test_each_notice_says_where_it_stands_among_its_incident_s() -> None:
    """Compared as text: an order of the bus, of the queue and of clocks is none."""
    tokens = [
        "inc-1.1.2.change",
        "inc-1.1.2.0",
        "inc-1.1.2.1",
        "inc-1.1.10.0",
        "inc-1.1.10.11",
        "inc-1.2.0.change",
        "inc-1.10.0.0",
    ]
    order = [sequence_of(token, "inc-1") for token in tokens]
    assert order == sorted(order)
    assert len(set(order)) == len(tokens)
    assert order[1] == "0001.000002.001"


@pytest.mark.parametrize(
    ("token", "about"), [("t", "inc-1"), ("registered:lm", ""), ("inc-1.1.x.0", "inc-1"), ("", "")]
)
def test_what_stands_in_no_order_claims_none(token: str, about: str) -> None:
    assert sequence_of(token, about) == ""


def test_a_question_stands_where_it_was_asked_and_keeps_its_own_id() -> None:
    announcer = FakeAnnouncer()
    asking = AskApproval(approval_id="ap-1", title="May the node be replaced?", text="why", deadline_at=AT)
    perform = replace(telling(announcer), announcer=announcer)
    perform.act(asking, incident=incident(), policy=DEFAULT_POLICY, token="inc-1.1.7.0")
    (told,) = announcer.notices
    assert (told.token, told.sequence) == ("inc-1.ap-1", "0001.000007.001")
