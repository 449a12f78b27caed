"""Hypothesis profiles: `ci`, unless HYPOTHESIS_PROFILE names `quick` (a quarter of
the examples) or `deep` (ten times as many; tests/sizes.py).

And the search for leaked secrets: whatever any test printed or logged, passed or not, must hold none of those that
tests use (tests/canary.py). A leak fails the test that printed it. And a test fails in which a function of the embedded
cloud called what its own policy denies, even where the code takes that well.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from localcloud.aws.roles import DENIED
from localcloud.aws.wire import TOO_LARGE
from tests.canary import FORMS
from tests.sizes import DEEP, QUICK, examples

# How long an example takes to draw says how busy the machine is, and nothing about the code.
BUSY = [HealthCheck.too_slow]
settings.register_profile("ci", deadline=None, suppress_health_check=BUSY)
settings.register_profile(DEEP, deadline=None, suppress_health_check=BUSY, max_examples=examples(100), print_blob=True)
settings.register_profile(QUICK, deadline=None, suppress_health_check=BUSY, max_examples=examples(100))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Botocore's and moto's models, all tests and their modules live until the end. With Python's usual thresholds a third
# of the time is spent looking at them for garbage, again and again.
gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


pytest_plugins = ["pytester", "tests.left_threads"]

MARK = "may_print_secrets"  # for the tests of this search itself
MAY_BE_DENIED = "may_be_denied"  # for the tests of the functions' roles
MAY_BE_TOO_LARGE = "may_be_too_large"  # for the tests of AWS's limits


@pytest.fixture(autouse=True)
def _level_of_the_monitors_logger() -> Iterator[None]:
    """Its parent, `rekindle`, is the service's logger, whose level an embedded cloud sets for the whole process."""
    logger = logging.getLogger("rekindle.monitor")
    before = logger.level
    logger.setLevel(logging.WARNING)
    yield
    logger.setLevel(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test whose captured output (stdout, stderr, log) holds a secret."""
    report = yield
    # Each report repeats the sections of the phases before it: only its own are new.
    new = [(name, text) for name, text in report.sections if name.endswith(f" {report.when}")]
    where = [name for name, text in new if any(form in text for form in FORMS)]
    if where and item.get_closest_marker(MARK) is None:
        report.outcome = "failed"
        report.longrepr = f"a secret of the tests was printed by this test ({', '.join(where)})"
    report.sections = [(name, _encodable(_masked(text))) for name, text in report.sections]
    if report.when == "call" and item.get_closest_marker(MAY_BE_DENIED) is None and report.passed and DENIED:
        told = {f"{function} may not {need.action} on {need.resource}" for function, need in DENIED}
        report.outcome = "failed"
        report.longrepr = f"a function called what its policy denies: {'; '.join(sorted(told))}"
    if report.when == "call" and item.get_closest_marker(MAY_BE_TOO_LARGE) is None and report.passed and TOO_LARGE:
        report.outcome = "failed"
        report.longrepr = f"a call is larger than AWS takes: {'; '.join(sorted(set(TOO_LARGE)))}"
    DENIED.clear()
    TOO_LARGE.clear()
    if report.failed and _encodable(shown := str(report.longrepr)) != shown:
        report.longrepr = _encodable(shown)  # pytest-xdist sends reports as UTF-8, and ends the session where it cannot
    return report


def _encodable(text: str) -> str:
    """Half a surrogate pair, which tests of hostile text draw, as its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _masked(text: str) -> str:
    for form in FORMS:
        text = text.replace(form, "*" * len(form))
    return text
