"""A story drawn by its seed: a kind, a world, and one to three faults at once. What it must keep is the judge's part."""

from __future__ import annotations

import random

from tests.train.story import ALL, ANY_OR_NONE, Act, End, Story, ask, harm

KINDS = ("plain", "plain", "store", "store", "ddp")
ERRORS = ("OSError", "BaseException", "RuntimeError", "MemoryError")


def random_story(seed: int) -> Story:
    """The same story for the same seed."""
    rand = random.Random(seed)
    kind = rand.choice(KINDS)
    is_coupled = kind == "ddp"
    world = rand.choice((1, 2, 2, 3, 4) if is_coupled else (1, 2, 2, 3, 5, 8))
    harms, env_of, dead, stuck = [], {}, {}, []
    spec = {"pace_s": rand.choice((0.005, 0.02, 0.05)), "save_every": rand.choice((0, 0, 1, 7))}
    acts = [ask(rand.randint(3, 15), deadline_s=rand.choice((1.0, 6.0, 60.0)))]
    end = End.FINISHED
    for _ in range(rand.randint(1, 3)):
        rank, step = rand.randrange(world), rand.randint(2, 25)
        what = rand.choice(
            (
                "raise",
                "off",
                "no mailbox",
                "late",
                "slow save",
                "nan",
                "nonsense",
                "usr1",
                "ask",
                "mailbox",
                "lost call",
            )
            + (() if is_coupled else ("kill", "hang in save"))
        )
        if what == "raise" and not is_coupled:
            harms.append(harm(f"raise:{rand.choice(ERRORS)}", "save", 1, rand.choice(((rank,), ALL))))
        elif what == "off":
            env_of[rank] = {"REKINDLE_MONITOR": "off"}
        elif what == "no mailbox":
            env_of[rank] = {"REKINDLE_MAILBOX": ""}
        elif what == "late":
            harms.append(harm(f"sleep:{rand.choice((0.2, 1.5))}", rand.choice(("before start", "step")), step, (rank,)))
        elif what == "slow save":
            harms.append(harm(f"sleep:{rand.choice((0.2, 2.0))}", "save", 1, (rank,)))
        elif what == "nan":
            harms.append(harm("bad loss", "never", step, (rank,), what=rand.choice(("nan", "inf"))))
        elif what == "nonsense":
            harms.append(harm("nonsense", "never", 1, (rank,), what=rand.choice(("none", "number", "missing"))))
        elif what == "usr1" and rank not in env_of:
            acts.append(Act(do="signal:SIGUSR1", step=step, ranks=(rank,)))
        elif what == "ask":
            acts.append(ask(step, deadline_s=rand.choice((1.0, 6.0))))
        elif what == "mailbox":
            acts.append(Act(do="remove the mailbox", step=step))
        elif what == "lost call":
            harms.append(harm("lost call", "never", step, (rank,)))
        elif what == "kill" and rank != 0 and not stuck:
            harms.append(harm("signal:SIGKILL", rand.choice(("step", "save", "saved")), step, (rank,)))
            dead[rank] = -9
        elif what == "hang in save" and rank != 0 and not dead:
            harms.append(harm("hang", "save", 1, (rank,)))
            stuck.append(rank)
    if rand.random() < 0.3 and not env_of and not stuck and not dead:
        acts.append(
            Act(do="signal:SIGTERM", step=rand.randint(3, 25), ranks=rand.choice((ALL, (rand.randrange(world),))))
        )
        end = End.STOPPED
    acts.append(Act(do="wait", steps=15))
    return Story(
        name=f"random story {seed}",
        kind=kind,
        world=world,
        spec=spec,
        harm=tuple(harms),
        acts=tuple(acts),
        env_of=env_of,
        replies=ANY_OR_NONE,
        end=end,
        dead=dead,
        stuck=tuple(stuck),
        is_random=True,
    )
