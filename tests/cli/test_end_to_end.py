"""The command line over the whole service on the embedded cloud: real routes, real recoveries, real rehearsals."""

from __future__ import annotations

import io
import json
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from localcloud.worlds.recoveries import Script, World, crash_at, world
from tests.cli.conftest import Run
from tests.cli.service import FakeService, Seen, serve
from tests.drills.parts import until_step


class Behind:
    """The service of a world, where `serve` looks for one."""

    def __init__(self, made: World) -> None:
        self.api = made.service.api
        self.requests: list[Seen] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.signer = "arn:aws:iam::1:user/op"  # as API Gateway names who signed

    handle = FakeService.handle


@pytest.mark.long
def test_an_operators_day(run: Run, tmp_path: Path) -> None:
    with ExitStack() as held:
        with redirect_stdout(io.StringIO()):  # the service's log goes there; ours is what the command prints
            made = held.enter_context(world())
        made.submit(scripts=(Script(faults=(crash_at(30, "ValueError: no such label"),)), Script()))
        until_step(made, "lm", 12)
        with serve(Behind(made)) as url:  # type: ignore[arg-type]  # it has what `serve` uses

            def rekindle(*words: str, code: int = 0) -> str:
                ended = run("--api", url, *words)
                assert ended.code == code, (words, ended)
                return ended.out

            def read(*words: str) -> Any:
                return json.loads(rekindle(*words, "--json"))

            assert "1 active" in rekindle("status")
            assert read("jobs", "--active")["jobs"][0]["job_id"] == "lm"
            drill = read("drill", "software_crash", "--job", "lm", "--key", "d1")
            assert drill["would_do"] == ["ResubmitJob"]
            told = rekindle("drill", "--show", drill["drill_id"])
            assert "rehearsed: nothing was done" in told
            assert "resubmit.now" in told
            assert made.incidents() == []
            rekindle("drill", "no_progress", "--job", "lm", code=6)
            rekindle("drill", "hang", "--job", "nobody", code=3)
            rekindle("resubmit", "lm", "--from-step", "99999", "--yes", code=1)
            assert made.incidents() == []
            rekindle("shadow", "on", "--job", "lm")
            assert "on for job lm" in rekindle("switches")
            rekindle("shadow", "off", "--job", "lm", "--yes")
            document = tmp_path / "policy.json"
            document.write_text('{"budgets": {"max_attempts": 12}}')
            rekindle("policy", "put", "mine", str(document), "--yes", "--key", "p1")
            assert read("policy", "get", "mine")["effective"]["budgets"]["max_attempts"] == 12
            assert "Nothing waits" in rekindle("approvals")

            incident = made.recover().incident_id
            assert "recovered" in rekindle("show", incident, "--watch")
            assert incident in rekindle("incidents", "--job", "lm", "--fault", "software_crash")
            assert incident not in rekindle("incidents", "--fault", "hang")
            assert "steps lost" in rekindle("ledger", "--incident", incident)
            assert "ETTR" in rekindle("ledger", "--job", "l")  # the only Job that begins so
            assert rekindle("postmortem", incident[:-4]) == rekindle("postmortem", incident)
            rekindle("drill", "hang", "--job", "l", code=3)
            assert "recovered 1" in rekindle("ledger", "--days", "1")
            assert rekindle("postmortem", incident).startswith("# ")

            rekindle("stop", "lm", "--yes")
            made.recover(count=2)
            made.run_until(lambda: made.service.scheduler.of_name("lm-r2").describe("lm-r2").status.has_ended)
            assert read("jobs", "lm")["active"] is False
            rekindle("drill", "hang", "--job", "lm", "--key", "d2", code=1)
