"""docs/environment.md holds every environment variable that the product reads and people set."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from infra.package import ROOT
from rekindle.monitor.base.settings import VARIABLES as OF_THE_MONITOR
from rekindle.monitor.base.settings import Config
from rekindle.slurm_agent.base.settings import DEFAULT_POLL_S

PRODUCT = ("rekindle", "chalicelib", "infra", "localcloud")
SUFFIXES = (".py", ".sh", ".yaml")
NAME = re.compile(r"\bREKINDLE_([A-Z_]*[A-Z])\b(?!_)")
PAGE = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
# Name -> its default on the page.
ROW: Final = re.compile(r"^\| `REKINDLE_([A-Z_]+)` \| [^|]+ \| ([^|]+) \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
SETTINGS: Final = dict(ROW.findall(PAGE))
# What the service gives to an attempt; a script without the monitor reads the first two.
GIVEN: Final = {"RESUME_STEP", "RESUME_URI", "RESUME_MANIFEST", "ATTEMPT", "SKIP", "INCIDENT"}
# What the template gives to the functions, the agent to a copy of a job, the installation and the demo to what they
# start: no setting, and not kept from one version to the next.
INTERNAL: Final = {
    *(
        "TABLE",
        "QUARANTINE_URL",
        "DELIVERIES_URL",
        "UNDELIVERED_URL",
        "RECOVER_FUNCTION",
        "TOPIC",
        "STAGE",
        "LOG_LEVEL",
    ),
    *("POLICY_PREFIX", "SETTINGS_PREFIX", "ACCOUNT", "CONSOLE_URL", "NOTICE_LINK_HOURS", "TRAINING_ROLES"),
    *("SWEEP_METRICS_MINUTES", "METRICS_S", "WATCH_S", "AGREE_S", "ABANDON_S", "STATE_DIR", "LEASE_S", "CLUSTER_FILE"),
    *("EXCLUDED_NODES", "ATTEMPT_NAME", "SUBMITTED_ON", "ROOT", "ADDRESSES", "SETTLE_S"),
}


def _named(file: Path) -> set[str]:
    return set(NAME.findall(file.read_text(encoding="utf-8")))


def test_every_variable_in_the_code_is_on_the_page_or_internal_and_none_is_listed_that_is_not_in_the_code() -> None:
    assert len(SETTINGS.keys() | GIVEN | INTERNAL) == len(SETTINGS) + len(GIVEN) + len(INTERNAL)
    files = [file for part in PRODUCT for file in (ROOT / part).rglob("*") if file.suffix in SUFFIXES]
    assert {name for file in files for name in _named(file)} == SETTINGS.keys() | GIVEN | INTERNAL


def test_no_page_names_an_internal_variable() -> None:
    pages = [file for file in (ROOT / "docs").rglob("*.md") if "adr" not in file.parts]
    assert len(pages) > 40
    for file in (*pages, ROOT / "README.md"):
        assert not _named(file) & INTERNAL, file.name


@pytest.mark.parametrize(("variable", "field"), OF_THE_MONITOR.items())
def test_the_monitors_numbers_have_their_defaults(variable: str, field: str) -> None:
    name = variable.removeprefix("REKINDLE_")
    assert name in INTERNAL or float(SETTINGS[name].partition(";")[0]) == getattr(Config(), field)


def test_the_agents_number_has_its_default() -> None:
    assert SETTINGS["POLL_S"] == f"5; agent: {DEFAULT_POLL_S:g}"


def test_what_takes_long_to_start_may_take_long_to_evaluate_and_to_save() -> None:
    patient = Config.from_env({"REKINDLE_STALL_STARTUP_S": "7200"})
    assert (patient.stall_startup_s, patient.stall_evaluation_s, patient.stall_saving_s) == (7200, 7200, 3600)
    brief = Config.from_env({"REKINDLE_STALL_STARTUP_S": "30"})
    assert (brief.stall_startup_s, brief.stall_evaluation_s, brief.stall_saving_s) == (30, 1800, 900)
