"""How a step's result is laid down in a durable execution: as JSON, or compressed where it is long."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any, Final

from aws_durable_execution_sdk_python.serdes import SerDes, SerDesContext

# Shorter ones stay readable in the execution's history.
PLAIN_BYTES: Final = 16 * 1024
_COMPRESSED: Final = "zlib85:"


class CompressedJson(SerDes[Any]):
    """JSON, compressed above PLAIN_BYTES.

    A look returns the Incident and what it saw, with up to MAX_INBOX + ORDERS_EXTRA new Signals and the
    MAX_KEPT_SIGNALS that the Incident holds. As plain JSON that reaches 680 kB; Lambda takes 256 KB per result and
    100 MB per execution (Lambda quotas). Each of these Signals has at most MAX_SIGNAL_BYTES when compressed alone, so
    that together they stay below 210 kB in this form.
    """

    def serialize(self, value: Any, _: SerDesContext) -> str:
        """The result as text."""
        plain = json.dumps(value, separators=(",", ":"))
        if len(plain) <= PLAIN_BYTES:
            return plain
        return _COMPRESSED + base64.b85encode(zlib.compress(plain.encode(), 6)).decode()

    def deserialize(self, data: str, _: SerDesContext) -> Any:
        """Inverse of `serialize`."""
        if data.startswith(_COMPRESSED):
            return json.loads(zlib.decompress(base64.b85decode(data[len(_COMPRESSED) :])))
        return json.loads(data)
