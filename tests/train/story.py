"""What a story is: the ranks, what is done to them, and what the run must end with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

ALL = "all"
UNCOUPLED = ("plain", "store", "gloo")  # ranks that never wait for each other, by themselves
EXAMPLES = {"hf": "hf_trainer", "lightning": "lightning", "accelerate": "accelerate", "deepspeed": "deepspeed"}
EXAMPLE_STEPS = 60


class End(StrEnum):
    """`finished`: at the last step. `stopped`: every rank saw `should_stop`. `died`: the script itself raised.
    `ended`: one of the two, on each rank. `stopped apart`: as `stopped`, but the ranks could not agree on a step: one
    that was in its next step already may have failed there for want of the others."""

    FINISHED = "finished"
    STOPPED = "stopped"
    DIED = "died"
    ENDED = "ended"
    STOPPED_APART = "stopped apart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Something done from outside when `rank` (None: every rank that lives) has come to `step`.

    on: when it has sent that kind of event, instead.

    do: `ask` (a checkpoint request, `deadline_s` from now), `fence` (another attempt takes over), `signal:NAME`,
    `cut` and `stall`, `resume`, `refuse` (the store's connections of `ranks`), `kill the store`, `remove the mailbox`,
    `block the mailbox` (a file in its place) and `unblock the mailbox`, `wait` (until `rank` has made `steps` more
    steps), `pause:SECONDS`. `ask:3` asks three times at once.
    """

    do: str
    step: int = 12
    rank: int | None = None
    on: str | None = None
    ranks: Sequence[int] | str = (0,)
    deadline_s: float = 120.0
    steps: int = 10


def ask(step: int = 12, *, deadline_s: float = 120.0, **more: Any) -> Act:
    return Act(do="ask", step=step, deadline_s=deadline_s, **more)


def harm(do: str, at: str, step: int = 0, ranks: Sequence[int] | str = (1,), **more: Any) -> dict[str, Any]:
    """See `Harm`."""
    return {"do": do, "at": at, "step": step, "ranks": ranks if ranks == ALL else list(ranks), **more}


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One row.

    kind: see scripts/loop.py, or a key of `EXAMPLES`.
    launch: fork, spawn, torchrun, or the path of another Python. acts happen in order.
    replies: the outcomes that each request may be answered with; `none` where no answer may come as well.
    end: how the ranks that are not in `dead` or `stuck` end. dead: their exit statuses (None: whatever is not 0).
    stuck: these are in the script's own save or loop for ever, and are killed at the end.
    reason: a part of what a rank that died says. warns: texts that some rank must log.
    saves: how many emergency manifests there must be; None: any number.
    proxied: ranks whose connection to the store goes through a proxy.
    prepared: a whole checkpoint of that step lies in `checkpoints` before the start.
    then_resumes: a second attempt goes on from the newest emergency manifest, with the undisturbed run's weights.
    leaves_threads: a call of the transport that never returns cannot be ended, only left.
    is_random: the fault of a rank in `dead` may not come to pass.
    """

    name: str
    kind: str = "plain"
    world: int = 2
    launch: str = "fork"
    spec: Mapping[str, Any] = field(default_factory=dict)
    harm: Sequence[Mapping[str, Any]] = ()
    acts: Sequence[Act] = (ask(),)
    env: Mapping[str, str] = field(default_factory=dict)
    env_of: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    proxied: Sequence[int] = ()
    has_slow_s3: bool = False
    replies: frozenset[str] = frozenset({"saved"})
    end: End = End.FINISHED
    dead: Mapping[int, int | None] = field(default_factory=dict)
    stuck: Sequence[int] = ()
    reason: str = ""
    warns: Sequence[str] = ()
    saves: int | None = None
    prepared: int | None = None
    then_resumes: bool = False
    is_random: bool = False
    leaves_threads: bool = False
    attempt: str = "story-a1"

    @property
    def stepless(self) -> set[int]:
        """Ranks that never report a step."""
        return {
            rank
            for harm in self.harm
            if harm["do"] == "hang" and harm["at"] in ("before start", "started")
            for rank in harm["ranks"]
        }

    @property
    def is_example(self) -> bool:
        return self.kind in EXAMPLES

    @property
    def is_coupled(self) -> bool:
        return self.kind not in UNCOUPLED


SAVED = frozenset({"saved"})
CANNOT = frozenset({"cannot"})
REFUSED = frozenset({"refused"})
SAVED_OR_CANNOT = SAVED | CANNOT
ANY = frozenset({"saved", "cannot", "refused"})
ANY_OR_NONE = ANY | {"none"}
