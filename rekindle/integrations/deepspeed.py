"""Rekindle with DeepSpeed: saves are `engine.save_checkpoint` on all ranks, resumes `engine.load_checkpoint`.

DeepSpeed itself is not imported: the engine is all that is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rekindle.integrations.driven import MonitorDriver
from rekindle.integrations.local import learning_rate
from rekindle.integrations.rank_coordinator import RankCoordinator
from rekindle.integrations.snapshots import load_rng, save_rng
from rekindle.integrations.torch_ranks import all_done, rank_and_world

CLIENT_KEY = "rekindle"  # in DeepSpeed's client state


class KeptWrites:
    """DeepSpeed's checkpoint engine, whose writes fail at the end of the save only, where all ranks are."""

    def __init__(self, inner: Any, coordinator: RankCoordinator) -> None:
        self.inner, self._coordinator = inner, coordinator

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self._coordinator.keep(self.inner.makedirs, path, exist_ok=exist_ok)

    def save(self, state_dict: Any, path: str) -> None:
        self._coordinator.keep(self.inner.save, state_dict, path, frees=Path(path))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@contextmanager
def kept_writes(engine: Any, coordinator: RankCoordinator) -> Iterator[None]:
    """Around a save of DeepSpeed's. Changes nothing of an object that is no engine."""
    writer = getattr(engine, "checkpoint_engine", None)
    if writer is None:
        yield
        return
    engine.checkpoint_engine = KeptWrites(writer, coordinator)
    try:
        yield
    finally:
        engine.checkpoint_engine = writer


class Rekindle(MonitorDriver):
    """One per process, on every rank. `monitor` is the `rekindle.monitor.Monitor` beneath.

    engine: what `deepspeed.initialize` returned. folder: DeepSpeed's checkpoint folder; each save is the tag
    `step-<number>` in it, and `latest` names the newest that all ranks have written. more: further arguments of
    `rekindle.monitor.start`.
    """

    def __init__(self, engine: Any, folder: str | os.PathLike[str], **more: Any) -> None:
        self._engine = engine
        self.client_state: dict[str, Any] = {}
        super().__init__(folder, **more)
        self.monitor.scaler(engine)  # where it trains with one

    def resume(self, path: str | os.PathLike[str] | None = None) -> int:
        """Load this attempt's resume point (or `path`, a tag's folder); returns its step, or 0.

        The script's own `client_state` is in `self.client_state` then. Raises: RuntimeError where DeepSpeed finds
        nothing to load: never a silent start from nothing.
        """
        source = path if path is not None else self.monitor.resume_path
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

    def save(self, step: int, kind: str = "periodic", client_state: Mapping[str, Any] | None = None) -> Path:
        """See `MonitorDriver.save`. client_state: the script's own, kept for emergency checkpoints too."""
        if client_state is not None:
            self.client_state = dict(client_state)
        if self._made is not None and all_done(None if client_state is None else "a newer client state") is not None:
            self._made = None  # the emergency checkpoint of this step holds an older one, on one rank at least
        return super().save(step, kind)

    def _save(self, step: int) -> Path:
        path = super()._save(step)
        with self._coordinator.save():
            if rank_and_world()[0] == 0:  # the newest tag, whole or as it was
                beside = self._folder / ".latest.writing"
                beside.write_text(path.name)
                beside.replace(self._folder / "latest")
        return path

    def _write(self, path: Path, step: int) -> None:
        self._coordinator.keep(save_rng, path)  # DeepSpeed keeps no random generators
        ours = {"step": step, "names": list(self.client_state)}
        with kept_writes(self._engine, self._coordinator):
            self._engine.save_checkpoint(
                os.fspath(path.parent),
                tag=path.name,
                client_state={**self.client_state, CLIENT_KEY: ours},
                save_latest=False,
            )
        writer = self._engine.checkpoint_engine
        if writer.is_decoupled() and (pending := writer.get_commit_info()) is not None:
            writer.commit(pending)  # it writes in another process until it is asked

    def _has_updated(self) -> bool:
        return bool(self._engine.micro_steps % self._engine.gradient_accumulation_steps() == 0)

    def _learning_rate(self) -> Any:
        return learning_rate(self._engine.optimizer)
