"""What the ranks may agree on, and how long each part of it may take."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from rekindle.monitor.mail.exchange import Note
from rekindle.protocol.codec import Document


class RankRequest(IntEnum):
    """What a rank would have all ranks do. The highest wish of all ranks is what they all do."""

    NOTHING = 0
    SAVE = 1
    SAVE_AND_STOP = 2  # SIGTERM
    STOP = 3  # superseded: another attempt owns the checkpoints, saving could harm it

    @property
    def saves(self) -> bool:
        return self in (RankRequest.SAVE, RankRequest.SAVE_AND_STOP)

    @property
    def stops(self) -> bool:
        return self in (RankRequest.SAVE_AND_STOP, RankRequest.STOP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Seconds, all of them but `meet_steps`. The first four are how long the training thread may be held.

    answer_s: for the negotiating thread's answer where no other rank is waited for.
    meet_s, meet_steps, meet_at_most_s: for the other ranks at the step that all agreed on: so many typical steps,
    within these two limits.
    hold_s: after this rank's part of a save failed, for the other ranks to come out of theirs.

    enter_s: a rank that has agreed on a save and is not seen to begin it in this time does not take part in it.
    stuck_s: a rank that waits for others inside a save for so long, after one of them failed, gives the save up.
    gone_s: the same after the process of one of them ended: it will not come back.
    pulse_s: how often a rank in a save reports that it lives. lifeless_s: one that has not for so long has failed
    in it; see `joint_save`.
    must_join_s: a rank that has not joined so long after a wish takes no part. must_ack_s: the same for an answer to a
    plan, beyond two reads. must_finish_s: for the other ranks' parts of a save.
    unheard_s: a wish to stop that rank 0 does not answer for so long: rank 0 is gone, or takes no part.
    silent_s: a negotiating thread that has not looked for so long is stuck in its transport.
    lost_s, lost_at_most_s: each rank acts alone for so long before all are asked again; doubled at each failure.
    reopen_s, reopen_at_most_s: until a broken exchange is opened again; doubled at each failure.
    """

    answer_s: float = 2.0
    meet_s: float = 10.0
    meet_at_most_s: float = 60.0
    hold_s: float = 120.0
    meet_steps: float = 2.0
    enter_s: float = 30.0
    gone_s: float = 2.0
    stuck_s: float = 30.0
    pulse_s: float = 2.0
    lifeless_s: float = 60.0
    must_join_s: float = 10.0
    must_ack_s: float = 10.0
    must_finish_s: float = 1800.0
    unheard_s: float = 15.0
    silent_s: float = 15.0
    lost_s: float = 30.0
    lost_at_most_s: float = 3600.0
    reopen_s: float = 1.0
    reopen_at_most_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Document):
    """All ranks do `wish` at their call number `at_call` of `Monitor.step`, counted from 1 since the start.

    number: 1, 2, 3 … within a session; 0 where this process acts without the other ranks.
    """

    wire_row: ClassVar[bool] = True

    number: int
    wish: RankRequest
    at_call: int

    @property
    def is_shared(self) -> bool:
        return self.number > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(Note):
    """What rank 0 last published for all ranks: one text under one key, so that a look costs one read.

    session: a random text of this start of rank 0; all other keys stand below it, so that what an earlier process left
    in the same exchange is never read. era: the ranks join again in each. lost: why the ranks cannot agree at present;
    empty where they can. is_over: rank 0 has finished; nothing follows.
    """

    session: str
    era: int = 1
    plan: Plan | None = None
    lost: str = ""
    is_over: bool = False


def wish_of(text: str | None) -> RankRequest:
    """What stands under the key `wish`; nothing where it is not readable."""
    try:
        return RankRequest(int(text or "0"))
    except ValueError:
        return RankRequest.NOTHING
