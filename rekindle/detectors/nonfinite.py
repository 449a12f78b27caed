"""When is a loss that is not a number, or not finite, news?"""

from __future__ import annotations

import math

from rekindle.protocol.mailbox import LossState

REARM_AFTER = 10  # finite values in a row; a run with fp16 loss scaling may show single infinities and must not spam


def classify(value: float | None) -> LossState:
    """The state of one value; `none` for a value that was not given."""
    if value is None:
        return LossState.NONE
    if math.isnan(value):
        return LossState.NAN
    return LossState.INF if math.isinf(value) else LossState.FINITE


class NonFinite:
    """Reports the first non-finite value of each bad stretch, at the very update that brings it.

    A stretch ends after REARM_AFTER finite values in a row; until then further bad values are only `state`.
    Not thread-safe: one owner feeds it. No clock.
    """

    def __init__(self) -> None:
        self._finite_in_a_row = REARM_AFTER
        self.state = LossState.NONE

    def update(self, value: float) -> LossState | None:
        """The state to report, or None where there is nothing new."""
        self.state = state = classify(value)
        if state is LossState.FINITE:
            self._finite_in_a_row += 1
            return None
        is_new = self._finite_in_a_row >= REARM_AFTER
        self._finite_in_a_row = 0
        return state if is_new else None

    @property
    def is_poisoned(self) -> bool:
        """Whether the latest value was not finite: weights saved now may hold it."""
        return self.state in (LossState.NAN, LossState.INF)
