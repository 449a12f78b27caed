"""Bytes in the store's JSON: `{"__bytes__": "hex"}`."""

from __future__ import annotations

from typing import Any


def with_bytes(value: Any) -> Any:
    """A copy with each such object as bytes again."""
    if isinstance(value, dict):
        if set(value) == {"__bytes__"}:
            return bytes.fromhex(value["__bytes__"])
        return {key: with_bytes(inner) for key, inner in value.items()}
    return [with_bytes(inner) for inner in value] if isinstance(value, list) else value
