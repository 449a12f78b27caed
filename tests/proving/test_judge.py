"""For each count of the judge a service, or a world, in which one thing is broken: the judge says so, and only then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from simulation.judging.counts import COUNTS
from simulation.play import play
from simulation.stages.world import World
from simulation.stories.story import PersonAction, Run, SourceFault, Story, Trouble
from tests.proving import broken


def story(
    *troubles: Trouble,
    source_faults: tuple[SourceFault, ...] = (),
    actions: tuple[PersonAction, ...] = (),
    **run: object,
) -> Story:
    return Story(
        seed=1, runs=(Run(troubles=troubles, **run),), source_faults=source_faults, actions=actions, length_s=7200.0
    )  # type: ignore[arg-type]


CRASH = Trouble(kind="crash", step=42)
HANG = Trouble(kind="hang", step=42)
NO_EVENTS = SourceFault(kind="events_lost", from_s=240.0)
LATE_EVENTS = SourceFault(kind="events_late", from_s=240.0, by_s=60.0)
FLEET = Story(
    seed=1,
    runs=tuple(Run(name=f"lm{number}", troubles=(CRASH,)) for number in range(4)),
    policy={"breaker": {"incidents": 2, "percent": 20}},
    length_s=3600.0,
)

DARK = Story(
    seed=1,
    runs=(Run(platform="slurm", steps=20),),
    source_faults=(SourceFault(kind="nodes_hidden", from_s=300.0, to_s=2400.0),),
    length_s=3600.0,
)
HIDDEN_BESIDE_A_RUN = Story(
    seed=975310001088,
    runs=(Run(name="lm0", platform="slurm", troubles=(Trouble(kind="node_dies", step=30),)),),
    source_faults=(SourceFault(kind="nodes_hidden", from_s=1194.0, to_s=2094.0, share=0.2),),
    length_s=2070.0,
    nodes=10,
    recovery="Automatic",
)
TWO_NODES = Story(
    seed=1,
    runs=tuple(
        Run(name=f"lm{number}", platform="slurm", instances=2, troubles=(Trouble(kind="node_sick", step=20),))
        for number in range(2)
    ),
    nodes=6,
    length_s=3600.0,
)


THREE_DIE = Story(
    seed=1,
    runs=tuple(
        Run(name=f"lm{number}", platform="slurm", instances=1, troubles=(Trouble(kind="node_dies", step=20),))
        for number in range(3)
    ),
    nodes=20,
    length_s=7200.0,
    policy={"budgets": {"max_repairs_per_day": 1}},
)
NO_CAPACITY = Story(
    seed=1,
    runs=(Run(troubles=(CRASH,), refusals=99),),
    length_s=7200.0,
    policy={"resubmission": {"capacity_limit_s": 900}},
)
LOST_SLURMD = Story(
    seed=1,
    runs=(Run(platform="slurm", instances=2, troubles=(Trouble(kind="slurmd_dies", step=20, after_s=5400.0),)),),
    policy={"nodes": {"repair": "off"}},  # a reboot would end what runs on unseen
    length_s=3600.0,
)
SILENT_NODE = Story(
    seed=3,
    runs=(Run(platform="slurm", ranks=8, troubles=(Trouble(kind="node_hangs", step=42),)),),
    length_s=3600.0,
)
REPLACED_UNSEEN = Story(  # the second attempt's heartbeat is shown a few seconds after the third was ordered
    seed=135724680000369,
    runs=(
        Run(
            name="lm1",
            step_s=24.5,
            platform="slurm",
            troubles=(
                Trouble(kind="node_sick", step=3, hits=2),
                Trouble(kind="hang", step=17, hits=9, after_s=636.0),
            ),
        ),
    ),
    source_faults=(SourceFault(kind="heartbeats_frozen", from_s=42.0, to_s=169.0),),
    length_s=3600.0,
    nodes=6,
)


@dataclass(frozen=True)
class Case:
    kind: str
    breaks: Callable[[World], None]
    story: Story
    says: str = ""  # where a count has several reasons, this one


CASES = (
    Case("two_live_attempts", broken.stopping_is_taken_for_stopped, story(HANG)),
    Case(
        "chain_trained_twice",
        broken.no_other_start_is_looked_for,
        story(CRASH, platform="slurm", instances=2, chain="afterany"),
    ),
    Case(
        "chain_left_waiting",
        broken.what_waits_is_not_told_of_the_next_start,
        story(CRASH, platform="slurm", instances=2, chain="afterok", steps=100),
    ),
    Case(
        "looped_silently",
        broken.the_budget_is_boundless,
        story(Trouble(kind="crash", step=15, hits=99), restarts=100),
    ),
    Case("healthy_stopped", broken.every_run_is_said_to_be_stalled, story(steps=200)),
    Case(
        "healthy_stopped",
        broken.starts_in_place_are_not_seen,
        story(Trouble(kind="hang", step=42, after_s=118.0), restarts=10, source_faults=(LATE_EVENTS,)),
        "on its way",
    ),
    Case("too_many_at_once", broken.the_breaker_does_not_count, FLEET),
    Case(
        "resumed_from_bad",
        broken.checkpoints_are_not_verified,
        story(Trouble(kind="torn_save", step=31), Trouble(kind="crash", step=65)),
    ),
    Case(
        "good_condemned",
        broken.every_crash_is_read_as_a_corrupt_checkpoint,
        story(Trouble(kind="crash", step=61, hits=2)),
    ),
    Case("passed_over", broken.the_newest_checkpoint_is_not_listed, story(Trouble(kind="crash", step=80))),
    Case(
        "rewound_silently",
        broken.the_first_step_is_not_looked_at,
        story(Trouble(kind="crash", step=65), plan="nothing"),
    ),
    Case(
        "false_recovery",
        broken.the_heartbeats_of_our_attempts_are_well_and_far,
        story(Trouble(kind="flipped_save", step=30), CRASH, source_faults=(NO_EVENTS,)),
    ),
    Case("dead_unwatched", broken.the_sweep_does_nothing, story(CRASH, source_faults=(NO_EVENTS,))),
    Case("paged_for_nothing", broken.a_heartbeat_says_diverging, story(steps=200)),
    Case(  # a loss that was bad once, ten minutes before, is no reason for a page
        "paged_for_nothing",
        broken.a_heartbeat_says_diverging,
        story(Trouble(kind="blip", step=2), steps=200, step_s=30.0),
    ),
    Case("budget_exceeded", broken.the_budget_is_boundless, story(Trouble(kind="hang", step=42, hits=20))),
    Case(
        "owner_undone",
        broken.an_owners_stop_is_read_as_a_failure,
        story(source_faults=(NO_EVENTS,), actions=(PersonAction(what="stop", when="start", delay_s=400.0),)),
    ),
    Case(
        "paged_again",
        broken.the_end_of_an_incident_is_not_kept,
        story(CRASH, source_faults=(SourceFault(kind="rolled_back", from_s=540.0, to_s=600.0),)),
    ),
    Case("node_repaired_well", broken.many_nodes_down_count_as_one, DARK),
    Case("node_repaired_well", broken.no_word_about_nodes_is_doubted, HIDDEN_BESIDE_A_RUN),
    Case("too_many_at_once", broken.nodes_in_repair_are_not_counted, TWO_NODES),
    Case("resumed_from_bad", broken.another_run_s_checkpoints_are_listed, story(CRASH), "none of the run's"),
    Case(
        "resumed_from_bad",
        broken.a_bad_loss_is_dated_a_hundred_steps_late,
        story(Trouble(kind="nan", step=29)),
        "is poisoned",
    ),
    Case(
        "resumed_in_spike",
        broken.a_rise_of_the_loss_is_dated_two_hundred_steps_late,
        story(Trouble(kind="spike", step=45), save_every=10),
    ),
    Case("budget_exceeded", broken.repairs_of_a_day_are_not_counted, THREE_DIE, "repairs within a day"),
    Case("budget_exceeded", broken.the_budget_is_boundless, REPLACED_UNSEEN, "gained nothing"),
    Case(
        "budget_exceeded",
        broken.deaths_for_want_of_memory_are_read_as_the_platform_s,
        story(Trouble(kind="oom", step=42, hits=20)),
        "lack of memory",
    ),
    Case(
        "acted_while_paused",
        broken.a_pause_is_not_read,
        story(CRASH, actions=(PersonAction(what="pause", when="start", delay_s=400.0),)),
    ),
    Case("superseded_saves", broken.no_attempt_is_fenced, LOST_SLURMD),
    Case("kept_on_bad_node", broken.no_node_is_left_out, SILENT_NODE),
    Case("waited_on", broken.capacity_is_waited_for_without_end, NO_CAPACITY),
    Case("service_defect", broken.a_defect_in_reading_the_job, story(CRASH)),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_a_broken_service_is_caught(case: Case) -> None:
    verdict = play(case.story, broken=case.breaks)
    assert any(breach.kind == case.kind and case.says in breach.detail for breach in verdict.unsafe), verdict


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_the_same_story_with_nothing_broken_is_not_held_against_the_service(case: Case) -> None:
    verdict = play(case.story)
    assert case.kind not in verdict.kinds, verdict


def test_every_count_has_a_broken_service() -> None:
    assert {case.kind for case in CASES} == set(COUNTS)
