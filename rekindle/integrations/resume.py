"""Where this attempt goes on, for scripts that must say so before their ranks exist."""

from __future__ import annotations

from rekindle.monitor import start
from rekindle.monitor.settings import process_environment


def resume_path() -> str | None:
    """The checkpoint that this attempt was told to go on from, as a local path; None for a fresh run."""
    return start(env={**process_environment(), "REKINDLE_MONITOR": "off"}).resume_path
