"""CloudWatch Logs batches from a subscription filter: how a GPU fault on HyperPod Slurm becomes visible.

What a training job itself prints (log group /aws/sagemaker/TrainingJobs) is read by `training_logs`, what other agents
of a cluster's nodes write by `hang_events`.

    {"awslogs": {"data": "<base64 of gzip>"}}, which holds
    {"messageType": "DATA_MESSAGE", "owner": "111122223333", "subscriptionFilters": ["hma"],
     "logGroup": "/aws/sagemaker/Clusters/pretrain/k3v9m2x7q1ab",
     "logStream": "SagemakerHealthMonitoringAgent/gpu/i-0a1b2c3d4e5f60718",
     "logEvents": [{"id": "3912…", "timestamp": 1795168800000, "message": "{…}"}]}

The health agent's records, in the message, come in three shapes; group and instance are named by the stream alone:
  (a) Slurm, DCGM: {"msg": "DCGM Policy Violation found ", "condition: ": "XID Error", "data: ": {"ErrNum": 79},
      "HealthMonitoringAgentDetectionEvent": "HealthEvent"}         (keys end in colon and space)
  (b) EKS: {"Event detail": {"Action": "replace", "Type": "NvidiaGPUUnhealthy",
      "Reason": "NvidiaGpuXidErrorPendingReplacement", "Message": "NVRM: Xid…"}}
  (c) node-problem-detector: {"msg": "NPD caught event: %v", "details: ": {"severity": "warn",
      "reason": "XidHardwareFailure", "message": "Node condition NvidiaErrorReboot is now: True…"}}
      or {"condition details": {"type": "NvidiaErrorReboot", "status": "True"}}

The agent's own recommendation wins over the Xid table; a detection without one is not taken for "replace". An
application's Xid (XidUserAppError) asks nothing of the node.

Source: CloudWatch Logs user guide, SubscriptionFilters; awslabs/awsome-distributed-ai, hma_cw_bridge.py.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from chalicelib.domain.model.errors import Noise
from chalicelib.domain.model.hardware_ledger import marks_in
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.ingest.evidence import bounded, dedupe_key, digest, minute, one_line
from chalicelib.ingest.fields import INSTANCE_ID, Fields
from chalicelib.ingest.hang_events import hang_in
from rekindle.protocol.signals import FaultClass
from rekindle.protocol.wire import is_deep
from rekindle.signatures.responses import FirstResponse
from rekindle.signatures.xids import fault_of, find_xid, first_response, response_from_text

MAX_DATA_CHARS: Final = 6 * 1024 * 1024  # Source: Lambda quota, the largest payload an invocation may carry
MAX_TEXT_BYTES: Final = 8 * 1024 * 1024  # of the decompressed batch: a bomb stops here, not in memory
MAX_RECORDS: Final = 10_000  # Source: CloudWatch Logs, the most events in one PutLogEvents batch

_TRAINING_JOBS: Final = "/aws/sagemaker/TrainingJobs"
_GROUP: Final = re.compile(r"/aws/sagemaker/Clusters/([A-Za-z0-9-]{1,63})/([a-z0-9]{1,32})")
_STREAM: Final = re.compile(rf"SagemakerHealthMonitoringAgent/([A-Za-z0-9-]{{1,63}})/({INSTANCE_ID.pattern})")
_GZIP: Final = 31  # zlib's window bits for a gzip wrapper

_APP_REASON: Final = "XidUserAppError"
_CONDITION_TRUE: Final = re.compile(r"Node condition (\w{1,64}) is now: True", re.IGNORECASE)
_CONDITION_FALSE: Final = re.compile(r"is now: False", re.IGNORECASE)

# Words in a Reason, Type or node condition that carry the agent's verdict. First match speaks.
# Source: hma_cw_bridge.py and the EKS health labels (…PendingReplacement, NvidiaErrorTerminate, NvidiaErrorReboot).
_VERDICT_WORDS: Final[tuple[tuple[re.Pattern[str], FirstResponse], ...]] = (
    (re.compile(r"replac|terminate", re.IGNORECASE), FirstResponse.REPLACE),
    (re.compile(r"reboot", re.IGNORECASE), FirstResponse.REBOOT),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogSource:
    """Where a batch comes from."""

    cluster: str
    cluster_id: str
    group: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """What one record says. `recommended` is the agent's own verdict; UNKNOWN where it gives none."""

    reason: str
    text: str
    xid: int | None
    recommended: FirstResponse
    is_over: bool = False
    device: str | None = None


