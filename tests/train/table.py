"""The stories of `make test-train`: each fault and those like it, one row each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.train.launcher import other_pythons
from tests.train.story import (
    ALL,
    ANY_OR_NONE,
    CANNOT,
    EXAMPLES,
    SAVED_OR_CANNOT,
    Act,
    End,
    Story,
    ask,
    harm,
)

NONE = frozenset({"none"})
SHORT_S = 5.0  # to the deadline of a request that cannot be met
STOP = Act(do="signal:SIGTERM", ranks=ALL)
WAIT = Act(do="wait", steps=10)
NO_MAILBOX = {"REKINDLE_MAILBOX": ""}
OFF = {"REKINDLE_MONITOR": "off"}
BAD_ID = {"REKINDLE_JOB_ID": "not an id!"}


def short(step: int = 12, **more: Any) -> Act:
    return ask(step, deadline_s=SHORT_S, **more)


def lost(name: str, what: dict[str, Any], **more: Any) -> Story:
    """A rank that takes no part, so that nothing may be saved, and nobody may wait for it."""
    return Story(name=name, harm=(what,) if what else (), acts=(short(),), replies=CANNOT, saves=0, **more)


def killed(place: str, kind: str, rank: int = 1, step: int = 8) -> Story:
    """A rank dies by SIGKILL at a place of the agreed save."""
    is_coupled = kind in ("ddp", "fsdp2", "alone")
    in_save = place in ("save", "half saved", "saved")
    return Story(
        name=f"{kind}: rank {rank} is killed at {place!r}",
        kind=kind,
        harm=(harm("signal:SIGKILL", place, step, (rank,)),),
        acts=(short(8 if in_save else 12),) if rank != 0 and not is_coupled else (ask(8),),
        replies=ANY_OR_NONE if rank == 0 or is_coupled else SAVED_OR_CANNOT if place == "saved" else CANNOT,
        end=End.DIED if is_coupled else End.FINISHED,
        dead={rank: -9},
    )


def raised(error: str, ranks: Sequence[int] | str, kind: str = "plain", dead: int | None = 0) -> Story:
    """The save function raises. dead: with what the ranks that raised then end, where they do."""
    who = "every rank" if ranks == ALL else f"rank {ranks[0]}"
    gone = {} if dead == 0 else dict.fromkeys(range(2) if ranks == ALL else [int(rank) for rank in ranks], dead)
    return Story(
        name=f"{kind}: the save raises {error} on {who}",
        kind=kind,
        harm=(harm(f"raise:{error}", "save", 1, ranks),),
        acts=(short(),),
        replies=ANY_OR_NONE if 0 in gone else CANNOT,
        dead=gone,
        end=End.FINISHED,  # also where the others wait in the save for the rank that left it: they hear of it
        saves=0,
    )


def stopped(name: str, *acts: Act, **more: Any) -> Story:
    return Story(name=name, acts=acts or (STOP,), end=End.STOPPED, **more)


WORLDS = [
    Story(name="plain: one process", world=1),
    Story(name="plain: 2 ranks", then_resumes=True),
    Story(name="plain: 8 ranks", world=8),
    Story(name="plain: 16 ranks", world=16, spec={"pace_s": 0.05}),
    Story(name="plain: 64 ranks", world=64, spec={"pace_s": 0.2}),
    Story(name="store: 2 ranks", kind="store"),
    Story(name="store: 8 ranks", kind="store", world=8),
    Story(name="store: 32 ranks", kind="store", world=32, spec={"pace_s": 0.1}),
    Story(name="store: 64 ranks", kind="store", world=64, spec={"pace_s": 0.2}),
    Story(name="gloo: 2 ranks", kind="gloo"),
    Story(name="gloo: 8 ranks", kind="gloo", world=8),
    Story(name="ddp: one process", kind="ddp", world=1),
    Story(name="ddp: 2 ranks", kind="ddp", then_resumes=True),
    Story(name="ddp: 4 ranks", kind="ddp", world=4, then_resumes=True),
    Story(name="alone: 2 ranks", kind="alone", then_resumes=True),
    Story(name="fsdp2: 2 ranks", kind="fsdp2", then_resumes=True),
    Story(name="fsdp2: 3 ranks", kind="fsdp2", world=3),
    Story(name="plain: spawned", launch="spawn"),
    Story(name="ddp: spawned", kind="ddp", launch="spawn"),
]

TORCHRUN = [
    Story(name="torchrun, ddp: 2 ranks", kind="ddp", launch="torchrun"),
    Story(name="torchrun, ddp: rank 1 is killed, and all go on from the newest seal", kind="ddp", launch="torchrun",
          spec={"restarts": 1, "save_every": 10, "pace_s": 0.05}, harm=(harm("signal:SIGKILL", "step", 25),),
          acts=(ask(40),)),
    *(
        Story(name=f"torchrun, {kind}: rank 1 is killed at 'save'", kind=kind, launch="torchrun", replies=ANY_OR_NONE,
              harm=(harm("signal:SIGKILL", "save", 8),), acts=(ask(8),), end=End.ENDED)
        for kind in ("ddp", "fsdp2")
    ),
    stopped("torchrun, ddp: SIGTERM to torchrun", STOP, kind="ddp", launch="torchrun", replies=ANY_OR_NONE,
            dead={0: None}),  # torchrun itself, whose own exception it is
]  # fmt: skip

LACKING = [
    lost("plain: rank 1 has no mailbox", {}, env_of={1: NO_MAILBOX}),
    lost("plain: rank 1 is switched off", {}, env_of={1: OFF}),
    lost("store: rank 1 is switched off", {}, kind="store", env_of={1: OFF}),
    lost("ddp: rank 1 is switched off", {}, kind="ddp", env_of={1: OFF}),
    lost("plain: rank 1 has another job id that is none", {}, env_of={1: BAD_ID}),
    lost("plain: rank 1 dies before start", harm("raise:RuntimeError", "before start"), dead={1: None}),
    lost("store: rank 1 dies before start", harm("raise:RuntimeError", "before start"), kind="store", dead={1: None}),
    lost("plain: rank 1 never gets to start", harm("hang", "before start"), stuck=(1,)),
    lost("store: rank 1 never gets to start", harm("hang", "before start"), kind="store", stuck=(1,)),
    lost("plain: rank 1 never takes a step", harm("hang", "started"), stuck=(1,)),
    lost("store: rank 1 never takes a step", harm("hang", "started"), kind="store", stuck=(1,)),
    lost("store: 7 of 8 ranks are switched off", {}, kind="store", world=8, env_of=dict.fromkeys(range(1, 8), OFF)),
    Story(name="store: rank 1 has no mailbox", kind="store", env_of={1: NO_MAILBOX}),
    Story(name="ddp: rank 1 has no mailbox", kind="ddp", env_of={1: NO_MAILBOX}),
    Story(name="plain: rank 0 has no mailbox", env_of={0: NO_MAILBOX}, replies=NONE, acts=(ask(), WAIT)),
    Story(name="store: rank 0 has no mailbox", kind="store", env_of={0: NO_MAILBOX}, replies=NONE, acts=(ask(), WAIT)),
    Story(name="ddp: rank 0 has no mailbox", kind="ddp", env_of={0: NO_MAILBOX}, replies=NONE, acts=(ask(), WAIT)),
    Story(name="ddp: rank 0 is switched off", kind="ddp", env_of={0: OFF}, replies=NONE, acts=(ask(), WAIT)),
    Story(name="store: rank 1 has a job id that is none", kind="store", env_of={1: BAD_ID}, replies=SAVED_OR_CANNOT,
          acts=(short(),)),
    Story(name="ddp: rank 1 dies before start", kind="ddp", harm=(harm("raise:RuntimeError", "before start"),),
          acts=(), end=End.DIED, reason="RuntimeError"),
    Story(name="plain: rank 1 is 3 s late to start", harm=(harm("sleep:3", "before start"),), replies=SAVED_OR_CANNOT,
          acts=(ask(step=12, rank=1, deadline_s=20.0),)),
    Story(name="ddp: rank 1 is 3 s late to start", kind="ddp", harm=(harm("sleep:3", "before start"),)),
    Story(name="plain: no save function", spec={"has_no_save": True}, replies=CANNOT, acts=(short(),), saves=0),
]  # fmt: skip

DYING = [
    *(killed(place, "plain") for place in ("step", "save", "half saved", "saved", "stepped")),
    killed("step", "plain", rank=0),
    killed("save", "plain", rank=0),
    *(killed(place, "store") for place in ("step", "save", "saved")),
    killed("save", "store", rank=0),
    *(killed(place, "ddp") for place in ("step", "save", "half saved", "saved")),
    *(killed(place, "fsdp2") for place in ("step", "save", "saved")),
    Story(name="store: 3 of 8 ranks are killed at once", kind="store", world=8, dead={3: -9, 5: -9, 7: -9},
          harm=(harm("signal:SIGKILL", "step", 8, (3, 5, 7)),), acts=(short(),), replies=CANNOT, saves=0),
]  # fmt: skip


def frozen(kind: str, place: str, rank: int) -> Story:
    then = (ask(7), Act(do="wait", steps=5, rank=1 - rank)) if kind not in ("ddp", "fsdp2") else (ask(7),)
    return Story(
        name=f"{kind}: rank {rank} is frozen at {place!r} and goes on",
        kind=kind,
        harm=(harm("signal:SIGSTOP", place, 8, (rank,)),),
        acts=(*then, Act(do="pause:2", on="harm", rank=rank), Act(do="signal:SIGCONT", step=0, ranks=(rank,))),
        replies=SAVED_OR_CANNOT,
    )


FROZEN = [
    frozen("plain", "step", 1),
    frozen("plain", "save", 1),
    frozen("plain", "step", 0),
    frozen("plain", "save", 0),
    frozen("store", "step", 1),
    frozen("store", "save", 1),
    frozen("store", "save", 0),
    frozen("ddp", "step", 1),
    frozen("ddp", "save", 1),
    frozen("ddp", "save", 0),
]


def store_fault(kind: str, do: str, rank: int, *before: Act, **more: Any) -> Story:
    return Story(
        name=f"{kind}: {do} the store's connections of rank {rank}{' after a request' if before else ''}",
        kind=kind,
        proxied=(rank,),
        acts=(*before, Act(do=do, step=8, ranks=(rank,)), ask(12, deadline_s=6.0), WAIT),
        replies=SAVED_OR_CANNOT,
        leaves_threads=do == "stall",
        **more,
    )


STORES = [
    *(store_fault(kind, do, rank) for kind in ("store", "ddp") for do in ("cut", "stall") for rank in (0, 1)),
    store_fault("store", "refuse", 1),
    store_fault("store", "cut", 1, ask(8)),
    store_fault("store", "stall", 1, ask(8)),
    Story(name="store: the store is killed", kind="store", acts=(Act(do="kill the store", step=8), short(), WAIT),
          replies=SAVED_OR_CANNOT),
    Story(name="ddp: the store is killed", kind="ddp", acts=(Act(do="kill the store", step=8), short(), WAIT),
          replies=SAVED_OR_CANNOT),
    Story(name="ddp: the store is killed, then SIGTERM", kind="ddp", end=End.STOPPED_APART, saves=0,
          replies=ANY_OR_NONE,
          # a daemon thread of the monitor may be in torch's call for a new connection, which lasts ten seconds at most
          acts=(Act(do="kill the store", step=8), Act(do="pause:1"), STOP), leaves_threads=True),
    Story(name="ddp: a bad GLOO_SOCKET_IFNAME on rank 1 at start", kind="ddp", replies=SAVED_OR_CANNOT,
          acts=(ask(deadline_s=20.0),), harm=(harm("set:GLOO_SOCKET_IFNAME=nowhere0", "before start"),)),
    Story(name="fsdp2: a bad GLOO_SOCKET_IFNAME on rank 1 at start", kind="fsdp2", replies=SAVED_OR_CANNOT,
          acts=(ask(deadline_s=20.0),), harm=(harm("set:GLOO_SOCKET_IFNAME=nowhere0", "before start"),)),
    *(
        Story(name=f"{kind}: {count} descriptors are left on {'every rank' if ranks == ALL else 'rank 1'}", kind=kind,
              harm=(harm(f"descriptors:{count}", "before start", ranks=ranks),), replies=ANY_OR_NONE,
              acts=(short(), WAIT))
        for kind, count, ranks in (
            ("plain", 8, ALL), ("plain", 8, (1,)), ("store", 8, ALL), ("store", 8, (1,)), ("ddp", 8, (1,)),
        )
    ),
]  # fmt: skip

FAILING = [
    *(raised(error, ranks) for error in ("OSError", "BaseException") for ranks in ((0,), (1,), ALL)),
    *(raised(error, (1,)) for error in ("MemoryError", "StopIteration", "RecursionError")),
    raised("SystemExit", (1,), dead=3),
    raised("SystemExit", (0,), dead=3),
    raised("SystemExit", ALL, dead=3),
    raised("KeyboardInterrupt", (1,), dead=None),
    raised("KeyboardInterrupt", ALL, dead=None),
    raised("OSError", (1,), "store"),
    raised("BaseException", (0,), "store"),
    raised("OSError", ALL, "ddp"),
    raised("OSError", (1,), "ddp"),
    raised("OSError", (0,), "ddp"),
    raised("BaseException", (1,), "fsdp2"),
    raised("OSError", (0,), "fsdp2"),
    Story(name="fsdp2: the disk is full for rank 1 in the save", kind="fsdp2", replies=CANNOT, acts=(short(),),
          saves=0, harm=(harm("file bytes:600", "save"),)),
    Story(name="fsdp2: the disk is full for rank 0 in the save", kind="fsdp2", replies=CANNOT | NONE,
          acts=(short(), WAIT), saves=0, harm=(harm("file bytes:600", "save", ranks=(0,)),)),
    Story(name="ddp: the disk is full for rank 0 in the save", kind="ddp", replies=CANNOT | NONE,
          acts=(short(), WAIT), saves=0, harm=(harm("file bytes:600", "save", ranks=(0,)),)),
    Story(name="fsdp2: a background save failed before the request", kind="fsdp2", acts=(ask(22),), then_resumes=True,
          spec={"save_every": 10, "in the background": True, "pace_s": 0.05},
          harm=(harm("file bytes:600", "step", 9), harm("file bytes:any", "step", 15))),
    lost("plain: the save never returns on rank 1", harm("hang", "save"), stuck=(1,)),
    lost("store: the save never returns on rank 1", harm("hang", "save"), kind="store", stuck=(1,)),
    lost("plain: the save never returns on rank 1 of 8", harm("hang", "save", ranks=(1,)), world=8, stuck=(1,)),
    Story(name="plain: the save takes 3 s on rank 1", harm=(harm("sleep:3", "save"),)),
    Story(name="plain: the save computes for 3 s on rank 0", harm=(harm("spin:3", "save", ranks=(0,)),)),
    *(
        Story(name=f"plain: the save returns {what} on rank 0", replies=CANNOT, acts=(short(),), saves=0,
              harm=(harm("nonsense", "never", ranks=(0,), what=what),))
        for what in ("none", "number", "missing", "object")
    ),
    Story(name="plain: the save returns nothing on rank 1", harm=(harm("nonsense", "never", what="none"),)),
]  # fmt: skip


SIGNALS = [
    stopped("plain: SIGTERM to every rank", saves=1, then_resumes=True),
    stopped("plain: SIGTERM to rank 1", Act(do="signal:SIGTERM", ranks=(1,)), saves=1),
    stopped("plain: SIGTERM to rank 0", Act(do="signal:SIGTERM", ranks=(0,)), saves=1),
    stopped("plain: SIGTERM twice", STOP, Act(do="pause:0.05"), STOP, saves=1),
    stopped("plain: SIGTERM to every rank of 8", world=8, saves=1),
    stopped("store: SIGTERM to every rank", kind="store", saves=1),
    stopped("store: SIGTERM to rank 5 of 8", Act(do="signal:SIGTERM", ranks=(5,)), kind="store", world=8, saves=1),
    stopped("ddp: SIGTERM to every rank", kind="ddp", saves=1, then_resumes=True),
    stopped("ddp: SIGTERM to rank 1", Act(do="signal:SIGTERM", ranks=(1,)), kind="ddp", saves=1),
    stopped("ddp: SIGTERM twice", STOP, Act(do="pause:0.05"), STOP, kind="ddp", saves=1),
    stopped("fsdp2: SIGTERM to every rank", kind="fsdp2", saves=1, then_resumes=True),
    stopped("plain: SIGTERM during the save", ask(), harm=(harm("signal:SIGTERM", "save", ranks=ALL),)),
    stopped("ddp: SIGTERM during the save on rank 1", ask(), kind="ddp", harm=(harm("signal:SIGTERM", "save"),)),
    stopped("plain: SIGTERM and a request at once", ask(), STOP),
    stopped("plain: SIGTERM where rank 1 is switched off", STOP, env_of={1: OFF}, dead={1: -15}, saves=0),
    stopped("plain: SIGTERM where nothing can be saved", STOP, spec={"has_no_save": True}, saves=0),
    stopped("plain: SIGTERM and the save raises on rank 1", STOP, harm=(harm("raise:OSError", "save"),), saves=0),
    Story(name="plain: SIGTERM before the first step ends the ranks at once", dead={0: -15, 1: -15}, saves=0,
          acts=(Act(do="signal:SIGTERM", on="started", ranks=ALL),), harm=(harm("sleep:120", "started", ranks=ALL),)),
    Story(name="plain: SIGUSR1 to rank 1", acts=(Act(do="signal:SIGUSR1", ranks=(1,)), WAIT), saves=1),
    Story(name="plain: SIGUSR1 to every rank", acts=(Act(do="signal:SIGUSR1", ranks=ALL), WAIT)),
    Story(name="ddp: SIGUSR1 to rank 0", kind="ddp", acts=(Act(do="signal:SIGUSR1", ranks=(0,)), WAIT), saves=1),
]  # fmt: skip

CHILDREN = [
    *(
        Story(name=f"{kind}: a {child} is started, then {how}", kind=kind, harm=(harm(child, "stepped", 5, ALL),),
              acts=(ask(),) if how == "a request" else (STOP,), end=End.FINISHED if how == "a request" else End.STOPPED)
        for kind, child, how in (
            ("plain", "daemon", "a request"), ("plain", "pool", "a request"), ("plain", "daemon", "SIGTERM"),
            ("plain", "pool", "SIGTERM"), ("plain", "subprocess", "a request"), ("ddp", "daemon", "SIGTERM"),
            ("ddp", "pool", "a request"),
        )
    ),
    Story(name="plain: a second monitor", world=1, spec={"second monitor": True}, acts=(short(),),
          replies=SAVED_OR_CANNOT),
    Story(name="store: a second monitor", kind="store", spec={"second monitor": True}, acts=(short(),),
          replies=SAVED_OR_CANNOT),
    Story(name="plain: a second monitor, then SIGTERM", world=1, spec={"second monitor": True}, acts=(STOP,),
          end=End.STOPPED),
]  # fmt: skip


def bad_loss(what: str, ranks: Sequence[int] | str, kind: str = "plain", step: int = 14, **more: Any) -> Story:
    who = "every rank" if ranks == ALL else f"rank {ranks[0]}"
    return Story(
        name=f"{kind}: the loss is {what} on {who} from step {step}",
        kind=kind,
        harm=(harm("bad loss", "never", step, ranks, what=what), *more.pop("too", ())),
        acts=(short(step + 2) if what in ("nan", "inf") else ask(step + 2),),
        replies=CANNOT if what in ("nan", "inf") else frozenset({"saved"}),
        saves=0 if what in ("nan", "inf") else 1,
        **more,
    )


def poisoned(kind: str, step: int, **more: Any) -> Story:
    """The weights and the loss become NaN at `step`; a request comes shortly before."""
    return Story(
        name=f"{kind}: the weights are poisoned at step {step}, a request comes at step 12",
        kind=kind,
        harm=(harm("poisoned weights", "never", step, ALL), harm("bad loss", "never", step, ALL, what="nan")),
        acts=(ask(12, deadline_s=SHORT_S),),
        replies=SAVED_OR_CANNOT,
        **more,
    )


LOSSES = [
    *(bad_loss(what, ranks) for what in ("nan", "inf") for ranks in ((1,), ALL)),
    bad_loss("nan", (1,), "store"),
    bad_loss("nan", (1,), "ddp"),
    *(bad_loss(what, ALL) for what in ("text", "list", "none")),
    *(
        Story(name=f"store: the loss is {form}", kind="store", spec={"loss": form})
        for form in ("a tensor", "zeroed", "vector", "integer")
    ),
    *(poisoned("plain", step) for step in (13, 16, 20)),
    *(poisoned("store", step, spec={"loss": "a tensor"}) for step in (13, 16, 20)),
    poisoned("store", 10, spec={"loss": "a tensor", "save_every": 5}),
    poisoned("ddp", 15),
]

MAILBOXES = [
    Story(name="plain: the mailbox is removed, then a request", replies=SAVED_OR_CANNOT,
          acts=(Act(do="remove the mailbox", step=8), ask(12, deadline_s=15.0))),
    Story(name="ddp: the mailbox is removed, then a request", kind="ddp",
          acts=(Act(do="remove the mailbox", step=8), ask(12))),
    Story(name="plain: a file stands in the mailbox's place", replies=ANY_OR_NONE,
          acts=(Act(do="block the mailbox", step=8), WAIT)),
    Story(name="plain: a file stands in the mailbox's place for a while", replies=SAVED_OR_CANNOT,
          acts=(Act(do="block the mailbox", step=8), WAIT, Act(do="unblock the mailbox"), ask(deadline_s=20.0))),
    Story(name="ddp: a file stands in the mailbox's place for a while", kind="ddp",
          acts=(Act(do="block the mailbox", step=8), WAIT, Act(do="unblock the mailbox"), ask())),
    Story(name="plain: a file stands in the mailbox's place, then SIGTERM", end=End.STOPPED, replies=ANY_OR_NONE,
          acts=(Act(do="block the mailbox", step=8), Act(do="pause:1"), STOP), saves=0),
    Story(name="plain: the disk of every rank is full", replies=ANY_OR_NONE, acts=(short(), WAIT),
          harm=(harm("file bytes:64", "step", 8, ALL),)),
    Story(name="ddp: the disk of rank 0 is full", kind="ddp", replies=ANY_OR_NONE, acts=(short(), WAIT),
          harm=(harm("file bytes:64", "step", 8, (0,)),)),
    *(
        Story(name=f"{kind}: S3 takes 30 s for a call of {world}", kind=kind, world=world, has_slow_s3=True,
              replies=ANY_OR_NONE, acts=(WAIT,))
        for kind, world in (("plain", 1), ("plain", 2), ("store", 2))
    ),
    Story(name="plain: S3 takes 30 s for a call, then SIGTERM", world=1, has_slow_s3=True, end=End.STOPPED,
          replies=ANY_OR_NONE, acts=(STOP,)),
]  # fmt: skip

POSITIONS = [
    *(
        stopped(f"{kind}: another attempt takes over", Act(do="fence"), kind=kind, saves=0)
        for kind in ("plain", "store", "ddp")
    ),
    Story(name="plain: another attempt takes over right after a request", end=End.STOPPED, replies=ANY_OR_NONE,
          acts=(ask(), Act(do="fence"))),
    Story(name="plain: rank 0 is twice as fast", spec={"pace_s": [0.02, 0.04]}, replies=SAVED_OR_CANNOT,
          acts=(ask(deadline_s=20.0),)),
    Story(name="plain: rank 1 is twice as fast", spec={"pace_s": [0.04, 0.02]}, replies=SAVED_OR_CANNOT,
          acts=(ask(deadline_s=20.0),)),
    Story(name="store: rank 1 is ten times as fast", kind="store", spec={"pace_s": [0.05, 0.005]},
          replies=SAVED_OR_CANNOT, acts=(ask(deadline_s=20.0),)),
    Story(name="store: rank 1 is some steps ahead", kind="store", harm=(harm("sleep:0.5", "step", 5, (0,)),)),
    Story(name="ddp: rank 0 works less than rank 1", kind="ddp", spec={"pace_s": [0.0, 0.05]}),
    Story(name="plain: rank 1 calls step once less", harm=(harm("lost call", "never", 6),), replies=SAVED_OR_CANNOT,
          acts=(ask(deadline_s=20.0),)),
    Story(name="store: rank 0 calls step once less", kind="store", harm=(harm("lost call", "never", 6, (0,)),),
          replies=SAVED_OR_CANNOT, acts=(ask(deadline_s=20.0),)),
    Story(name="ddp: rank 1 calls step once less", kind="ddp", harm=(harm("lost call", "never", 6),),
          replies=SAVED_OR_CANNOT, acts=(ask(deadline_s=20.0),)),
    Story(name="plain: rank 1 would resume at step 9, rank 0 from nothing", prepared=9, replies=SAVED_OR_CANNOT,
          env_of={1: {"REKINDLE_RESUME_STEP": "9", "REKINDLE_RESUME_URI": "{home}/checkpoints/step-000009"}},
          acts=(ask(20, deadline_s=20.0),)),
    Story(name="store: rank 0 resumes at step 9, rank 1 would from nothing", kind="store", prepared=9,
          env_of={0: {"REKINDLE_RESUME_STEP": "9", "REKINDLE_RESUME_URI": "{home}/checkpoints/step-000009"}},
          acts=(ask(20),)),
    Story(name="plain: steps of 2 ms", spec={"pace_s": 0.002, "last": 3000}, acts=(ask(100),)),
    Story(name="store: steps of 2 ms", kind="store", spec={"pace_s": 0.002, "last": 3000}, acts=(ask(100),)),
    Story(name="plain: steps of half a second", spec={"pace_s": 0.5}, acts=(ask(3),)),
    Story(name="store: every tenth step takes a second", kind="store", spec={"long step": [10, 1.0]}),
    *(
        Story(name=f"{kind}: three requests at once", kind=kind, acts=(Act(do="ask:3"),))
        for kind in ("plain", "store", "ddp")
    ),
    Story(name="plain: a request after another", acts=(ask(), WAIT, ask(), WAIT, ask())),
    *(
        Story(name=f"{kind}: every step is saved by the script too", kind=kind, spec={"save_every": 1, "pace_s": 0.05})
        for kind in ("plain", "store", "ddp", "fsdp2")
    ),
    *(
        stopped(f"{kind}: every step is saved by the script too, then SIGTERM", STOP, kind=kind,
                spec={"save_every": 1, "pace_s": 0.05})
        for kind in ("plain", "ddp")
    ),
    *(
        Story(name=f"{kind}: the script raises", kind=kind, harm=(harm("raise:RuntimeError", "step", 20, ALL),),
              acts=(ask(8),), end=End.DIED, reason="RuntimeError", replies=SAVED_OR_CANNOT)
        for kind in ("plain", "store", "ddp")
    ),
    Story(name="plain: the script calls sys.exit", harm=(harm("raise:SystemExit", "step", 20, ALL),), acts=(ask(8),),
          dead={0: 3, 1: 3}, replies=SAVED_OR_CANNOT),
    Story(name="plain: the script ends at once", harm=(harm("exit:5", "step", 20, ALL),), dead={0: 5, 1: 5},
          acts=(ask(8),), replies=ANY_OR_NONE),
    Story(name="plain: the script never calls finish", spec={"never_finishes": True}),
    Story(name="store: the script never calls finish", kind="store", spec={"never_finishes": True}),
    Story(name="plain: the script calls finish after SIGTERM that it ignored", acts=(STOP, WAIT),
          spec={"ignores_stop": True}, saves=1),
]  # fmt: skip

EXAMPLE_ROWS = [
    row
    for kind in EXAMPLES
    for row in (
        Story(name=f"{kind}: a request", kind=kind, then_resumes=True),
        stopped(f"{kind}: SIGTERM to every rank", kind=kind, then_resumes=True),
        stopped(f"{kind}: SIGTERM to rank 1", Act(do="signal:SIGTERM", ranks=(1,)), kind=kind, saves=1),
        Story(name=f"{kind}: SIGUSR1 to rank 1", kind=kind, acts=(Act(do="signal:SIGUSR1", ranks=(1,)),), saves=1),
        Story(name=f"{kind}: every fifth step is saved by the script too", kind=kind, spec={"save_every": 5}),
        Story(name=f"{kind}: rank 1 is switched off", kind=kind, env_of={1: OFF}, acts=(short(),), replies=CANNOT,
              saves=0),
        Story(name=f"{kind}: rank 1 is killed at a step", kind=kind, harm=(harm("signal:SIGKILL", "step", 15),),
              replies=ANY_OR_NONE, end=End.DIED, dead={1: -9}),
        Story(name=f"{kind}: rank 0 is frozen at a step and goes on", kind=kind,
              harm=(harm("signal:SIGSTOP", "step", 12, (0,)),), replies=SAVED_OR_CANNOT,
              acts=(ask(8), Act(do="pause:2", on="harm", rank=0), Act(do="signal:SIGCONT", step=0, ranks=(0,)))),
        stopped(f"{kind}: another attempt takes over", Act(do="fence"), kind=kind, saves=0),
    )
]  # fmt: skip

# Where the framework's own save fails, some frameworks end the run, some go on: both at once, and on all ranks.
EXAMPLE_FAILURES = [
    Story(name=f"{kind}: the disk is full for rank {rank}", kind=kind, acts=(short(),), saves=0,
          harm=(harm("file bytes:300", "step", 8, (rank,)), harm("file bytes:any", "step", 55, (rank,))),
          replies=CANNOT | NONE, end=end)
    for kind, rank, end in (
        ("hf", 0, End.DIED), ("hf", 1, End.FINISHED), ("lightning", 0, End.FINISHED), ("accelerate", 0, End.FINISHED),
        ("accelerate", 1, End.FINISHED), ("deepspeed", 0, End.FINISHED), ("deepspeed", 1, End.FINISHED),
    )
]  # fmt: skip

PYTHONS = [
    Story(name=f"plain: Python {version}, {world} ranks", launch=program, world=world)
    for version, program in other_pythons().items()
    for world in (1, 3)
]

STORIES = [
    *(*WORLDS, *TORCHRUN, *LACKING, *DYING, *FROZEN, *STORES, *FAILING, *SIGNALS, *CHILDREN, *LOSSES, *MAILBOXES),
    *(*POSITIONS, *EXAMPLE_ROWS, *EXAMPLE_FAILURES, *PYTHONS),
]

# Kin that take long and differ little from a row beside them, or from test_integration_saves: played with
# `make test-train ARGS=--all-stories`.
_LONG = (
    *(f"{kind}: {what}" for kind in EXAMPLES for what in (
        "SIGTERM to rank 1", "SIGUSR1 to rank 1", "every fifth step", "rank 1 is killed", "rank 0 is frozen",
        "another attempt", "the disk is full",
    )),
    "plain: 64 ranks", "store: 32 ranks", "gloo: 8 ranks", "fsdp2: 3 ranks",
    "ddp: stall the store's connections of rank 0", "ddp: cut the store's connections of rank 0",
    "store: stall the store's connections of rank 1", "store: refuse", "plain: S3 takes 30 s for a call of 2",
    "ddp: rank 0 is frozen", "store: rank 0 is frozen", "plain: the save never returns on rank 1 of 8",
    "store: 7 of 8 ranks are switched off", "plain: steps of half a second", "ddp: rank 0 is switched off",
)  # fmt: skip
USUAL_STORIES = [story for story in STORIES if not story.name.startswith(_LONG)]
