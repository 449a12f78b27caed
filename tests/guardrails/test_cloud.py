"""On the embedded cloud, with the whole service: somebody is asked, says yes, and the run comes back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chalicelib.domain.model.incident import Phase
from localcloud.worlds.recoveries import Script, crash_at, world


@pytest.mark.long
def test_asked_approved_recovered_on_the_embedded_cloud() -> None:
    row = {"when": {"actions": ["ResubmitJob"]}, "deadline_s": 7200, "default": "deny"}
    rules = {"approvals": {"rules": [row]}}
    with world(policies={"careful": rules}) as w:
        w.submit(scripts=(Script(faults=(crash_at(45),)),), policy="careful")
        approvals = w.service.approvals
        asked_at = w.cloud.clock.now()

        def asked() -> bool:
            nonlocal asked_at
            if w.cloud.clock.now() - asked_at < timedelta(seconds=60):  # asking the table is the dearest part
                return False
            asked_at = w.cloud.clock.now()
            return bool(approvals.pending())

        w.run_until(asked, limit=timedelta(hours=1))
        (question,) = approvals.pending()
        assert question["what"].startswith("start lm-r2 in place of lm from step 40")
        assert list(w.jobs()) == ["lm"], "nothing is started before somebody has said so"
        w.cloud.clock.run_for(timedelta(minutes=3))
        assert list(w.jobs()) == ["lm"]
        approvals.answer(
            question["incident"]["incident_id"], question["approval_id"], answer="approve", who="ada", key="k"
        )
        incident = w.recover(limit=timedelta(hours=2))
        assert incident.phase is Phase.RECOVERED
        assert list(w.jobs()) == ["lm", "lm-r2"]
        assert incident.approvals[0].by == "ada"
        timeline = w.service.look.store.timeline(incident.incident_id)
        assert any("ada approved" in str(entry.facts.get("signals")) for entry in timeline)
        assert w.rules(incident).count("guard.approval") <= 3, "a quiet wait fills no timeline"


def test_a_run_in_shadow_mode_is_told_of_and_left_as_it_is() -> None:
    with world() as w:
        w.submit(scripts=(Script(faults=(crash_at(45),)),))
        w.cloud.clock.run_for(timedelta(seconds=60))
        w.service.switches.set_shadow("job", "lm", True, who="ada")
        incident = w.recover(limit=timedelta(hours=2))
        assert (incident.phase, incident.outcome) == (Phase.HANDED_OVER, "guard.shadow")
        assert list(w.jobs()) == ["lm"]
