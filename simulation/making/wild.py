"""Stories further from the ordinary than the maker's: several troubles, many wrong sources at once, people who do
several things, and times that are drawn from a range and not from a list.

Each begins as a story of the maker's, of the same seed.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Final

from simulation.making.maker import HISTORY, make
from simulation.stories.source_faults import STAGES
from simulation.stories.story import PersonAction, Run, SourceFault, Story, Trouble

_ELSEWHERE: Final = 7_000_000_000_000  # added to a seed: stories whose parts are borrowed
_MOMENTS: Final = ("start", "dead", "incident", "checkpointing", "stopping", "resubmitting", "verifying", "watching")
_POLICIES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {},
    {},
    {"budgets": {"max_no_progress": 1}},
    {"budgets": {"max_no_progress": 5, "max_nodes_in_repair_percent": 40}},
    {"budgets": {"max_repairs_per_day": 2}},
)
_RESTARTS_SLOW_RUNS: Final[dict[str, Any]] = {
    "playbooks": {"throughput_drop": {"response": "checkpoint_then_restart", "deadline": "short"}}
}


def make_wild(seed: int, platform: str = "") -> Story:
    """The wild story of this seed; without a platform, of one that the seed draws."""
    draw = random.Random(f"wild {seed}")
    story = make(seed, platform)
    if any(run.history for run in story.runs):
        return story
    others = [make(_ELSEWHERE + draw.randrange(10**12), story.runs[0].platform) for _ in range(draw.choice((1, 2, 3)))]
    others = [other for other in others if not any(run.history >= HISTORY for run in other.runs)]
    runs = tuple(_run(draw, run, others) for run in story.runs)
    source_faults = [*story.source_faults, *(source_fault for other in others for source_fault in other.source_faults)]
    source_faults = [
        source_fault
        for source_fault in source_faults
        if source_fault in story.source_faults or source_fault.kind not in STAGES
    ]
    actions = [*story.actions, *(replace(action, run=runs[0].name) for other in others for action in other.actions)]
    if draw.random() < 0.3:
        actions.append(
            _action(draw, runs[0].name, has_stages=any(source_fault.kind in STAGES for source_fault in source_faults))
        )
    wild = replace(
        story,
        runs=runs,
        source_faults=tuple(_bent(draw, source_fault, runs) for source_fault in source_faults),
        actions=tuple(_moved(draw, action) for action in _paired(actions)),
        length_s=float(draw.randint(6000, 12000)),
        policy=draw.choice(_POLICIES) if not story.policy else story.policy,
    )
    story = _taken_away(draw, _with_rarer_deeds(draw, _slowed(draw, wild)))
    story = _with_the_platform_s_own(random.Random(f"wild, the platform's own {seed}"), story)
    return _with_a_lost_slurmd(random.Random(f"wild, a lost slurmd {seed}"), story)


def _with_a_lost_slurmd(draw: random.Random, story: Story) -> Story:
    """With processes that run on after Slurm has lost their node, in some of those on Slurm."""
    first, *others = story.runs
    if first.platform != "slurm" or draw.random() >= 0.1:
        return story
    lost = Trouble(kind="slurmd_dies", step=draw.randint(5, 120), after_s=float(int(10 ** draw.uniform(2.0, 4.0))))
    policy = {**story.policy, "nodes": {"repair": "off"}} if draw.random() < 0.3 else story.policy
    return replace(story, runs=(replace(first, troubles=(*first.troubles, lost)), *others), policy=policy)


def _with_the_platform_s_own(draw: random.Random, story: Story) -> Story:
    """With what the platform does without a request (notices, Spot, --auto-resume, time limits), job arrays, what
    others save under the run's root, or questions to people and their answers, in half of them.
    """
    first, *others = story.runs
    is_on_slurm = first.platform == "slurm"
    own = (
        ("node_leaves", "notice_false", "auto_resume", "array", "silent") if is_on_slurm else ("interrupted", "silent")
    )
    kind = draw.choice(("foreign", "time_limit", "asked", "asked", *own))
    step, after_s = draw.randint(5, 120), float(int(10 ** draw.uniform(1.5, 5.0)))
    if draw.random() < 0.5:
        return story
    match kind:
        case "interrupted":
            for_s = draw.choice((None, *(float(int(10 ** draw.uniform(1.0, 3.4))) for _ in range(3))))
            trouble = Trouble(kind="interrupted", step=step, hits=draw.choice((1, 1, 2, 3)), after_s=for_s)
        case "silent" if is_on_slurm or first.watch == "monitor":  # else nothing at all tells it
            trouble = Trouble(kind="silent", step=step, hits=draw.choice((1, 1, 2)))
        case "foreign":
            is_a_file = first.watch == "monitor" and draw.random() < 0.4  # else nothing shows whose file it is
            trouble = Trouble(kind="foreign_file" if is_a_file else "foreign_save", step=draw.choice((0, step)))
        case "node_leaves":
            trouble = Trouble(kind="node_leaves", step=step, after_s=draw.choice((after_s, 120.0)))
        case "auto_resume":
            first = replace(first, auto_resume=True)
            trouble = Trouble(kind="node_sick", step=step)
        case "array":
            runs = tuple(replace(run, in_array=True) for run in story.runs)
            return replace(story, runs=runs)
        case "notice_false":
            notice = SourceFault(kind="notice_false", from_s=float(draw.randint(60, 2400)), by_s=after_s)
            return replace(story, source_faults=(*story.source_faults, notice))
        case "time_limit":
            over = PersonAction(what="time_limit", when=draw.choice(_MOMENTS), run=first.name)
            return replace(story, actions=(*story.actions, _moved(draw, over)))
        case _:
            return _with_questions(draw, story)
    return replace(story, runs=(replace(first, troubles=(*first.troubles, trouble)), *others))


def _with_questions(draw: random.Random, story: Story) -> Story:
    """People are asked before a step; they answer in time, late, twice, after a cancel, or not at all."""
    rule = {
        "when": {"actions": draw.choice((["StopJob"], ["ResubmitJob"], []))},
        "deadline_s": draw.choice((120, 600, 1800)),
        "default": draw.choice(("approve", "deny")),
    }
    answers = [
        PersonAction(what=draw.choice(("approve", "approve", "deny")), when="asked", run=story.runs[0].name)
        for _ in range(draw.choice((0, 1, 1, 2)))
    ]
    if draw.random() < 0.3:
        answers.append(
            PersonAction(what=draw.choice(("cancel", "stop", "resubmit")), when="asked", run=story.runs[0].name)
        )
    actions = (*story.actions, *(_moved(draw, answer) for answer in answers))
    return replace(story, actions=actions, policy={**story.policy, "approvals": {"rules": [rule]}})


def _slowed(draw: random.Random, story: Story) -> Story:
    """With a run that becomes slow, in some; whether that is restarted or notified is the policy's choice."""
    if draw.random() >= 0.2:
        return story
    first, *others = story.runs
    slow = Trouble(
        kind="slow",
        step=draw.randint(5, 90),
        hits=draw.choice((1, 1, 3)),
        heals=draw.choice((None, None, draw.randint(5, 80))),
        times=draw.choice((1.8, 2.4)),
    )
    policy = {**story.policy, **_RESTARTS_SLOW_RUNS} if draw.random() < 0.5 else story.policy
    return replace(story, runs=(replace(first, troubles=(*first.troubles, slow)), *others), policy=policy)


