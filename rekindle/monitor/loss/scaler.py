"""Watches a gradient scaler: a skipped step now and then is normal, a scale that collapses is reported.

Under fp16 a scaler multiplies the loss, often by 65,536, so that gradients overflow now and then. It then skips the
optimizer's step and halves the scale. Gradients that are seen before they are unscaled are therefore not judged, and a
skip is news. Source: torch.amp.GradScaler (init_scale 65536, backoff_factor 0.5); DeepSpeed's dynamic loss scaler.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType, MethodType

from rekindle.monitor.base.state import BadStretch
from rekindle.monitor.base.trouble import logger
from rekindle.protocol.mailbox import LossState

SKIPS_IN_A_ROW = 20  # 65,536 halved twenty times is 0.06: no gradient of a healthy run overflows there
MIN_SCALE = 1.0  # below it a gradient overflows fp16 by itself
CALM_STEPS = 10  # without a skip until another collapse is news


class ScaleWatch:
    """`watch` and `now` are called by the training thread, `see` by the thread that judges losses; any thread may read
    `no_update_since`. None of them raises.
    """

    def __init__(self) -> None:
        self._read: Callable[[], object] | None = None
        self._scale: float | None = None
        self._in_a_row = 0
        self._since_skip = CALM_STEPS
        self._is_reported = False
        self.skipped = False  # the newest step
        self.no_update_since: int | None = None  # the first of the steps that a collapse leaves out, while it lasts

    def watch(self, scaler: object) -> None:
        """Follow a GradScaler, something that holds one, a DeepSpeed engine, or a function that returns the scale.

        Holders: an Accelerator, its optimizer, a Lightning Trainer. There is nothing to follow where the scaler is
        switched off, or the holder trains without one.
        """
        self._read = _reader(scaler) or self._read

    @property
    def is_on(self) -> bool:
        return self._read is not None

    def now(self) -> object:
        """The scale as the library holds it, a number or a tensor on a device; None where there is none yet."""
        if self._read is None:
            return None
        try:
            return self._read()
        except Exception:  # the library's own object: without its scale the run is watched as before
            self._read = None
            return None

    def see(self, step: int, scale: float) -> BadStretch | None:
        """Take note of the scale after a step. Returns what to report where it collapses, once per collapse."""
        before, self._scale = self._scale, scale
        self.skipped = before is not None and (scale < before or not math.isfinite(scale))
        if not self.skipped:
            self._in_a_row = 0
            self._since_skip += 1
            self._is_reported = self._is_reported and self._since_skip < CALM_STEPS
            self.no_update_since = None
            return None
        self._in_a_row += 1
        self._since_skip = 0
        first = max(step - self._in_a_row + 1, 0)
        is_collapsed = self._in_a_row > SKIPS_IN_A_ROW or scale < MIN_SCALE
        if is_collapsed and self._in_a_row >= CALM_STEPS:
            self.no_update_since = first
        if self._is_reported or not is_collapsed:
            return None
        self._is_reported = True
        return BadStretch(step=first, loss_state=LossState.INF, metric="gradient scale", own=False, alone=None)


def _reader(scaler: object, depth: int = 3) -> Callable[[], object] | None:
    if scaler is None or depth == 0:
        return None
    if hasattr(scaler, "get_scale") and hasattr(scaler, "is_enabled"):  # torch.amp.GradScaler and its kin
        # `get_scale` waits for the device; `_scale` is the tensor behind it, None before the first loss.
        if scaler.is_enabled() and not hasattr(scaler, "_scale"):
            logger.warning("A %s tells its scale only after a wait: skipped steps are not known", type(scaler).__name__)
            return None
        return (lambda: getattr(scaler, "_scale", None)) if scaler.is_enabled() else None
    if callable(is_fp16 := getattr(scaler, "fp16_enabled", None)):  # DeepSpeedEngine
        return (lambda: _deepspeed_scale(scaler)) if is_fp16() else None
    for name in ("scaler", "precision_plugin"):
        if (held := getattr(scaler, name, None)) is not None:
            return _reader(held, depth - 1)
    return scaler if isinstance(scaler, FunctionType | MethodType) else None  # not just callable: a model is


def _deepspeed_scale(engine: object) -> object:
    """Source: deepspeed/runtime/fp16 and zero: each optimizer has `loss_scale`, or a `loss_scaler` with `cur_scale`."""
    optimizer = getattr(engine, "optimizer", None)
    scale = getattr(optimizer, "loss_scale", None)
    return scale if scale is not None else getattr(getattr(optimizer, "loss_scaler", None), "cur_scale", None)
