"""The hardware ledger in memory, which can be out of reach."""

from __future__ import annotations

from collections.abc import Sequence

from chalicelib.domain.model.errors import DependencyUnavailable
from chalicelib.domain.model.hardware_ledger import HardwareRecord
from localcloud.memory_ports import MemoryHardwareLedger


class FakeHardwareLedger(MemoryHardwareLedger):
    """`is_blind`: nothing can be read."""

    def __init__(self) -> None:
        super().__init__()
        self.is_blind = False

    def read(self, marks: Sequence[str]) -> tuple[HardwareRecord, ...]:
        self._fail()
        return super().read(marks)

    def listing(self, *, limit: int, repeated_only: bool) -> tuple[HardwareRecord, ...]:
        self._fail()
        return super().listing(limit=limit, repeated_only=repeated_only)

    def _fail(self) -> None:
        if self.is_blind:
            raise DependencyUnavailable("no answer")
