"""Rows of the table: several plays of one history under one policy, in GPU-hours and dollars. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.reporting.ledger import quantity_json
from chalicelib.domain.reporting.prices import Prices
from chalicelib.domain.reporting.sums import spread_of
from fleets.answers import Rules
from fleets.figures import Setting
from fleets.histories import History
from fleets.runs import Outcome, play


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy over one history; counts and sums are the mean of its plays. Seconds, hours, USD."""

    name: str
    ettr: float
    incidents: float
    by_itself: Maybe[float]
    gpu_hours_lost: float
    dollars_lost: Maybe[float]
    recovery_median_s: Maybe[float]
    recovery_p90_s: Maybe[float]
    pages: float
    unsafe: float

    def scaled(self, times: float) -> Row:
        """The same for `times` as long: sums and counts grow, shares and durations do not."""
        dollars = self.dollars_lost
        return replace(
            self,
            incidents=self.incidents * times,
            gpu_hours_lost=self.gpu_hours_lost * times,
            dollars_lost=Known(dollars.value * times) if isinstance(dollars, Known) else dollars,
            pages=self.pages * times,
            unsafe=self.unsafe * times,
        )

    def to_wire(self) -> dict[str, Any]:
        """JSON form: a number, or `{"unknown": why}`. By hand: each figure is rounded to its own
        digits, and nothing reads it back.
        """
        return {
            "policy": self.name,
            "ettr": round(self.ettr, 6),
            "incidents": round(self.incidents, 2),
            "ended_by_itself": quantity_json(self.by_itself),
            "gpu_hours_lost": round(self.gpu_hours_lost, 1),
            "dollars_lost": quantity_json(self.dollars_lost),
            "recovery_median_s": quantity_json(self.recovery_median_s),
            "recovery_p90_s": quantity_json(self.recovery_p90_s),
            "pages": round(self.pages, 2),
            "unsafe": round(self.unsafe, 2),
        }


def row_of(histories: Sequence[History], rules: Rules, setting: Setting, *, usd_per_node_hour: Maybe[float]) -> Row:
    """One policy, played over each of `histories` (one trace, or one published rate drawn with several seeds)."""
    return mean_of_plays(
        rules.name,
        [play(history.failures, rules, setting, wall_s=history.wall_s) for history in histories],
        usd_per_gpu_hour=_per_gpu(usd_per_node_hour, setting.gpus_per_node),
    )


def mean_of_plays(name: str, outcomes: Sequence[Outcome], *, usd_per_gpu_hour: Maybe[float]) -> Row:
    """The mean of several plays."""
    plays = len(outcomes)
    incidents = sum(outcome.incidents for outcome in outcomes)
    hours = sum(outcome.gpu_hours_lost for outcome in outcomes) / plays
    recovery = spread_of([Known(seconds) for outcome in outcomes for seconds in outcome.recovery_s])
    return Row(
        name=name,
        ettr=sum(outcome.ettr for outcome in outcomes) / plays,
        incidents=incidents / plays,
        by_itself=Known(sum(outcome.by_itself for outcome in outcomes) / incidents)
        if incidents
        else Unknown("there was no Incident"),
        gpu_hours_lost=hours,
        dollars_lost=Known(hours * usd_per_gpu_hour.value) if isinstance(usd_per_gpu_hour, Known) else usd_per_gpu_hour,
        recovery_median_s=_known(recovery["median"]),
        recovery_p90_s=_known(recovery["p90"]),
        pages=sum(outcome.pages for outcome in outcomes) / plays,
        unsafe=sum(outcome.unsafe for outcome in outcomes) / plays,
    )


def node_price(instance: str, prices: Prices) -> Maybe[float]:
    """USD per hour of one node; Unknown where the ledger has no price for its type."""
    return prices.per_hour(JobSize.of_instances([(instance, 1)]))


def _per_gpu(usd_per_node_hour: Maybe[float], gpus_per_node: int) -> Maybe[float]:
    if isinstance(usd_per_node_hour, Unknown):
        return usd_per_node_hour
    return Known(usd_per_node_hour.value / gpus_per_node)


def _known(value: object) -> Maybe[float]:
    return Known(float(value)) if isinstance(value, int | float) else Unknown("no Incident has one")
