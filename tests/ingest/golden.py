"""The golden events on disk, for the tests of this package."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

EVENTS = Path(__file__).resolve().parents[2] / "events"
EXPECTED_FILE = "EXPECTED.json"
EXPECTED: dict[str, dict[str, Any]] = json.loads((EVENTS / EXPECTED_FILE).read_text())


def names() -> list[str]:
    """File names of the events that can be read, without their ending, sorted."""
    return sorted(path.stem for path in EVENTS.glob("*.json") if path.name != EXPECTED_FILE)


def malformed() -> list[str]:
    """Paths of the events that cannot, from this folder on, sorted."""
    return sorted(path.relative_to(EVENTS).as_posix() for path in EVENTS.glob("malformed/*.json"))


def files() -> list[str]:
    """All of both: what EXPECTED.json has a row for."""
    return [*(f"{name}.json" for name in names()), *malformed()]


def load(name: str) -> dict[str, Any]:
    """A fresh copy of one golden event."""
    event: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text())
    return event


def redelivered(event: dict[str, Any]) -> dict[str, Any]:
    """The same fact in another envelope, as AWS sends it when it sends several events for one state change."""
    twin = copy.deepcopy(event)
    if "id" in twin:
        twin["id"] = "99999999-0000-4000-8000-000000000000"
    return twin
