"""What failures will cost one run with and without Rekindle, how often to save, how many spares pay. Pure.

The failures are drawn once, by the seed, and every policy, interval and number of spares meets the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from chalicelib.domain.model.instances import bare_type, gpus_of
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.reporting.ledger import quantity_json
from chalicelib.domain.reporting.prices import DEFAULT_PRICES, Prices
from fleets.answers import Rules
from fleets.costs import Row, node_price, row_of
from fleets.figures import (
    AGENT_POLL,
    DIAGNOSIS,
    HANG_FLOOR,
    HEALTH_AGENT,
    HUMAN,
    NCCL,
    NODE_BY_PERSON,
    RATE,
    REBOOT,
    REBOOT_LIMIT,
    REPLACE,
    RESTART,
    SAVE,
    SLURM_NODE,
    STEP,
    STOP,
    Figure,
    Setting,
)
from fleets.histories import History, mean_s_between_failures, poisson
from fleets.intervals import IntervalResult, daly_s, least_loss, p99_spares, try_intervals, young_s
from fleets.rekindle_rows import Rekindle
from fleets.rivals import AutoResume, RestartAlways, TimeoutAndPerson
from fleets.runs import DAY_S

FAILURES: Final = 2000  # that are drawn: enough for two digits of the lost time
MORE_SPARES: Final = 2  # tried beyond the P99
MAX_SPARES_TRIED: Final = 12
BASELINES: Final = (TimeoutAndPerson(), RestartAlways(), AutoResume())
GIVEN: Final = "given on the command line"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What is asked for. None: take the published figure, or find the best."""

    gpus: int
    instance: str
    days: float = 30.0
    mean_s: float | None = None
    save_s: float | None = None
    restart_s: float | None = None
    spares: int | None = None
    usd_per_hour: float | None = None
    seed: int = 0

    @property
    def gpus_per_node(self) -> int:
        """Of one instance.

        Raises:
            ValueError: the table of GPUs does not hold it.
        """
        match gpus_of(self.instance):
            case Known(each):
                return each
            case Unknown(why):
                raise ValueError(why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spares:
    """So many spare nodes, and the row that they come to; their own GPU-hours are in it."""

    count: int
    row: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The same run without Rekindle, under a policy that people have anyway; its loss by interval."""

    row: Row
    curve: tuple[IntervalResult, ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer. Rows are for `wanted.days`; `alone` is Rekindle without spares, `chosen` with the spares that were
    asked for, else those that pay.
    """

    wanted: PlanRequest
    setting: Setting
    mean_s: float
    young_s: float
    daly_s: float
    curve: tuple[IntervalResult, ...]
    daly_ettr: float
    baselines: tuple[Baseline, ...]
    alone: Row
    chosen: Spares
    pays: int
    p99: int
    spares: tuple[Spares, ...]
    price: Maybe[float]
    figures: tuple[Figure, ...]
    texts: tuple[str, ...]

    @property
    def simulated(self) -> IntervalResult:
        """The interval that lost least."""
        return least_loss(self.curve)

    def own_hours(self, spares: int) -> float:
        """GPU-hours of so many spare nodes for the whole time."""
        return spares * self.setting.gpus_per_node * self.wanted.days * 24.0

    def to_wire(self) -> dict[str, Any]:
        """JSON form; seconds, hours, USD. By hand: a report of rounded figures in an order of its own, which
        nothing reads back.
        """
        return {
            "gpus": self.setting.gpus,
            "nodes": self.setting.nodes,
            "instance": self.wanted.instance,
            "days": self.wanted.days,
            "seed": self.wanted.seed,
            "mtbf_s": round(self.mean_s, 3),
            "checkpoint_s": self.setting.save_s,
            "restart_s": self.setting.restart_s,
            "interval": {
                "young_s": round(self.young_s, 1),
                "young_ettr": round(self.alone.ettr, 6),
                "daly_s": round(self.daly_s, 1),
                "daly_ettr": round(self.daly_ettr, 6),
                "simulated_s": round(self.simulated.interval_s, 1),
                "simulated_ettr": round(self.simulated.ettr, 6),
                "used_s": round(self.setting.interval_s, 1),
                "curve": _points(self.curve),
            },
            "baselines": [
                {**baseline.row.to_wire(), "assumptions": list(baseline.assumptions), "curve": _points(baseline.curve)}
                for baseline in self.baselines
            ],
            "rekindle": {"spares": 0, **self.alone.to_wire()},
            "rekindle_with_spares": {"spares": self.chosen.count, **self.chosen.row.to_wire()},
            "spares": {
                "pay": self.pays,
                "p99": self.p99,
                "tried": [
                    {
                        "spares": stock.count,
                        "own_gpu_hours": round(self.own_hours(stock.count), 1),
                        **stock.row.to_wire(),
                    }
                    for stock in self.spares
                ],
            },
            "usd_per_node_hour": quantity_json(self.price),
            "assumptions": [
                {"name": figure.name, "value": figure.value, "unit": figure.unit, "source": figure.source}
                for figure in self.figures
            ],
            "notes": list(self.texts),
        }


def plan_of(wanted: PlanRequest) -> Plan:
    """Draw the failures, play them.

    Raises:
        ValueError: the instance type is not in the table of GPUs.
    """
    each = wanted.gpus_per_node
    nodes = max(1, -(-wanted.gpus // each))
    mean_s = wanted.mean_s if wanted.mean_s is not None else mean_s_between_failures(nodes, gpus_per_node=each)
    save_s = wanted.save_s if wanted.save_s is not None else SAVE.value
    setting = Setting(
        nodes=nodes,
        gpus_per_node=each,
        interval_s=young_s(mean_s, save_s),
        save_s=save_s,
        restart_s=wanted.restart_s if wanted.restart_s is not None else RESTART.value,
    )
    drawn = poisson(nodes=nodes, days=FAILURES * mean_s / DAY_S, mean_s=mean_s, seed=wanted.seed)
    price = node_price(wanted.instance, _prices(wanted))
    scale = wanted.days * DAY_S / drawn.wall_s
    alone = Rekindle()
    p99 = p99_spares(nodes, mean_s=mean_s, away_s=setting.replace_s)
    counts = {*range(min(p99 + MORE_SPARES, MAX_SPARES_TRIED, nodes) + 1), wanted.spares or 0, min(p99, nodes)}
    found = tuple(
        Spares(count=count, row=_row(drawn, replace(alone, spares=count), setting, price, scale))
        for count in sorted(counts)
    )
    pays = min(found, key=lambda spares: (spares.row.gpu_hours_lost, spares.count)).count
    count = pays if wanted.spares is None else wanted.spares
    return Plan(
        wanted=wanted,
        setting=setting,
        mean_s=mean_s,
        young_s=young_s(mean_s, save_s),
        daly_s=daly_s(mean_s, save_s),
        curve=try_intervals(drawn.failures, alone, setting, wall_s=drawn.wall_s, mean_s=mean_s),
        daly_ettr=_row(drawn, alone, replace(setting, interval_s=daly_s(mean_s, save_s)), price, scale).ettr,
        baselines=tuple(
            Baseline(
                row=_row(drawn, rules, setting, price, scale),
                curve=try_intervals(drawn.failures, rules, setting, wall_s=drawn.wall_s, mean_s=mean_s),
                assumptions=rules.assumptions,
            )
            for rules in BASELINES
        ),
        alone=found[0].row,
        chosen=next(stock for stock in found if stock.count == count),
        pays=pays,
        p99=p99,
        spares=found,
        price=price,
        figures=_figures(wanted, setting, mean_s),
        texts=_texts(wanted, price, alone, drawn),
    )


def _row(drawn: History, rules: Rules, setting: Setting, price: Maybe[float], scale: float) -> Row:
    return row_of([drawn], rules, setting, usd_per_node_hour=price).scaled(scale)


def _points(curve: tuple[IntervalResult, ...]) -> list[dict[str, float]]:
    return [{"interval_s": round(point.interval_s, 1), "ettr": round(point.ettr, 6)} for point in curve]


def _prices(wanted: PlanRequest) -> Prices:
    if wanted.usd_per_hour is None:
        return Prices.default()
    return Prices.from_wire({"instances": {wanted.instance: wanted.usd_per_hour}, "source": GIVEN})


def _figures(wanted: PlanRequest, setting: Setting, mean_s: float) -> tuple[Figure, ...]:
    """Every figure that counts here, those that were given with that as their source."""
    rate = (
        RATE
        if wanted.mean_s is None
        else Figure(name="mean time between failures", value=mean_s / 3600.0, unit="h", source=GIVEN)
    )
    save = SAVE if wanted.save_s is None else replace(SAVE, value=setting.save_s, source=GIVEN)
    start = RESTART if wanted.restart_s is None else replace(RESTART, value=setting.restart_s, source=GIVEN)
    return (
        rate,
        save,
        start,
        STOP,
        AGENT_POLL,
        HEALTH_AGENT,
        HANG_FLOOR,
        STEP,
        REBOOT,
        REPLACE,
        REBOOT_LIMIT,
        NCCL,
        SLURM_NODE,
        DIAGNOSIS,
        HUMAN,
        NODE_BY_PERSON,
    )


def _texts(wanted: PlanRequest, price: Maybe[float], alone: Rekindle, drawn: History) -> tuple[str, ...]:
    return (
        f"{len(drawn.failures):,} failures are drawn at a constant rate and scaled to the time asked for; their causes "
        "come as often as in Llama 3 (arXiv 2407.21783, table 5).",
        *(f"Rekindle: {text}" for text in alone.assumptions),
        "ETTR is the ledger's, (wall - lost) / wall, with the time that saves take as lost, too.",
        "A GPU counts as lost while no attempt holds it, as on reserved capacity; so does a spare, all the time.",
        _price_text(wanted, price),
    )


def _price_text(wanted: PlanRequest, price: Maybe[float]) -> str:
    if isinstance(price, Unknown):
        return f"Price: {price.why}; --usd-per-hour sets one."
    each = f"Price: {price.value:g} USD per hour of a {wanted.instance}"
    if wanted.usd_per_hour is not None:
        return f"{each} ({GIVEN})."
    row = next(row for row in DEFAULT_PRICES if row.instance == bare_type(wanted.instance))
    return f"{each} ({row.source}; as of {row.as_of}; docs/ledger.md). Yours may differ: --usd-per-hour."
