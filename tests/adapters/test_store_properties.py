"""A storm played on DynamoDB's store and on the fake at once: whatever comes, lost answers too, both end up equal.

The driver behaves as the service does: a call whose answer was lost is made again with the same arguments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from moto import mock_aws

from chalicelib.domain.model.errors import DependencyUnavailable, UnknownEntity, VersionConflict
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.ports.incidents import Entry, IncidentStore, JoinOutcome
from tests.adapters.conftest import Shelf, fake_shelf, real_shelf
from tests.adapters.samples import at, attempt, incident, job, line, signal
from tests.sizes import examples

pytestmark = pytest.mark.long

T = TypeVar("T")
FACTS = st.sampled_from([f"fact-{number}" for number in range(5)])
LOST = st.sampled_from([None, 0, 0, 1])  # after how many calls an answer is lost, if at all
RARELY = st.sampled_from([0, 0, 0, 1])


class Storm(RuleBasedStateMachine):
    """Invariants: equal to the model; one open Incident per Job; each fact in at most one inbox, and never lost."""

    def __init__(self) -> None:
        super().__init__()
        self.moto = mock_aws(config={"core": {"reset_boto3_session": False}})
        self.moto.start()
        self.real: Shelf = real_shelf()
        self.model: Shelf = fake_shelf()
        self.turn = 0
        self.opened: list[str] = []
        self.taken: dict[str, str] = {}

    @initialize()
    def register(self) -> None:
        for shelf in (self.real, self.model):
            shelf.registry.register(job(), attempt())

    def both(self, ask: Callable[[IncidentStore], T], lost: int | None) -> tuple[T | str, T | str]:
        """The real store's answer, asked again while its answers are lost, and the model's."""
        assert self.real.wire is not None
        if lost is not None:
            self.real.wire.lose_answer_after(lost)
        real: T | str
        try:
            real = self.outcome(ask, self.real.store)
        except DependencyUnavailable:
            real = self.outcome(ask, self.real.store)
        self.real.wire.stop_losing()
        return real, self.outcome(ask, self.model.store)

    @staticmethod
    def outcome(ask: Callable[[IncidentStore], T], store: IncidentStore) -> T | str:
        try:
            return ask(store)
        except (VersionConflict, UnknownEntity) as err:
            return type(err).__name__

    @rule(fact=FACTS, lost=LOST)
    def open(self, fact: str, lost: int | None) -> None:
        self.turn += 1
        name = f"inc-{self.turn}"
        real, model = self.both(
            lambda store: store.open(incident(name, opened_s=self.turn), signal(fact), now=at(self.turn)), lost
        )
        self.same_entry(fact, real, model, lost)
        if isinstance(model, Entry) and model.outcome is JoinOutcome.OPENED:
            self.opened.append(name)

    @rule(fact=FACTS, lost=LOST, data=st.data())
    def join(self, fact: str, lost: int | None, data: st.DataObject) -> None:
        if not self.opened:
            return
        name = data.draw(st.sampled_from(self.opened))
        real, model = self.both(lambda store: store.join(name, signal(fact), now=at(self.turn)), lost)
        self.same_entry(fact, real, model, lost)

    def same_entry(self, fact: str, real: Entry | str, model: Entry | str, lost: int | None) -> None:
        assert isinstance(real, Entry)
        assert isinstance(model, Entry)
        assert (real.incident_id, real.generation, real.callback_id) == (
            model.incident_id,
            model.generation,
            model.callback_id,
        )
        if lost is None:
            assert real.outcome is model.outcome
        else:  # the first try's effect stands, so the second may see its own duplicate
            assert real.outcome in (model.outcome, JoinOutcome.DUPLICATE)
        if model.outcome in (JoinOutcome.OPENED, JoinOutcome.JOINED):
            assert fact not in self.taken
            self.taken[fact] = model.incident_id

    @rule(lost=LOST, data=st.data(), stale=st.booleans())
    def look(self, lost: int | None, data: st.DataObject, stale: bool) -> None:
        if not self.opened:
            return
        name = data.draw(st.sampled_from(self.opened))
        generation = self.model.store.load(name).incident.generation - stale
        callback = f"cb-{self.turn}"
        real, model = self.both(
            lambda store: store.look(name, generation=generation, callback_id=callback, look_by=at(self.turn)), lost
        )
        assert real == model

    @rule(lost=LOST, data=st.data(), closing=RARELY, behind=RARELY, missed=RARELY)
    def record(self, lost: int | None, data: st.DataObject, closing: int, behind: int, missed: int) -> None:
        if not self.opened:
            return
        name = data.draw(st.sampled_from(self.opened))
        self.turn += 1
        looked = self.model.store.load(name)
        if not looked.incident.is_open:
            return
        count = max(0, len(looked.inbox) - missed)
        next_one: Incident = looked.incident.absorb(looked.inbox[:count])
        if closing:
            next_one = next_one.enter(Phase.STOPPED, now=at(self.turn))
        arguments: dict[str, Any] = {
            "expected_version": looked.incident.version - behind,
            "token": f"turn-{self.turn}",
            "absorbed": count,
            "entry": line(f"turn {self.turn}", at_s=self.turn),
            "look_by": at(self.turn + 60),
        }
        real, model = self.both(lambda store: store.record(next_one, **arguments), lost)
        assert real == model

    @rule(data=st.data())
    def take_over(self, data: st.DataObject) -> None:
        if not self.opened:
            return
        name = data.draw(st.sampled_from(self.opened))
        generation = self.model.store.load(name).incident.generation
        real, model = self.both(lambda store: store.next_generation(name, generation=generation), None)
        assert real == model

    @rule(lost=LOST, data=st.data())
    def tell(self, lost: int | None, data: st.DataObject) -> None:
        if not self.opened:
            return
        name = data.draw(st.sampled_from(self.opened))
        self.turn += 1
        entry = line(f"told {self.turn}", at_s=self.turn)
        self.both(lambda store: store.append(name, token=f"told-{self.turn}", entry=entry), lost)

    @invariant()
    def the_stores_agree(self) -> None:
        for name in self.opened:
            assert self.real.store.load(name) == self.model.store.load(name)
            assert self.real.store.callback_of(name) == self.model.store.callback_of(name)
        assert list(self.real.store.list_open()) == list(self.model.store.list_open())

    @invariant()
    def a_job_has_one_open_incident_at_most(self) -> None:
        found = [item.incident_id for item, _ in self.real.store.list_open()]
        assert len(found) <= 1
        with contextlib.suppress(UnknownEntity):
            assert self.real.registry.get("lm-7b").open_incident == (found[0] if found else None)

    def teardown(self) -> None:
        try:
            for name in self.opened:
                assert self.real.store.timeline(name) == self.model.store.timeline(name)
                assert self.real.store.load_with_timeline(name) == self.model.store.load_with_timeline(name)
            assert self.real.wire is not None
            assert self.real.wire.calls["Scan"] == 0
        finally:
            self.moto.stop()


TestStorm = Storm.TestCase
TestStorm.settings = settings(
    max_examples=examples(12), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
