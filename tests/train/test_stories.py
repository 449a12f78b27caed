"""Each row of the table, and random combinations of their faults, as real processes under the monitor."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.launcher import Nurseries
from tests.train.play import play
from tests.train.random_story import random_story
from tests.train.story import Story
from tests.train.table import STORIES

pytestmark = pytest.mark.process


def test_a_run_under_faults_ends_with_the_same_weights_or_at_once_with_the_reason(
    story: Story, home: Path, shared: Path, nurseries: Nurseries
) -> None:
    play(story, home, shared, nurseries)


def test_a_run_under_several_random_faults_keeps_what_every_run_must_keep(
    story_seed: int, home: Path, shared: Path, nurseries: Nurseries
) -> None:
    story = random_story(story_seed)
    try:
        play(story, home, shared, nurseries)
    except AssertionError as err:
        raise AssertionError(f"{err}\nto play it again: python -m tests.train.play --seed {story_seed}") from err


def test_every_story_has_a_name_of_its_own() -> None:
    assert len({story.name for story in STORIES}) == len(STORIES)
