"""Hashes by which values of two environments are compared. They stand in the cluster state, and the key does not.

The key lies in the agent's own state on the head node, which its user alone can read: without it a short or guessable
secret could be found by trying. A hash of another head node's key tells nothing, and is no difference.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

from rekindle.slurm_agent.base.ports import Memory

KEPT_AS: Final = "hash-key"
_KEY_BYTES: Final = 32


class ValueHashes:
    """memory: what holds the key; None for one that ends with this process (tests of one part)."""

    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory
        kept = memory.items(KEPT_AS).get(KEPT_AS) if memory is not None else None
        self._key = kept or secrets.token_bytes(_KEY_BYTES)
        self._is_kept = kept is not None
        self._name = hmac.digest(self._key, b"", hashlib.sha256).hex()[:8]

    def of(self, name: str, given: str) -> str:
        """With the key's own name before it."""
        raw = f"{name}\0{given}".encode("utf-8", "surrogateescape")
        return f"{self._name}:{hmac.digest(self._key, raw, hashlib.sha256).hex()[:32]}"

    def key_to_keep(self) -> bytes | None:
        """The key, until the memory holds it."""
        if not self._is_kept and self._memory is not None:
            self._is_kept = KEPT_AS in self._memory.items(KEPT_AS)
        return None if self._is_kept else self._key


def surely_differ(one: str, other: str) -> bool:
    """Hashes of two keys may be of the same value. Empty: there is no value."""
    if not one or not other:
        return one != other
    return one.partition(":")[0] == other.partition(":")[0] and one != other


OF_THIS_PROCESS: Final = ValueHashes()
