"""The script that changes lines: what it changes, and that a change which no test notices is told from one that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.mutate import PARTS, ROOT, WIDER, fails, is_killed, mutants, wider_tests

SOURCE = """def allows(count: int, *, is_paused: bool) -> bool:
    return count < 3 and not is_paused
"""
WATCHED = """from part import allows


def test_the_limit() -> None:
    assert [allows(n, is_paused=False) for n in (2, 3)] == [True, False]
    assert not allows(0, is_paused=True)
"""


def test_each_change_of_a_line_is_named() -> None:
    found = {(one.was, one.now) for one in mutants("part.py", SOURCE)}
    assert found == {
        ("count < 3 and not is_paused", "(count < 3 or not is_paused)"),
        ("count < 3", "(count <= 3)"),
        ("3", "(4)"),
        ("not is_paused", "(is_paused)"),
    }


def test_texts_and_annotations_are_left_alone() -> None:
    assert list(mutants("part.py", 'NAMES: "tuple[int, 3]" = ()\nTEXT = f"{1 < 2}"\n')) == []


@pytest.mark.parametrize(("tests", "survivors"), [(WATCHED, 0), (WATCHED.replace("(2, 3)", "(2, 9)"), 2)])
def test_a_change_that_no_test_notices_survives(tmp_path: Path, tests: str, survivors: int) -> None:
    (tmp_path / "part.py").write_text(SOURCE)
    (tmp_path / "test_part.py").write_text(tests)
    assert not fails(tmp_path, ("test_part.py",))
    killed = [is_killed(one, tmp_path, ("test_part.py",)) for one in mutants("part.py", SOURCE)]
    assert killed.count(False) == survivors
    assert (tmp_path / "part.py").read_text() == SOURCE


def test_a_survivor_meets_every_other_test_of_the_wider_list() -> None:
    """A folder that does not exist would fail, and so count every change as killed."""
    assert all((ROOT / tests).is_dir() for tests in (*WIDER, *(own for tests in PARTS.values() for own in tests)))
    for part, own in PARTS.items():
        assert set(wider_tests(part)) == set(WIDER) - set(own)
