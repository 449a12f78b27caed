"""What `rekindle replay --against` prints for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rekindle.client.table import Column, Style, render


def as_text(comparison: Mapping[str, Any], style: Style) -> str:
    """Differences, Incidents and totals, in this order."""
    parts = [
        f"A: {comparison['a']}\nB: {comparison['b']}\n{_policy(comparison['policy'])}",
        _malformed(comparison),
    ]
    if not comparison["incidents"]:
        return "\n\n".join([*filter(None, parts), _NOTHING.format(**comparison)])
    parts += [
        _differences(comparison, style),
        _incidents(comparison, style),
        _totals(comparison, style),
        _unknown(comparison),
        "\n".join(f"- {stated}" for stated in comparison["assumptions"]),
    ]
    return "\n\n".join(part for part in parts if part)


_NOTHING = "Nothing to compare: of {events} events none opens an Incident under either policy."
_SHOWN = 5  # of what could not be read; `rekindle replay PATH` alone tells every one


def _policy(differing: Mapping[str, Any]) -> str:
    if not differing:
        return "Both policies say the same."
    return f"They differ in: {', '.join(differing)}."


def _malformed(comparison: Mapping[str, Any]) -> str:
    found = comparison["malformed"]
    lines = [f"{row['event']}: {row['why']}" for row in found[:_SHOWN]]
    more = [f"... and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    head = [f"{len(found)} of {comparison['events']} events cannot be read, and are left out of both:"] if found else []
    return "\n".join([*head, *lines, *more])


def _unknown(comparison: Mapping[str, Any]) -> str:
    """Why GPU-hours are left out of the sums, on each side."""
    lines = []
    for side in ("a", "b"):
        reasons = comparison["totals"][side]["unknown"]
        if reasons:
            text = "; ".join(f"{count} x {why}" for why, count in reasons.items())
            lines.append(f"GPU-hours not known under {side.upper()}: {text}.")
    return "\n".join(lines)


def _differences(comparison: Mapping[str, Any], style: Style) -> str:
    rows = [
        (difference["event"], difference["signal"] or "-", _decision(difference["a"]), _decision(difference["b"]))
        for difference in comparison["differences"]
    ]
    if not rows:
        return f"No decision differs in {comparison['events']} events."
    heading = f"{len(rows)} of {comparison['events']} decisions differ:\n"
    return heading + render([Column(title) for title in ("event", "signal", "A", "B")], rows, style)


def _decision(one: Mapping[str, Any]) -> str:
    if one["dropped"] is not None:
        return f"dropped: {one['dropped']}"
    actions = ", ".join(one["actions"]) or "nothing"
    return f"{one['rule'] or 'waits'}: {actions}"


def _incidents(comparison: Mapping[str, Any], style: Style) -> str:
    rows = [
        (
            row["incident"],
            row["about"] or "-",
            _stands(row["a"]),
            _stands(row["b"]),
            _number(row["a"]),
            _number(row["b"]),
        )
        for row in comparison["incidents"]
        if row["differs"]
    ]
    if not rows:
        return "Every Incident ends alike."
    titles = ("incident", "about", "A", "B", "A GPU-hours", "B GPU-hours")
    return render([Column(title) for title in titles], rows, style)


def _stands(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return "no such Incident"
    done = ", ".join(f"{name} x{count}" if count > 1 else name for name, count in one["actions"].items())
    held = f"; held back by {', '.join(one['held'])}" if one["held"] else ""
    return f"{one['phase']} ({one['rule']}): {done or 'nothing'}{held}"


def _number(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return "-"
    hours = one["gpu_hours"]
    return "unknown" if isinstance(hours, Mapping) else f"{hours:.2f}"


def _totals(comparison: Mapping[str, Any], style: Style) -> str:
    a, b = comparison["totals"]["a"], comparison["totals"]["b"]
    rows = [
        ("Incidents", _counts(a["incidents"]), _counts(b["incidents"])),
        ("ordered", _counts(a["actions"]), _counts(b["actions"])),
        ("new starts", str(a["starts"]), str(b["starts"])),
        ("held back by", _counts(comparison["held"]["a"]), _counts(comparison["held"]["b"])),
        ("steps lost", _sum(a["steps_lost"]), _sum(b["steps_lost"])),
        ("seconds lost", _sum(a["lost_s"]), _sum(b["lost_s"])),
        ("GPU-hours", _sum(a["gpu_hours"]), _sum(b["gpu_hours"])),
        _in_both(comparison["in_both"]),
    ]
    return render([Column(title) for title in ("in all", "A", "B")], rows, style)


def _in_both(both: Mapping[str, Any]) -> tuple[str, str, str]:
    """The one line in which A and B are sums over the same Incidents."""
    title = f"GPU-hours of the {both['incidents']} Incidents known in both"
    if not both["incidents"]:
        return title, "-", "-"
    return title, f"{both['a']:g}", f"{both['b']:g} ({both['b'] - both['a']:+g})"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "-"


def _sum(total: Mapping[str, Any]) -> str:
    if not total["counted"]:
        return f"unknown (of {total['not_counted']})" if total["not_counted"] else "-"
    without = f", {total['not_counted']} not counted" if total["not_counted"] else ""
    return f"{total['sum']:g} (of {total['counted']}{without})"
