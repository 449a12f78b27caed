"""Events of the agent on a Slurm head node (our own bus, source rekindle.agent).

An event only causes an observation, which reads the cluster state; nothing is decided by the event alone.

    {"detail-type": "Rekindle Slurm Job", "source": "rekindle.agent", "resources": [],
     "detail": {"v": 1, "cluster": "ml", "attempt": "slurm.ml.123", "slurm_job": 123, "state": "node_fail",
      "at": "2026-11-20T10:00:00Z", "reason": "NodeDown", "nodes": ["gpu-1", "gpu-2"], "ended_by": "slurm"}}
    Rekindle Agent Started     v, cluster, at; agent_id, version, slurm_version
    Rekindle Slurm Job         v, cluster, attempt, slurm_job, state, at; any member of the attempt's document
    Rekindle Slurm Node        v, cluster, node, state, at; flags, reason, instance_id, group
    Rekindle Order Answered    the wire of rekindle.protocol.cluster.orders.OrderResult

The head node is not trusted: names must match the protocol's patterns, texts are bounded, `v` must be 1, and an attempt
must belong to the cluster that reports it.

Source: rekindle/protocol/cluster; docs/slurm.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from chalicelib.domain.faults.slurm_states import (
    STATUSES,
    WORDS,
    failure_of_end,
    failure_reason,
    fault_of_end,
    fault_of_node,
)
from chalicelib.domain.model.errors import MalformedEvent
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource, ended_job_key
from chalicelib.ingest.envelope import Envelope
from chalicelib.ingest.evidence import bounded, dedupe_key, one_line
from chalicelib.ingest.fields import INSTANCE_ID, OUR_ID, Fields
from rekindle.protocol.cluster.documents import CauseDoc, EndedBy, SlurmState
from rekindle.protocol.cluster.names import check_cluster, is_slurm, parse_attempt
from rekindle.protocol.cluster.node_states import trouble_of
from rekindle.protocol.cluster.orders import MAX_SLURM_JOB, OrderResult, Outcome, check_node
from rekindle.protocol.wire import WIRE_VERSION, MailboxError

SOURCE: Final = "rekindle.agent"
STARTED: Final = "Rekindle Agent Started"
JOB: Final = "Rekindle Slurm Job"
NODE: Final = "Rekindle Slurm Node"
ANSWERED: Final = "Rekindle Order Answered"

MAX_LISTED: Final = 10_000
_MAX_TEXT: Final = 2000
_WORD: Final = re.compile(r"[A-Za-z0-9_+*~#!%$@^-]{1,64}")


def parse(envelope: Envelope) -> Signal:
    """One Signal per event. Only a failed attempt and a node that is lost or failing trigger.

    Raises:
        MalformedEvent: the event is invalid; the error names the field.
    """
    detail = envelope.detail
    if detail.whole("v", high=10**6) != WIRE_VERSION:
        raise detail.fail("v", f"is not {WIRE_VERSION}, the only version known here")
    return PARSERS[envelope.detail_type](detail)


def _started(detail: Fields) -> Signal:
    cluster, at = _cluster(detail), detail.moment("at")
    agent_id = detail.optional_text("agent_id", limit=128, pattern=OUR_ID)
    return Signal(
        kind=SignalKind.AGENT_NEWS,
        source=SignalSource.AGENT,
        occurred_at=at,
        dedupe_key=dedupe_key("agent-started", cluster, agent_id, at),
        summary=one_line(f"the agent of {cluster} has started"),
        cluster=cluster,
        triggers=False,
        evidence=bounded(
            {
                "agent_id": agent_id,
                "version": detail.optional_text("version", limit=64),
                "slurm_version": detail.optional_text("slurm_version", limit=64),
            }
        ),
    )


def _job(detail: Fields) -> Signal:
    cluster, at = _cluster(detail), detail.moment("at")
    attempt = _attempt(detail, "attempt", cluster)
    state = SlurmState(detail.word("state", tuple(SlurmState)))
    slurm_job = detail.whole("slurm_job", low=1, high=MAX_SLURM_JOB)
    successor = _attempt(detail, "successor", cluster) if detail.has("successor") else None
    job_id = _job_id(detail, cluster)
    reason = detail.optional_text("reason", limit=_MAX_TEXT)
    job_detail = detail.optional_text("detail", limit=_MAX_TEXT)
    exit_code = detail.optional_whole("exit_code", high=255)
    exit_signal = detail.optional_whole("exit_signal", high=255)
    nodes, lost_nodes = _nodes(detail, "nodes"), _nodes(detail, "lost_nodes")
    failure = failure_reason(
        state, reason=reason or "", detail=job_detail or "", exit_code=exit_code, exit_signal=exit_signal
    )
    ended_by, requeued_by = _ended_by(detail, "ended_by"), _ended_by(detail, "requeued_by")
    cause = _cause(detail)
    verdict = failure_of_end(state, cause=cause, reason=reason or "", exit_code=exit_code, exit_signal=exit_signal)
    fault = fault_of_end(
        state,
        verdict,
        has_successor=successor is not None,
        requeued_by=requeued_by or EndedBy.UNKNOWN,
        lost_nodes=lost_nodes,
        ended_by=ended_by or EndedBy.UNKNOWN,
    )
    status = STATUSES.get(state)
    end_word = WORDS.get(status) if status is not None else None
    if end_word is not None and successor is None:
        key = ended_job_key(attempt, end_word)
    else:
        key = dedupe_key("slurm-job", attempt, state, successor, at)
    rule = verdict.rule if verdict else None
    return Signal(
        kind=SignalKind.ATTEMPT_STATE,
        source=SignalSource.AGENT,
        occurred_at=at,
        dedupe_key=key,
        summary=one_line(f"{attempt} is {state.upper()}{f': {failure}' if failure else _in_brackets(reason)}"),
        job_id=job_id,
        attempt=attempt,
        cluster=cluster,
        fault=fault,
        triggers=fault is not None,
        evidence=bounded(
            {
                "status": end_word or state.value,
                "state": state.value,
                "slurm_job": slurm_job,
                "successor": successor,
                "ended_by": ended_by,
                "cancelled_by": detail.optional_whole("cancelled_by", high=2**32),
                "requeued_by": requeued_by,
                "failure_reason": failure or None,
                "reason": reason,
                "exit_code": exit_code,
                "exit_signal": exit_signal,
                "detail": job_detail,
                **(_evidence_of(cause, rule) if cause else {"rule": rule}),
                "nodes": nodes or None,
            }
        ),
    )


def _evidence_of(cause: CauseDoc, rule: str | None) -> dict[str, Any]:
    return {
        "label": cause.label,
        "rule": rule,
        "first_response": cause.response,
        "host": cause.node,
        "rank": cause.rank,
        "line": cause.line,
        "text": cause.evidence,
    }


def _cause(detail: Fields) -> CauseDoc | None:
    """What the agent found in the output; None for none, or for words that only a newer agent knows."""
    if not detail.has("cause"):
        return None
    try:
        return CauseDoc.from_wire(dict(detail.child("cause").body))
    except MailboxError:
        return None


def _in_brackets(reason: str | None) -> str:
    """Slurm's reason, to follow a state in a summary; it writes "None" where there is none."""
    return f" ({reason})" if reason and reason != "None" else ""


