"""Durable executions of the real workflow in virtual time: one thread each, of which exactly one runs at a time.

`run_recovery` is the service's own. Its context here keeps what the workflow relies on: a step that raises is tried
again by the step's own strategy, after a pause in virtual time; a wait ends with its timer or its callback, whichever
comes first; what a step returns passes through JSON. Nothing is replayed: a thread keeps its place. An execution may be
killed at any wait, as if its function had been lost for good; the sweep then starts the next generation.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from aws_durable_execution_sdk_python.exceptions import StepError

from chalicelib.domain.model.incident import execution_name
from localcloud.aws.clock import Clock, Timer

Work = Callable[[dict[str, Any], "Context"], object]


class _Killed(BaseException):
    """Raised inside an execution's thread to end it."""


class _NotYet(Exception):
    """A branch of a parallel cannot go on now."""


class Callback:
    """What `create_callback` answers."""

    def __init__(self, callback_id: str) -> None:
        self.callback_id = callback_id
        self.is_done = False

    def result(self) -> str:
        """Raises: _NotYet until it is completed."""
        if not self.is_done:
            raise _NotYet
        return "{}"


class _Branch:
    """The context of one branch: it can only wait."""

    def __init__(self) -> None:
        self.waits_s = 0

    def wait(self, duration: Any, name: str | None = None) -> None:  # noqa: ARG002  the SDK's own names
        """Raises: _NotYet, with the span kept."""
        self.waits_s = duration.to_seconds()
        raise _NotYet


class _Results:
    def __init__(self, results: list[object]) -> None:
        self._results = results

    def get_results(self) -> list[object]:
        """Of the branches that ended."""
        return self._results


class Context:
    """A DurableContext as far as the workflow uses it."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._callbacks = 0

    def step(self, call: Callable[[object], Any], name: str | None = None, config: Any = None) -> Any:  # noqa: ARG002
        """Raises: StepError once the strategy gives up."""
        tried = 0
        while True:
            tried += 1
            try:
                return json.loads(json.dumps(call(None)))
            except Exception as err:
                again = config.retry_strategy(err, tried) if config is not None and config.retry_strategy else None
                if again is None or not again.should_retry:
                    self._execution.failed = err
                    raise StepError(f"{err}", error_type=type(err).__name__) from err
                self._execution.sleep(timedelta(seconds=max(1, again.delay_seconds)))

    def create_callback(self, name: str | None = None, config: Any = None) -> Callback:  # noqa: ARG002
        """A new one."""
        self._callbacks += 1
        return self._execution.new_callback(f"{self._execution.name}:{self._callbacks}")

    def parallel(
        self, branches: Sequence[Callable[[Any], Any]], name: str | None = None, config: Any = None
    ) -> _Results:
        """The first branch to end wins; the others wait for a callback or a timer."""
        del name, config
        while True:
            spans: list[int] = []
            for branch in branches:
                context = _Branch()
                try:
                    return _Results([branch(context)])
                except _NotYet:
                    spans += [context.waits_s] if context.waits_s else []
            if self._execution.wait(timedelta(seconds=min(spans))):
                continue  # woken: a branch can end now
            return _Results(["timer"])


class Execution:
    """One thread, which runs only while its caller waits in `resume`."""

    def __init__(
        self, name: str, payload: dict[str, Any], work: Work, clock: Clock, hold: Callable[[], timedelta]
    ) -> None:
        self.name = name
        self.is_over = False
        self.failed: BaseException | None = None
        self.answer: object = None
        self._clock = clock
        self._hold = hold
        self._work = work
        self._payload = payload
        # Both are taken at first, and each is released by the other thread: a turn that is handed over.
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._killed = False
        self._callback: Callback | None = None
        self._wake_at: Timer | None = None
        self._woken = False
        self._is_waiting = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Run up to the first wait, from a call of the clock's. One that was killed before never runs."""
        if self.is_over:
            return
        self._thread.start()
        self.resume()

    def resume(self) -> None:
        """Let the thread run until it waits again or ends."""
        if self.is_over:
            return
        self._go.release()
        self._back.acquire()

    @property
    def due_at(self) -> datetime | None:
        """When it goes on by itself; None once it is over."""
        return None if self.is_over or self._wake_at is None else self._wake_at.at

    def kill(self) -> None:
        """End it where it waits, or before it has begun."""
        self._killed = True
        if self._thread.ident is None:
            self.is_over = True
        self.resume()

    def new_callback(self, callback_id: str) -> Callback:
        self._callback = Callback(callback_id)
        return self._callback

    def complete(self, callback_id: str) -> bool:
        """Complete the pending callback; False where it is another one, or done, or the execution is over."""
        callback = self._callback
        if self.is_over or callback is None or callback.callback_id != callback_id or callback.is_done:
            return False
        callback.is_done = True
        if self._wake_at is not None and self._is_waiting:
            self._wake_at.cancel()
            self._wake_at = self._clock.after(self._hold(), self._wake_up, label=f"{self.name} woken")
        return True

    def _wake_up(self) -> None:
        self._woken = True
        self.resume()

    def wait(self, span: timedelta) -> bool:
        """In the thread: wait for `span` or the callback; True if it was the callback."""
        if self._callback is not None and self._callback.is_done:
            return True
        self._is_waiting = True
        self.sleep(span)
        self._is_waiting = False
        woken, self._woken = self._woken, False
        return woken

    def sleep(self, span: timedelta) -> None:
        """In the thread: give the turn back and go on after `span`, or when woken."""
        self._wake_at = self._clock.after(max(span, self._hold()), self.resume, label=f"{self.name} timer")
        self._back.release()
        self._go.acquire()
        self._wake_at.cancel()
        self._wake_at = None
        if self._killed:
            raise _Killed

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._killed:
                self.answer = self._work(self._payload, Context(self))
        except _Killed:
            pass
        except StepError:
            pass  # `step` has kept what lay behind it
        except Exception as err:
            self.failed = err
        finally:
            self.is_over = True
            if self._wake_at is not None:
                self._wake_at.cancel()
            self._back.release()


class MemoryExecutions:
    """ports.Executions. `hold` says for how long functions are throttled from now on; an execution begins that long,
    and `begins_after`, after it was started.
    """

    def __init__(
        self,
        clock: Clock,
        work: Work,
        hold: Callable[[], timedelta],
        *,
        begins_after: timedelta = timedelta(milliseconds=200),
    ) -> None:
        self._clock = clock
        self._work = work
        self._hold = hold
        self._begins_after = begins_after
        self.all: dict[str, Execution] = {}

    def start(self, incident_id: str, *, generation: int) -> None:
        """See the port. It begins in a call of the clock's, as an asynchronous invocation does."""
        name = execution_name(incident_id, generation)
        if name in self.all:
            return
        payload = {"incident_id": incident_id, "generation": generation}
        execution = self.all[name] = Execution(name, payload, self._work, self._clock, self._hold)
        self._clock.after(self._hold() + self._begins_after, execution.start, label=f"{name} begins")

    def wake(self, callback_id: str, *, why: str) -> bool:  # noqa: ARG002  the port's own names
        execution = self.all.get(callback_id.rpartition(":")[0])
        return execution is not None and execution.complete(callback_id)

    def running(self) -> frozenset[str]:
        return frozenset(name for name, execution in self.all.items() if not execution.is_over)

    def close(self) -> None:
        """End all threads."""
        for execution in self.all.values():
            if execution._thread.is_alive():
                execution.kill()
