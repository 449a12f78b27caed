"""Executions that run nothing."""

from __future__ import annotations

from chalicelib.domain.model.incident import execution_name


class RememberedExecutions:
    """ports.Executions that run nothing: it remembers starts and wakes; `live` is what `running` answers."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.live: set[str] = set()
        self.woken: list[tuple[str, str]] = []
        self.gone: set[str] = set()

    def start(self, incident_id: str, *, generation: int) -> None:
        name = execution_name(incident_id, generation)
        if name not in self.started:
            self.started.append(name)
            self.live.add(name)

    def wake(self, callback_id: str, *, why: str) -> bool:
        """See the port: a callback is completed once."""
        if callback_id in self.gone:
            return False
        self.gone.add(callback_id)
        self.woken.append((callback_id, why))
        return True

    def running(self) -> frozenset[str]:
        return frozenset(self.live)
