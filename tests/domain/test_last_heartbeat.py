"""How far an attempt had come when it ended, by what its last heartbeat says of itself."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus
from tests.domain.looks import NOW, view


@pytest.mark.parametrize(("is_last", "furthest"), [(True, 170), (False, 295)])
def test_only_a_process_that_wrote_no_last_heartbeat_may_have_made_steps_after_it(is_last: bool, furthest: int) -> None:
    ended = view(
        AttemptStatus.FAILED,
        step=170,
        work="training",
        step_s=0.2,
        heartbeat_at=NOW,
        ended_at=NOW + timedelta(seconds=25),
        is_heartbeat_last=is_last,
    )
    assert ended.last_step_at_most == Known(furthest)


@pytest.mark.parametrize("is_last", [True, False])
def test_an_attempt_whose_platform_saw_its_end_late_has_ended_unseen_unless_its_heartbeat_was_the_last(
    is_last: bool,
) -> None:
    ended = view(AttemptStatus.FAILED, heartbeat_at=NOW, ended_at=NOW + timedelta(minutes=5), is_heartbeat_last=is_last)
    assert ended.has_ended_unseen is not is_last
