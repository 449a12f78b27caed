"""What people write and ask for: policies, prices, answers that are remembered, the hardware ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from chalicelib.domain.model.hardware_ledger import HardwareFault, HardwareRecord
    from chalicelib.domain.policy.document import Policy
    from chalicelib.domain.reporting.prices import Prices


class Policies(Protocol):
    """Policy documents."""

    def load(self, name: str) -> Policy:
        """Raises UnknownEntity, InvalidPolicy. "default" always exists: the built-in one where none is stored."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPolicy:
    """A policy document as it is stored. `version` counts its writings from 1."""

    name: str
    version: int
    text: str
    modified_at: datetime | None


class PolicyDocumentStore(Protocol):
    """Where policy documents are kept, for those who edit them."""

    def listing(self) -> tuple[StoredPolicy, ...]:
        """Every stored document, by name."""
        ...

    def stored(self, name: str) -> StoredPolicy | None:
        """None where nothing is stored under that name."""
        ...

    def write(self, name: str, text: str, *, replaces: int, now: datetime) -> StoredPolicy:
        """Store `text` in place of version `replaces` (0: nothing is stored yet).

        Raises:
            Outdated: another version is there.
            VersionConflict: another writer is writing this document now.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierOrder:
    """What is known of an order's key. `answer` is what it was answered, None where that never came to be."""

    same: bool
    answer: Mapping[str, Any] | None = None


class AnswerMemory(Protocol):
    """The memory of orders that were given with a key."""

    def begin(self, key: str, *, fingerprint: str, now: datetime) -> EarlierOrder | None:
        """Note that the order `key` begins. None: it is new; else what is known, `same` if it asked for the same."""
        ...

    def finish(self, key: str, *, answer: Mapping[str, Any]) -> None:
        """Keep what the order was answered."""
        ...


class PriceList(Protocol):
    """What hours of instances cost."""

    def load(self) -> Prices:
        """The user's table; the shipped one where none is stored. One that cannot be used prices nothing."""
        ...


class HardwareLedger(Protocol):
    """What single pieces of hardware have had, by their marks (domain/model/hardware_ledger.py)."""

    def add(self, mark: str, fault: HardwareFault) -> HardwareRecord:
        """Add one fault; the same Incident's twice counts once. The record as it is then."""
        ...

    def read(self, marks: Sequence[str]) -> tuple[HardwareRecord, ...]:
        """The records that exist."""
        ...

    def listing(self, *, limit: int, repeated_only: bool) -> tuple[HardwareRecord, ...]:
        """Records with more than one fault, then the others; each by its newest fault, newest first. An index query."""
        ...
