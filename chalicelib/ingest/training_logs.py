"""What a training job prints, read with the signatures: jobs whose script cannot be changed are covered too.

    "logGroup": "/aws/sagemaker/TrainingJobs", "logStream": "lm-7b-a3/algo-1-1795168800"

The stream names the job and the instance. A batch holds the lines of one instance; each is classified, and one Signal
per label comes of it, the root cause first. Only the cause can trigger, and only where waiting for the job's own end
would lose something: a device that is dying, a loss that is not a number, a collective that does not end. Whatever else
ends the job follows from its state; the line then stands in the evidence.

Source: SageMaker developer guide, logging-cloudwatch (log groups and streams of training jobs).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from chalicelib.domain.fault_specs.faults import CLAIMED_BY_LOGS
from chalicelib.domain.model.errors import Noise
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.ingest.evidence import bounded, dedupe_key, minute, one_line
from chalicelib.ingest.fields import Fields
from rekindle.signatures import CausalClass, Cause, Finding, Label, Verdict, classify, root_cause
from rekindle.signatures.places import rank_in, step_in

MAX_LINE_CHARS: Final = 1024 * 1024  # Source: CloudWatch Logs quota, the largest event
MAX_SIGNALS: Final = 8  # of one batch: the cause and its nearest echoes
MAX_TEXT_CHARS: Final = 1000

_STREAM: Final = re.compile(r"([A-Za-z0-9](?:-*[A-Za-z0-9]){0,62})/(algo-\d{1,5})(?:-\d{1,20})?")


@dataclass(slots=True)
class _Line:
    """One label's lines in a batch: the first of them, and how many."""

    verdict: Verdict
    at: datetime
    text: str
    count: int = 1


def parse(stream: str, records: Sequence[Fields]) -> list[Signal]:
    """The Signals of one instance's lines, at most MAX_SIGNALS, the root cause first.

    Raises:
        MalformedEvent: names the field.
        Noise: nothing but ordinary lines, or a stream that no training instance writes.
    """
    named = _STREAM.fullmatch(stream)
    if named is None:
        raise Noise("ordinary log line")
    lines = _labelled_lines(records)
    if not lines:
        raise Noise("ordinary log line")
    job, node = named[1], named[2]
    findings = [
        Finding(
            verdict=line.verdict,
            node=node,
            rank=rank_in(line.text),
            at=line.at.timestamp(),
            text=line.text,
            count=line.count,
        )
        for line in lines
    ]
    cause = root_cause(findings)
    pairs = list(zip(lines, findings, strict=True))
    pairs.sort(key=lambda pair: (pair[1] is not cause.finding, pair[0].verdict.order, pair[0].at))
    return [_signal(job, node, line, finding, cause) for line, finding in pairs[:MAX_SIGNALS]]


def _labelled_lines(records: Sequence[Fields]) -> list[_Line]:
    """What is wrong in these lines, one entry per label and place in the order of causes."""
    found: dict[tuple[Label, CausalClass], _Line] = {}
    for record in records:
        at = record.moment("timestamp")
        message = record.optional_text("message", limit=MAX_LINE_CHARS) or ""
        verdict = classify(message)
        if verdict.label is Label.BENIGN:
            continue
        known = found.get((verdict.label, verdict.order))
        if known is None:
            found[verdict.label, verdict.order] = _Line(verdict=verdict, at=at, text=message[:MAX_TEXT_CHARS])
        else:
            known.count += 1
    return list(found.values())


def _signal(job: str, node: str, printed: _Line, finding: Finding, cause: Cause) -> Signal:
    verdict = printed.verdict
    is_cause = finding is cause.finding
    asks = verdict.order is not CausalClass.NEWS and verdict.label is not Label.USER_CANCELLED
    step = step_in(printed.text)
    return Signal(
        kind=SignalKind.TRAINING_LOG,
        source=SignalSource.LOGS,
        occurred_at=printed.at,
        dedupe_key=_key(job, node, verdict, printed.at),
        summary=one_line(f"{job} on {node} printed {verdict.label}: {printed.text}"),
        attempt=job,
        node=node,
        fault=verdict.fault if asks else None,
        triggers=is_cause and asks and verdict.fault in CLAIMED_BY_LOGS,
        evidence=bounded(
            {
                "label": verdict.label.value,
                "rule": verdict.rule,
                "first_response": verdict.first_response.value,
                "step": step,
                "rank": finding.rank,
                "xid": verdict.xid,
                "lines": printed.count,
                "is_echo": None if is_cause else True,
                "cause": cause.text if is_cause and cause.echoes else None,
                "text": printed.text,
            }
        ),
    )


def _key(job: str, node: str, verdict: Verdict, at: datetime) -> str:
    """An echo is one fact, however many instances repeat it: 64 of them must not fill an Incident's inbox."""
    teller = None if verdict.order is CausalClass.ECHO else node
    return dedupe_key("training-log", job, teller, verdict.label, verdict.order.name, minute(at))
