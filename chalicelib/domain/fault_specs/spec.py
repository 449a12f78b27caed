"""What a row says of a fault: how it ranks, what is done first, what else it means, and how a drill plays it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from chalicelib.domain.model.signal import SignalKind, SignalSource
from chalicelib.domain.model.start_view import StartState
from rekindle.protocol.signals import FaultClass


class Response(StrEnum):
    """The shape of the first response."""

    RESTART = "restart"  # stop what is left, resume from the newest verified checkpoint
    CHECKPOINT_THEN_RESTART = "checkpoint_then_restart"  # ask for an emergency checkpoint while the run lives
    ROLL_BACK = "roll_back"  # stop, resume from a verified checkpoint before the onset
    WATCH_THEN_ROLL_BACK = "watch_then_roll_back"  # first give it the steps in which it may heal unaided
    CHECKPOINT_THEN_HAND_OVER = "checkpoint_then_hand_over"  # save what can be saved, then a person decides
    TELL = "tell"  # say it, do nothing
    HAND_OVER = "hand_over"  # a person decides


class Deadline(StrEnum):
    """Which of the policy's checkpoint deadlines applies."""

    NONE = "none"
    SHORT = "short"  # the run is probably stuck: do not wait long for an answer
    FULL = "full"


class Meanwhile(Enum):
    """What becomes of the run until the fault is remedied."""

    # A claim that the run is dead or dying. While the platform says that it runs, its steps are asked first: one wrong
    # word must not end a healthy run (SkyPilot #10162: one failed probe destroys a healthy job).
    DEAD = auto()
    STANDS = auto()  # it lives, and makes no step
    DIES_AGAIN = auto()  # so does each new attempt
    RUNS_ON = auto()  # it makes steps that count until it is stopped
    SLOW = auto()  # the same, at less than its usual speed
    NOT_FINITE = auto()  # its steps since the onset are worth nothing
    # A loss that is wrong and still a number. Weights that a bad batch has bent stay bent, so what these attempts save
    # from the onset on is worth no more than after a NaN; but unlike a NaN they may heal.
    BAD_LOSS = auto()
    UNKNOWN = auto()


class Cause(Enum):
    """Where the fault comes from, as far as its name says."""

    NODE = auto()  # a node has it, and the run because of the node
    CAPACITY = auto()  # the run may not keep what it runs on
    SURROUNDINGS = auto()  # the platform, or too little memory: not the checkpoint that was loaded
    MAY_BE_THE_CHECKPOINT = auto()  # it may be the doing of the checkpoint that was loaded
    UNSAID = auto()


class Claim(Enum):
    """Who may name the fault, besides the sources whose rows say so."""

    ALERT = auto()  # other people's monitoring. The rest are orders, or conclusions that need a look at the run
    LOG = auto()  # a line of the training log, at once: the job's own end would come too late, or never


class Effect(StrEnum):
    """What a drill assumes that the fault does to the run."""

    LIVES = "lives"  # it trains on until it is stopped
    FREEZES = "freezes"  # it runs, and makes no step
    DIES = "dies"
    DIES_AGAIN = "dies_again"  # so does every attempt after it, before it has gained a step
    VANISHES = "vanishes"  # the platform no longer knows it
    NAN = "nan"
    SPIKES = "spikes"
    DIVERGES = "diverges"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """How a fault is rehearsed: the Signal that would tell of it, and its effect.

    `text` is the Signal in words; `reported_as` the fault that it names, where it is another one; `names_node`: it
    names a node of the run. `start_state`, `by_platform` and `reason_there` are how a cluster's queue reports the end
    of a run that dies.
    """

    kind: SignalKind
    by: SignalSource
    effect: Effect
    text: str
    source: str
    reported_as: FaultClass | None = None
    names_node: bool = False
    failure_reason: str = ""
    start_state: StartState = StartState.ENDED
    by_platform: bool = False
    reason_there: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpec:
    """One fault. Nothing has a default, so that a new fault answers every question that a rule asks.

    When several Signals disagree, the lower `rank` names the fault: a cause outranks its echoes. `response`, `deadline`
    and `tries` are the built-in playbook row, with its `source`. `tries` bounds the attempts that gain no step; None
    means the policy's general budget.

    `explains_an_end`: a run that had it when it ended has ended of it. Otherwise the end is a crash of its own.
    `renames_a_retry`: reported of an attempt that we have resubmitted, it becomes what the Incident is about.
    `is_waited_out`: a run whose training is over and that only uploads is not stopped for it.
    `afterwards`: what it asks of people once the run is back; may be empty. `drill` is None for what does not befall a
    run.
    """

    fault: FaultClass
    rank: int
    response: Response
    deadline: Deadline
    tries: int | None
    source: str
    meanwhile: Meanwhile
    cause: Cause
    claims: frozenset[Claim]
    explains_an_end: bool
    renames_a_retry: bool
    is_waited_out: bool
    afterwards: str
    drill: Drill | None
