"""Stories made from a seed: a run, what goes wrong with it, some source faults, at times a person who acts.

Which platform a story is of is drawn apart from the rest.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Final

from simulation.making.faults_drawn import DENIED, any_fault, fault_on_slurm
from simulation.stories.kinds import CHAINS
from simulation.stories.source_faults import STAGES
from simulation.stories.story import PersonAction, Run, SourceFault, Story, Trouble

_CRASHES: Final = (
    "RuntimeError: training failed",
    "RuntimeError: NCCL communicator was aborted on rank 3",
    "ValueError: batch 41 is empty",
)


PLATFORMS: Final = ("sagemaker", "slurm")
_SLURM_SHARE: Final = 0.35
_HISTORY_SHARE: Final = 0.001
HISTORY: Final = 10_000
_SKIPS_SHARE: Final = 0.04
_DELETED_SHARE: Final = 0.04
_BESIDE_SHARE: Final = 0.08
_ROLLED_BACK_SHARE: Final = 0.04
_LATE_METRICS_SHARE: Final = 0.03
_DENIED_SHARE: Final = 0.03
_NO_ANSWER_SHARE: Final = 0.05
_TORN_SHARE: Final = 0.03
_CLOCK_SHARE: Final = 0.03
_ORDER_SHARE: Final = 0.04
_PAUSE_SHARE: Final = 0.03
_OTHERS_SHARE: Final = 0.15
_CHAIN_SHARE: Final = 0.1
_OTHERS: Final = ("rests", "keeps", "own_folder", "layer", "layer")
_LIVES_SHARE: Final = 0.06
_SWEEP_SHARE: Final = 0.02
_NO_CAPACITY_SHARE: Final = 0.03
_SLURM_REFUSALS: Final = ("s3_away", "listing_away", "nodes_throttled", "metrics_away")


def make(seed: int, platform: str = "") -> Story:
    """The story of this seed; without a platform, of one that the seed draws."""
    apart = random.Random(f"platform {seed}")
    drawn = PLATFORMS[apart.random() < _SLURM_SHARE]
    story = _more(seed, (_on_slurm if (platform or drawn) == "slurm" else _of_training_jobs)(seed))
    return _with_history(story) if apart.random() < _HISTORY_SHARE else story


def _with_history(story: Story) -> Story:
    """Its first run has been on for long: there are 10,000 checkpoints, and everything happens so many steps later."""
    first = story.runs[0]
    troubles = tuple(replace(trouble, step=trouble.step + HISTORY) for trouble in first.troubles)
    steps = None if first.steps is None else first.steps + HISTORY
    return replace(story, runs=(replace(first, history=HISTORY, troubles=troubles, steps=steps), *story.runs[1:]))


def _of_training_jobs(seed: int) -> Story:
    draw = random.Random(seed)
    is_fleet = draw.random() < 0.08
    runs = tuple(
        _run(draw, f"lm{number}" if is_fleet else "lm") for number in range(draw.randint(3, 5) if is_fleet else 1)
    )
    policy: dict[str, Any] = {"breaker": {"incidents": 2, "percent": 20}} if is_fleet and draw.random() < 0.5 else {}
    source_faults = tuple(any_fault(draw, runs) for _ in range(draw.choice((0, 1, 1, 1, 2, 2, 3))))
    actions = (_action(draw, runs[0].name),) if draw.random() < 0.25 else ()
    return Story(seed=seed, runs=runs, source_faults=source_faults, actions=actions, length_s=7200.0, policy=policy)


def _on_slurm(seed: int) -> Story:
    draw = random.Random(seed)
    count = draw.choice((1, 1, 1, 1, 2, 3))
    runs = tuple(_slurm_run(draw, f"lm{number}" if count > 1 else "lm") for number in range(count))
    source_faults = tuple(
        fault_on_slurm(draw) if draw.random() < 0.6 else any_fault(draw, runs, refusals=_SLURM_REFUSALS)
        for _ in range(draw.choice((0, 1, 1, 1, 2, 2, 3)))
    )
    actions = (_action(draw, runs[0].name),) if draw.random() < 0.2 else ()
    return Story(
        seed=seed,
        runs=runs,
        source_faults=source_faults,
        actions=actions,
        length_s=7200.0,
        nodes=sum(run.instances for run in runs) + draw.choice((0, 1, 1, 2, 4)),
        recovery=draw.choice(("None", "None", "Automatic")),
    )


def _slurm_run(draw: random.Random, name: str) -> Run:
    return replace(
        _run(draw, name),
        platform="slurm",
        watch="monitor",
        refusals=0,
        upload_s=60.0,
        instances=draw.choice((2, 2, 4)),
        ranks=draw.choice((1, 8)),
        requeue=draw.random() < 0.8,
        troubles=tuple(
            _node_trouble(draw) if draw.random() < 0.4 else _trouble(draw)
            for _ in range(draw.choice((0, 1, 1, 1, 2, 2)))
        ),
    )


def _node_trouble(draw: random.Random) -> Trouble:
    kind = draw.choice(("node_dies", "node_sick", "node_hangs"))
    return Trouble(kind=kind, step=draw.randint(15, 90), cure=draw.choice(("reboot", "replace")))


def _more(seed: int, story: Story) -> Story:
    """Drawn apart, so that the rest of a seed's story stays as it was before there were these."""
    draw = random.Random(f"more {seed}")
    first = story.runs[0]
    if draw.random() < _SKIPS_SHARE:
        skips = Trouble(kind="skips", step=draw.randint(1, 90), heals=draw.choice((1, 5, 16, 40)))
        first = replace(first, troubles=(*first.troubles, skips))
    if draw.random() < _DELETED_SHARE:
        deleted = Trouble(kind="saves_deleted", step=draw.randint(15, 90), heals=draw.choice((None, 1, 1, 2)))
        first = replace(first, troubles=(*first.troubles, deleted))
    source_faults, actions = story.source_faults, story.actions
    if draw.random() < _BESIDE_SHARE:
        source_faults = (*source_faults, SourceFault(kind=draw.choice(sorted(STAGES))))
        if draw.random() < 0.3:
            actions = (replace(_action(draw, first.name), what="resubmit", when="dead", tagged="other_stage"),)
    if draw.random() < _ROLLED_BACK_SHARE:
        from_s = float(draw.randint(240, 1600))
        source_faults = (*source_faults, SourceFault(kind="rolled_back", from_s=from_s, to_s=from_s + 60))
    if draw.random() < _LATE_METRICS_SHARE:
        from_s = float(draw.randint(240, 1600))
        by_s = draw.choice((120.0, 600.0, 1800.0))
        source_faults = (
            *source_faults,
            SourceFault(kind="metrics_late", from_s=from_s, to_s=from_s + draw.choice((900.0, 3600.0)), by_s=by_s),
        )
    story = replace(story, runs=(first, *story.runs[1:]), source_faults=source_faults, actions=actions)
    return _still_more(random.Random(f"still more {seed}"), story)


