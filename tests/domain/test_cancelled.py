"""Rules for a start that was cancelled: by its owner, by root, or by whom is not known yet."""

from __future__ import annotations

import pytest

from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.observation import AttemptStatus
from rekindle.protocol.cluster.documents import EndedBy
from rekindle.protocol.signals import FaultClass as F
from tests.domain.slurm_looks import case, decided, sees, start

S = AttemptStatus


@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.VERIFYING])
@pytest.mark.parametrize(
    ("by", "work", "rule"),
    [
        (EndedBy.ADMIN, "training", "cancel.by_admin"),
        (EndedBy.ADMIN, "stalled", "resubmit"),
        (EndedBy.UNKNOWN, "training", "cancel.who"),
        (EndedBy.USER, "stalled", "owner_stopped"),
    ],
)
def test_what_becomes_of_a_cancelled_run(phase: Phase, by: EndedBy, work: str, rule: str) -> None:
    before = case(phase, F.UNCLEAR)
    decision = decided(before, sees(start(S.STOPPED, before.attempt or "", ended_by=by, work=work)))
    assert rule in decision.rule, decision.reason
