"""Which key of KMS encrypts what S3 stores here, as moto knows it."""

from __future__ import annotations

from typing import Any

from moto.s3.models import s3_backends

from localcloud.aws.authorization import ACCOUNT_ID


def _bucket(name: str) -> Any:
    return s3_backends[ACCOUNT_ID]["aws"].buckets.get(name)


def key_of_bucket(name: str) -> str | None:
    """The ARN of the key that new objects of the bucket are encrypted with; None with S3's own keys."""
    bucket = _bucket(name)
    rule = (bucket.encryption or {}).get("Rule", {}) if bucket is not None else {}
    default = rule.get("ApplyServerSideEncryptionByDefault", {})
    return default.get("KMSMasterKeyID") if str(default.get("SSEAlgorithm", "")).startswith("aws:kms") else None


def key_of_object(bucket: str, key: str) -> str | None:
    """The ARN of the key that the object is encrypted with; None with S3's own keys, or where there is no object."""
    holder = _bucket(bucket)
    found = holder.keys.get(key) if holder is not None else None
    return found.kms_key_id if found is not None and str(found.encryption or "").startswith("aws:kms") else None
