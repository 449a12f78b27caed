"""`pytest --unused-permissions` fails a run of all tests in which a function's policy allows what no test made use of.

The other direction needs no option: a call that is not allowed is denied, and fails its test (conftest.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from infra.functions import FUNCTIONS
from infra.grants import policy, statements
from localcloud.aws.roles import USED

OPTION: Final = "--unused-permissions"
# Lambda itself does these in the function's name; the keys of buckets go with what is read and written there
# (tests/infra/test_policies.py), and the stack of most tests has none.
NOT_CALLED: Final = {"Logs", "KeepFailures", "TakeDeliveries", "DurableState", "UseKeysOfBuckets", "UseKeysOfVolumes"}
_used: set[tuple[str, str, str]] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action="store_true", help="fail where a function may do what no test of this run did")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist hands over what it has seen; without workers, or above them, it is judged."""
    _used.update(USED)
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["permissions"] = [list(use) for use in USED]
    elif session.config.getoption(OPTION) and any(unused()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What a worker has seen."""
    _used.update(tuple(use) for use in getattr(node, "workeroutput", {}).get("permissions", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption(OPTION) and (lines := list(unused())):
        terminalreporter.section("allowed, and used by no test: take it out of infra/policies", red=True)
        for line in lines:
            terminalreporter.line(line)


def unused() -> Iterator[str]:
    """A line for each statement of a function's policy with actions that no test made use of."""
    for function in FUNCTIONS:
        for statement in statements(policy(function.name)):
            sid = statement["Sid"]
            idle = [action for action in statement["Action"] if (function.name, action, sid) not in _used]
            if idle and sid not in NOT_CALLED:
                yield f"{function.name:20} {sid:22} {', '.join(idle)}"
