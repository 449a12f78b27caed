"""A rehearsal beside what really happens: the same course, on a training job and on Slurm."""

from __future__ import annotations

from collections import Counter

from localcloud.worlds.recoveries import Script, crash_at, world
from tests.drills.parts import until_step, writes
from tests.recovery.test_slurm_playbooks import JOB, slurm

_WAITS = ("verify.waiting", "verify.starting", "verify.blind", "attempt.not_listed")


def test_the_rehearsed_recovery_is_the_one_that_happens() -> None:
    """The same decisions, in the same order, as when the fault strikes; and its figures serve the next rehearsal."""
    with world() as made:
        made.submit(scripts=(Script(faults=(crash_at(30, "ValueError: no such label"),)), Script()))
        until_step(made, "lm", 12)
        drills = made.service.drills
        first = drills.start("lm", "software_crash", who="ann", key="first")
        verifying = next(item for item in first["stages"] if item["phase"] == "verifying")
        assert "no earlier recovery has started this Job" in verifying["seconds"]["unknown"]
        assert "verifying" in first["total_s"]["unknown"]
        real = made.recover()
        # How often it waits in between depends on how long a start takes; the course does not.
        course = [rule for rule in made.rules(real) if rule not in (*_WAITS, "notified")]
        assert [look["rule"] for look in first["looks"] if look["rule"] not in _WAITS] == course
        assert first["outcome"]["phase"] == real.phase.value == "recovered"
        assert first["would_do"] == ["ResubmitJob"]
        until_step(made, "lm-r2", 35, job="lm")
        second = drills.start("lm", "software_crash", who="ann", key="second")
        verifying = next(item for item in second["stages"] if item["phase"] == "verifying")
        assert verifying["seconds"]["known"] > 0
        assert second["total_s"]["known"] > 0
        assert any("median of this Job's earlier recoveries" in said for said in second["assumptions"])


def test_on_slurm_it_is_held_and_requeued_and_nothing_is_ordered() -> None:
    with slurm() as s:
        drills = s.w.service.drills
        before = Counter(s.w.cloud.wire.calls)
        for fault in ("hang", "node_hardware", "software_crash"):
            result = drills.start(JOB, fault, who="ann", key=fault)
            assert result["outcome"]["phase"] == "recovered", result["looks"]
            assert result["resume"]["name"] == f"{JOB}.r1"
        assert writes(s.w.cloud.wire.calls - before) == {"dynamodb.PutItem": 3}
        assert s.verbs() == []
        assert s.incidents() == []
