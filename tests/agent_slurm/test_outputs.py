"""Every command of the agent's, as Slurm 22.05, 24.11 and 26.05 answered it: the readers find the same in all."""

from __future__ import annotations

import ast
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from rekindle.protocol.cluster.documents import SlurmState
from rekindle.slurm_agent import check
from rekindle.slurm_agent.base.ports import SlurmRefused, SlurmUnavailable, UnknownJob, UnknownNode
from rekindle.slurm_agent.check import COMMANDS
from tests.agent_slurm.outputs import AWAY, CALLS, ODD, OURS, PLACE, RECORDED, Replayed, recorded, side

VERSIONS = ("22.05", "23.11", "24.11", "25.11", "26.05")
# No packages of these two could be had when these commands came; what 24.11 and 26.05 answer differs in nothing read.
# Their records have 24.11's answer about reservations, and each answer of a slurmctld that is away twice.
NEW = {"why it waits", "why an unknown job waits", "hold", "hold ended"}
UNRECORDED = {"23.11": NEW, "25.11": NEW}
NEW_WORDS = ("'--json'", "'uhold'")
AGENT = Path(check.__file__).parent
REFUSED = {
    "script of an unknown job": UnknownJob,
    "release unknown": UnknownJob,
    "why an unknown job waits": UnknownJob,
    "cancel unknown": None,  # done is done: scancel says nothing about it in some versions, and never fails
    "hold ended": SlurmRefused,
    "resume unknown": UnknownNode,
}


class Version:
    def __init__(self, name: str) -> None:
        self.name = name
        whole = recorded(name)
        self.ids: dict[str, int] = whole["ids"]
        self._now = datetime.fromisoformat(whole["at"])
        self.calls: dict[str, list[dict[str, Any]]] = whole["calls"]

    def make(self, name: str) -> Any:
        """The call, answered from the record; all of it must be used."""
        runner = Replayed(left=list(self.calls[name]))
        found = (CALLS | AWAY)[name](side(runner, self.ids, self._now))
        assert runner.left == []
        return found


@pytest.fixture(params=VERSIONS)
def slurm(request: pytest.FixtureRequest) -> Version:
    return Version(request.param)


def test_every_call_is_recorded_in_every_version() -> None:
    assert {path.name.partition("-")[0] for path in RECORDED.glob("*-outputs.json")} == set(VERSIONS)
    for name in VERSIONS:
        assert Version(name).calls.keys() - NEW == (CALLS.keys() | AWAY.keys()) - NEW
        assert name in UNRECORDED or Version(name).calls.keys() >= NEW


def shapes() -> dict[str, re.Pattern[str]]:
    """Each command of Slurm's that the agent's source writes down, as what its words must look like."""
    found = {}
    for path in sorted(AGENT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.List) or not node.elts or not isinstance(node.elts[0], ast.Constant):
                continue
            if node.elts[0].value in {*COMMANDS, "sacct"} - {"sbatch"}:  # sbatch: see `CALLS`
                found[f"{path.name}: {ast.unparse(node)}"] = re.compile("".join(map(shape, node.elts)))
    return found


def shape(word: ast.expr) -> str:
    """Words end with a NUL. What is computed may be any word, what is starred any number of them."""
    match word:
        case ast.Constant():
            return re.escape(f"{word.value}\0")
        case ast.Starred():
            return "(?:[^\0]*\0)*"
        case ast.JoinedStr(values=[ast.Constant(value=str(begins)), *_]):
            return f"{re.escape(begins)}[^\0]*\0"
    return "[^\0]+\0"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_command_that_the_agent_runs_is_recorded(version: str) -> None:
    ran = ["".join(f"{word}\0" for word in one["args"]) for call in Version(version).calls.values() for one in call]
    wanted = shapes()
    assert len(wanted) > 15, "commands are written as lists that begin with their names"
    missing = [name for name, words in wanted.items() if not any(map(words.fullmatch, ran))]
    assert [name for name in missing if version not in UNRECORDED or not any(map(name.__contains__, NEW_WORDS))] == []


