"""What kind of loss is this, and does its rising mean that the weights are hurt?

A supervised loss falls as the model learns. Others do not: a temporal-difference loss grows with the values it learns,
a policy's surrogate is near zero by construction, a reward goes either way, and the losses of two players mirror each
other. Those are watched: what would be an `act` is a `watch`. A value that is not finite is trouble in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from rekindle.compat import StrEnum
from rekindle.detectors.scale import LossScale


class LossKind(StrEnum):
    """What a script may say of its loss. `auto`: judged, unless its own rows show that it says little."""

    AUTO = "auto"
    SUPERVISED = "supervised"  # cross-entropy, regression, likelihood, contrastive, diffusion
    TEMPORAL_DIFFERENCE = "td"
    REWARD = "reward"
    SURROGATE = "surrogate"  # PPO, GRPO and their kin
    ADVERSARIAL = "adversarial"  # either player of a GAN
    UNKNOWN = "unknown"  # of no meaning that this list has a name for


IS_JUDGED: Final[Mapping[LossKind, bool]] = MappingProxyType(
    {
        LossKind.AUTO: True,
        LossKind.SUPERVISED: True,
        LossKind.TEMPORAL_DIFFERENCE: False,
        LossKind.REWARD: False,
        LossKind.SURROGATE: False,
        LossKind.ADVERSARIAL: False,
        LossKind.UNKNOWN: False,
    }
)

SIGN_ROWS = 128  # the memory of how often the loss was negative
BOTH_SIGNS = 0.1  # of the rows, at least, on either side of zero
LOG_WAY = 4.0  # times the noise: how far the level must have come down to be more than noise
PLAIN_WAY = 3.0  # the same for a loss that is not always positive, whose noise is not known as a share of it


class Informativeness:
    """Whether a loss's own rows show that it says little: it changes its sign, or has never fallen by more than noise.

    What has never fallen has nothing to lose: a multiple of the divergence from a reference model begins at zero and
    grows while the policy learns, a reward grows, too. A run that continues may have fallen before its first row here.
    """

    __slots__ = ("_negative", "kind")

    def __init__(self, kind: LossKind = LossKind.AUTO) -> None:
        self.kind = kind
        self._negative = 0.5  # share of the rows, as a moving average

    def see(self, loss: float) -> None:
        """Each loss of a run that is judged on plain values."""
        self._negative += ((1.0 if loss < 0 else 0.0) - self._negative) / SIGN_ROWS

    def why_little(self, scale: LossScale, *, needs_baseline: bool) -> str:
        """Why a rise of this loss is only watched; "" for one that is judged.

        needs_baseline: the rise is measured by what the run has fallen to.
        """
        if not IS_JUDGED[self.kind]:
            return f"declared: {self.kind}"
        if self.kind is not LossKind.AUTO:
            return ""
        if not scale.is_log and BOTH_SIGNS < self._negative < 1 - BOTH_SIGNS:
            return "changes its sign"
        has_fallen = scale.fallen >= (LOG_WAY if scale.is_log else PLAIN_WAY)
        return "" if has_fallen or scale.is_continued or not needs_baseline else "has never fallen"
