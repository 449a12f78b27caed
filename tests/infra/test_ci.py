"""What .ci/lanes.py makes of a failure, on a project whose suites are small; and the table of parts in the Makefile."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PARTS = re.findall(r"^PART_(\w+) := ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)
# A project with every target that CI makes. `once` fails when it is played for the first time.
TARGETS = f"""
%: ; @true
test-train test-long: ; PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {sys.executable} -m pytest -q -o cache_dir=$(CACHE) $@.py
"""
TESTS = """
from pathlib import Path
import pytest

NAMES = {names}
assert "broken" not in NAMES

@pytest.mark.parametrize("name", NAMES)
def test(name):
    played = Path(name).exists()
    Path(name).touch()
    assert played if name.startswith("once") else name.startswith("good")
"""


def play(
    folder: Path, *, real: Sequence[str] = ("good",), computing: Sequence[str] = ("good",), known: str = ""
) -> subprocess.CompletedProcess[str]:
    """CI on a project with these tests of real processes and these that compute."""
    (folder / "Makefile").write_text(TARGETS)
    (folder / "test-train.py").write_text(TESTS.format(names=list(real)))
    (folder / "test-long.py").write_text(TESTS.format(names=list(computing)))
    (folder / "tests").mkdir()
    (folder / "tests/flaky.toml").write_text(known)
    arguments = [sys.executable, "-u", str(ROOT / ".ci/lanes.py"), ".venv", "600", "0"]
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)


def last_lines(ended: subprocess.CompletedProcess[str]) -> str:
    return ended.stdout[ended.stdout.index("=== times:") :]


@pytest.mark.long
def test_a_run_without_a_failure_passes_and_says_how_long_each_suite_took(tmp_path: Path) -> None:
    ended = play(tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"s of CPU, .* make test-train: 1 passed in ", last_lines(ended))
    assert last_lines(ended).endswith("=== 0 flaky tests; failed: nothing\n")


@pytest.mark.long
def test_a_failed_test_of_real_processes_that_passes_alone_is_flaky_and_its_first_log_is_kept(tmp_path: Path) -> None:
    known = '[[flaky]]\ntest = "test-train.py::test[once-2]"\ncause = "a known cause"\ndate = 2026-01-01'
    ended = play(tmp_path, real=("good", "once-1", "once-2"), known=known)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "=== flaky: test-train.py::test[once-1]: tests/flaky.toml must have it" in last_lines(ended)
    assert "=== flaky: test-train.py::test[once-2]: a known cause" in last_lines(ended)
    assert last_lines(ended).endswith("=== 2 flaky tests; failed: nothing\n")
    assert "2 failed, 1 passed" in (tmp_path / "build/ci/make-test-train.log").read_text()
    assert "2 passed" in (tmp_path / "build/ci/make-test-train-again.log").read_text()


@pytest.mark.long
def test_a_test_of_real_processes_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    ended = play(tmp_path, real=("good", "never"))
    assert ended.returncode == 1
    assert last_lines(ended).endswith("=== 0 flaky tests; failed: make test-train\n")


@pytest.mark.long
def test_more_than_three_failed_tests_that_the_list_does_not_have_fail_the_run(tmp_path: Path) -> None:
    ended = play(tmp_path, real=("once-1", "once-2", "once-3", "once-4"))
    assert ended.returncode == 1
    assert "too few of the failed tests: test-train.py::test[once-4]" in last_lines(ended)
    assert not (tmp_path / "build/ci/make-test-train-again.log").exists()


@pytest.mark.long
def test_a_suite_that_computes_is_played_once(tmp_path: Path) -> None:
    ended = play(tmp_path, computing=("once",))
    assert ended.returncode == 1
    assert "failed: make test-long PART=service" in last_lines(ended)


@pytest.mark.long
def test_a_suite_that_ends_by_anything_else_than_failed_tests_is_not_played_again(tmp_path: Path) -> None:
    ended = play(tmp_path, real=("once", "broken"))
    assert ended.returncode == 1
    assert not (tmp_path / "build/ci/make-test-train-again.log").exists()
    assert "failed: make test-train" in last_lines(ended)


def test_the_list_of_flaky_tests_is_short_and_each_has_its_cause_and_date() -> None:
    rows = tomllib.loads((ROOT / "tests/flaky.toml").read_text(encoding="utf-8")).get("flaky", [])
    assert len(rows) <= 10
    for row in rows:
        path, _, function = row["test"].partition("[")[0].partition("::")
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), row
        assert row["cause"].strip(), row
        assert isinstance(row["date"], date), row


def test_every_folder_of_tests_is_in_exactly_one_part_or_is_a_suite_of_its_own() -> None:
    listed = [name for _, names in PARTS for name in names.replace("\\\n", " ").partition("$")[0].split()]
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    of_their_own = {name.removeprefix("tests/") for name in options["norecursedirs"]}
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/**/test_*.py")}
    assert sorted(listed) == sorted(folders - of_their_own)
    assert len(PARTS) == 5
