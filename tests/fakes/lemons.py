"""The lemon ledger in memory, by the rules of ports.LemonLedger."""

from __future__ import annotations

from collections.abc import Sequence

from chalicelib.domain.errors import DependencyUnavailable
from chalicelib.domain.lemons import HardwareFault, HardwareRecord


class FakeLemons:
    """Keeps records in a dict."""

    def __init__(self) -> None:
        self.records: dict[str, HardwareRecord] = {}
        self.is_blind = False  # nothing can be read

    def add(self, mark: str, fault: HardwareFault) -> HardwareRecord:
        self.records[mark] = self.records.get(mark, HardwareRecord(mark=mark)).with_fault(fault)
        return self.records[mark]

    def read(self, marks: Sequence[str]) -> tuple[HardwareRecord, ...]:
        self._fail()
        return tuple(self.records[one] for one in dict.fromkeys(marks) if one in self.records)

    def listing(self, *, limit: int, repeated_only: bool) -> tuple[HardwareRecord, ...]:
        self._fail()
        found = [one for one in self.records.values() if len(one.faults) > 1 or not repeated_only]
        found.sort(key=lambda one: (len(one.faults) > 1, one.faults[-1].at, one.mark), reverse=True)
        return tuple(found[:limit])

    def _fail(self) -> None:
        if self.is_blind:
            raise DependencyUnavailable("no answer")
