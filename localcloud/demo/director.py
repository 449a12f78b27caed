"""What happens on the stage: wait until the run moves, do harm, wait until it is repaired, measure; compare."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import assert_never

from localcloud.demo.report import Result
from localcloud.demo.stage import SAVE_EVERY, WORKERS, Stage
from localcloud.demo.story import (
    TITLES,
    Comparison,
    Fault,
    IncidentSeen,
    Injection,
    Recovery,
    StepSeen,
    compare,
    measure,
)
from localcloud.demo.undisturbed import Undisturbed
from localcloud.demo.view import DemoState, LineView
from localcloud.demo.watch import FINAL

REFRESH_S = 0.25
# Each of these takes seconds; a machine with much else to do may need minutes, and only what never comes breaks off.
START_LIMIT_S = 180.0
DETECT_LIMIT_S = 120.0
RECOVER_LIMIT_S = 300.0
STEP_LIMIT_S = 120.0
REFERENCE_LIMIT_S = 300.0
# How far into a checkpoint interval harm is done: late enough that there is work to lose.
INTO_INTERVAL = SAVE_EVERY // 2
POISON_AHEAD = 15  # steps from now to the poisoned batch: about half a second
# A run that lives saves on request and at its stop; what it saves counts where no checkpoint of its own comes between.
_INTO = {
    Fault.NODE: SAVE_EVERY // 10,
    Fault.NAN: INTO_INTERVAL - POISON_AHEAD,
}


class DemoBrokeOff(RuntimeError):
    """Something that had to happen did not happen in time; the message says what."""


class Director:
    """Runs one demo on a stage."""

    def __init__(self, stage: Stage, view: LineView, reference: Undisturbed, *, seed: int) -> None:
        self._stage = stage
        self._view = view
        self._reference = reference
        self._seed = seed
        self._recoveries: list[Recovery] = []
        self._pause = threading.Event()
        self._poisoned: list[int] = []

    def run(self, faults: Sequence[Fault]) -> Result:
        """Do harm in every wanted way; always comes back with a Result, which says what did not work."""
        problem, comparison = "", None
        try:
            self._say("the run starts: two workers, one real model, real text")
            self._until(lambda _: self._last_step() >= 5, START_LIMIT_S, "the run's first steps")
            for fault in faults:
                self._recoveries.append(self._one(fault))
                self._train_reference()
            self._say("all done; its owner stops the run, which saves once more before it goes")
            self._stage.stop_job(self._picture().attempts[-1].name)
            self._until(lambda picture: picture.attempts[-1].status in FINAL, STEP_LIMIT_S, "the end of the run")
            self._until(lambda _: self._stage.is_settled(), STEP_LIMIT_S, "the service to know that the run is over")
            self._say("comparing every step with a run that was never disturbed")
            comparison = self._compare()
        except DemoBrokeOff as err:
            problem = str(err)
        picture = self._picture()
        return Result(
            seed=self._seed,
            workers=WORKERS,
            job_id=self._stage.job_id,
            started_at=picture.started_at,
            ended_at=picture.at,
            recoveries=tuple(self._recoveries),
            wanted=tuple(fault.value for fault in faults),
            attempts=picture.attempts,
            comparison=comparison,
            final_status=picture.attempts[-1].status if picture.attempts else "none",
            problem=problem,
        )

    # ---- one fault ---------------------------------------------------------------------------------------------------

    def _one(self, fault: Fault) -> Recovery:
        self._say(f"training on; next: {TITLES[fault]}")
        into = _INTO.get(fault, INTO_INTERVAL)
        self._until(lambda picture: self._is_time(picture, into), STEP_LIMIT_S, "the next steps")
        known = {incident.incident_id for incident in self._picture().incidents}
        injection = self._harm(fault)
        self._say(f"{injection.what} at step {injection.step}: waiting for Rekindle to notice")
        self._until(lambda now: _fresh(now, known) is not None, DETECT_LIMIT_S, f"an Incident after {injection.what}")
        self._say(f"{injection.what}: noticed; recovering")
        problem = ""
        try:
            self._until(lambda now: _is_closed(now, known), RECOVER_LIMIT_S, f"the recovery after {injection.what}")
        except DemoBrokeOff as err:
            problem = str(err)
        picture = self._picture()
        recovery = measure(injection, _fresh(picture, known), picture.attempts)
        if not recovery.ok:
            self._recoveries.append(recovery)
            raise DemoBrokeOff(problem or f"{TITLES[fault]}: the Incident ended as {_phase(recovery)}")
        return recovery

    def _is_time(self, picture: DemoState, into: int) -> bool:
        """`into` steps into a checkpoint interval, one interval behind, and nothing open (a false alarm)."""
        if any(incident.closed_at is None for incident in picture.incidents):
            return False
        if not picture.attempts:  # the picture is read now and then, and may be older than the run's first steps
            return False
        steps = self._steps(picture.attempts[-1].name)
        if not steps or steps[-1].step - steps[0].step < SAVE_EVERY:
            return False
        return steps[-1].step % SAVE_EVERY in range(into, into + SAVE_EVERY // 10)

    def _harm(self, fault: Fault) -> Injection:
        attempt = self._picture().attempts[-1].name
        at, step = self._now(), self._last_step()
        match fault:
            case Fault.NODE:
                self._stage.fail_gpu(attempt)
                what = "worker 1's GPU fell off the bus (its log says Xid 79)"
            case Fault.KILL:
                self._stage.processes.kill(attempt, 1)
                what = "worker 1 killed (SIGKILL)"
            case Fault.FREEZE:
                self._stage.processes.freeze(attempt, 1)
                what = "worker 1 frozen (SIGSTOP)"
            case Fault.NAN:
                poisoned = self._poison()
                attempt, at, step = poisoned.attempt, poisoned.at, poisoned.step
                what = f"batch {step} poisoned"
            case _:
                assert_never(fault)
        return Injection(fault=fault, at=at, step=step, attempt=attempt, what=what)

    def _poison(self) -> StepSeen:
        """Corrupt a batch that is read in half a second, and wait for its NaN: the moment at which harm was done.

        A batch that the run had already passed is restored, and a later one is corrupted instead.
        """
        ahead = POISON_AHEAD
        while True:
            step = self._last_step() + ahead
            self._stage.poison(step)
            found = self._nan_or_past(step)
            if found is not None and found.step == step:
                self._poisoned.append(step)
                return found
            if found is not None:
                raise DemoBrokeOff(f"the poisoned batch {step} gave NaN at {found.step}")
            self._stage.mend(step)
            ahead *= 2

    def _nan_or_past(self, step: int) -> StepSeen | None:
        """The first NaN from `step` on, once it is there; None once the run has got past the step without one."""

        def seen() -> StepSeen | None:
            steps = self._stage.watch.trace.read()
            return next((item for item in steps if item.step >= step and not math.isfinite(item.loss)), None)

        self._until(
            lambda _: seen() is not None or self._last_step() > step, STEP_LIMIT_S, f"NaN at the poisoned step {step}"
        )
        return seen()

    # ---- the run that nothing happened to ----------------------------------------------------------------------------

    def _train_reference(self) -> None:
        """Train the reference up to the run's step, skipping the data ranges that the run was ordered to skip."""
        skips = sorted({window for attempt in self._picture().attempts for window in attempt.skips})
        step = self._last_step()
        not_left_out = [bad for bad in self._poisoned if not any(first <= bad < end for first, end in skips)]
        self._reference.train_to(min([step, *(bad - 1 for bad in not_left_out)]), skip=skips)

    def _compare(self) -> Comparison:
        self._train_reference()
        try:
            losses = self._reference.losses(limit_s=REFERENCE_LIMIT_S)
        except RuntimeError as err:
            raise DemoBrokeOff(str(err)) from err
        return compare(self._stage.watch.trace.read(), losses)

    # ---- looking -----------------------------------------------------------------------------------------------------

    def _picture(self) -> DemoState:
        return self._stage.watch.picture(fresh=True)

    def _steps(self, attempt: str) -> list[StepSeen]:
        return [item for item in self._stage.watch.trace.read() if item.attempt == attempt]

    def _last_step(self) -> int:
        steps = self._stage.watch.trace.read()
        return steps[-1].step if steps else 0

    def _now(self) -> datetime:
        return self._stage.cloud.clock.now()

    def _say(self, act: str) -> None:
        self._stage.watch.act = act
        self._view.show(self._stage.watch.picture())

    def _until(self, predicate: Callable[[DemoState], bool], limit_s: float, what: str) -> None:
        """Show the picture again and again until `predicate` holds of it. Raises DemoBrokeOff at the limit."""
        deadline = time.monotonic() + limit_s
        while not predicate(picture := self._stage.watch.picture()):
            self._view.show(picture)
            if time.monotonic() >= deadline:
                raise DemoBrokeOff(f"waited {limit_s:g} s for {what}")
            self._pause.wait(REFRESH_S)


def _fresh(picture: DemoState, known: set[str]) -> IncidentSeen | None:
    """The first Incident that was not there before."""
    return next((item for item in picture.incidents if item.incident_id not in known), None)


def _is_closed(picture: DemoState, known: set[str]) -> bool:
    incident = _fresh(picture, known)
    return incident is not None and incident.closed_at is not None


def _phase(recovery: Recovery) -> str:
    return recovery.incident.phase if recovery.incident else "nothing"