def _still_more(draw: random.Random, story: Story) -> Story:
    """For the same reason."""
    run, is_on_slurm = story.runs[0], story.runs[0].platform == "slurm"
    from_s = float(draw.randint(240, 1600))
    to_s = from_s + draw.choice((60.0, 300.0, 900.0, 3600.0))
    more: list[SourceFault] = []
    if draw.random() < _DENIED_SHARE:
        more.append(SourceFault(kind=draw.choice(DENIED), from_s=from_s, to_s=to_s))
    if draw.random() < _NO_ANSWER_SHARE:
        more.append(SourceFault(kind="answers_lost", share=draw.choice((0.3, 1.0))))
    if draw.random() < _TORN_SHARE:
        more.append(SourceFault(kind="heartbeats_torn", from_s=from_s, to_s=to_s, run=draw.choice(("", run.name))))
    if draw.random() < _CLOCK_SHARE and is_on_slurm:
        more.append(SourceFault(kind="slurm_clock", by_s=draw.choice((540.0, -540.0))))
    actions = story.actions
    if draw.random() < _ORDER_SHARE:
        when = draw.choice(("start", "incident", "dead", "verifying"))
        order = PersonAction(what="order_resubmit", when=when, delay_s=draw.choice((3.0, 90.0, 400.0)), run=run.name)
        actions = (*actions, order, *([replace(order, delay_s=order.delay_s + 0.5)] if draw.random() < 0.3 else []))
    if draw.random() < _PAUSE_SHARE:
        pause = PersonAction(
            what="pause", when=draw.choice(("start", "incident")), delay_s=draw.choice((1.0, 30.0, 400.0))
        )
        again = replace(pause, what="unpause", delay_s=pause.delay_s + draw.choice((300.0, 2000.0)))
        actions = (*actions, replace(pause, run=run.name), replace(again, run=run.name))
    story = replace(story, source_faults=(*story.source_faults, *more), actions=actions)
    story = _with_others(random.Random(f"others {story.seed}"), story)
    story = _with_lives(random.Random(f"lives {story.seed}"), story)
    story = _as_sweep(random.Random(f"sweep {story.seed}"), story)
    story = _with_chain(random.Random(f"chain {story.seed}"), story)
    return _without_capacity(random.Random(f"capacity {story.seed}"), story)


