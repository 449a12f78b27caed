"""Standard Webhooks: how a request is signed, for what we send and for what we take in. Pure.

Source: standardwebhooks.com, specification, "Signature scheme": HMAC-SHA256 over `id.timestamp.payload`, base64, as
`v1,<signature>`; several signatures stand in one header with spaces between; secrets are `whsec_` and base64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

from chalicelib.domain.model.errors import InvalidSettings

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
TOLERANCE_S: Final = 300  # how far a timestamp may lie from now
MIN_SECRET_BYTES: Final = 16
_PREFIX: Final = "whsec_"


def key_of(secret: str, *, name: str) -> bytes:
    """The key in a secret: the bytes after `whsec_`, or the text itself where it has no such beginning.

    Raises:
        InvalidSettings: it is too short to be one, or not base64. The message names the secret, and never holds it.
    """
    try:
        key = base64.b64decode(secret[len(_PREFIX) :], validate=True) if secret.startswith(_PREFIX) else secret.encode()
    except (binascii.Error, ValueError):
        raise InvalidSettings(f"secrets.{name}", "is not base64 after its beginning `whsec_`") from None
    if len(key) < MIN_SECRET_BYTES:
        raise InvalidSettings(f"secrets.{name}", f"is shorter than {MIN_SECRET_BYTES} bytes")
    return key


def sign(key: bytes, *, message_id: str, timestamp: str, body: bytes) -> str:
    """One signature, as it stands in the header."""
    content = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()


def is_signed(key: bytes, *, message_id: str, timestamp: str, body: bytes, header: str) -> bool:
    """True where one of the header's signatures is ours; compared in constant time."""
    wanted = sign(key, message_id=message_id, timestamp=timestamp, body=body).encode()
    # A list, not a generator: every one is compared, whichever fits.
    return any([hmac.compare_digest(wanted, given.encode()) for given in header.split(" ")[:8]])


def message_id_of(token: str, channel: str) -> str:
    """The id of a notice on one channel: the same at every attempt. No full stops: they part what is signed."""
    return "msg_" + hashlib.sha256(f"{channel}|{token}".encode()).hexdigest()[:40]