def _slurm_node(detail: Fields) -> Signal:
    cluster, at = _cluster(detail), detail.moment("at")
    node = _node(detail, "node", detail.required("node"))
    state = detail.text("state", limit=64, pattern=_WORD).lower()
    flags = tuple(_flag(detail, index, flag) for index, flag in enumerate(_listed(detail, "flags")))
    reason = detail.optional_text("reason", limit=_MAX_TEXT)
    instance_id = detail.optional_text("instance_id", limit=32, pattern=INSTANCE_ID)
    group = detail.optional_text("group", limit=63)
    fault = fault_of_node(state, flags, reason or "")
    trouble = trouble_of(state, flags, reason or "", detail.optional_moment("ending_since"))
    states = "+".join((state, *flags))
    return Signal(
        kind=SignalKind.NODE_STATE,
        source=SignalSource.AGENT,
        occurred_at=at,
        dedupe_key=dedupe_key("slurm-node", cluster, node, instance_id, states, reason, at),
        summary=one_line(f"node {node} of {cluster} is {states.upper()}{_in_brackets(trouble or reason)}"),
        cluster=cluster,
        node=node,
        fault=fault,
        triggers=fault is not None or trouble != "",
        evidence=bounded(
            {
                "state": state,
                "flags": list(flags),
                "reason": reason,
                "instance_id": instance_id,
                "group": group,
                "trouble": trouble or None,
            }
        ),
    )


