"""What the ranks may agree on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum
from typing import Self


class Wish(IntEnum):
    """What a rank would have all ranks do. The highest wish of all ranks is what they all do."""

    NOTHING = 0
    SAVE = 1
    SAVE_AND_STOP = 2  # SIGTERM
    STOP = 3  # superseded: another attempt owns the checkpoints, saving could harm it

    @property
    def saves(self) -> bool:
        return self in (Wish.SAVE, Wish.SAVE_AND_STOP)

    @property
    def stops(self) -> bool:
        return self in (Wish.SAVE_AND_STOP, Wish.STOP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All ranks do `wish` at their call number `at_call` of `Monitor.step`, counted from 1 since the start.

    number: 1, 2, 3 … within a session; 0 where this process acts without the other ranks.
    """

    number: int
    wish: Wish
    at_call: int

    @property
    def is_shared(self) -> bool:
        return self.number > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What rank 0 last published for all ranks: one JSON under one key, so that a look costs one read.

    session: a random text of this start of rank 0; all other keys stand below it, so that what an earlier process left
    in the same exchange is never counted. lost: why the ranks cannot agree at present; empty where they can.
    """

    session: str
    plan: Plan | None = None
    lost: str = ""

    def to_text(self) -> str:
        plan = None if self.plan is None else [self.plan.number, int(self.plan.wish), self.plan.at_call]
        return json.dumps({"session": self.session, "plan": plan, "lost": self.lost})

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Raises: ValueError for anything that `to_text` did not write."""
        try:
            read = json.loads(text)
            plan = read["plan"]
            if plan is not None:
                number, wish, at_call = (int(value) for value in plan)
                plan = Plan(number=number, wish=Wish(wish), at_call=at_call)
            return cls(session=str(read["session"]), plan=plan, lost=str(read["lost"]))
        except (KeyError, TypeError, RecursionError) as err:
            raise ValueError(f"not a notice of rank 0: {err!r}") from err
