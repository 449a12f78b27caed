"""Hashes by which values of two environments are compared. They stand in the cluster state, and the key does not.

The key is that of the kept specs, which the agent's user alone can read: without it a short or guessable secret could
be found by trying. A hash of another key tells nothing, and is no difference.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from typing import Final


class ValueHashes:
    """key: asked each time; another head node may have made the one that counts."""

    def __init__(self, key: Callable[[], bytes]) -> None:
        self._key = key

    def of(self, name: str, given: str) -> str:
        """With the key's own name before it."""
        key = self._key()
        raw = f"{name}\0{given}".encode("utf-8", "surrogateescape")
        return f"{hmac.digest(key, b'', 'sha256').hex()[:8]}:{hmac.digest(key, raw, 'sha256').hex()[:32]}"


def surely_differ(one: str, other: str) -> bool:
    """Hashes of two keys may be of the same value. Empty: there is no value."""
    if not one or not other:
        return one != other
    return one.partition(":")[0] == other.partition(":")[0] and one != other


_KEY: Final = secrets.token_bytes(32)
OF_THIS_PROCESS: Final = ValueHashes(lambda: _KEY)
