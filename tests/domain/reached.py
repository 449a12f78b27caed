"""A plugin of pytest that writes down which rules the tests of a run reached. test_each_rule.py runs it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.domain.looks import REACHED


def pytest_sessionfinish() -> None:
    """Write the rules to the file that REKINDLE_REACHED names."""
    Path(os.environ["REKINDLE_REACHED"]).write_text(json.dumps(sorted(REACHED)), encoding="utf-8")
