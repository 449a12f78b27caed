"""Any event -> Signals: the parser is chosen by source and detail-type. `rekindle replay` and the tests use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chalicelib.domain.model.errors import NotOurs
from chalicelib.domain.model.signal import Signal
from chalicelib.ingest import detail_types
from chalicelib.ingest.detail_types import NAMES_NO_RUN
from chalicelib.ingest.envelope import Envelope, decode, open_envelope


def parse(
    raw_event: object,
    *,
    expected_account: str | None = None,
    groups_in_motion: bool | None = None,
) -> list[Signal]:
    """The Signals of one event: an EventBridge envelope, or a CloudWatch Logs batch (which has no envelope).

    Raises:
        MalformedEvent: the event cannot be read; names the field. Belongs into quarantine.
        Skip: nothing to do (`NotOurs("unknown event type")` for a source and detail-type that no table holds).
    """
    body = decode(raw_event)
    if "awslogs" in body:
        from chalicelib.ingest import logs

        return logs.parse(body, expected_account=expected_account)
    envelope = open_envelope(body, expected_account=expected_account)
    match envelope.source:
        case "aws.sagemaker":
            found = _sagemaker(envelope, groups_in_motion)
        case "aws.cloudwatch" if envelope.detail_type in (detail_types.ALARM, detail_types.ALARM_CONTRIBUTOR):
            from chalicelib.ingest import alarm

            found = alarm.parse(envelope)
        case "aws.health" if envelope.detail_type == detail_types.HEALTH:
            from chalicelib.ingest import health

            found = health.parse(envelope)
        case "aws.ec2" if envelope.detail_type in detail_types.EC2:
            from chalicelib.ingest import ec2

            found = ec2.parse(envelope)
        case detail_types.MONITOR_SOURCE if envelope.detail_type in detail_types.MONITOR:
            from chalicelib.ingest import monitor

            found = monitor.parse(envelope)
        case detail_types.AGENT_SOURCE if envelope.detail_type in detail_types.AGENT:
            from chalicelib.ingest import agent

            found = agent.parse(envelope)
        case _:
            raise NotOurs("unknown event type")
    return found if isinstance(found, list) else [found]


def alarm_to_look_up(raw_event: Mapping[str, Any], why: NotOurs) -> str | None:
    """The ARN of an alarm that names no run itself but may by its tags; None for one that does not ring."""
    if why.reason != NAMES_NO_RUN or raw_event.get("source") != "aws.cloudwatch":
        return None
    arns, detail = raw_event.get("resources"), raw_event.get("detail")
    state = detail.get("state") if isinstance(detail, Mapping) else None
    if not isinstance(arns, list) or not isinstance(state, Mapping) or state.get("value") != "ALARM":
        return None
    return arns[0] if len(arns) == 1 and isinstance(arns[0], str) and ":alarm:" in arns[0] else None


def with_alarm_tags(raw_event: Mapping[str, Any], tags: Mapping[str, str]) -> dict[str, Any]:
    """The event with the alarm's tags where the parser looks for them."""
    return {**raw_event, "detail": {**raw_event["detail"], "alarmTags": dict(tags)}}


def _sagemaker(envelope: Envelope, groups_in_motion: bool | None) -> Signal | list[Signal]:
    if envelope.detail_type == detail_types.TRAINING_JOB:
        from chalicelib.ingest import training_job

        return training_job.parse(envelope)
    from chalicelib.ingest import hyperpod

    match envelope.detail_type:
        case detail_types.CLUSTER_STATE:
            return hyperpod.parse_cluster_state(envelope)
        case detail_types.NODE_HEALTH:
            return hyperpod.parse_node_health(envelope)
        case detail_types.CLUSTER_EVENT:
            return hyperpod.parse_cluster_event(envelope, groups_in_motion=groups_in_motion)
        case _:
            raise NotOurs("unknown event type")
