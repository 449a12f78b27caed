"""A document of people's as Parameter Store takes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

MAX_BYTES: Final = 8192  # Source: Parameter Store, size of an advanced parameter


class TooLong(ValueError):
    """The document does not fit; the text says by how much."""


def stored_text(document: Mapping[str, Any]) -> str:
    """JSON of ASCII, of the same meaning, without two opening braces beside each other.

    Those begin a reference to another parameter, which no value may hold. Source: Parameter Store, PutParameter, Value.
    They stand inside of JSON's texts only, where an escape means the same.

    Raises:
        TooLong: more than MAX_BYTES.
    """
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True).replace("{{", "{\\u007b")
    if len(text) > MAX_BYTES:
        raise TooLong(f"is {len(text)} bytes as it is stored, {MAX_BYTES} at most")
    return text
