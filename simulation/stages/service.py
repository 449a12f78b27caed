"""The real service over the world's clients: its own composition (chalicelib.bootstrap) and what stands for AWS in it.

A test breaks a part by replacing it before the story is played.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Final

from chalicelib.bootstrap import Service
from chalicelib.config import Settings
from chalicelib.domain.policy.document import Policy
from chalicelib.recovery.workflow import run_recovery
from chalicelib.services.reporting.hardware_ledger import HardwareLedgers
from localcloud.aws.clock import Clock
from localcloud.engine.threads import Context, MemoryExecutions
from localcloud.memory_ports import MemoryHardwareLedger, MemoryMarks, OnePolicy
from simulation.cloud.platform import NoAlarms
from simulation.runs.memory import DiscardedOutcomes, MemoryQuarantine, Tables
from simulation.stories.source_faults import SourceFaults

ACCOUNT: Final = "123456789012"
BUCKET: Final = "mail"  # the stack's own; mailboxes lie there too
STAGE: Final = "rekindle"


class RealService(Service):
    """One stage of Rekindle. `clients` are boto3's, by service; `tables` are in memory."""

    sweep_readers = 1  # a seed plays the same story each time

    def __init__(
        self,
        *,
        clock: Clock,
        source_faults: SourceFaults,
        clients: Mapping[str, Any],
        tables: Tables,
        people: Any,
        policy: Policy,
        stage: str = STAGE,
        bucket: str = BUCKET,
    ) -> None:
        settings = Settings(
            region="us-west-2",
            table="rekindle",
            bus="rekindle",
            bucket=bucket,
            quarantine_url="",
            recover_function="recover",
            account=ACCOUNT,
            stage=stage,
        )
        made: Any = clients.__getitem__
        super().__init__(settings, clock=clock, clients=made)
        self.source_faults = source_faults
        self.policy = policy
        self._tables = tables
        self._people = people
        self.kept_aside = MemoryQuarantine()
        self.reported = DiscardedOutcomes()

    @cached_property
    def store(self) -> Any:
        return self._tables.incidents

    @cached_property
    def registry(self) -> Any:
        return self._tables.jobs

    @cached_property
    def announcer(self) -> Any:
        return self._people

    @cached_property
    def quarantine(self) -> Any:
        return self.kept_aside

    @cached_property
    def policies(self) -> Any:
        return OnePolicy(self.policy)

    @cached_property
    def marks(self) -> Any:
        return MemoryMarks()

    @cached_property
    def alarm_store(self) -> Any:
        return NoAlarms()

    @cached_property
    def hardware_ledgers(self) -> HardwareLedgers:
        return HardwareLedgers(ledger=MemoryHardwareLedger(), clock=self.clock)

    @cached_property
    def observability(self) -> Any:
        return SimpleNamespace(record=self.reported)

    @cached_property
    def executions(self) -> Any:
        clock: Any = self.clock
        return MemoryExecutions(clock, self._recover, self.source_faults.hold)

    def _recover(self, payload: dict[str, Any], context: Context) -> object:
        durable: Any = context
        return run_recovery(payload, durable, look=self.look, perform=self.perform, report=self.reported)
