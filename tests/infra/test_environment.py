"""docs/reference/environment.md holds every environment variable that the product reads and people set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infra.package import ROOT
from infra.site.reference_environment import GIVEN, INTERNAL, VARIABLES
from rekindle.monitor import Config
from rekindle.monitor.base.settings import VARIABLES as OF_THE_MONITOR
from rekindle.slurm_agent.base.settings import DEFAULT_POLL_S

PRODUCT = ("rekindle", "chalicelib", "infra", "localcloud")
SUFFIXES = (".py", ".sh", ".yaml")
NAME = re.compile(r"\bREKINDLE_[A-Z_]*[A-Z]\b(?!_)")
SETTINGS = {each.name: each for each in VARIABLES}


def _named(file: Path) -> set[str]:
    return set(NAME.findall(file.read_text(encoding="utf-8")))


def test_every_variable_in_the_code_is_a_setting_or_internal_and_every_one_listed_is_in_the_code() -> None:
    page = ROOT / "infra/site/reference_environment.py"
    files = [file for part in PRODUCT for file in (ROOT / part).rglob("*") if file.suffix in SUFFIXES and file != page]
    listed = [*SETTINGS, *GIVEN, *INTERNAL]
    assert len(listed) == len(set(listed))
    assert {name for file in files for name in _named(file)} == set(listed)


def test_no_page_names_an_internal_variable() -> None:
    pages = [file for file in (ROOT / "docs").rglob("*.md") if "adr" not in file.parts]
    assert len(pages) > 40
    for file in (*pages, ROOT / "README.md"):
        assert not _named(file) & set(INTERNAL), file.name


@pytest.mark.parametrize("name", sorted(OF_THE_MONITOR.keys() & SETTINGS.keys()))
def test_the_monitors_numbers_have_their_defaults(name: str) -> None:
    told = SETTINGS[name].default.split(";")[0]
    assert float(told) == getattr(Config(), OF_THE_MONITOR[name])


def test_the_agents_number_has_its_default() -> None:
    assert SETTINGS["REKINDLE_POLL_S"].default == f"5; agent: {DEFAULT_POLL_S:g}"


def test_what_takes_long_to_start_may_take_long_to_evaluate_and_to_save() -> None:
    patient = Config.from_env({"REKINDLE_STALL_STARTUP_S": "7200"})
    assert (patient.stall_startup_s, patient.stall_evaluation_s, patient.stall_saving_s) == (7200, 7200, 3600)
    brief = Config.from_env({"REKINDLE_STALL_STARTUP_S": "30"})
    assert (brief.stall_startup_s, brief.stall_evaluation_s, brief.stall_saving_s) == (30, 1800, 900)
