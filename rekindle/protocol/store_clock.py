"""How old an object in S3 is by S3's own clock. No other host's clock is compared with it. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any


def age_s(answer: Mapping[str, Any]) -> float:
    """Seconds between the writing of an object and S3's answer to GetObject; 0 where the answer does not tell.

    answer: as botocore gives it. Source: RFC 9110, fields Date and Last-Modified, both of whole seconds
    """
    written_at = answer.get("LastModified")
    stated = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    if written_at is None or stated is None:
        return 0.0
    try:
        return max(0.0, float((parsedate_to_datetime(stated) - written_at).total_seconds()))
    except (TypeError, ValueError):  # no date, or one without a zone
        return 0.0
