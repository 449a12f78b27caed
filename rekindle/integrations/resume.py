"""This attempt's resume point, as a local path. A run with a resume plan never starts from nothing instead."""

from __future__ import annotations

from rekindle.monitor.base.settings import ENV_SWITCH, process_environment
from rekindle.monitor.starting import start_in


def resume_path() -> str | None:
    """`Monitor.resume_path`, for scripts that must know it before their ranks exist. Raises: ValueError."""
    return start_in({**process_environment(), ENV_SWITCH: "off"}).resume_path
