"""`make bench ARGS=fleet`: whole fleets over published failure histories, policies compared.

Published rates are drawn with ten seeds. docs/fleet.md says what is modelled.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from chalicelib.domain.model.known import Known, Maybe
from chalicelib.domain.reporting.prices import Prices
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
    REQUEST_POLL,
    RESTART,
    SAVE,
    SLURM_NODE,
    STEP,
    STOP,
    WATCHDOG_PERIOD,
    Setting,
)
from fleets.histories import History, lablup, llama3, meta512
from fleets.intervals import p99_spares, young_s
from fleets.rekindle_rows import Rekindle
from fleets.rivals import AutoResume, ByteRobust, Nvrx, OperatorLogRules, RestartAlways, TimeoutAndPerson
from rekindle.client.table import Column, Style, render

SEEDS = 10
LIMIT_S = 60.0
GOAL_ETTR = 0.98
ONE_START_S = (
    90.0  # for every row alike: below the operator's and NVRx's own, so that no row starts faster by assumption
)
BYTE_STANDBY_PER_NODE = 4 / 1024  # Source: ByteRobust (arXiv 2509.16293): 4 standby machines per 1,024
COLUMNS = (
    Column("policy"),
    Column("ettr", right=True),
    Column("without help", right=True),
    Column("gpu-hours lost", right=True),
    Column("usd lost", right=True),
    Column("mttr median", right=True),
    Column("mttr p90", right=True),
    Column("pages", right=True),
    Column("unsafe", right=True),
)
FIGURES = (
    STEP,
    SAVE,
    RESTART,
    STOP,
    HUMAN,
    NODE_BY_PERSON,
    NCCL,
    REBOOT,
    REPLACE,
    REBOOT_LIMIT,
    HEALTH_AGENT,
    DIAGNOSIS,
    AGENT_POLL,
    SLURM_NODE,
    REQUEST_POLL,
    HANG_FLOOR,
    WATCHDOG_PERIOD,
    RATE,
)


def main(seeds: Sequence[int] = range(SEEDS)) -> None:
    """Print one table per history, then every assumption."""
    wins: list[str] = []
    for drawn, instance in _published(seeds):
        began = time.perf_counter()
        wins += _table(drawn, instance)
        took = time.perf_counter() - began
        print(f"{len(drawn)} plays of each policy in {took:.1f} s on one core", end="")
        print(f" (goal: one in {LIMIT_S:.0f} s)\n" if "Llama" in drawn[0].name else "\n")
    _one_start([[made(seed) for seed in seeds] for made in (llama3, meta512, lablup)])
    print("Where Rekindle does not win:")
    print("\n".join(wins) if wins else "  nowhere in these tables")
    _assumptions()


def _published(seeds: Sequence[int]) -> Iterator[tuple[list[History], str]]:
    yield [llama3(seed) for seed in seeds], "p5.48xlarge"
    yield [meta512(seed) for seed in seeds], "p5.48xlarge"
    yield [lablup(seed) for seed in seeds], "p6-b200.48xlarge"


def setting_of(history: History) -> Setting:
    """The run of a history; every row saves at Young's interval for its rate of failures."""
    return Setting(
        nodes=history.nodes,
        gpus_per_node=history.gpus_per_node,
        interval_s=young_s(history.mean_s, SAVE.value),
    )


def rows_of(history: History) -> tuple[Rules, ...]:
    """Every policy; rows with spares have as many as ByteRobust's rule asks for."""
    spares = max(1, p99_spares(history.nodes, mean_s=history.mean_s, away_s=REPLACE.value))
    standby = max(spares, math.ceil(BYTE_STANDBY_PER_NODE * history.nodes))
    return (
        Rekindle(spares=spares),
        Rekindle(),
        Rekindle(monitored=False, spares=spares),
        Rekindle(monitored=False),
        TimeoutAndPerson(),
        AutoResume(),
        RestartAlways(),
        OperatorLogRules(spares=spares),
        Nvrx(spares=spares),
        ByteRobust(spares=standby),
    )


