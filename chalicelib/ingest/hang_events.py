"""HyperPod's hung-job detection: a record of its agent in a cluster's log group names a Slurm job that stands still.

It sees jobs that have no monitor, sooner than their silence would show. It is a claim of other monitoring: a run's own
heartbeat, or a person, must agree before anything is done to it (domain/run/alerts.py).

Which members its record has is not documented. Read is a JSON object, of any agent of a node of the cluster, that says
"hang" or "hung" and names one job's id as a member of its own or one level below.
Source: SageMaker developer guide, sagemaker-hyperpod-resiliency-slurm-hang-detection (an event in CloudWatch, by an
agent on each node, that may also cancel the job).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from chalicelib.domain.model.signal import ANY_START, Signal, SignalKind, SignalSource
from chalicelib.ingest.evidence import bounded, dedupe_key, minute, one_line
from chalicelib.ingest.fields import INSTANCE_ID
from rekindle.protocol.cluster.names import SlurmAttempt
from rekindle.protocol.signals import FaultClass
from rekindle.protocol.wire import MailboxError, is_deep

_STREAM: Final = re.compile(rf"[A-Za-z][A-Za-z0-9_-]{{0,63}}/[A-Za-z0-9-]{{1,63}}/{INSTANCE_ID.pattern}")
_HANG: Final = re.compile(r"(?<![a-z])(?:[Hh]ang|HANG|[Hh]ung|HUNG)(?:s|ing|ed)?(?![a-z])")
_JOB_KEY: Final = re.compile(r"(?:slurm_?)?job_?id", re.IGNORECASE)
_JOB: Final = re.compile(r"[1-9][0-9]{0,9}")


def hang_in(message: str, stream: str, *, cluster: str, at: datetime) -> Signal | None:
    """The claim that a Slurm job of the cluster hangs; None for any other line."""
    if _STREAM.fullmatch(stream) is None or not message.lstrip().startswith("{") or _HANG.search(message) is None:
        return None
    try:
        body = json.loads(message)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, Mapping) or is_deep(body) or not any(_HANG.search(text) for text in _texts(body)):
        return None
    jobs = {str(value) for name, value in _members(body) if _JOB_KEY.fullmatch(name) and _is_job(value)}
    if len(jobs) != 1:
        return None
    (job,) = jobs
    try:
        attempt = SlurmAttempt(cluster=cluster, base=job).name
    except MailboxError:
        return None
    return Signal(
        kind=SignalKind.EXTERNAL_ALERT,
        source=SignalSource.LOGS,
        occurred_at=at,
        dedupe_key=dedupe_key("hyperpod-hang", cluster, job, minute(at)),  # each node of the job says so
        summary=one_line(f"HyperPod's hung-job detection: job {job} makes no progress: {message}"),
        cluster=cluster,
        attempt=attempt,
        fault=FaultClass.HANG,
        triggers=True,
        evidence=bounded({"alert": "hung job", "source": "hyperpod", "state": "firing", ANY_START: True}),
    )


def _members(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in body.items():
        yield name, value
        if isinstance(value, Mapping):
            yield from ((str(inner), item) for inner, item in value.items())


def _texts(body: Mapping[str, Any]) -> Iterator[str]:
    for name, value in _members(body):
        yield name
        if isinstance(value, str):
            yield value


def _is_job(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool) and _JOB.fullmatch(str(value)) is not None