def _with_chain(draw: random.Random, story: Story) -> Story:
    """Of several jobs one after the other, each of which a time limit, a crash or its last step ends."""
    first, *others = story.runs
    if first.platform != "slurm" or draw.random() >= _CHAIN_SHARE:
        return story
    kind = draw.choice(("crash", "time_limit", "silent", "node_dies", ""))
    ends = (Trouble(kind=kind, step=draw.randint(15, 90), hits=draw.choice((1, 1, 2))),) if kind else ()
    steps = first.steps or draw.choice((None, draw.randint(60, 150)))
    chain = draw.choice([name for name in CHAINS if name])
    chained = replace(first, chain=chain, links=draw.choice((2, 2, 3)), steps=steps, troubles=(*first.troubles, *ends))
    return replace(story, runs=(chained, *others))


def _with_others(draw: random.Random, story: Story) -> Story:
    """With what others do to a run beside Rekindle, what a healthy one does, and what becomes of its checkpoints."""
    first, *others = story.runs
    kind = draw.choice(_OTHERS)
    if draw.random() >= _OTHERS_SHARE:
        return story
    is_on_slurm = first.platform == "slurm"
    when, delay_s = draw.choice(("start", "incident", "verifying")), draw.choice((20.0, 90.0, 400.0, 1200.0))
    match kind:
        case "rests":
            trouble = Trouble(kind="rests", step=draw.randint(15, 90), after_s=draw.choice((120.0, 600.0, 1500.0)))
            first = replace(first, troubles=(*first.troubles, trouble))
        case "keeps":
            first = replace(first, keeps=draw.choice((1, 2, 4)))
        case "own_folder":
            first = replace(first, own_folder=True)
        case _:
            what = draw.choice(("hang_cancel", "requeue", "retry")) if is_on_slurm else "retry"
            action = PersonAction(what=what, when=when, delay_s=delay_s, run=first.name)
            return replace(story, actions=(*story.actions, action))
    return replace(story, runs=(first, *others))


def _with_lives(draw: random.Random, story: Story) -> Story:
    """With a launcher that starts the run again in its place, once, a few times, or over and over."""
    first, *others = story.runs
    if draw.random() >= _LIVES_SHARE or first.watch != "monitor":
        return story
    crash = Trouble(kind=draw.choice(("crash", "crash", "oom")), step=draw.randint(5, 90), hits=draw.choice((1, 3, 99)))
    hang = replace(crash, kind="hang", after_s=draw.choice((30.0, 300.0)))
    first = replace(
        first,
        restarts=draw.choice((1, 3, 10, 100)),
        troubles=(*first.troubles, draw.choice((crash, crash, hang))),
        relaunch_s=draw.choice((5.0, 5.0, 90.0, 200.0)),
    )
    return replace(story, runs=(first, *others))


