"""S3 Object Created in the mailbox bucket (aws.s3, best effort): a reply or a manifest has arrived.

    {"detail-type": "Object Created", "source": "aws.s3", "resources": ["arn:aws:s3:::rekindle-mailbox"],
     "detail": {"version": "0", "bucket": {"name": "rekindle-mailbox"}, "reason": "PutObject",
      "object": {"key": "jobs/lm-7b/rekindle/replies/r-0001.json", "size": 412, "etag": "…", "sequencer": "…"}}}

A replay learns from it which checkpoints a recorded run had. The service has no rule for it: a monitor sends its
replies itself, and manifests are read at each look.

Only the key is read; the object itself is untrusted and is read where it is needed. In EventBridge's form the key is
not URL-encoded (in S3's own notifications it is).

Source: Amazon S3 user guide, ev-events.
"""

from __future__ import annotations

import re
from typing import Final

from chalicelib.domain.model.errors import NotOurs
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.ingest.envelope import Envelope
from chalicelib.ingest.evidence import bounded, dedupe_key, one_line
from rekindle.protocol.mailbox import KeyKind, parse_key

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def parse(envelope: Envelope, *, expected_bucket: str | None = None) -> Signal:
    """Kind CHECKPOINT_REPLY, never a trigger. `attempt` is named only by a manifest's key.

    `evidence` holds `bucket`, `key`, `prefix` (the Job's own), `object` (reply, manifest), and `request_id` or `step`.

    Raises:
        MalformedEvent: names the field.
        NotOurs: another bucket, or a key that is neither a reply nor a manifest.
    """
    bucket = envelope.detail.child("bucket").text("name", pattern=_BUCKET)
    item = envelope.detail.child("object")
    key_text = item.text("key", limit=1024)
    size = item.optional_whole("size")
    version = item.optional_text("etag", limit=256) or item.optional_text("sequencer", limit=256)
    if expected_bucket is not None and bucket != expected_bucket:
        raise NotOurs("another bucket")
    key = parse_key(key_text)
    if key is None or key.kind not in (KeyKind.REPLY, KeyKind.MANIFEST):
        raise NotOurs("not a mailbox key")
    is_reply = key.kind is KeyKind.REPLY
    return Signal(
        kind=SignalKind.CHECKPOINT_REPLY,
        source=SignalSource.MONITOR,
        occurred_at=envelope.time,
        dedupe_key=dedupe_key("mailbox", bucket, key_text, version),
        summary=one_line(
            f"reply to {key.name} has arrived" if is_reply else f"{key.name} wrote the manifest of step {key.step}"
        ),
        attempt=None if is_reply else key.name,
        fault=None,
        triggers=False,
        evidence=bounded(
            {
                "object": key.kind.value,
                "bucket": bucket,
                "prefix": key.prefix,
                "key": key_text,
                "request_id": key.name if is_reply else None,
                "step": key.step,
                "bytes": size,
            }
        ),
    )