def _taken_away(draw: random.Random, story: Story) -> Story:
    """With a job from which Slurm takes its nodes or its time, in some of those on Slurm."""
    first, *others = story.runs
    if first.platform != "slurm" or draw.random() >= 0.2:
        return story
    trouble = Trouble(
        kind=draw.choice(("suspended", "preempted", "time_limit")),
        step=draw.randint(5, 120),
        hits=draw.choice((1, 1, 2)),
        after_s=float(int(10 ** draw.uniform(1.0, 3.6))),
    )
    return replace(story, runs=(replace(first, troubles=(*first.troubles, trouble)), *others))


def _with_rarer_deeds(draw: random.Random, story: Story) -> Story:
    """With an order to save and stop, or on Slurm to reboot a node under the run, in some."""
    if draw.random() >= 0.15:
        return story
    kinds = ("order_save_stop", "order_reboot") if story.runs[0].platform == "slurm" else ("order_save_stop",)
    action = PersonAction(what=draw.choice(kinds), when=draw.choice(_MOMENTS), run=story.runs[0].name)
    return replace(story, actions=(*story.actions, _moved(draw, action)))


def _run(draw: random.Random, run: Run, others: list[Story]) -> Run:
    borrowed = [trouble for other in others for trouble in other.runs[0].troubles]
    troubles = [*run.troubles, *borrowed][: draw.choice((1, 2, 3, 4))]
    return replace(
        run,
        step_s=round(draw.choice((3.0, 6.0, 12.0, 30.0)) * draw.uniform(0.8, 1.4), 1),
        save_every=draw.randint(5, 45),
        upload_s=float(draw.randint(5, 3000)),
        skew_s=draw.choice((0.0, 0.0, round(draw.uniform(-600.0, 600.0), 1))),
        ranks=draw.choice((1, 1, 2, 8)),
        troubles=tuple(_trouble(draw, trouble) for trouble in troubles),
    )