def parse(raw: Mapping[str, Any], *, expected_account: str | None = None) -> list[Signal]:
    """The Signals of a batch, at least one.

    Raises:
        MalformedEvent: names the field; also for a batch that is too large, cut short, or another account's.
        Noise: a connection test, or nothing but ordinary log lines (also from any stream but a health agent's or a
            training job's).
    """
    batch = _open(Fields("", raw))
    kind = batch.text("messageType", limit=64)
    if kind == "CONTROL_MESSAGE":
        raise Noise("connection test")
    if kind != "DATA_MESSAGE":
        raise batch.fail("messageType", "must be DATA_MESSAGE or CONTROL_MESSAGE")
    owner = batch.text("owner", limit=12)
    if expected_account is not None and owner != expected_account:
        raise batch.fail("owner", f"is {owner}, which is foreign here")
    log_group, stream = batch.text("logGroup", limit=512), batch.text("logStream", limit=512)
    records = batch.children("logEvents")
    if len(records) > MAX_RECORDS:
        raise batch.fail("logEvents", f"holds more than {MAX_RECORDS} records")
    if log_group == _TRAINING_JOBS:
        from chalicelib.ingest import training_logs

        return training_logs.parse(stream, records)
    group = _GROUP.fullmatch(log_group)
    if group is None:
        raise Noise("ordinary log line")
    source = _source_of(group, stream)
    if source is None:
        found = (_hang(record, stream, cluster=group[1]) for record in records)
    else:
        found = (_signal(record, source) for record in records)
    signals = [signal for signal in found if signal is not None]
    if not signals:
        raise Noise("ordinary log line")
    return signals


def _open(fields: Fields) -> Fields:
    """The batch inside `awslogs.data`."""
    wrapped = fields.child("awslogs")
    data = wrapped.text("data", limit=MAX_DATA_CHARS)
    try:
        packed = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as err:
        raise wrapped.fail("data", "is not base64") from err
    unpacker = zlib.decompressobj(_GZIP)
    try:
        text = unpacker.decompress(packed, MAX_TEXT_BYTES + 1)
    except zlib.error as err:
        raise wrapped.fail("data", "is not gzip") from err
    if len(text) > MAX_TEXT_BYTES:
        raise wrapped.fail("data", f"holds more than {MAX_TEXT_BYTES} bytes")
    if not unpacker.eof:
        raise wrapped.fail("data", "is cut short")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise wrapped.fail("data", "does not hold JSON") from err
    if not isinstance(body, Mapping):
        raise wrapped.fail("data", "must hold an object")
    return Fields("awslogs.data", body, is_lenient=True)


def _hang(record: Fields, stream: str, *, cluster: str) -> Signal | None:
    message = record.optional_text("message", limit=MAX_TEXT_BYTES) or ""
    return hang_in(message, stream, cluster=cluster, at=record.moment("timestamp"))


def _source_of(group: re.Match[str], stream: str) -> _LogSource | None:
    node = _STREAM.fullmatch(stream)
    if node is None:
        return None
    return _LogSource(cluster=group[1], cluster_id=group[2], group=node[1], node=node[2])


def _signal(record: Fields, source: _LogSource) -> Signal | None:
    at = record.moment("timestamp")
    message = record.optional_text("message", limit=MAX_TEXT_BYTES) or ""
    finding = _finding_in(message)
    if finding is None:
        return None
    ours = FirstResponse.UNKNOWN if finding.xid is None else first_response(finding.xid)
    if finding.xid is not None and ours is FirstResponse.FOLLOW_TEXT:
        ours = response_from_text(finding.text)
    fault = _fault(finding)
    subject = finding.xid if finding.xid is not None else digest(finding.text)
    return Signal(
        kind=SignalKind.AGENT_LOG_FAULT,
        source=SignalSource.LOGS,
        occurred_at=at,
        dedupe_key=dedupe_key(
            "hma", source.cluster_id, source.node, finding.reason, subject, finding.device, minute(at)
        ),
        summary=one_line(f"health agent on {source.node}: {finding.reason}{_xid_words(finding)}: {finding.text}"),
        cluster=source.cluster,
        node=source.node,
        fault=fault,
        triggers=fault is FaultClass.NODE_HARDWARE,
        evidence=bounded(
            {
                "reason": finding.reason,
                "xid": finding.xid,
                "recommended": None if finding.recommended is FirstResponse.UNKNOWN else finding.recommended.value,
                "first_response": None if ours is FirstResponse.UNKNOWN else ours.value,
                "group": source.group,
                "device": finding.device,
                "is_over": finding.is_over or None,
                "marks": list(marks_in(finding.text)) or None,
                "text": finding.text,
            }
        ),
    )


