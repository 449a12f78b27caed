"""Stories that once showed something unsafe, each shrunk to what it needs: none of them does any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.play import play
from simulation.stories.story import Story

STORIES = sorted((Path(__file__).parent / "stories").glob("*.json"))
QUICK = 8  # each eighth in `make test`, the others in `make test-long`


def test_there_are_stories() -> None:
    assert STORIES


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem.replace("_", " "), marks=[pytest.mark.long] if number % QUICK else [])
        for number, path in enumerate(STORIES)
    ],
)
def test_a_mended_story_shows_nothing_unsafe(path: Path) -> None:
    story = Story.from_json(path.read_text())
    verdict = play(story)
    assert not verdict.unsafe, f"--play {path} --verbose: {verdict.unsafe}"