def _as_sweep(draw: random.Random, story: Story) -> Story:
    """With one or two more trials that have the run's checkpoint_s3_uri."""
    first, *others = story.runs
    if draw.random() >= _SWEEP_SHARE or others or first.platform == "slurm" or first.watch != "monitor":
        return story
    trials = tuple(
        replace(first, name=f"{first.name}{number}", place=first.name, troubles=(_trouble(draw),) * draw.randint(0, 1))
        for number in range(1, draw.randint(2, 3))
    )
    return replace(story, runs=(first, *trials))


def _without_capacity(draw: random.Random, story: Story) -> Story:
    """With capacity that never comes again, and an owner who waits less than an hour for it."""
    first, *others = story.runs
    if draw.random() >= _NO_CAPACITY_SHARE or first.platform == "slurm":
        return story
    policy = {**story.policy, "resubmission": {"capacity_limit_s": draw.choice((900, 1800))}}
    return replace(story, runs=(replace(first, refusals=99), *others), policy=policy)


def _run(draw: random.Random, name: str) -> Run:
    step_s = draw.choice((6.0, 10.0, 20.0))
    save_every = draw.choice((10, 20, 30))
    troubles = tuple(_trouble(draw) for _ in range(draw.choice((0, 1, 1, 1, 1, 2, 2))))
    return Run(
        name=name,
        step_s=step_s,
        save_every=save_every,
        steps=draw.choice((None, None, None, draw.randint(60, 150))),
        upload_s=draw.choice((30.0, 600.0, 2400.0)),
        plan=draw.choice(("obeyed",) * 8 + ("latest", "nothing")),
        watch=draw.choice(("monitor",) * 24 + ("metrics",)),
        refusals=draw.choice((0, 0, 0, 0, 1, 3)),
        skew_s=draw.choice((0.0, 0.0, 0.0, 540.0, -540.0)),
        instances=draw.choice((2, 4, 16)),
        troubles=troubles,
    )


def _trouble(draw: random.Random) -> Trouble:
    kind = draw.choice(
        (
            "crash",
            "crash",
            "oom",
            "hang",
            "hang",
            "nan",
            "nan",
            "quiet_nan",
            "blip",
            "spike",
            "torn_save",
            "flipped_save",
        )
    )
    step = draw.randint(15, 90)
    hits = draw.choice((1, 1, 1, 2, 99))
    match kind:
        case "crash":
            return Trouble(kind=kind, step=step, hits=hits, text=draw.choice(_CRASHES))
        case "oom":
            return Trouble(kind=kind, step=step, hits=hits)
        case "hang":
            return Trouble(
                kind=kind, step=step, hits=min(hits, 2), after_s=draw.choice((None, None, 80.0, 100.0, 300.0))
            )
        case "nan":
            is_data = draw.random() < 0.5
            return Trouble(kind=kind, step=step, hits=99 if is_data else 1, in_data=is_data)
        case "quiet_nan":  # at a save, where it matters
            return Trouble(kind=kind, step=step // 30 * 30 + 30 if draw.random() < 0.7 else step)
        case "spike":
            return Trouble(kind=kind, step=step, heals=draw.choice((None, 5, 12)), hits=1)
        case _:
            return Trouble(kind=kind, step=step)


def _action(draw: random.Random, run: str) -> PersonAction:
    what = draw.choice(("resubmit", "resubmit", "resubmit", "stop", "order_stop", "cancel"))
    delay_s = draw.choice((0.5, 3.0, 20.0, 90.0, 400.0))
    match what:
        case "resubmit":
            when = draw.choice(("dead", "dead", "resubmitting", "stopping"))
            return PersonAction(
                what=what, when=when, delay_s=delay_s, run=run, tagged=draw.choice(("job", "policy", "none"))
            )
        case "stop" | "order_stop":
            when = draw.choice(("incident", "checkpointing", "watching", "start"))
            return PersonAction(what=what, when=when, delay_s=delay_s + (300 if when == "start" else 0), run=run)
        case _:
            return PersonAction(
                what=what, when=draw.choice(("incident", "verifying", "checkpointing")), delay_s=delay_s, run=run
            )
