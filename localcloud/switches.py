"""The switches and the breaker in memory, by the rules of ports.JobRegistry."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import datetime

from chalicelib.domain.model.switches import ShadowScope, Switches


class MemoryControls:
    """The part of a JobRegistry that is about no single Job."""

    def __init__(self) -> None:
        self._switches = Switches()
        self._acts: dict[str, list[tuple[datetime, str]]] = {}
        self._paged = ""
        self._controls_lock = threading.RLock()

    def is_paused(self) -> bool:
        return self._switches.paused

    def set_paused(self, paused: bool, *, who: str, now: datetime, why: str = "") -> None:
        self._switches = replace(self._switches, paused=paused, paused_by=who, paused_at=now, paused_why=why)

    def switches(self) -> Switches:
        return self._switches

    def set_shadow(self, scope: ShadowScope, name: str, on: bool, *, who: str, now: datetime) -> None:
        with self._controls_lock:
            text = replace(self._switches, shadow_by=who, shadow_at=now)
            if scope is ShadowScope.EVERYWHERE:
                self._switches = replace(text, everywhere=on)
                return
            names = set(text.jobs if scope is ShadowScope.JOB else text.clusters)
            names = names | {name} if on else names - {name}
            change = {"jobs" if scope is ShadowScope.JOB else "clusters": tuple(sorted(names))}
            self._switches = replace(text, **change)  # type: ignore[arg-type]

    def will_act(self, incident_id: str, *, now: datetime, since: datetime, group: str = "") -> int:
        with self._controls_lock:
            acts = self._acts.setdefault(group, [])
            acts.append((now, incident_id))
            return len({job_id for at, job_id in acts if at >= since})

    def trip(self, incident_id: str, *, now: datetime, text: str) -> None:
        with self._controls_lock:
            if self._switches.breaker.is_open:
                return
            breaker = replace(self._switches.breaker, tripped_at=now, incident_id=incident_id, text=text)
            self._switches, self._paged = replace(self._switches, breaker=breaker), ""

    def lift(self, *, who: str, now: datetime) -> None:
        with self._controls_lock:
            breaker = replace(self._switches.breaker, lifted_at=now, lifted_by=who)
            self._switches = replace(self._switches, breaker=breaker)

    def pages_for_breaker(self, incident_id: str) -> bool:
        with self._controls_lock:
            self._paged = self._paged or incident_id
            return self._paged == incident_id

    def release_breaker_page(self, incident_id: str) -> None:
        with self._controls_lock:
            self._paged = "" if self._paged == incident_id else self._paged
