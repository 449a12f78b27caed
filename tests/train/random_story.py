"""A story drawn by its seed: a kind, a world, and one to three faults at once. What it must keep, the judge knows."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from tests.train.story import ALL, ANY_OR_NONE, Act, End, Story, ask, harm

KINDS = ("plain", "plain", "store", "store", "ddp")
ERRORS = ("OSError", "BaseException", "RuntimeError", "MemoryError")
FAULTS = ("raise", "off", "no mailbox", "late", "slow save", "nan", "nonsense", "usr1", "ask", "mailbox", "lost call")
UNCOUPLED_FAULTS = ("kill", "hang in save")


class Draw:
    """What was drawn so far."""

    def __init__(self, rand: random.Random, world: int, *, is_coupled: bool) -> None:
        self.rand, self.world, self.is_coupled = rand, world, is_coupled
        self.harms: list[dict[str, Any]] = []
        self.env_of: dict[int, Mapping[str, str]] = {}
        self.dead: dict[int, int | None] = {}
        self.stuck: list[int] = []
        self.acts = [ask(rand.randint(3, 15), deadline_s=rand.choice((1.0, 6.0, 60.0)))]

    def fault(self) -> None:
        rand = self.rand
        rank, step = rand.randrange(self.world), rand.randint(2, 25)
        what = rand.choice(FAULTS + (() if self.is_coupled else UNCOUPLED_FAULTS))
        if what == "raise" and not self.is_coupled:
            self.harms.append(harm(f"raise:{rand.choice(ERRORS)}", "save", 1, rand.choice(((rank,), ALL))))
        elif what == "off":
            self.env_of[rank] = {"REKINDLE_MONITOR": "off"}
        elif what == "no mailbox":
            self.env_of[rank] = {"REKINDLE_MAILBOX": ""}
        elif what == "late":
            place = rand.choice(("before start", "step"))
            self.harms.append(harm(f"sleep:{rand.choice((0.2, 1.5))}", place, step if place == "step" else 0, (rank,)))
        elif what == "slow save":
            self.harms.append(harm(f"sleep:{rand.choice((0.2, 2.0))}", "save", 1, (rank,)))
        elif what == "nan":
            self.harms.append(harm("bad loss", "never", step, (rank,), what=rand.choice(("nan", "inf"))))
        elif what == "nonsense":
            self.harms.append(harm("nonsense", "never", 1, (rank,), what=rand.choice(("none", "number", "missing"))))
        elif what == "usr1":
            self.acts.append(Act(do="signal:SIGUSR1", step=step, rank=rank, ranks=(rank,)))
        elif what == "ask":
            self.acts.append(ask(step, deadline_s=rand.choice((1.0, 6.0))))
        elif what == "mailbox":
            self.acts.append(Act(do="remove the mailbox", step=step))
        elif what == "lost call":
            self.harms.append(harm("lost call", "never", step, (rank,)))
        elif what == "kill" and rank != 0 and not self.stuck:
            self.harms.append(harm("signal:SIGKILL", rand.choice(("step", "save", "saved")), step, (rank,)))
            self.dead[rank] = -9
        elif what == "hang in save" and rank != 0 and not self.dead:
            self.harms.append(harm("hang", "save", 1, (rank,)))
            self.stuck.append(rank)


def random_story(seed: int) -> Story:
    """The same story for the same seed."""
    rand = random.Random(seed)
    kind = rand.choice(KINDS)
    is_coupled = kind == "ddp"
    draw = Draw(rand, rand.choice((1, 2, 2, 3, 4) if is_coupled else (1, 2, 2, 3, 5, 8)), is_coupled=is_coupled)
    for _ in range(rand.randint(1, 3)):
        draw.fault()
    # Before the monitor has started, or where it never does, a signal does what it does to every process: it kills.
    never = (*draw.env_of, *draw.stuck, *draw.dead)
    acts = [act for act in draw.acts if not (act.do.startswith("signal") and act.rank in never)]
    is_late = any(harm["at"] == "before start" for harm in draw.harms)
    is_stopped = rand.random() < 0.3 and not never and not is_late
    if is_stopped:
        ranks = rand.choice((ALL, (rand.randrange(draw.world),)))
        acts.append(Act(do="signal:SIGTERM", step=rand.randint(3, 25), ranks=ranks))
    else:
        acts.append(Act(do="wait", steps=15))
    return Story(
        name=f"random story {seed}",
        kind=kind,
        world=draw.world,
        spec={"pace_s": rand.choice((0.005, 0.02, 0.05)), "save_every": rand.choice((0, 0, 1, 7))},
        harm=tuple(draw.harms),
        acts=tuple(acts),
        env_of=draw.env_of,
        replies=ANY_OR_NONE,
        end=End.STOPPED if is_stopped else End.FINISHED,
        dead=draw.dead,
        stuck=tuple(draw.stuck),
        is_random=True,
    )
