"""Stories: the same each time, read back from JSON, shrunk to what matters; a sample of them finds nothing new."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from simulation.command import main, stories
from simulation.judging.counts import COUNTS
from simulation.making.maker import make
from simulation.making.wild import make_wild
from simulation.play import play, played
from simulation.shrink import parts_of, shrink
from simulation.stages.world import World
from simulation.stories.kinds import REFUSALS, SOURCE_FAULTS
from simulation.stories.story import PersonAction, Run, SourceFault, Story, Trouble
from tests.proving import broken

SAMPLE, QUICK = 300, 25  # the first 25 in `make test`, the others in `make test-long`
WILD, WILD_QUICK = 96, 12


@pytest.mark.parametrize(
    "start",
    [pytest.param(start, marks=[pytest.mark.long] if start >= QUICK else []) for start in range(0, SAMPLE, 25)],
)
def test_a_sample_of_stories_shows_nothing_unsafe(start: int) -> None:
    for story in stories(7, start, 25):
        unsafe = play(story).unsafe
        assert not unsafe, f"{unsafe}\n{story.to_json()}"


@pytest.mark.parametrize(
    "start",
    [pytest.param(start, marks=[pytest.mark.long] if start >= WILD_QUICK else []) for start in range(0, WILD, 12)],
)
def test_a_sample_of_wild_stories_shows_nothing_unsafe(start: int) -> None:
    for story in stories(7, start, 12, is_wild=True):
        unsafe = play(story).unsafe
        assert not unsafe, f"{unsafe}\n{story.to_json()}"


def test_a_wild_story_is_the_same_each_time_and_after_json() -> None:
    for seed in (3, 141, 10000043):
        story = make_wild(seed)
        again = Story.from_json(story.to_json())
        assert again == story == make_wild(seed)
        assert story != make(seed)


def test_a_story_is_the_same_each_time_and_after_json() -> None:
    for seed in (3, 141, 10000043):
        story = make(seed)
        again = Story.from_json(story.to_json())
        assert again == story
        assert play(story) == play(again)


def test_a_run_with_nothing_wrong_is_left_alone() -> None:
    world, judge = played(Story(seed=1, runs=(Run(steps=80),)))
    assert not judge.unsafe
    assert not world.people.notices
    assert judge.figures.incidents == 0
    assert world.runs["lm"].is_finished


def test_a_crash_is_recovered_from_the_newest_good_checkpoint() -> None:
    world, judge = played(Story(seed=1, runs=(Run(troubles=(Trouble(kind="crash", step=70),)),)))
    first, second = world.training.attempts.values()
    assert second.loaded is not None
    assert (second.loaded.step, second.loaded.attempt) == (60, first.name)
    assert (judge.figures.incidents, judge.figures.submissions, judge.figures.steps_lost) == (1, 1, 9)
    assert not judge.unsafe


@pytest.mark.parametrize("kind", sorted(SOURCE_FAULTS))
def test_a_lie_alone_makes_no_run_fail(kind: str) -> None:
    """What the truth is stays as it is; only what is seen of it changes."""
    source_fault = SourceFault(kind=kind, from_s=300.0, to_s=900.0, share=0.5, by_s=60.0)
    world, _ = played(Story(seed=1, runs=(Run(steps=150),), source_faults=(source_fault,)))
    assert world.runs["lm"].is_finished
    assert not world.runs["lm"].ills


@pytest.mark.parametrize(("kind", "refusal"), REFUSALS.items())
def test_a_refusal_strikes_its_own_calls_only(kind: str, refusal: tuple[str, tuple[str, ...], str]) -> None:
    service, operations, code = refusal
    world = World(Story(seed=1, source_faults=(SourceFault(kind=kind, to_s=10.0),)))
    with pytest.raises(ClientError, match=code):
        world.source_faults.check(service, operations[0] if operations else "AnyOperation")
    world.source_faults.check("another", "AnyOperation")
    if operations:
        world.source_faults.check(service, "AnotherOperation")


def test_a_failure_is_shrunk_to_what_it_needs() -> None:
    story = Story(
        seed=1,
        runs=(
            Run(
                name="lm",
                step_s=6.0,
                skew_s=540.0,
                troubles=(Trouble(kind="crash", step=80), Trouble(kind="blip", step=20)),
            ),
            Run(name="other", steps=60),
        ),
        source_faults=(
            SourceFault(kind="events_doubled", by_s=30.0),
            SourceFault(kind="metrics_away", from_s=0.0, to_s=3600.0),
        ),
        actions=(PersonAction(what="cancel", when="verifying", run="other"),),
    )
    short = shrink(story, "passed_over", broken=broken.the_newest_checkpoint_is_not_listed)
    assert "passed_over" in play(short, broken=broken.the_newest_checkpoint_is_not_listed).kinds
    assert parts_of(short) == {"trouble crash"}
    assert short.length_s < story.length_s


@pytest.mark.long
def test_the_command_counts_writes_and_plays_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--incidents", "30", "--seed", "5", "--out", str(tmp_path)]) in (0, 1)
    printed = capsys.readouterr().out
    assert printed.startswith("seed 5")
    assert all(kind in printed for kind in COUNTS)
    path = tmp_path / "story.json"
    path.write_text(replace(make(1), source_faults=(), actions=(), runs=(Run(steps=40),)).to_json())
    assert main(["--play", str(path), "--verbose"]) == 0
    assert "0 unsafe, 0 Incidents" in capsys.readouterr().out


def test_a_file_that_is_no_story_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "story.json"
    for text in ("[]", "{", '{"seed": 1, "colour": 2}'):
        path.write_text(text)
        assert main(["--play", str(path)]) == 2
        assert str(path) in capsys.readouterr().err