def _table(drawn: list[History], instance: str) -> list[str]:
    first = drawn[0]
    setting = setting_of(first)
    price = node_price(instance, Prices.default())
    found = [row_of(drawn, rules, setting, usd_per_node_hour=price) for rules in rows_of(first)]
    incidents = sum(len(history.failures) for history in drawn) / len(drawn)
    print(f"{first.name}: {incidents:,.0f} failures, one per {first.mean_s / 3600:.1f} h; {first.source}")
    print(f"A save every {setting.interval_s / 60:.1f} min. ", end="")
    spares = sorted({rules.spares for rules in rows_of(first)})
    print(f"Spares: {', '.join(map(str, spares))} beside {first.nodes} nodes, their GPU-hours counted as lost.")
    print(render(COLUMNS, [_cells(row) for row in found], Style.of(sys.stdout)))
    return _not_won(first, found)


def _one_start(published: Sequence[list[History]]) -> None:
    """How much of the differences is the rules', and how much the faster start that a row is given by assumption."""
    columns = (Column("policy"), *(Column(drawn[0].name, right=True) for drawn in published))
    shares: dict[int, list[str]] = {}
    names: dict[int, str] = {}
    for drawn in published:
        setting = replace(setting_of(drawn[0]), restart_s=ONE_START_S)
        for index, rules in enumerate(rows_of(drawn[0])):
            found = row_of(drawn, rules, setting, usd_per_node_hour=node_price("", Prices.default()))
            names[index] = re.sub(r"\d+ spares?", "spares", rules.name)
            shares.setdefault(index, []).append(f"{found.ettr:.2%}")
    print(
        f"ETTR where a new start takes {ONE_START_S:.0f} s in every row (ByteRobust's a fraction of it, all the same):"
    )
    rows = [(names[index], *cells) for index, cells in shares.items()]
    print(f"{render(columns, rows, Style.of(sys.stdout))}\n")


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        f"{row.ettr:.2%}",
        _maybe(row.by_itself, ".1%"),
        f"{row.gpu_hours_lost:,.0f}",
        _maybe(row.dollars_lost, ",.0f"),
        _minutes(row.recovery_median_s),
        _minutes(row.recovery_p90_s),
        f"{row.pages:,.1f}",
        f"{row.unsafe:,.1f}",
    )


def _minutes(value: Maybe[float]) -> str:
    return f"{value.value / 60:.1f} min" if isinstance(value, Known) else "-"


def _maybe(value: Maybe[float], shape: str) -> str:
    return format(value.value, shape) if isinstance(value, Known) else "-"


def _not_won(history: History, rows: Sequence[Row]) -> list[str]:
    ours = rows[0]
    behind = [
        f"  {history.name}: {row.name} has ETTR {row.ettr:.2%}, {ours.name} {ours.ettr:.2%}"
        for row in rows
        if not row.name.startswith("Rekindle") and row.ettr >= ours.ettr
    ]
    least = min(rows, key=lambda row: row.gpu_hours_lost)
    if least is not ours:
        behind.append(
            f"  {history.name}: {least.name} loses {least.gpu_hours_lost:,.0f} GPU-hours, {ours.name} "
            f"{ours.gpu_hours_lost:,.0f}"
        )
    behind += [
        f"  {history.name}: {row.name} takes {row.unsafe:,.1f} unsafe actions"
        for row in rows
        if row.name.startswith("Rekindle") and row.unsafe
    ]
    if "512 GPUs" in history.name and ours.ettr < GOAL_ETTR:
        behind.append(f"  {history.name}: below the goal of {GOAL_ETTR:.0%}")
    return behind


def _assumptions() -> None:
    print("\nEvery figure, with its source:")
    print("\n".join(f"  {line}" for line in FIGURES))
    print("What each row takes for granted:")
    for rules in rows_of(meta512(0)):
        for text in rules.assumptions:
            print(f"  {rules.name}: {text}")
    prices = Prices.default()
    print(f"Prices: {prices.source}, as of {prices.as_of}. -: the table has none for the instance.")
    print("ETTR is the ledger's, (wall - lost) / wall, with the time that saves take as lost, too.")
    print("Without help: Incidents that ended with the run past its old step and without a person.")
    print(
        "Unsafe: a well node taken out, a poisoned checkpoint resumed from, a restart after three that gained nothing."
    )


if __name__ == "__main__":
    main()
