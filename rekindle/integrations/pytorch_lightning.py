"""`rekindle.integrations.lightning` for scripts that `import pytorch_lightning`, which has a base class of its own."""

from __future__ import annotations

from pytorch_lightning.callbacks import Callback
from pytorch_lightning.plugins import CheckpointIO

from rekindle.integrations.guarded import resume_path
from rekindle.integrations.lightning_hooks import LightningHooks, WatchedWrites
from rekindle.integrations.sampler import ResumableSampler

__all__ = ["RekindleCallback", "ResumableSampler", "resume_path"]


class _Writes(WatchedWrites, CheckpointIO):
    pass


class RekindleCallback(LightningHooks, Callback):
    __doc__ = LightningHooks.__doc__
    writes = _Writes