def _answered(detail: Fields) -> Signal:
    try:
        answer = OrderResult.from_wire(detail.body)
    except MailboxError as err:
        raise MalformedEvent(detail.at(err.field), err.problem) from err
    target = answer.attempt or answer.node or answer.cluster
    has_failed = answer.outcome in (Outcome.REFUSED, Outcome.FAILED)
    return Signal(
        kind=SignalKind.ORDER_ANSWERED,
        source=SignalSource.AGENT,
        occurred_at=answer.at,
        dedupe_key=dedupe_key("order-answered", answer.cluster, answer.token),
        summary=one_line(f"{answer.verb} of {target}: {answer.outcome}{f': {answer.detail}' if has_failed else ''}"),
        attempt=answer.attempt,
        cluster=answer.cluster,
        node=answer.node,
        triggers=False,
        evidence=bounded(
            {
                "incident_id": answer.incident_id,
                "token": answer.token,
                "verb": answer.verb.value,
                "outcome": answer.outcome.value,
                "slurm_job": answer.slurm_job,
                "detail": answer.detail or None,
                "barred": answer.barred.value if answer.barred else None,
                "queue_losses": [loss.to_wire() for loss in answer.queue_losses] or None,
            }
        ),
    )


PARSERS: Final[dict[str, Callable[[Fields], Signal]]] = {
    STARTED: _started,
    JOB: _job,
    NODE: _slurm_node,
    ANSWERED: _answered,
}


def _cluster(detail: Fields) -> str:
    """The event's cluster, a valid name."""
    cluster = detail.text("cluster", limit=63)
    try:
        return check_cluster(cluster)
    except MailboxError as err:
        raise detail.fail("cluster", err.problem) from err


def _attempt(detail: Fields, name: str, cluster: str) -> str:
    """A member that names an attempt of `cluster`."""
    attempt = detail.text(name, limit=128)
    if not is_slurm(attempt):
        raise detail.fail(name, "is no name of an attempt on Slurm")
    if parse_attempt(attempt).cluster != cluster:
        raise detail.fail(name, f"is not of {cluster}")
    return attempt


def _job_id(detail: Fields, cluster: str) -> str | None:
    """The Job of the attempt, if it belongs to the cluster. Otherwise None: the Job is then found by the attempt."""
    job_id = detail.optional_text("job_id", limit=128, pattern=OUR_ID)
    if job_id is None or not is_slurm(job_id) or parse_attempt(job_id).cluster != cluster:
        return None
    return job_id


def _ended_by(detail: Fields, name: str) -> EndedBy | None:
    return EndedBy(detail.word(name, tuple(EndedBy))) if detail.has(name) else None


def _listed(detail: Fields, name: str) -> list[Any]:
    """A member list of at most MAX_LISTED items; empty where it is absent."""
    listed = detail.items(name)
    if len(listed) > MAX_LISTED:
        raise detail.fail(name, f"holds more than {MAX_LISTED}")
    return listed


def _nodes(detail: Fields, name: str) -> list[str]:
    return [_node(detail, f"{name}[{index}]", node) for index, node in enumerate(_listed(detail, name))]


def _node(detail: Fields, name: str, value: object) -> str:
    try:
        return check_node(value)
    except MailboxError as err:
        raise detail.fail(name, err.problem) from err


def _flag(detail: Fields, index: int, value: object) -> str:
    if not isinstance(value, str) or _WORD.fullmatch(value) is None:
        raise detail.fail(f"flags[{index}]", "is no word of Slurm's")
    return value.lower()
