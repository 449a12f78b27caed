"""An Incident across an upgrade and a roll-back: two versions of the bundle on one embedded cloud.

As on AWS, an execution stays on the version of `recover` that it began with; every other function is the new version's
from the deployment on (docs/upgrade.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from chalicelib.domain.model.incident import Incident, Phase
from localcloud.cloud import RECOVER_FUNCTION, Cloud
from localcloud.stack import deploy_rekindle
from localcloud.worlds.recoveries import Script, World, crash_at, freeze_at
from rekindle.protocol.mailbox import ReplyOutcome
from tests.upgrade.bundles import Bundle, Changes, other, own

pytestmark = pytest.mark.long

_NAMES = (f"v{number}" for number in itertools.count())
# What a next version may do: it stores something more with each Incident, and reads it again.
LAST_FIELD = "    repair: NodeRepair | None = None  # on a node's own Incident: what it remembers\n"
NEWER: Changes = {
    "domain/model/incident.py": (
        LAST_FIELD,
        f"{LAST_FIELD}    escalation: int = 0\n\n"
        '    def __post_init__(self) -> None:\n        object.__setattr__(self, "escalation", 1)\n',
    )
}
BEFORE_THE_STOP = (Phase.CHECKPOINTING, Phase.STOPPING)


@dataclass(kw_only=True)
class Stage(World):
    """The world with this checkout's version deployed, and a newer one at hand."""

    ours: Bundle
    newer: Bundle

    def hang(self) -> Incident:
        """A run that hangs; its Incident once the run is being asked or stopped."""
        self.submit(scripts=(Script(faults=(freeze_at(15),), reply=ReplyOutcome.CANNOT), Script()))
        self.run_until(self.reached(*BEFORE_THE_STOP))
        (incident,) = self.incidents()
        assert incident.is_open
        return incident

    def reached(self, *phases: Phase) -> Callable[[], bool]:
        return lambda: any(incident.phase in phases for incident in self.incidents())

    def executions(self) -> list[tuple[str, str]]:
        """(version, status) of each execution of the recovery, oldest first."""
        return [
            (execution.start_input.function_qualifier, str(execution.current_status().value))
            for execution in self.cloud.engine.executions(function=RECOVER_FUNCTION)
        ]

    def lose_execution(self) -> None:
        """End the running execution, as AWS does at its longest time; the sweep starts the next generation."""
        (arn,) = (
            execution.durable_execution_arn
            for execution in self.cloud.engine.executions(function=RECOVER_FUNCTION, statuses=frozenset({"RUNNING"}))
        )
        self.cloud.engine.stop(arn)

    def pages(self) -> list[str]:
        (incident,) = self.incidents()
        return [rule for rule in self.rules(incident) if rule == "incident.newer"]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    newer, ours = other(tmp_path, next(_NAMES), NEWER), own()
    with Cloud() as cloud:
        deploy_rekindle(cloud)
        service = ours.deploy(cloud)  # as version 2: its invocations are noted
        try:
            yield Stage(cloud=cloud, service=service, ours=ours, newer=newer)
        finally:
            ours.close()
            newer.close()


def test_a_recovery_ends_on_the_version_that_it_began_with_beside_the_next_versions_functions(stage: Stage) -> None:
    stage.hang()
    stage.newer.deploy(stage.cloud)
    stage.ours.invoked.clear()
    incident = stage.recover()
    assert (incident.phase, incident.newer) == (Phase.RECOVERED, ""), stage.story()
    assert stage.executions() == [("2", "SUCCEEDED")]
    assert set(stage.ours.invoked) == {"recover"}
    assert "recover" not in stage.newer.invoked
    assert {"sweep", "training_job_event"} <= set(stage.newer.invoked)


def test_the_next_incident_is_recovered_by_the_next_version(stage: Stage) -> None:
    stage.hang()
    stage.newer.deploy(stage.cloud)
    stage.recover()
    stage.submit("other", scripts=(Script(faults=(crash_at(25),)), Script()))
    stage.recover(count=2)
    assert stage.executions() == [("2", "SUCCEEDED"), ("3", "SUCCEEDED")]


def test_an_incident_that_lost_its_execution_in_the_middle_is_continued_by_the_next_version(stage: Stage) -> None:
    before = stage.hang()
    stage.newer.deploy(stage.cloud)
    stage.lose_execution()
    incident = stage.recover()
    assert (incident.incident_id, incident.phase) == (before.incident_id, Phase.RECOVERED), stage.story()
    assert incident.generation == before.generation + 1
    assert stage.executions() == [("2", "STOPPED"), ("3", "SUCCEEDED")]
    assert len(incident.resubmission.tries) == 1
    assert stage.spent()["attempts"] == 1


def test_after_a_roll_back_a_recovery_of_the_newer_version_ends_on_that_version(stage: Stage) -> None:
    stage.newer.deploy(stage.cloud)
    stage.hang()
    stage.ours.deploy(stage.cloud)
    incident = stage.recover()
    assert incident.phase is Phase.RECOVERED, stage.story()
    assert stage.executions() == [("3", "SUCCEEDED")]


def test_after_a_roll_back_an_incident_with_unknown_fields_is_handed_over_once(stage: Stage) -> None:
    stage.newer.deploy(stage.cloud)
    stage.hang()
    stage.ours.deploy(stage.cloud)
    stage.lose_execution()
    incident = stage.recover()
    assert incident.phase is Phase.HANDED_OVER, stage.story()
    assert stage.pages() == ["incident.newer"]
    assert stage.executions() == [("3", "STOPPED"), ("4", "SUCCEEDED")]
    assert stage.jobs().keys() == {"lm"}  # nothing was submitted by a version that does not know all
    stage.cloud.clock.run_until(lambda: False, limit=timedelta(minutes=10))
    assert stage.pages() == ["incident.newer"]
