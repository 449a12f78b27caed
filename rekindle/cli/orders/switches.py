"""Switches: pause, unpause, shadow. Each says the state of the service afterwards."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from rekindle.cli.service.target import connected
from rekindle.cli.terminal.confirm import ordering
from rekindle.cli.terminal.names import Kind, read
from rekindle.cli.terminal.output import answer
from rekindle.client.errors import CommandFailed, UsageError
from rekindle.client.shapes import day_and_time, member, texts, word
from rekindle.client.table import Style, clean


def set_paused(args: argparse.Namespace) -> int:
    """Set or lift the global pause; `args.paused` says which.

    The pause is the emergency brake: it starts nothing, takes nothing back, and is lifted in a moment, so it is set at
    once, with or without a terminal. It prints the service that it was set in and what that means. To lift it lets
    everything go on, and is asked about.
    """
    body: dict[str, Any] = {"paused": args.paused}
    if getattr(args, "why", None):
        body["why"] = args.why
    with ordering(args) as order:
        if args.paused:
            order.confirm_at_once()
        else:
            order.held_by(besides="pause").confirm(_unpause_text(order.client.get("/switches")))
        now = order.send("PUT", "/pause", body)
    if member(now, "paused") is True:
        text = "Paused: Incidents are opened and watched, nothing is done. Lift it with `rekindle switches unpause`."
    else:
        text = "Not paused: Incidents continue at their next observation."
    return answer(args, now, text)


def _unpause_text(now: Mapping[str, Any]) -> str:
    if member(now, "paused") is not True:
        return "Lift the global pause:\n  it is not set: nothing changes"
    why = f" ({clean(word(now, 'paused_why'))})" if member(now, "paused_why") else ""
    by = f"{clean(word(now, 'paused_by'))} since {clean(day_and_time(now, 'paused_at'))}{why}"
    return f"Lift the global pause:\n  set by {by}\n  every Incident continues at its next observation"


def show(args: argparse.Namespace) -> int:
    """How the switches stand."""
    with connected(args, only_look=True) as client:
        body = client.get("/switches")
    return answer(args, body, switches_text(body, Style.of(sys.stdout)))


def switches_text(body: Mapping[str, Any], style: Style) -> str:
    """Pause, shadow mode and the breaker, a line each."""
    paused = member(body, "paused") is True
    by = f" by {word(body, 'paused_by')} since {day_and_time(body, 'paused_at')}" if paused else ""
    shadow = "on everywhere" if member(body, "shadow", "everywhere") is True else "off"
    named = [f"job {name}" for name in texts(body, "shadow", "jobs")]
    named += [f"cluster {name}" for name in texts(body, "shadow", "clusters")]
    if named:
        shadow += f"; on for {', '.join(named)}"
    lines = [
        f"pause   {style.paint('paused', 'yellow') if paused else 'off'}{clean(by)}",
        f"shadow  {clean(shadow)}",
    ]
    breaker = member(body, "breaker")
    if isinstance(breaker, Mapping):
        is_open = member(breaker, "open") is True
        text = f": {word(breaker, 'text')}" if is_open and member(breaker, "text") else ""
        lines.append(f"breaker {style.paint('open', 'red') if is_open else 'closed'}{clean(text)}")
    return "\n".join(lines)


def set_shadow(args: argparse.Namespace) -> int:
    """Put a Job, a cluster or everything into shadow mode, or out of it.

    To enter it only holds back, and is done at once like a pause; to leave it is asked about.
    """
    chosen = [(scope, name) for scope, name in (("job", args.job), ("cluster", args.cluster)) if name is not None]
    if len(chosen) + bool(args.everywhere) != 1:
        raise UsageError("say for what: --job JOB, --cluster NAME or --everywhere, one of them")
    scope, name = chosen[0] if chosen else ("everywhere", None)
    on = args.state == "on"
    body: dict[str, Any] = {"scope": scope, "on": on}
    if name is not None:
        body["name"] = name
    where = f"{scope} {clean(name)}" if name is not None else "everywhere"
    with ordering(args) as order:
        if on and name is not None:
            read(order.client, Kind.JOB if scope == "job" else Kind.CLUSTER, name, whole=True)
        if on:
            order.confirm_at_once()
        else:
            about = {} if name is None else {"job_id" if scope == "job" else "cluster": name}
            order.held_by(besides="shadow", **about).confirm(
                f"Leave shadow mode ({where}):\n  what is decided there is done from now on"
            )
        now = order.send("PUT", "/shadow", body)
    does = " on ({}): decisions are made and notified, nothing is done." if on else " off ({})."
    return answer(args, now, f"Shadow mode{does.format(where)}")


def lift_breaker(args: argparse.Namespace) -> int:
    """Let everything go on that the fleet-wide breaker holds, after asking."""
    with ordering(args) as order:
        breaker = member(order.client.get("/switches"), "breaker")
        if member(breaker, "open") is not True:
            raise CommandFailed("the breaker is closed: it holds nothing")
        text = f"Lift the breaker ({clean(word(breaker, 'text'))}):\n  every Incident that it holds continues"
        order.held_by(besides="breaker").confirm(text)
        now = order.send("POST", "/breaker/lift", {})
    return answer(args, now, "The breaker is closed again: what it held continues.")
