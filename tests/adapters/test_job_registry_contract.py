"""ports.JobRegistry's contract, over the fake and over DynamoDB."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chalicelib.domain.model.errors import UnknownEntity, VersionConflict
from chalicelib.domain.model.incident import SkipWindow
from chalicelib.domain.model.job import NewestSave
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.platforms.slurm.platform import SLURM
from chalicelib.ports.jobs import JobRegistry
from tests.adapters.conftest import Shelf
from tests.adapters.samples import T0, at, attempt, incident, job, signal


@pytest.fixture
def registry(shelf: Shelf) -> JobRegistry:
    return shelf.registry


def test_a_registered_job_is_found_by_its_id_and_by_its_attempts_name(registry: JobRegistry) -> None:
    assert registry.register(job(), attempt()) == job()
    assert registry.get("lm-7b") == job()
    assert registry.job_of_attempt("lm-7b") == "lm-7b"
    assert registry.attempts("lm-7b") == (attempt(),)
    assert registry.job_of_attempt("nobody") is None
    assert registry.attempts("nobody") == ()


def test_many_jobs_are_read_together_and_those_that_nobody_registered_are_left_out(shelf: Shelf) -> None:
    names = [f"lm-{number:03}" for number in range(20)]
    strangers = [f"no-{number:03}" for number in range(100)]  # a read takes 100 keys
    for name in names:
        shelf.registry.register(job(name), attempt(of=name, name=name))
    assert shelf.registry.count_active() == len(names)
    if shelf.wire is not None:
        shelf.wire.reset()
    found = shelf.registry.known([*names[:10], *strangers, *names[10:], names[0]])
    assert sorted(found) == names
    assert found["lm-007"] == job("lm-007")
    assert shelf.registry.known([]) == {}
    if shelf.wire is not None:
        assert dict(shelf.wire.calls) == {"BatchGetItem": 2}


def test_a_slurm_job_keeps_its_limits_and_only_its_maker_is_told_that_it_is_new(registry: JobRegistry) -> None:
    made = job(
        "slurm.ml.123", platform=SLURM.name, cluster="ml", limits=("it is an array job", "Requeue=0"), attempt_number=2
    )
    first = attempt(2, of="slurm.ml.123", name="slurm.ml.123.r1")
    assert registry.register(made, first) is made
    assert registry.get("slurm.ml.123") == made
    assert registry.attempts("slurm.ml.123") == (first,)
    again = replace(made)
    assert registry.register(again, first) == made
    assert registry.register(again, first) is not again


def test_registering_again_returns_the_job_as_it_is(registry: JobRegistry) -> None:
    registry.register(job(), attempt())
    registry.add_attempt(job(), attempt(2), now=at(100))
    assert registry.register(job(policy_name="other"), attempt()).current_attempt == "lm-7b-r2"
    assert registry.get("lm-7b").policy_name == "default"


def test_an_attempt_that_belongs_to_a_job_makes_no_second_job(registry: JobRegistry) -> None:
    registry.register(job(), attempt())
    taken = attempt(1, of="other", name="lm-7b")
    assert registry.register(job("other"), taken).job_id == "lm-7b"
    with pytest.raises(UnknownEntity):
        registry.get("other")


def test_a_new_attempt_becomes_the_current_one_and_supersedes_the_old(registry: JobRegistry) -> None:
    registry.register(job(), attempt())
    second = attempt(
        2, incident_id="inc-a", resume_step=Known(120), went_back=True, skips=(SkipWindow(from_step=121, to_step=140),)
    )
    updated = registry.add_attempt(job(), second, now=at(100))
    assert (updated.current_attempt, updated.attempt_number, updated.attempt_started_at, updated.version) == (
        "lm-7b-r2",
        2,
        second.submitted_at,
        1,
    )
    assert registry.get("lm-7b") == updated
    assert registry.attempts("lm-7b") == (replace(attempt(), superseded_at=at(100)), second)
    assert registry.job_of_attempt("lm-7b-r2") == "lm-7b"


def test_adding_the_current_attempt_again_changes_nothing(registry: JobRegistry) -> None:
    registry.register(job(), attempt())
    updated = registry.add_attempt(job(), attempt(2), now=at(100))
    assert registry.add_attempt(job(), attempt(2), now=at(200)) == updated
    assert registry.add_attempt(updated, attempt(2), now=at(200)) == updated
    assert [item.superseded_at for item in registry.attempts("lm-7b")] == [at(100), None]


def test_two_who_add_different_attempts_cannot_both_win(registry: JobRegistry) -> None:
    registry.register(job(), attempt())
    registry.add_attempt(job(), attempt(2), now=at(100))
    with pytest.raises(VersionConflict):
        registry.add_attempt(job(), replace(attempt(2), name="lm-7b-other"), now=at(100))
    assert registry.job_of_attempt("lm-7b-other") is None


def test_attempts_stay_in_order_beyond_nine(registry: JobRegistry) -> None:
    registry.register(job(), attempt())
    current = job()
    for number in range(2, 13):
        current = registry.add_attempt(current, attempt(number), now=at(number))
    assert [item.number for item in registry.attempts("lm-7b")] == list(range(1, 13))


def test_updating_an_attempt_never_wipes_out_a_step_that_is_known(registry: JobRegistry) -> None:
    registry.register(job(), attempt())
    known = replace(attempt(), status="running", first_step=Known(1), last_step=Known(50))
    registry.update_attempt(known)
    ended = replace(attempt(), status="failed", last_step=Unknown("the heartbeat is unreadable"), ended_at=at(70))
    registry.update_attempt(ended)
    (stored,) = registry.attempts("lm-7b")
    assert (stored.status, stored.first_step, stored.last_step) == ("failed", Known(1), Known(50))
    assert stored.ended_at == at(70)
    registry.update_attempt(attempt())  # nothing known: nothing changed
    assert registry.attempts("lm-7b") == (stored,)


def test_what_an_update_knows_of_an_attempt_is_kept(registry: JobRegistry) -> None:
    registry.register(job(), attempt())
    newer = replace(
        attempt(),
        status="failed",
        first_step=Known(0),
        last_step=Known(5),
        ended_at=at(70),
        superseded_at=at(80),
        began=True,
        died_before_step=True,
    )
    registry.update_attempt(newer)
    assert registry.attempts("lm-7b") == (newer,) == (attempt().updated(newer),)


def test_updating_an_attempt_that_is_not_registered_is_refused(registry: JobRegistry) -> None:
    registry.register(job(), attempt())
    with pytest.raises(UnknownEntity):
        registry.update_attempt(replace(attempt(2), status="running"))
    with pytest.raises(UnknownEntity):
        registry.update_attempt(replace(attempt(), name="somebody-else", status="running"))


def test_what_each_look_begins_with_is_read_together(registry: JobRegistry) -> None:
    registry.register(job("a"), attempt(of="a"))
    registry.set_paused(True, who="ada", now=at(1))
    standing = registry.standing("a")
    assert (standing.switches, standing.job) == (registry.switches(), registry.get("a"))
    assert standing.switches.paused
    assert registry.standing(None).job is None
    with pytest.raises(UnknownEntity):
        registry.standing("not-registered")


def test_the_sweep_sees_active_jobs_only(registry: JobRegistry) -> None:
    for name in ("a", "b", "c"):
        registry.register(job(name), attempt(of=name))
    registry.deactivate("b", ended_at=at(1))
    registry.deactivate("b", ended_at=at(2))
    assert [item.job_id for item in registry.active()] == ["a", "c"]
    registry.add_attempt(registry.get("b"), attempt(2, of="b"), now=at(3))
    assert [item.job_id for item in registry.active()] == ["a", "b", "c"]
    with pytest.raises(UnknownEntity):
        registry.deactivate("unknown", ended_at=T0)


def test_that_a_job_has_saved_stays_known(registry: JobRegistry) -> None:
    registry.register(job("a"), attempt(of="a"))
    assert registry.get("a").newest_save is None
    save = NewestSave(attempt="a", step=40)
    registry.note_save("a", save)
    registry.note_save("a", save)
    assert registry.get("a").newest_save == save
    assert registry.add_attempt(registry.get("a"), attempt(2, of="a"), now=at(3)).newest_save == save
    assert registry.get("a").newest_save == save
    with pytest.raises(UnknownEntity):
        registry.note_save("unknown", save)


def test_who_halted_a_job_stays_known_until_it_goes_on(registry: JobRegistry) -> None:
    registry.register(job("a"), attempt(of="a"))
    registry.deactivate("a", ended_at=at(1), halted_by="ada")
    registry.deactivate("a", ended_at=at(2))  # its late end is news of the same
    assert (registry.get("a").halted_by, registry.get("a").active) == ("ada", False)
    added = registry.add_attempt(registry.get("a"), attempt(2, of="a"), now=at(3))
    assert (added.halted_by, added.active) == ("", True)
    assert (registry.get("a").halted_by, registry.get("a").active) == ("", True)
    registry.register(replace(job("b"), halted_by="bob"), attempt(of="b"))
    assert registry.get("b").halted_by == "bob"


def test_an_open_incident_survives_changes_of_the_job(shelf: Shelf) -> None:
    shelf.registry.register(job(), attempt())
    shelf.store.open(incident(), signal(), now=T0)
    shelf.registry.add_attempt(shelf.registry.get("lm-7b"), attempt(2), now=at(3))
    shelf.registry.deactivate("lm-7b", ended_at=at(4))
    stored = shelf.registry.get("lm-7b")
    assert (stored.open_incident, stored.active, stored.attempt_number) == ("inc-a", False, 2)


def test_the_pause_is_global_and_can_be_lifted(registry: JobRegistry) -> None:
    assert not registry.is_paused()
    registry.set_paused(True, who="ann", now=T0)
    assert registry.is_paused()
    registry.set_paused(False, who="ben", now=at(5))
    assert not registry.is_paused()


def test_where_the_checkpoints_lie_is_kept(shelf: Shelf) -> None:
    shelf.registry.register(job("lm-c", checkpoints="s3://training/ckpt/lm-c"), attempt(of="lm-c"))
    assert shelf.registry.get("lm-c").checkpoints == "s3://training/ckpt/lm-c"
