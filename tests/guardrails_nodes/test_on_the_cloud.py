"""What people order, end to end in virtual time on the embedded cloud: real handlers, table, queues and both views."""

from __future__ import annotations

import pytest

from chalicelib.domain.model.incident import Phase
from tests.recovery.test_node_repair import JOB, Pod, pod


def order_replacement(p: Pod) -> None:
    outcome = p.w.service.orders.repair_node("ml", p.node, do="replace", who="ada", key="k1", why="noisy fan")
    assert outcome.incident_id is not None


@pytest.mark.long
def test_an_ordered_replacement_saves_the_run_first_moves_it_and_only_then_takes_the_machine() -> None:
    with pod() as p:
        order_replacement(p)
        p.until(p.w.closed(2))
        (incident,) = p.of_node()
        story = p.w.story()
        assert (incident.phase, incident.outcome) == (Phase.RECOVERED, "return.done"), story
        assert p.calls("BatchReplaceClusterNodes") == 1
        assert p.facts.instance_id != p.old
        (of_job,) = [incident for incident in p.w.incidents() if incident.job_id == JOB]
        assert of_job.phase is Phase.RECOVERED, story
        assert of_job.halt.ask is not None
        assert of_job.halt.ask.outcome == "saved"
        assert (of_job.order or {})["who"] == "ada"
        assert "order.move_saved" in p.w.rules(of_job)
        rules = p.w.rules(incident)
        wanted = ("node.cordon", "drain.move", "repair.replace", "return.done")
        assert tuple(rule for rule in rules if rule in wanted) == wanted, story
        texts = " ".join(line.text for line in p.w.service.look.store.timeline(incident.incident_id))
        assert "A replacement was ordered by ada (noisy fan)" in texts
        assert p.w.service.hardware_ledgers.listing() == []  # an order says nothing against the hardware
