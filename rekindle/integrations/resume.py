"""This attempt's resume point, as a local path. A run with a resume plan never starts from nothing instead."""

from __future__ import annotations

from rekindle.monitor import Monitor, start
from rekindle.monitor.base.settings import process_environment
from rekindle.protocol.mailbox import ENV_CHECKPOINT_DIR, ENV_CHECKPOINT_URI, ENV_RESUME_URI


def path_of(monitor: Monitor) -> str | None:
    """The checkpoint to load; None for a fresh run. Raises: ValueError where it lies at no local path."""
    if monitor.resume_path is None and monitor.resume.uri is not None:
        raise ValueError(
            f"{ENV_RESUME_URI}: {monitor.resume.uri} is no local path: set {ENV_CHECKPOINT_DIR} and "
            f"{ENV_CHECKPOINT_URI} to a folder that mirrors it, or download it and load that"
        )
    return monitor.resume_path


def resume_path() -> str | None:
    """The same, for scripts that must say so before their ranks exist. Raises: ValueError."""
    return path_of(start(env={**process_environment(), "REKINDLE_MONITOR": "off"}))