def _trouble(draw: random.Random, trouble: Trouble) -> Trouble:
    changes: dict[str, Any] = {"step": draw.randint(1, 140)}
    if trouble.after_s is not None:
        changes["after_s"] = float(draw.randint(20, 1500))
    if trouble.hits == 1 and draw.random() < 0.2:
        changes["hits"] = draw.choice((2, 3))
    if trouble.heals is not None and trouble.kind != "saves_deleted":
        changes["heals"] = draw.randint(1, 60)
    return replace(trouble, **changes)


def _bent(draw: random.Random, source_fault: SourceFault, runs: tuple[Run, ...]) -> SourceFault:
    changes: dict[str, Any] = {}
    is_bounded = source_fault.to_s < 1e8
    if is_bounded and source_fault.kind not in ("rolled_back", "executions_lost"):
        from_s = float(draw.randint(30, 4000))
        changes |= {"from_s": from_s, "to_s": from_s + float(int(10 ** draw.uniform(1.5, 3.7)))}
    if source_fault.by_s > 0 and source_fault.kind != "slurm_clock":
        changes["by_s"] = float(int(10 ** draw.uniform(0.5, 3.5)))
    if 0 < source_fault.share < 1:
        changes["share"] = round(draw.uniform(0.05, 0.95), 2)
    if source_fault.run and source_fault.run not in {run.name for run in runs}:
        changes["run"] = draw.choice(runs).name
    return replace(source_fault, **changes)


def _action(draw: random.Random, run: str, *, has_stages: bool) -> PersonAction:
    what = draw.choice(("resubmit", "resubmit", "stop", "order_stop", "order_resubmit", "cancel"))
    tags = ("job", "policy", "none", *(("other_stage",) if has_stages else ()))
    tagged = draw.choice(tags) if what == "resubmit" else "policy"
    return PersonAction(what=what, when=draw.choice(_MOMENTS), run=run, tagged=tagged)


def _paired(actions: list[PersonAction]) -> list[PersonAction]:
    """One pause at most, with its end."""
    kept: list[PersonAction] = []
    for action in actions:
        if action.what in ("pause", "unpause") and any(other.what == action.what for other in kept):
            continue
        kept.append(action)
    return kept


def _moved(draw: random.Random, action: PersonAction) -> PersonAction:
    if action.what in ("pause", "unpause"):
        return action
    return replace(action, delay_s=round(10 ** draw.uniform(-0.5, 3.2), 1))
