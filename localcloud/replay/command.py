"""`rekindle replay`: what would Rekindle have done with the events that you have recorded?

This module is loaded by every `rekindle` command (its entry point names it), so it imports the service only to replay.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rekindle.client.errors import BadFile, CommandFailed
from rekindle.client.table import Column, Style, render

if TYPE_CHECKING:
    from chalicelib.domain.policy.document import Policy
    from localcloud.replay.run import IncidentStanding, Verdict

_DESCRIPTION = """\
Feed recorded events through the real ingest and the real decisions, in virtual time and without any effect, and tell
the verdict on each. PATH is a file or a folder: one JSON event, a JSON list, or one event per line; EventBridge events,
CloudWatch Logs batches, or Incidents as `rekindle show ID --json` prints them. What Rekindle orders is assumed to
succeed; docs/cli.md says exactly what is assumed."""


def register(subparsers: Any) -> None:
    """Add the command to the `rekindle` parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "replay",
        help="what would have been done with recorded events",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a file or folder of recorded events")
    parser.add_argument("--policy", type=Path, metavar="FILE", help="a policy document (docs/policy.md); else built in")
    parser.add_argument("--json", action="store_true", help="one object per event and line")
    parser.set_defaults(run=run, extra="local")


def run(args: argparse.Namespace) -> int:
    """Replay the recordings and print the verdicts. Malformed events are reported and counted; they do not fail the
    replay.

    Raises:
        BadFile: a path that cannot be read, or an invalid policy.
        CommandFailed: there is no event in what was given.
    """
    from localcloud.replay.read import Unreadable, read
    from localcloud.replay.run import Replay

    policy = _policy(args.policy)
    try:
        recorded = read(args.paths)
    except Unreadable as err:
        raise BadFile(str(err)) from err
    if not recorded:
        raise CommandFailed(f"nothing to replay: no event in {', '.join(map(str, args.paths))}")
    replay = Replay(recorded, policy)
    if args.json:
        verdicts: list[Verdict] = []
        for verdict in replay.verdicts():
            print(json.dumps(verdict.to_wire()), flush=True)
            verdicts.append(verdict)
        print(_summary(verdicts), file=sys.stderr)
        return 0
    verdicts = list(replay.verdicts())
    style = Style.of(sys.stdout)
    print(_verdict_table(verdicts, style))
    standings = replay.standings()
    if standings:
        print("\n" + _standing_table(standings, style))
    print("\n" + _summary(verdicts))
    return 0


def _policy(file: Path | None) -> Policy:
    from chalicelib.domain.model.errors import InvalidPolicy
    from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy

    if file is None:
        return DEFAULT_POLICY
    try:
        return Policy.from_wire(json.loads(file.read_bytes()))
    except OSError as err:
        raise BadFile(f"{file}: {err.strerror or err}") from err
    except (ValueError, RecursionError) as err:
        raise BadFile(f"{file}: is not JSON") from err
    except InvalidPolicy as err:
        raise BadFile(f"{file}: {err}") from err


def _verdict_table(verdicts: list[Verdict], style: Style) -> str:
    titles = ("event", "signal", "fault", "rule", "actions", "again", "dropped")
    return render([Column(title) for title in titles], [_row(verdict) for verdict in verdicts], style)


def _row(verdict: Verdict) -> tuple[str, ...]:
    signal = verdict.signal or "-"
    if verdict.signals > 1:
        signal = f"{signal} (of {verdict.signals})"
    if verdict.dropped is not None:
        return (verdict.event, signal, "-", "-", "-", "-", verdict.dropped)
    again = "closed" if verdict.look_again_in_s is None else f"{verdict.look_again_in_s:g} s"
    actions = ", ".join(verdict.actions) or "-"
    return (verdict.event, signal, verdict.fault or "-", verdict.rule or "-", actions, again, "")


def _standing_table(standings: list[IncidentStanding], style: Style) -> str:
    columns = (
        Column("incident"),
        Column("about"),
        Column("fault"),
        Column("stands"),
        Column("last rule"),
        Column("ordered in all"),
    )
    rows = [
        (
            standing.incident.incident_id,
            standing.incident.job_id or standing.incident.cluster or "-",
            standing.incident.fault.value,
            standing.incident.phase.value,
            standing.rule,
            ", ".join(f"{name} x{count}" if count > 1 else name for name, count in standing.actions) or "-",
        )
        for standing in standings
    ]
    return render(columns, rows, style, last_may_shrink=False)


def _summary(verdicts: list[Verdict]) -> str:
    malformed = sum(verdict.malformed for verdict in verdicts)
    taken = sum(verdict.dropped is None for verdict in verdicts)
    incidents = len({verdict.incident for verdict in verdicts if verdict.incident is not None})
    dropped = len(verdicts) - taken - malformed
    return f"events {len(verdicts)}: taken in {taken}, dropped {dropped}, malformed {malformed}; Incidents {incidents}"
