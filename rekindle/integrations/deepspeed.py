"""Rekindle with DeepSpeed: saves are `engine.save_checkpoint` on all ranks, resumes `engine.load_checkpoint`.

    from rekindle.integrations.deepspeed import Rekindle

    engine, _, _, _ = deepspeed.initialize(...)
    run = Rekindle(engine, "checkpoints")
    first = run.resume() + 1
    for step in range(first, last_step + 1):
        if run.should_skip(step): continue
        loss = engine(batch(step)); engine.backward(loss); engine.step()
        run.step(step, loss=loss)
        if step % 100 == 0: run.save(step)
        if run.should_stop: break
    run.finish()

DeepSpeed itself is not imported: the engine is all that is needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rekindle.integrations.driven import Driven
from rekindle.integrations.resume import path_of
from rekindle.integrations.snapshots import load_rng, save_rng

CLIENT_KEY = "rekindle"  # in DeepSpeed's client state


class Rekindle(Driven):
    """One per process, on every rank. `monitor` is the `rekindle.monitor.Monitor` beneath.

    engine: what `deepspeed.initialize` returned. folder: DeepSpeed's checkpoint folder; each save is the tag
    `step-<number>` in it, and `latest` names the newest.
    more: further arguments of `rekindle.monitor.start`.
    """

    def __init__(self, engine: Any, folder: str | os.PathLike[str], **more: Any) -> None:
        self._engine = engine
        self.client_state: dict[str, Any] = {}
        super().__init__(folder, **more)

    def resume(self, path: str | os.PathLike[str] | None = None) -> int:
        """Load what this attempt was told to go on from (or `path`, a tag's folder); the step it goes on after, or 0.

        The script's own `client_state` is in `self.client_state` then. Raises: RuntimeError where DeepSpeed finds
        nothing to load: never a silent start from nothing.
        """
        source = path if path is not None else path_of(self.monitor)
        if source is None:
            return 0
        tag = Path(source)
        loaded, client_state = self._engine.load_checkpoint(os.fspath(tag.parent), tag=tag.name)
        if loaded is None:
            raise RuntimeError(f"DeepSpeed found no checkpoint in {tag}")
        load_rng(tag)
        # DeepSpeed returns its own entries with the script's, and does not take them back: the script's are named.
        ours = client_state.get(CLIENT_KEY, {})
        self.client_state = {name: client_state[name] for name in ours.get("names", ())}
        return int(ours.get("step", self._engine.global_steps))

    def should_skip(self, step: int) -> bool:
        """Whether the batch of `step` belongs to a window to leave out."""
        return self.monitor.should_skip(step)

    def save(self, step: int, kind: str = "periodic", client_state: Mapping[str, Any] | None = None) -> Path:
        """A checkpoint of the script's own, on every rank; its manifest comes when all ranks have written."""
        if client_state is not None:
            self.client_state = dict(client_state)
        return super().save(step, kind)

    def _save(self, step: int, kind: str) -> Path:  # noqa: ARG002 - a save function's arguments
        tag = f"step-{step:09d}"
        save_rng(self._folder / tag)  # DeepSpeed keeps no random generators
        ours = {"step": step, "names": list(self.client_state)}
        self._engine.save_checkpoint(
            os.fspath(self._folder), tag=tag, client_state={**self.client_state, CLIENT_KEY: ours}
        )
        return self._folder / tag

    def _has_updated(self) -> bool:
        return bool(self._engine.micro_steps % self._engine.gradient_accumulation_steps() == 0)
