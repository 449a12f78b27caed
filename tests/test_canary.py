"""The search for leaked secrets finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.canary import SLACK_TOKEN

ROOT = Path(__file__).resolve().parents[1]

LEAKS = {
    "stdout": "print(SLACK_TOKEN)",
    "stderr": "print(SLACK_TOKEN, file=sys.stderr)",
    "base64": "print(base64.b64encode(('user:' + SLACK_TOKEN).encode()).decode())",
    "base64, one further": "print(base64.b64encode(('user1:' + SLACK_TOKEN).encode()).decode())",
    "base64, two further": "print(base64.b64encode(('user12:' + SLACK_TOKEN).encode()).decode())",
    "hex": "print(SLACK_TOKEN.encode().hex())",
    "a log line": "logging.getLogger('x').warning('sent with %s', SLACK_TOKEN)",
}


@pytest.mark.may_print_secrets  # the inner test runs in this process: its log line is caught here, too
@pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS)
def test_a_secret_that_a_test_prints_fails_it(leak: str, pytester: pytest.Pytester) -> None:
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(
        f"import base64, logging, sys\nfrom tests.canary import SLACK_TOKEN\ndef test_it():\n    {leak}\n"
    )
    pytester.syspathinsert(ROOT)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*a secret of the tests was printed by this test*"])
    result.stdout.no_fnmatch_line(f"*{SLACK_TOKEN}*")


def test_a_test_that_prints_none_passes(pytester: pytest.Pytester) -> None:
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile("def test_it():\n    print('harmless')\n")
    pytester.syspathinsert(ROOT)
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
