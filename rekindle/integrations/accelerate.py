"""Rekindle with Hugging Face Accelerate: saves are `accelerator.save_state`, resumes `accelerator.load_state`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import skip_first_batches
from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import RandomSampler

from rekindle.integrations.deepspeed import kept_writes
from rekindle.integrations.driven import MonitorDriver
from rekindle.integrations.local import learning_rate
from rekindle.integrations.rng import quietly
from rekindle.monitor.base.trouble import logger


class Rekindle(MonitorDriver):
    """One per process, on every rank. `monitor` is the `rekindle.monitor.Monitor` beneath.

    accelerator: after `prepare`. folder: where checkpoints go, as `step-<number>`. optimizer: as `prepare` returned it,
    for the metric `lr`. more: further arguments of `rekindle.monitor.start`. With `automatic_checkpoint_naming`
    Accelerate continues naming, counting and deleting what the script saves by `save_state`; what is saved here has
    names of its own, and no `total_limit`. Under FSDP it is sharded, whatever the plugin's `state_dict_type` is.

    Raises: ValueError where `folder` is the one in which Accelerate deletes old checkpoints.
    """

    def __init__(self, accelerator: Any, folder: str | os.PathLike[str], *, optimizer: Any = None, **more: Any) -> None:
        project = accelerator.project_configuration
        if project.automatic_checkpoint_naming:
            theirs = Path(accelerator.project_dir or ".", "checkpoints")
            if theirs.absolute().resolve() == Path(folder).absolute().resolve():
                raise ValueError(
                    f"folder: with automatic_checkpoint_naming Accelerate numbers and deletes what lies in {theirs}; "
                    "give Rekindle another folder"
                )
        self._accelerator, self._optimizer = accelerator, optimizer
        self._at = 0  # the step after which the run stands in its data; a checkpoint has it
        accelerator.register_for_checkpointing(self)
        super().__init__(folder, **more)
        self._coordinator.meets = str(accelerator.distributed_type.value) in ("FSDP", "DEEPSPEED", "MEGATRON_LM")
        self.monitor.scaler(accelerator)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._at = int(state["step"])

    def resume(self, path: str | os.PathLike[str] | None = None) -> int:
        """Load this attempt's resume point (or `path`); returns its step, 0 for a fresh run."""
        source = path if path is not None else self.monitor.resume_path
        if source is not None:
            with self._sharded(is_so=any(Path(source).glob("pytorch_model_fsdp*/.metadata"))):
                self._accelerator.load_state(os.fspath(source))
        return self._at

    def steps(self, loader: Any, last: int) -> Iterator[tuple[int, Any]]:
        """(step, batch) from where the run stands to step `last`, over all epochs, without the windows to skip.

        loader: as `accelerator.prepare` returned it. Batches whose gradients are accumulated have the same step.
        Raises: TypeError for a loader without a length.
        """
        gradients = self._accelerator.gradient_state
        batches, parts = len(loader), gradients.num_steps
        # By default Accelerate updates at an epoch's last batch, however few were accumulated by then.
        ends_whole = gradients.sync_with_dataloader
        per_epoch = -(-batches // parts) * parts if ends_whole else batches
        place = self._at * parts
        _tell_of_order(loader)
        while self._at < last:
            epoch, used = divmod(place, per_epoch)
            if hasattr(loader, "set_epoch"):
                loader.set_epoch(epoch)
            rest = skip_first_batches(loader, used) if used else loader
            if used and hasattr(rest, "set_epoch"):
                rest.set_epoch(epoch)
            for index, batch in enumerate(quietly(rest), start=used + 1):
                step = place // parts + 1
                place += 1
                if place % parts == 0 or (ends_whole and index == batches):
                    self._at = step
                if not self.monitor.should_skip(step):
                    yield step, batch
                if self._at >= last:
                    return
            place = (epoch + 1) * per_epoch

    def _write(self, path: Path, step: int) -> None:
        self._at = step  # also where the loop is the script's own, without `steps`
        project = self._accelerator.project_configuration
        before = project.automatic_checkpoint_naming, project.iteration
        project.automatic_checkpoint_naming = False  # it would ignore `path`
        try:
            # An Accelerator has it with DeepSpeed alone.
            engine = getattr(getattr(self._accelerator, "deepspeed_engine_wrapped", None), "engine", None)
            with self._sharded(), kept_writes(engine, self._coordinator):
                self._accelerator.save_state(os.fspath(path))
        finally:
            project.automatic_checkpoint_naming, project.iteration = before

    @contextmanager
    def _sharded(self, *, is_so: bool = True) -> Iterator[None]:
        """FSDP's state dicts are sharded in here, so that all ranks of a save learn of a write that fails on one.

        Of a full one rank 0 alone writes, and the others, which gather the optimizer's state by then, wait for it.
        """
        plugin: Any = getattr(self._accelerator.state, "fsdp_plugin", None)
        if plugin is None or not is_so:
            yield
            return
        names = ("state_dict_type", "state_dict_config", "optim_state_dict_config")
        before = {name: getattr(plugin, name) for name in names}
        plugin.state_dict_config = plugin.optim_state_dict_config = None  # of the type that it has
        plugin.set_state_dict_type("SHARDED_STATE_DICT")
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(plugin, name, value)

    def _has_updated(self) -> bool:
        return bool(self._accelerator.sync_gradients)

    def _learning_rate(self) -> Any:
        return learning_rate(self._optimizer)


def _tell_of_order(loader: Any) -> None:
    """Warn where a resumed run draws the order of an epoch's samples anew: some are read twice, others never, and a
    window to skip leaves out others than it was meant for.
    """
    sampler = loader.get_sampler() if hasattr(loader, "get_sampler") else None
    if isinstance(sampler, RandomSampler) and not isinstance(sampler, SeedableRandomSampler):
        logger.warning(
            "The loader draws the order of its samples anew after a resume: "
            "DataLoaderConfiguration(use_seedable_sampler=True, data_seed=...) keeps it"
        )
