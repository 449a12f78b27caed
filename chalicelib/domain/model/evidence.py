"""What an Incident keeps of a bad loss and of suspects, beside its Signals. Plain data with its JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from chalicelib.domain.model.clocks import Fact, Since
from chalicelib.domain.model.codec import Record
from chalicelib.domain.model.known import Known, Maybe, Unknown
from rekindle.checkpoints.marks import forensic_request_id as forensic_request_id
from rekindle.checkpoints.marks import is_forensic as is_forensic
from rekindle.detectors.rank_rules import NOBODY_MISSING
from rekindle.protocol.signals import FaultClass

MAX_STRETCHES = 32  # newest kept; each is a few dozen bytes, and older ones lie behind any resume point still in reach
MAX_SUSPICIONS = 16  # one per attempt and kind; an Incident has at most `max_attempts` attempts that matter

# The kind of a checkpoint that was asked for while the loss was bad: for people to look into, never to resume from. It
# is told by the id of its request, which the manifest repeats, so any monitor's will do, and it stays so for ever.
FORENSIC = "forensic"


def newest_before(onset: int) -> int:
    """The newest step whose checkpoint holds nothing of a non-finite loss that was first seen at step `onset`.

    A checkpoint of step n holds the weights after update n. The loss of `onset` was computed from the weights after
    update `onset - 1`, which may be what made it so: that one is left out as well.
    """
    return onset - 2


class Need(StrEnum):
    """What the next observation must read besides the run itself: it costs calls that most observations can save."""

    CHECKPOINTS = "checkpoints"
    REPORTS = "reports"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossEpisode(Record):
    """A bad loss of one attempt, from its onset until it is seen to be over.

    `reported_step` is the newest step that had been judged when it was first reported: acting needs a later verdict
    than that one. `healed_step` is where it was seen to be over, None before. `after_step` is where the one before it
    in this attempt was over. `unseen_since` is set while no source reports it.
    """

    attempt: str
    fault: FaultClass
    since: Fact
    onset_step: Maybe[int] = Unknown("nothing reported the onset")
    reported_step: Maybe[int] = Unknown("nothing reported the step")
    healed_step: int | None = None
    after_step: int | None = None
    unseen_since: Since | None = None

    @property
    def first_bad(self) -> Maybe[int]:
        """The onset, or where it was first reported if no source names the onset."""
        return self.onset_step if isinstance(self.onset_step, Known) else self.reported_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Steps of one attempt whose checkpoints are never resumed from: [from_step, to_step), open-ended where None.

    It outlives its Incident: the next one of the Job begins with it. `life`: of the weights that have gone bad, where
    it is known; what a later life of the attempt has saved does not lie in it.
    """

    wire_row: ClassVar[bool] = True  # an Incident has many

    attempt: str
    from_step: int
    to_step: int | None = None
    life: int | None = None

    def holds(self, attempt: str, step: int, life: int | None) -> bool:
        """A checkpoint of that attempt, step and life lies in it."""
        is_later = self.life is not None and life is not None and life > self.life
        is_of_it = attempt == self.attempt and not is_later
        return is_of_it and step >= self.from_step and (self.to_step is None or step < self.to_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    """Where an attempt went bad that was rolled back for it."""

    attempt: str
    fault: FaultClass
    step: Maybe[int]


class SuspicionKind(StrEnum):
    """What the suspects are suspected of."""

    HANG = "hang"
    NON_FINITE = "non_finite"
    SLOW = "slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion(Record):
    """What one attempt's own ranks report about who is to blame. Empty `ranks`: they name no rank.

    `rule` and `text` are the judge's; `confidence` is 0 to 1; `reports` of `world_size` ranks had spoken; the reports
    themselves, stacks included, stay in the mailbox under `kept_at`.
    """

    attempt: str
    kind: SuspicionKind
    rule: str
    text: str
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    confidence: float = 0.0
    reports: int = 0
    world_size: int = 0
    kept_at: str = ""

    @property
    def is_complete(self) -> bool:
        """Every rank has spoken: nothing later can change it."""
        return 0 < self.world_size <= self.reports

    @property
    def clears_all(self) -> bool:
        """The ranks' flight recorders show that no rank is missing."""
        return self.rule in NOBODY_MISSING


def suspect_word(suspicion: Suspicion) -> str:
    """The suspects for people: `rank 3 on host-3`."""
    ranks = ", ".join(str(rank) for rank in suspicion.ranks[:8]) + (", …" if len(suspicion.ranks) > 8 else "")
    hosts = ", ".join(suspicion.hosts[:4]) + (", …" if len(suspicion.hosts) > 4 else "")
    who = f"rank{'s' if len(suspicion.ranks) > 1 else ''} {ranks}" if ranks else "no rank"
    return f"{who} on {hosts}" if hosts else who
