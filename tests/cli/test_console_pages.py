"""Every page of the console is drawn, from the real routes and adapters. What a browser makes of it: tests/console."""

from __future__ import annotations

from tests.console.world import Visitor, raised

JOB, INCIDENT = "llama-00001", "inc-llama-00001-000000000001"
PAGES = (
    "/",
    "/jobs",
    f"/jobs/{JOB}",
    "/incidents",
    f"/incidents/{INCIDENT}",
    f"/incidents/{INCIDENT}/postmortem",
    "/metrics",
    "/approvals",
    "/ledger",
    "/nodes",
    "/policies",
    "/policies/default",
)


def test_every_page_is_drawn() -> None:
    with raised() as world:
        world.fill(jobs=2, incidents=4, opened=1)
        visitor = Visitor(world.console)
        assert {page: visitor.get(page).status for page in PAGES} == dict.fromkeys(PAGES, 200)
