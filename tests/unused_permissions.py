"""`pytest --unused-permissions` lists what the functions' policies allow and no test of the run made use of.

What Lambda itself does in a function's name (its log, its queue) is never called by the function, and is left out.
"""

from __future__ import annotations

from typing import Any

import pytest

from infra.functions import FUNCTIONS
from infra.grants import platform_grants, policies
from localcloud.aws.roles import USED

OPTION = "--unused-permissions"
_used: set[tuple[str, str, str]] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action="store_true", help="list what the functions may do and no test of this run did")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist hands over what it has seen."""
    _used.update(USED)
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["permissions"] = [list(one) for one in USED]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The controller takes it."""
    _used.update((one[0], one[1], one[2]) for one in getattr(node, "workeroutput", {}).get("permissions", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.getoption(OPTION):
        return
    terminalreporter.section("permissions that no test of this run made use of")
    documents = policies()
    for function in FUNCTIONS:
        platform = {grant.sid for grant in platform_grants(function)}
        for entry in documents[function.name]["Statement"]:
            statement = entry["Fn::If"][1] if "Fn::If" in entry else entry
            unused = [
                action for action in statement["Action"] if (function.name, action, statement["Sid"]) not in _used
            ]
            if unused and statement["Sid"] not in platform:
                terminalreporter.line(f"{function.name:20} {statement['Sid']:22} {', '.join(unused)}")
