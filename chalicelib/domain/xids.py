"""The Xid table. It stands in `rekindle.signatures`, which the training side shares."""

from __future__ import annotations

from rekindle.signatures.responses import FirstResponse
from rekindle.signatures.xids import (
    CONFLICTED,
    XID_FAULTS,
    XidFault,
    fault_of,
    find_xid,
    first_response,
    response_from_text,
)

__all__ = [
    "CONFLICTED",
    "XID_FAULTS",
    "FirstResponse",
    "XidFault",
    "fault_of",
    "find_xid",
    "first_response",
    "response_from_text",
]
