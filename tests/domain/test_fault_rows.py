"""Each fault has one row, and the answers of a row do not contradict each other."""

from __future__ import annotations

import dataclasses

import pytest

from chalicelib.domain.fault_specs.faults import FAULTS
from chalicelib.domain.fault_specs.spec import Cause, Claim, Deadline, FaultSpec, Meanwhile, Response
from rekindle.protocol.signals import FaultClass

_NOT_DEAD = (Meanwhile.STANDS, Meanwhile.RUNS_ON, Meanwhile.SLOW, Meanwhile.NOT_FINITE, Meanwhile.BAD_LOSS)
_ROLL_BACKS = (Response.ROLL_BACK, Response.WATCH_THEN_ROLL_BACK)
_ASKS_FOR_A_CHECKPOINT = (
    Response.CHECKPOINT_THEN_RESTART,
    Response.CHECKPOINT_THEN_HAND_OVER,
    Response.WATCH_THEN_ROLL_BACK,
)


def test_every_fault_has_one_row_and_a_rank_of_its_own() -> None:
    assert [spec.fault for spec in FAULTS] == list(FaultClass)
    assert len({spec.rank for spec in FAULTS}) == len(FAULTS)


def test_a_row_answers_every_question() -> None:
    defaults = [field.name for field in dataclasses.fields(FaultSpec) if field.default is not dataclasses.MISSING]
    assert defaults == [], "a question with a default is one that a new fault forgets"


@pytest.mark.parametrize("spec", FAULTS, ids=[spec.fault for spec in FAULTS])
def test_the_answers_of_a_row_fit_together(spec: FaultSpec) -> None:
    contradictions = {
        "what is only told does not explain why a run ended: it would be left to a person instead of started again":
            spec.response is Response.TELL and spec.explains_an_end,
        "what is only told of a run that trains on is not what a resubmitted attempt is recovered from":
            spec.response is Response.TELL and spec.meanwhile in _NOT_DEAD and spec.renames_a_retry,
        "a claim that the run is dead explains its end": spec.meanwhile is Meanwhile.DEAD and not spec.explains_an_end,
        "a bad loss is no reason to let a run finish": spec.is_waited_out
            and spec.meanwhile in (Meanwhile.NOT_FINITE, Meanwhile.BAD_LOSS),
        "a roll-back is for a loss that has gone bad": spec.response in _ROLL_BACKS
            and spec.meanwhile not in (Meanwhile.NOT_FINITE, Meanwhile.BAD_LOSS),
        "a run that is told to be dead or stands still is not only told of": spec.response is Response.TELL
            and spec.meanwhile in (Meanwhile.DEAD, Meanwhile.STANDS, Meanwhile.DIES_AGAIN),
        "a deadline is for a checkpoint that is asked for": (spec.deadline is not Deadline.NONE)
            is not (spec.response in _ASKS_FOR_A_CHECKPOINT),
        "a node or its capacity is no reason against finishing": spec.cause in (Cause.NODE, Cause.CAPACITY)
            and not spec.is_waited_out,
        "a line of the log that opens an Incident is about a fault that other monitoring may see as well":
            Claim.LOG in spec.claims and Claim.ALERT not in spec.claims,
        "a fault without tries is handed over": spec.tries == 0 and spec.response is not Response.HAND_OVER,
        "a row has its source": not spec.source,
    }  # fmt: skip
    assert [text for text, is_so in contradictions.items() if is_so] == []
