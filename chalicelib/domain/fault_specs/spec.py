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


class Trait(Enum):
    """What a fault means for the run. Rules ask for traits; which faults have one is read off the rows."""

    # A claim that the run is dead or dying. While the platform says that it runs, its steps are asked first: one wrong
    # word must not end a healthy run (SkyPilot #10162: one failed probe destroys a healthy job).
    DEADLY = auto()
    # A run whose steps move does not have it any more. A broken node is broken even while steps move.
    HEALABLE = auto()
    # The run makes no step, whatever the reason.
    NOT_MOVING = auto()
    # The run keeps making steps that count until it is stopped.
    RUNS_ON = auto()
    # Without a recovery the run stands still until a person acts.
    STANDS_UNTIL_HELPED = auto()
    # A loss that is wrong and still a number. Weights that a bad batch has bent stay bent, so what these attempts save
    # from the onset on is worth no more than after a NaN; but unlike a NaN they may heal.
    BENDS_THE_LOSS = auto()
    # Steps from the onset on are worth nothing.
    POISONS = auto()
    # May be the doing of the checkpoint that was loaded. A broken node, lack of capacity or of memory is not.
    MAY_BE_THE_LOAD = auto()
    # Reported of a dead attempt, and perhaps only after it was accounted for, it takes the blame from its checkpoint.
    NOT_THE_LOAD = auto()
    # A node has it, and the run because of the node.
    OF_A_NODE = auto()


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
    """One fault. When several Signals disagree, the lower `rank` names the fault: a cause outranks its echoes.

    `tries` bounds the attempts that gain no step; None means the policy's general budget. `response`, `deadline` and
    `tries` are the built-in playbook row, with its `source`. `afterwards`: what it asks of people once the run is back.
    `drill` is None for what does not befall a run.
    """

    fault: FaultClass
    rank: int
    response: Response
    deadline: Deadline
    tries: int | None
    source: str
    traits: frozenset[Trait] = frozenset()
    afterwards: str = ""
    drill: Drill | None = None
