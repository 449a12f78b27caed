"""The parts of an Incident, each with what one subject remembers between two observations. Immutable, and pure.

No two parts share a field's name, so that `Incident.changed` finds the part of each. `moved_on` of a part gives it as
it would be had a pause taken no time; the types of its times say what moves (clocks.py).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from chalicelib.domain.model.clocks import Due, Fact, Pause, Since, moved_on
from chalicelib.domain.model.evidence import LossEpisode, Need, Onset, Stretch, Suspicion
from chalicelib.domain.model.known import Maybe, Unknown
from chalicelib.domain.model.start_view import BadNode, Submission
from rekindle.protocol.signals import FaultClass


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipWindow:
    """Data not to train on again: the batches of the steps [from_step, to_step)."""

    wire_row: ClassVar[bool] = True  # an Incident has many

    from_step: int
    to_step: int


def merge_windows(skips: tuple[SkipWindow, ...]) -> tuple[SkipWindow, ...]:
    """The same steps in as few windows as possible, in order."""
    merged: list[SkipWindow] = []
    for window in sorted(skips, key=lambda item: item.from_step):
        if merged and window.from_step <= merged[-1].to_step:
            merged[-1] = SkipWindow(from_step=merged[-1].from_step, to_step=max(merged[-1].to_step, window.to_step))
        else:
            merged.append(window)
    return tuple(merged)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAsk:
    """One emergency checkpoint asked for. `outcome` is None until answered: saved, cannot, refused, late.

    `is_paged`: a person was paged as it was asked for, who decides whatever comes of it.
    """

    request_id: str
    attempt: str
    asked_at: Fact
    deadline_at: Due  # while it is unanswered
    outcome: str | None = None
    step: int | None = None
    why: str = ""
    is_paged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One resubmission made in this Incident.

    `no_room`: it failed for lack of capacity before it ever ran. `died_at_load`: it failed before it had made a step
    past the checkpoint that it was given. `is_theirs`: the platform started it. `leaves` is a held start of
    the old submission that must be cancelled once this one, a new submission, is there. `left_nodes` are those of the
    one before it where that lost one of them, or may have: which one may be shown only later. `left_out` are those in
    `exclude` that nothing named as it was ordered (run/bisection.py). `nodes_min` to
    `nodes_max` is the size that it was allowed because it waited for nodes.
    """

    number: int
    name: str
    clone_of: str
    at: Since  # when it was ordered; a limit runs from it until its start is known
    resume_step: Maybe[int]
    ended: bool = False
    last_step: Maybe[int] = Unknown("no step seen yet")
    gained: bool | None = None  # None: cannot be told, or not ended
    resume_manifest: str | None = None
    resume_root: str | None = None
    no_room: bool = False
    died_at_load: bool = False
    went_back: bool = False
    how: Submission = Submission.CLONE
    exclude: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    is_theirs: bool = False
    leaves: str | None = None
    left_nodes: tuple[str, ...] = ()
    nodes_min: int | None = None
    nodes_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How one attempt ended; two alike at one step mean that trying again cannot help."""

    attempt: str
    signature: str
    step: Maybe[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTracking:
    """What was seen of the attempt under care, and since when: what the limits on its states are measured from."""

    seen_as: str = ""  # the state it was last seen in: `<attempt>:<status>`
    seen_since: Since | None = None  # when it was first seen so
    unseen_since: Since | None = None  # set while it cannot be read
    doubt_since: Since | None = None  # since when something speaks against a recovery that would else be complete
    down_since: Since | None = None  # since when it does not train
    warned_at: Since | None = None  # when people had the newest warning or page in this Incident
    told: tuple[str, ...] = ()  # keys of what people were told and is not told again in this Incident
    repaired_at: Fact | None = None  # restarted in its place by others; compared with when Signals occurred
    watch_step: Maybe[int] = Unknown("not watched yet")  # reached by `watch_at`
    watch_at: Since | None = None  # since when a run that must move has not moved


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLoss:
    """A loss that went bad: where, what was rolled back for it, and what is never trained on or resumed from again."""

    onset_step: Maybe[int] = Unknown("no onset")  # the first bad step; what replaces the attempt must resume before it
    is_onset_later: bool = False  # no source names it: `onset_step` is the newest step known to be good
    onset_attempt: str | None = None  # the attempt that it is a step of, once poisoned
    onset_fault: FaultClass = FaultClass.NON_FINITE  # what began there
    onsets: tuple[Onset, ...] = ()  # those rolled back for, in order
    episode: LossEpisode | None = None  # a bad loss that is watched
    stretches: tuple[Stretch, ...] = ()  # checkpoints never resumed from; the Job's next Incident begins with them
    verify_to: Maybe[int] = Unknown("nothing beyond the target")  # must be passed too, besides `target_step`
    rollbacks: int = 0
    skips: tuple[SkipWindow, ...] = ()  # data to leave out

    def moved_on(self, pause: Pause) -> BadLoss:
        """As it would be had the pause taken no time."""
        return dataclasses.replace(self, episode=self.episode and moved_on(self.episode, pause))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the ranks reported, what people need to know of it, and what the next observation must read for it."""

    suspicions: tuple[Suspicion, ...] = ()  # one per attempt and kind, the newest last
    conclusion: str = ""  # what came out of them
    needs: tuple[Need, ...] = ()  # what the next observation must read besides the run itself
    needs_since: Since | None = None  # since when it is asked for
    evidence_since: Since | None = None  # when the wait for the ranks' own reports on the attempt under care began


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """How the attempt under care is brought to an end: its emergency checkpoint, and its stop."""

    ask: CheckpointAsk | None = None  # the newest emergency checkpoint asked for
    asks: int = 0  # how many were
    stop_asked_at: Since | None = None  # when a stop was asked for last
    stop_begun_at: Fact | None = None  # when the newest attempt's first stop was decided
    stopped_attempts: tuple[str, ...] = ()
    stop_hold: bool = False  # on a cluster: what was stopped last stays in the queue, held
    for_sibling: str | None = None  # what was started by hand, for whose sake the newest stop was decided

    def ask_of(self, attempt: str) -> CheckpointAsk | None:
        """The newest emergency checkpoint, where it was asked of that attempt."""
        return self.ask if self.ask is not None and self.ask.attempt == attempt else None

    def moved_on(self, pause: Pause) -> Halt:
        """As it would be had the pause taken no time."""
        ask = self.ask
        if ask is not None and ask.outcome is None:
            ask = moved_on(ask, pause)
        return dataclasses.replace(moved_on(self, pause), ask=ask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resubmissions:
    """What was submitted again, how it ended, and what the next submission must respect."""

    tries: tuple[Try, ...] = ()
    failures: tuple[Failure, ...] = ()
    not_before: Due | None = None  # back-off: no submission before it
    capacity_since: Since | None = None  # since when capacity is lacking
    capacity_refusals: int = 0
    name_salt: int = 0  # names that were found taken: makes the next name differ
    deferred_since: Since | None = None  # on a cluster: when the wait for the job's own auto-resume began
    requeue_refused: bool = False  # on a cluster: a requeue of the job was refused
    bad_nodes: tuple[BadNode, ...] = ()  # on a cluster: held to be broken
    fruitless_before: int = 0  # the Job's newest attempts before this Incident, in a row, that gained nothing
    excluded_checkpoints: tuple[str, ...] = ()  # passed over in this Incident
    quarantined: tuple[str, ...] = ()  # those of them that were marked for other Incidents too

    def moved_on(self, pause: Pause, *, is_ordering: bool) -> Resubmissions:
        """As it would be had the pause taken no time. `is_ordering`: the start of the last try is not known yet."""
        moved = moved_on(self, pause)
        if not is_ordering or self.pending is None:
            return moved
        return dataclasses.replace(moved, tries=(*self.tries[:-1], moved_on(self.tries[-1], pause)))

    @property
    def pending(self) -> Try | None:
        """The try on record whose attempt has not ended: running, or not even known to have started."""
        return self.tries[-1] if self.tries and not self.tries[-1].ended else None

    @property
    def no_progress(self) -> int:
        """Ended tries since the last one that gained a step, counting only those known to have gained none."""
        count = 0
        for attempt in reversed(self.tries):
            if attempt.gained:
                break
            count += attempt.ended and attempt.gained is False and not attempt.no_room
        return count

    @property
    def without_gain(self) -> int:
        """Like `no_progress`, with those of which it is unknown: what the back-off between tries counts."""
        count = 0
        for attempt in reversed(self.tries):
            if attempt.gained:
                break
            count += attempt.ended and not attempt.no_room
        return count
