"""A decision is written down before it is carried out: what another writer kept out of the table is not done."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from chalicelib.domain.model.incident import Phase, TimelineEntry
from localcloud.worlds.recoveries import World, world
from localcloud.worlds.scenarios import SCENARIOS


class Rival:
    """Writes the Incident after every other observation, before the workflow writes what it has decided."""

    def __init__(self, w: World) -> None:
        self.world = w
        self.observed = self.written = 0
        self.done_unrecorded: list[str] = []
        self._lost: tuple[str, tuple[int, ...]] | None = None
        w.cloud.engine.hook(after=self.hook)

    def hook(self, _arn: str, updates: Any) -> None:
        for update in updates:
            name = str(getattr(update, "name", "") or "")
            if name.startswith("observe-") and update.action.value == "SUCCEED":
                self.next_observation(name)

    def next_observation(self, name: str) -> None:
        if self._lost is not None and self.effects() != self._lost[1]:
            self.done_unrecorded.append(self._lost[0])
        self._lost = None
        self.observed += 1
        if self.observed % 2 and self.write():
            self._lost = (name, self.effects())

    def effects(self) -> tuple[int, ...]:
        """Starts, stops, and requests for a checkpoint so far."""
        calls, spent = self.world.cloud.wire.calls, self.world.spent()
        return calls["sagemaker.CreateTrainingJob"], calls["sagemaker.StopTrainingJob"], spent["requests"]

    def write(self) -> bool:
        store = self.world.service.look.store
        incident = next((one for one, _ in store.list_open()), None)
        if incident is None:
            return False
        now = self.world.cloud.clock.now()
        self.written += 1
        store.record(
            incident,
            expected_version=incident.version,
            token=f"rival-{self.written}",
            absorbed=0,
            entry=TimelineEntry(at=now, phase=incident.phase, rule="rival", text="wrote first", actions=()),
            look_by=None,
        )
        return True


@pytest.mark.parametrize("name", ["crash", *(pytest.param(name, marks=pytest.mark.long) for name in ("hang", "nan"))])
def test_what_could_not_be_written_down_is_not_done(name: str) -> None:
    with world(max_failed_attempts=5) as w:
        SCENARIOS[name](w)
        rival = Rival(w)
        w.recover()
        assert rival.written > 1, w.story()
        assert rival.done_unrecorded == [], w.story()


class Lines(logging.Handler):
    """The service's own log lines, as `what` they are."""

    def __init__(self) -> None:
        super().__init__()
        self.whats: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "incident_id", None) is not None:
            self.whats.append(str(getattr(record, "what", "")))


def test_an_incident_is_reported_closed_once_and_when_it_is() -> None:
    lines = Lines()
    with world() as w:
        logger = w.service.observability.logger
        logger.addHandler(lines)
        SCENARIOS["crash"](w)
        incident = w.recover()
        logger.removeHandler(lines)
        story = w.story()
    assert incident.phase is Phase.RECOVERED
    decisions = [one for one in lines.whats if one in ("decided", "closed")]
    assert len(decisions) > 3, story
    assert decisions == ["decided"] * (len(decisions) - 1) + ["closed"]
