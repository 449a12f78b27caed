"""Small ports of the service in memory, for the replay, the simulation, tests and measurements."""

from __future__ import annotations

from collections.abc import Sequence

from chalicelib.domain.model.hardware_ledger import HardwareFault, HardwareRecord
from chalicelib.domain.policy.document import Policy
from chalicelib.ports.sweep import SweepMark


class OnePolicy:
    """Policies: whatever is asked for, the policy on trial."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def load(self, name: str) -> Policy:  # noqa: ARG002  the port's own name
        """The policy on trial."""
        return self._policy


class MemoryMarks:
    """ports.SweepMarks in memory."""

    def __init__(self) -> None:
        self.mark = SweepMark()

    def load(self) -> SweepMark:
        return self.mark

    def save(self, mark: SweepMark) -> None:
        self.mark = mark


class MemoryHardwareLedger:
    """ports.HardwareLedger in memory."""

    def __init__(self) -> None:
        self.records: dict[str, HardwareRecord] = {}

    def add(self, mark: str, fault: HardwareFault) -> HardwareRecord:
        self.records[mark] = self.records.get(mark, HardwareRecord(mark=mark)).with_fault(fault)
        return self.records[mark]

    def read(self, marks: Sequence[str]) -> tuple[HardwareRecord, ...]:
        return tuple(self.records[mark] for mark in dict.fromkeys(marks) if mark in self.records)

    def listing(self, *, limit: int, repeated_only: bool) -> tuple[HardwareRecord, ...]:
        found = [record for record in self.records.values() if len(record.faults) > 1 or not repeated_only]
        found.sort(key=lambda record: (len(record.faults) > 1, record.faults[-1].at, record.mark), reverse=True)
        return tuple(found[:limit])