def _xid_words(finding: _Finding) -> str:
    return f" (Xid {finding.xid})" if finding.xid is not None else ""


def _fault(finding: _Finding) -> FaultClass | None:
    if finding.is_over:
        return None
    if finding.reason == _APP_REASON:
        return FaultClass.SOFTWARE_CRASH
    if finding.recommended.needs_node_action:
        return FaultClass.NODE_HARDWARE
    if finding.xid is not None:
        return fault_of(finding.xid, finding.text)
    # The agent saw something and asked for nothing: neither healthy nor a reason to act alone.
    return FaultClass.UNCLEAR


def _finding_in(message: str) -> _Finding | None:
    """The health agent's record in a message, or None for any other line."""
    if not message.lstrip().startswith("{"):
        return None
    try:
        body = json.loads(message)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, Mapping) or is_deep(body):
        return None
    record = {str(key).rstrip(": "): value for key, value in body.items()}  # shape (a) writes "condition: "
    for shape in (_eks, _npd, _dcgm):
        finding = shape(record)
        if finding is not None:
            return finding
    return None


def _eks(record: Mapping[str, Any]) -> _Finding | None:
    detail = record.get("Event detail")
    if not isinstance(detail, Mapping):
        return None
    reason = _word(detail, "Reason") or _word(detail, "Type") or "event"
    text = _word(detail, "Message")
    action = _word(detail, "Action").lower()
    recommended = _verdict(action) if action else _verdict(f"{reason} {_word(detail, 'Type')}")
    return _Finding(reason=reason, text=text, xid=find_xid(text), recommended=recommended, device=_device(text))


def _npd(record: Mapping[str, Any]) -> _Finding | None:
    details, condition = record.get("details"), record.get("condition details")
    if isinstance(details, Mapping):
        text = _word(details, "message")
        reason = _word(details, "reason") or "event"
        named = _CONDITION_TRUE.search(text)
        return _Finding(
            reason=reason,
            text=text,
            xid=find_xid(text),
            recommended=_verdict(named[1]) if named else FirstResponse.UNKNOWN,
            is_over=named is None and _CONDITION_FALSE.search(text) is not None,
            device=_device(text),
        )
    if isinstance(condition, Mapping):
        kind = _word(condition, "type") or "condition"
        status = _word(condition, "status")
        text = _word(condition, "message") or f"{kind} is {status or 'not stated'}"
        is_true = status == "True"
        return _Finding(
            reason=kind,
            text=text,
            xid=find_xid(text),
            recommended=_verdict(kind) if is_true else FirstResponse.UNKNOWN,
            is_over=status == "False",
            device=_device(text),
        )
    return None


def _dcgm(record: Mapping[str, Any]) -> _Finding | None:
    marked = record.get("HealthMonitoringAgentDetectionEvent") == "HealthEvent"
    condition = _word(record, "condition")
    if not marked and not (condition and "DCGM" in _word(record, "msg")):
        return None
    data = record.get("data")
    number = data.get("ErrNum") if isinstance(data, Mapping) else None
    is_xid = isinstance(number, int) and not isinstance(number, bool) and "xid" in condition.lower()
    text = f"{_word(record, 'msg').strip()} {json.dumps(data, default=str)[:1000] if data is not None else ''}".strip()
    gpu = (
        next((data[key] for key in ("GpuId", "gpuId", "GPU", "gpu") if key in data), None)
        if isinstance(data, Mapping)
        else None
    )
    return _Finding(
        reason=condition or "HealthEvent",
        text=text,
        xid=number if is_xid and isinstance(number, int) and 0 < number < 1000 else None,
        recommended=FirstResponse.UNKNOWN,
        device=str(gpu)[:64] if isinstance(gpu, str | int) else None,
    )


def _word(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    return value if isinstance(value, str) else ""


def _verdict(words: str) -> FirstResponse:
    return next((stated for pattern, stated in _VERDICT_WORDS if pattern.search(words)), FirstResponse.UNKNOWN)


def _device(text: str) -> str | None:
    """The PCI address a kernel line names, which tells two GPUs of one node apart."""
    found = re.search(r"\(PCI:([0-9a-fA-F:.]{4,20})\)", text)
    return found[1] if found else None
