"""`rekindle.integrations.lightning` for scripts that `import pytorch_lightning`, which has a base class of its own."""

from __future__ import annotations

from pytorch_lightning.callbacks import Callback

from rekindle.integrations.lightning_hooks import LightningHooks
from rekindle.integrations.resume import resume_path

__all__ = ["RekindleCallback", "resume_path"]


class RekindleCallback(LightningHooks, Callback):
    __doc__ = LightningHooks.__doc__