def test_jobs(slurm: Version) -> None:
    found = {job.job: job for job in slurm.make("jobs")}
    two, odd, failed = (found[slurm.ids[name]] for name in ("two", "odd", "failed"))
    assert (two.state, two.nodes(), two.limit_s, two.may_requeue) == (SlurmState.RUNNING, ("n1", "n2"), 600, True)
    assert (two.comment, two.user, two.is_batch, two.is_held) == (OURS, "root", True, False)
    assert (odd.name, odd.is_held, odd.state) == (ODD, True, SlurmState.PENDING)
    assert failed.state is SlurmState.FAILED
    assert found[slurm.ids["waits"]].dependency.startswith(f"afterany:{two.job}")
    assert found[slurm.ids["array"]].is_lump
    assert two.workdir == f"{PLACE}/work"
    assert two.stdout.removeprefix(f"{PLACE}/work/") in ("slurm-%j.out", f"slurm-{two.job}.out")
    one = slurm.make("one job")
    assert (one.job, one.nodes(), one.state) == (two.job, two.nodes(), two.state)
    assert slurm.make("steps") == {str(two.job): 1}
    assert slurm.make("an unknown job") is None
    assert slurm.make("jobs on") == (two.job,)


def test_details_one_by_one_and_all_at_once(slurm: Version) -> None:
    two, odd = slurm.make("detail"), slurm.make("detail of an odd name")
    assert (two["JobId"], two["JobState"], two["NodeList"], two["Requeue"]) == (
        str(slurm.ids["two"]),
        "RUNNING",
        "n[1-2]",
        "1",
    )
    assert (odd["JobName"], odd["ExcNodeList"], odd["Comment"]) == (ODD, "n3", OURS)
    many = slurm.make("details")
    assert many[slurm.ids["two"]].keys() == two.keys()
    assert many[slurm.ids["two"]]["NodeList"] == two["NodeList"]
    assert many[slurm.ids["held"]]["JobState"] == "PENDING"
    assert slurm.ids["failed"] not in many, "an ended one is asked singly"
    assert slurm.ids["odd"] not in many, "its name has a line break, and begins the record of another"
    assert slurm.ids["failed"] == 1, "that one"


def test_scripts_settings_and_history(slurm: Version) -> None:
    assert slurm.make("script").startswith("#!/bin/bash\nsrun ")
    settings = slurm.make("settings")
    assert settings.version.startswith(slurm.name)
    assert (settings.cluster, settings.reboot_program, settings.has_history) == ("lab", "/bin/true", True)
    assert settings.state_location == f"{PLACE}/state"
    assert settings.asked_at is not None
    assert settings.first_job == 1
    (start,) = slurm.make("history")
    assert (start.word, start.status, start.step_status) == ("FAILED", "3:0", "")


def test_nodes(slurm: Version) -> None:
    found = {node.name: node for node in slurm.make("nodes")}
    assert list(found) == ["n1", "n2", "n3", "n4", "n5"]
    assert found["n4"].state == "idle"
    assert ("drain" in found["n3"].flags, found["n3"].reason) == (True, "rekindle:inc-1")
    assert (found["n5"].state, found["n5"].reason) == ("down", "bob: bad fan")
    assert all(node.booted is not None and node.address == "127.0.0.1" for node in found.values())
    assert slurm.make("node").name == "n4"
    assert slurm.make("an unknown node") is None
    assert slurm.make("taken out") == ["n3"], "by us, and no other"
    assert slurm.make("waiting") == [slurm.ids["odd"], slurm.ids["held"]]


def test_what_changes_something_is_done_or_refused_with_one_meaning(slurm: Version) -> None:
    names = [name for name in CALLS if name not in UNRECORDED.get(slurm.name, ())]
    for name in names[names.index("signal") :]:
        if error := REFUSED.get(name):
            with pytest.raises(error) as raised:
                slurm.make(name)
            assert raised.type is error, name
        else:
            slurm.make(name)
    assert slurm.name in UNRECORDED or slurm.make("why it waits") == "JobHeldUser", "its user's own --hold"
    assert slurm.make("repoint") == (slurm.ids["waits"],)


@pytest.mark.parametrize("name", AWAY)
def test_a_slurmctld_that_is_away_is_that_and_nothing_else(slurm: Version, name: str) -> None:
    with pytest.raises(SlurmUnavailable):
        slurm.make(name)
