"""Hooks that frameworks call: a failure in one is logged once, and training continues."""

from __future__ import annotations

from contextlib import AbstractContextManager

from rekindle.monitor import Monitor
from rekindle.monitor.base.guard import guarded
from rekindle.monitor.base.settings import ENV_SWITCH, process_environment
from rekindle.monitor.base.trouble import logger
from rekindle.monitor.starting import start_in
from rekindle.protocol.launch_orders import ResumePlan

__all__ = ["Guarded", "WatchingCallback", "guarded", "resume_path"]


def resume_path() -> str | None:
    """`Monitor.resume_path`, for scripts that must know it before their ranks exist. Raises: ValueError."""
    return start_in({**process_environment(), ENV_SWITCH: "off"}).resume_path


class Guarded:
    """A base of classes whose methods are decorated with `guarded("name")`."""

    _is_asleep = False
    _failed_in: frozenset[str] = frozenset()

    def _inner(self, where: str, err: BaseException) -> None:
        if where not in self._failed_in:
            self._failed_in |= {where}
            logger.warning("Rekindle failed in %s, and training continues without it: %r", where, err)


class WatchingCallback(Guarded):
    """What the frameworks' callbacks share. `monitor` is silent until training begins: all ranks are there then."""

    def __init__(self) -> None:
        self.monitor = Monitor(ResumePlan())
        self._was_stopped = False
        self._phase: AbstractContextManager[None] | None = None

    @property
    def should_stop(self) -> bool:
        """Whether training ended early, by SIGTERM for one: the script should end too, and publish no model."""
        return self._was_stopped or self.monitor.should_stop

    def _enter(self, name: str) -> None:
        self._leave()
        self._phase = self.monitor.phase(name)
        self._phase.__enter__()

    def _leave(self) -> None:
        phase, self._phase = self._phase, None
        if phase is not None:
            phase.__exit__(None, None, None)
