"""Options of `make test-train`: `ARGS='--train-stories 200 --seed 7'` plays so many random combinations of faults."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.train.launcher import Nurseries
from tests.train.table import STORIES, USUAL_STORIES

STORIES_BY_DEFAULT = 8


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--train-stories", type=int, default=STORIES_BY_DEFAULT, help="random combinations of faults")
    parser.addoption("--all-stories", action="store_true", help="also the rows that take long")
    parser.addoption("--seed", type=int, default=1, help="of the random combinations")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "story" in metafunc.fixturenames:
        chosen = STORIES if metafunc.config.getoption("--all-stories") else USUAL_STORIES
        metafunc.parametrize("story", chosen, ids=lambda story: story.name)
    if "story_seed" in metafunc.fixturenames:
        first = metafunc.config.getoption("--seed") * 100_000
        metafunc.parametrize("story_seed", range(first, first + metafunc.config.getoption("--train-stories")))


@pytest.fixture(scope="session")
def nurseries() -> Iterator[Nurseries]:
    made = Nurseries()
    yield made
    made.close()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same folder for all test processes: undisturbed runs are played once."""
    folder = tmp_path_factory.getbasetemp().parent / "undisturbed"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Of one story; removed where it went as it should."""
    folder = tmp_path / "run"
    yield folder
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
