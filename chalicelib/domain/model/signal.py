"""A Signal is one normalised observation, whatever its source. Ingest makes them; Incidents collect them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from chalicelib.domain.model.codec import Record
from rekindle.protocol.signals import FaultClass
from rekindle.protocol.signals import SignalKind as SignalKind

MAX_SUMMARY_CHARS = 400  # one line in a timeline; longer text belongs into evidence
MAX_EVIDENCE_BYTES = 4096  # keeps an Incident with a full inbox far below DynamoDB's 400 KB item limit
ANY_START = "any_start"  # in the evidence: `attempt` names the first start, and what is said is of whichever runs


class SignalSource(StrEnum):
    """Where an observation came from."""

    SAGEMAKER = "aws.sagemaker"
    CLOUDWATCH = "aws.cloudwatch"
    EC2 = "aws.ec2"
    HEALTH = "aws.health"
    LOGS = "aws.logs"
    MONITOR = "rekindle.monitor"
    AGENT = "rekindle.agent"
    SWEEP = "rekindle.sweep"
    OPERATOR = "rekindle.operator"
    WEBHOOK = "rekindle.webhook"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal(Record):
    """One observation.

    `occurred_at` is the source's own time (aware UTC), never "now".
    `dedupe_key` is equal for every delivery of the same fact and differs between facts; at most 200 characters.
    `attempt` is the platform's own name of the attempt where the source names one.
    `fault` is what this observation alone suggests; None where it is only news.
    `triggers` is False for observations that may join an open Incident but must never open one.
    `evidence` is small JSON (see MAX_EVIDENCE_BYTES).
    """

    kind: SignalKind
    source: SignalSource
    occurred_at: datetime
    dedupe_key: str
    summary: str
    job_id: str | None = None
    attempt: str | None = None
    cluster: str | None = None
    node: str | None = None
    fault: FaultClass | None = None
    triggers: bool = True
    evidence: Mapping[str, Any] = field(default_factory=dict)


def ended_job_key(name: str, status: str) -> str:
    """The dedupe key of "`name` has ended as `status`", the same from an event and from the sweep.

    A job's name is unique in its account and Region and it ends once, so nothing else is
    needed to distinguish two such facts.
    """
    return f"attempt-ended:{name}:{status}"
