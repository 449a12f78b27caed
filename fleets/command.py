"""`rekindle plan`: what failures will cost, with and without Rekindle.

This module is loaded by every `rekindle` command (its entry point names it), so it imports the model only to plan.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from rekindle.cli.options import whole
from rekindle.client.errors import UsageError
from rekindle.client.table import Column, Style, clean, render

if TYPE_CHECKING:
    from chalicelib.domain.model.known import Maybe
    from fleets.costs import Row
    from fleets.plan import Plan, PlanRequest

DEFAULT_INSTANCE: Final = "ml.p5.48xlarge"
DEFAULT_DAYS: Final = 30.0
MAX_GPUS: Final = 1_000_000
MAX_SPARES: Final = 10_000
MAX_SEED: Final = 2**32 - 1
_TYPE: Final = re.compile(r"(ml\.)?[a-z0-9][a-z0-9-]{0,20}\.[a-z0-9-]{1,20}")
_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")
_DESCRIPTION: Final = """\
What failures will cost a run with Rekindle, and with a person, an automatic requeue, or HyperPod's auto-resume instead:
the share of the time that trains (ETTR), GPU-hours and dollars lost; the interval between checkpoints that loses least,
by Young, by Daly and simulated; how many spare nodes pay. Every assumption is printed with its source (docs/fleet.md).
It needs no service and no AWS account."""


def register(subparsers: Any) -> None:
    """Add the command to the `rekindle` parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "plan",
        help="what failures will cost a run, how often to save, how many spares pay",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--gpus", type=_gpus, required=True, metavar="N", help="of the run; a multiple of one instance's"
    )
    parser.add_argument(
        "--instance",
        type=_instance,
        default=DEFAULT_INSTANCE,
        metavar="TYPE",
        help=f"of the run (default: {DEFAULT_INSTANCE})",
    )
    parser.add_argument(
        "--mtbf",
        type=number(0.01, 100_000.0, "hours"),
        metavar="HOURS",
        help="mean time between failures of the whole run (default: Meta's published rate for its size)",
    )
    parser.add_argument(
        "--checkpoint-s",
        type=number(0.01, 86_400.0, "seconds"),
        metavar="S",
        help="how long a save stops the run (default: 30)",
    )
    parser.add_argument(
        "--restart-s",
        type=number(0.0, 86_400.0, "seconds"),
        metavar="S",
        help="from a new start's submission until it trains (default: 300)",
    )
    parser.add_argument("--spares", type=_spares, metavar="N", help="spare nodes (default: as many as pay)")
    parser.add_argument(
        "--days",
        type=number(0.1, 3660.0, "days"),
        default=DEFAULT_DAYS,
        metavar="N",
        help="how long it runs (default: 30)",
    )
    parser.add_argument(
        "--usd-per-hour",
        type=number(0.0, 100_000.0, "USD"),
        metavar="USD",
        help="price of one instance (default: the ledger's table)",
    )
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help="of the drawn failures (default: 0)")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.set_defaults(run=run, extra="local")


def number(low: float, high: float, unit: str) -> Callable[[str], float]:
    """Reads a plain decimal within bounds. Not `float` alone: that takes nan, inf, 1_0 and other scripts' digits."""

    def read(text: str) -> float:
        value = float(text) if _NUMBER.fullmatch(text) and text.isascii() and len(text) <= 20 else math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be a number of {unit} from {low:g} to {high:,.0f}")
        return value

    return read


def _gpus(text: str) -> int:
    return whole(text, 1, MAX_GPUS)


def _spares(text: str) -> int:
    return whole(text, 0, MAX_SPARES)


def _seed(text: str) -> int:
    return whole(text, 0, MAX_SEED)


def _instance(text: str) -> str:
    if not _TYPE.fullmatch(text):
        raise argparse.ArgumentTypeError("must be an instance type, as in ml.p5.48xlarge")
    return text


def run(args: argparse.Namespace) -> int:
    """Plan and print. Raises UsageError for options that do not go together; the message names the one to change."""
    from fleets.plan import plan_of

    wanted = _wanted(args)
    made = plan_of(wanted)
    if args.json:
        print(json.dumps(made.to_wire(), indent=2, allow_nan=False))
    else:
        print("\n".join(text(made, Style.of(sys.stdout))))
    return 0


