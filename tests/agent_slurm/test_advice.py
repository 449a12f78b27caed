"""What `--check` says about how Slurm is set up."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from rekindle.slurm_agent.reading.nodes import Node, Settings, parse_settings
from rekindle.slurm_agent.watching.advice import advice
from tests.agent_slurm.conftest import START, Head
from tests.agent_slurm.test_parsers import recorded

GOOD = Settings(
    version="25.11.7",
    cluster="ml",
    state_location="/var/spool/slurmctld",
    asked_at=START,
    accounting="accounting_storage/slurmdbd",
    job_comp="jobcomp/none",
    first_job=100_000,
    next_job=100_500,
    reboot_program="/usr/sbin/reboot",
    priority_moves=0,
    age_weight=0,
)
NODES = (Node(name="n1", state="idle", version="25.11.7"), Node(name="n2", state="down"))


def said(settings: Settings, *, nodes: tuple[Node, ...] = NODES, **more: object) -> dict[str, str]:
    """What may go wrong, by its name."""
    known = {"cluster": "ml", "highest": 0, "now": START, "reads_state": True, "is_hyperpod": False}
    found = advice(settings, nodes, **(known | more))  # type: ignore[arg-type]
    return {advice.what: advice.text for advice in found if not advice.is_ok}


def test_a_cluster_that_is_set_up_well_is_said_to_be() -> None:
    assert said(GOOD) == {}


@pytest.mark.parametrize(
    ("settings", "more", "what", "text"),
    [
        (GOOD, {"cluster": "prod"}, "name", "jobs know this cluster as ml, not as prod"),
        (replace(GOOD, reboot_program=""), {}, "reboot", "RebootProgram is not set"),
        (GOOD, {"reads_state": False}, "state of jobs", "/var/spool/slurmctld cannot be read"),
        (replace(GOOD, accounting="accounting_storage/none"), {}, "accounting", "how it ended is not known"),
        (replace(GOOD, accounting="x/none", job_comp="jobcomp/filetxt"), {}, "accounting", "read from jobcomp/filetxt"),
        (GOOD, {"now": START + timedelta(minutes=5)}, "Slurm's clock", "300 s apart"),
        (replace(GOOD, version="21.08.8"), {}, "versions", "older than what was tried from 22.05"),
        (replace(GOOD, version="27.11.0"), {}, "versions", "newer than what was tried from 22.05 to 26.05"),
        (replace(GOOD, version="x"), {}, "versions", "does not tell its version"),
        (GOOD, {"nodes": (*NODES, Node(name="n3", state="idle", version="24.11.5"))}, "versions", "24.11.5 on 1"),
        (replace(GOOD, submit_plugins="lua"), {}, "copies", "what lua changes of a submission is known only once"),
        (replace(GOOD, first_job=1), {}, "job numbers", "FirstJobId is 1"),
        (GOOD, {"highest": 200_000}, "job numbers", "numbers have begun again"),
    ],
)
def test_what_may_go_wrong_one_day_is_named(settings: Settings, more: dict[str, object], what: str, text: str) -> None:
    found = said(settings, **more)  # type: ignore[arg-type]
    assert list(found) == [what]
    assert text in found[what]


def test_hyperpod_reboots_by_itself() -> None:
    assert "reboot" not in said(replace(GOOD, reboot_program=""), is_hyperpod=True)


def test_a_recorded_configuration_is_read_for_it() -> None:
    read = parse_settings(recorded("22.05-show-config.txt"))
    assert (read.reboot_program, read.has_accounting) == ("", False)


def test_a_second_look_tells_what_the_agent_costs_slurmctld(head: Head) -> None:
    head.fake.jobs([{"JobID": "7"}])
    head.fake.steps({"7": 1})
    head.look()
    before = head.watch.commands
    head.look()
    assert head.watch.commands - before == 3, "jobs, nodes, and the steps of a job that is not known to be ready"