def _wanted(args: argparse.Namespace) -> PlanRequest:
    from fleets.figures import RESTART, SAVE
    from fleets.histories import mean_s_between_failures
    from fleets.plan import PlanRequest

    wanted = PlanRequest(
        gpus=args.gpus,
        instance=args.instance,
        days=args.days,
        mean_s=None if args.mtbf is None else args.mtbf * 3600.0,
        save_s=args.checkpoint_s,
        restart_s=args.restart_s,
        spares=args.spares,
        usd_per_hour=args.usd_per_hour,
        seed=args.seed,
    )
    try:
        each = wanted.gpus_per_node
    except ValueError as err:
        raise UsageError(f"--instance: {clean(err)}") from err
    if wanted.gpus % each:
        raise UsageError(f"--gpus: must be a multiple of {each}, the GPUs of one {wanted.instance}")
    mean_s = wanted.mean_s or mean_s_between_failures(wanted.gpus // each, gpus_per_node=each)
    for option, given, usual, what in (
        ("--checkpoint-s", wanted.save_s, SAVE.value, "a save"),
        ("--restart-s", wanted.restart_s, RESTART.value, "a start"),
    ):
        takes_s = usual if given is None else given
        if takes_s >= mean_s:
            named = "--mtbf" if given is None and wanted.mean_s is not None else option  # the one that was given
            raise UsageError(f"{named}: {what} of {takes_s:g} s never ends before the next failure ({mean_s:,.0f} s)")
    return wanted


# --- for people ---

_COLUMNS: Final = (
    Column("policy"),
    Column("ettr", right=True),
    Column("gpu-hours lost", right=True),
    Column("usd lost", right=True),
    Column("mttr median", right=True),
    Column("person needed", right=True),
)


def text(made: Plan, style: Style) -> list[str]:
    """The plan as lines."""
    from fleets.runs import DAY_S

    days, alone, chosen = made.wanted.days, made.alone, made.chosen
    rows = [*((baseline.row.name, baseline.row) for baseline in made.baselines), ("Rekindle, no spares", alone)]
    if chosen.count:
        rows.append((f"Rekindle, {_spare(chosen.count)}", chosen.row))
    return [
        f"{made.setting.gpus:,} GPUs: {made.setting.nodes:,} x {made.wanted.instance}, {days:g} days. A failure every "
        f"{_hours(made.mean_s)}: {made.wanted.days * DAY_S / made.mean_s:,.1f} in all.",
        "",
        render(_COLUMNS, [_cells(name, row) for name, row in rows], style),
        "",
        *(f"{baseline.row.name}: {' '.join(baseline.assumptions)}" for baseline in made.baselines),
        "",
        f"Rekindle, {_spare(chosen.count)}, against",
        *(f"  {baseline.row.name}: {_between(baseline.row, chosen.row)}" for baseline in made.baselines),
        "",
        "Checkpoint interval",
        *_intervals(made, style),
        "",
        f"Spare nodes: {made.pays} pay where a spare does nothing else. {made.p99} would do for 99 % of the time "
        "(P99 of Binomial(nodes, share of the time that one is away)).",
        *_spares_table(made, style),
        "",
        "Assumed",
        *(f"  {line}" for line in made.figures),
        *(f"  {line}" for line in made.texts),
    ]


def _cells(name: str, row: Row) -> tuple[str, ...]:
    return (
        name,
        f"{row.ettr:.2%}",
        f"{row.gpu_hours_lost:,.0f}",
        _usd(row.dollars_lost),
        _minutes(row.recovery_median_s),
        f"{row.pages:,.1f}",
    )


def _intervals(made: Plan, style: Style) -> list[str]:
    curve = made.curve
    rows = [
        ("Young", _span(made.young_s), f"{made.alone.ettr:.2%}", "sqrt(2 x save x MTBF); used in all other figures"),
        ("Daly", _span(made.daly_s), f"{made.daly_ettr:.2%}", "Daly 2006, higher order"),
        (
            "simulated",
            _span(made.simulated.interval_s),
            f"{made.simulated.ettr:.2%}",
            f"the best of {len(curve)}, {_span(curve[0].interval_s)} to {_span(curve[-1].interval_s)}",
        ),
    ]
    columns = (Column("by"), Column("save every", right=True), Column("ettr", right=True), Column("how"))
    return [render(columns, rows, style)]


def _spares_table(made: Plan, style: Style) -> list[str]:
    columns = (
        Column("spares", right=True),
        Column("ettr", right=True),
        Column("gpu-hours lost", right=True),
        Column("of them spares'", right=True),
        Column("usd lost", right=True),
    )
    rows = [
        (
            stock.count,
            f"{stock.row.ettr:.2%}",
            f"{stock.row.gpu_hours_lost:,.0f}",
            f"{made.own_hours(stock.count):,.0f}",
            _usd(stock.row.dollars_lost),
        )
        for stock in made.spares
    ]
    return [render(columns, rows, style)]


def _between(without: Row, ours: Row) -> str:
    """What is lost less, or more, than without."""
    from chalicelib.domain.model.known import Known

    hours = without.gpu_hours_lost - ours.gpu_hours_lost
    words = f"{abs(hours):,.0f} GPU-hours"
    if isinstance(without.dollars_lost, Known) and isinstance(ours.dollars_lost, Known):
        words += f" and {abs(without.dollars_lost.value - ours.dollars_lost.value):,.0f} USD"
    return f"{words} {'less' if hours >= 0 else 'more'} lost"


def _spare(count: int) -> str:
    return f"{count or 'no'} spare{'s' * (count != 1)}"


def _usd(value: Maybe[float]) -> str:
    from chalicelib.domain.model.known import Known

    return f"{value.value:,.0f}" if isinstance(value, Known) else "unknown"


def _minutes(value: Maybe[float]) -> str:
    from chalicelib.domain.model.known import Known

    return f"{value.value / 60:.1f} min" if isinstance(value, Known) else "-"


def _span(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.1f} s"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else f"{seconds / 60:,.1f} min"
