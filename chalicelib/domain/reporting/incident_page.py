"""An Incident as one static HTML page, for a phone as much as for a desk. Pure.

The page needs nothing beside itself: no script, no font, no picture, no request to anywhere; its Content Security
Policy forbids them. Everything that comes from outside (names, log lines, comments) passes `text` or `command`, and is
shown as the characters it is. A quantity that is not known says why, and is never a zero.
"""

from __future__ import annotations

import base64
import hashlib
import html
import shlex
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from chalicelib.domain.model.approvals import Approval, ApprovalAnswer
from chalicelib.domain.model.evidence import suspect_word
from chalicelib.domain.model.incident import Incident, Phase, TimelineEntry
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.reporting.ledger import IncidentLedger
from chalicelib.domain.reporting.markdown import one_line
from chalicelib.domain.reporting.page_chart import LossCurve, chart_of
from chalicelib.domain.reporting.sentence import HAPPENING, NAME_CHARS, commands_of, phase_word, sentence_of
from rekindle.protocol.addresses import is_address
from rekindle.protocol.quantities import NAMES, amount, heading
from rekindle.signatures.words import action_word

MAX_LINES: Final = 100  # of the timeline: the oldest twenty and the newest eighty
OLDEST_LINES: Final = 20
MAX_SIGNALS: Final = 20
MAX_CHARS: Final = 600  # of one text from outside
NO_CURVE: Final = Unknown("")  # of an Incident that is about no run

STYLE: Final = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--soft:#57606a;--line:#d0d7de;--box:#f6f8fa;
--bad:#b42318;--good:#1a7f37;--wait:#9a6700}
@media (prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--soft:#9da7b3;--line:#30363d;--box:#161b22;
--bad:#ff8177;--good:#56d364;--wait:#e3b341}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:52rem;background:var(--bg);color:var(--fg);
font:1rem/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.3rem;line-height:1.3;margin:.2rem 0 .6rem}
h2{font-size:1.05rem;margin:1.6rem 0 .5rem}
p{margin:.4rem 0}
.soft{color:var(--soft);font-size:.9rem}
.state{display:inline-block;padding:.1rem .6rem;border:1px solid;border-radius:1rem;font-size:.9rem}
.bad{color:var(--bad)}.good{color:var(--good)}.wait{color:var(--wait)}
.box{border:1px solid var(--line);border-radius:.4rem;background:var(--box);padding:.6rem .8rem;margin:.5rem 0}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.6rem;margin:0}
dt{color:var(--soft);font-size:.85rem}
dd{margin:0;font-weight:600}
code{display:block;white-space:pre-wrap;font:.85rem/1.45 ui-monospace,monospace;background:var(--box);
border:1px solid var(--line);border-radius:.3rem;padding:.4rem .6rem;margin:.3rem 0;user-select:all}
ol,ul{padding-left:1.2rem;margin:.4rem 0}
li{margin:.35rem 0}
summary{cursor:pointer}
a{color:inherit}
svg{display:block;width:100%;height:auto;max-width:40rem}
""".strip()
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
# Nothing is loaded and nothing is sent: the address of a page that is opened by a signed link must not leave it either.
POLICY: Final = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'"


def page_of(
    incident: Incident,
    timeline: Sequence[TimelineEntry],
    ledger: IncidentLedger,
    *,
    now: datetime,
    region: str,
    curve: Maybe[LossCurve] = NO_CURVE,
) -> str:
    """The whole document, as it stands at `now`. `curve`: the run's loss; why it is not known is shown, too."""
    title = text(sentence_of(incident), 300)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="referrer" content="no-referrer"><meta name="robots" content="noindex, nofollow">',
        f"<title>{title}</title>",
        f"<style>{STYLE}</style></head><body>",
        f"<header><h1>{title}</h1>",
        f"<p>{_state(incident)}</p>",
        f'<p class="soft">{_when(incident)}</p></header><main>',
        *_section("What it needs from you", _asked(incident)),
        *_section("Suspect", _suspects(incident)),
        *_section("What is being done" if incident.is_open else "What was done", _happening(incident, timeline)),
        *_section("What you may do", _commands(incident, region)),
        *_section("What it took and cost" if not incident.is_open else "What it takes and costs", _figures(ledger)),
        *_section("Loss", _chart(incident, curve)),
        *_section("Timeline", _timeline(timeline)),
        *_section("Evidence", _evidence(incident)),
        *_section(
            "Answers", [_list(_answered(approval) for approval in incident.approvals if approval.answer is not None)]
        ),
        f'</main><footer><p class="soft">Written {_at(now)} by Rekindle, and again when this Incident changes. What '
        "this page showed is not what stands now if it is old: <code>"
        f"{html.escape(_show(incident))}</code></p></footer></body></html>\n",
    ]
    return "\n".join(parts)


def address(label: str, line: str) -> str:
    """A link to open, shown whole; empty where the line is a command."""
    if not is_address(label, line):
        return ""
    shown = html.escape(line)
    return f'<p><a href="{shown}" rel="noreferrer noopener">{shown}</a></p>'


def _chart(incident: Incident, curve: Maybe[LossCurve]) -> list[str]:
    if isinstance(curve, Known):
        return [chart_of(incident, curve.value)]
    return [f'<p class="soft">Not known: {text(curve.why)}</p>'] if curve.why else []


def text(value: object, limit: int = MAX_CHARS) -> str:
    """Other people's words, on one line, without characters that hide or reorder, escaped for an element's content."""
    return html.escape(one_line(str(value), limit), quote=True)


def command(line: str) -> str:
    """A command to copy, exactly as it is. Empty where a character of it would not show: none is ever changed."""
    return f"<code>{html.escape(line)}</code>" if line and one_line(line, len(line)) == line else ""


def _section(title: str, lines: Iterable[str]) -> list[str]:
    """Empty without content."""
    body = [line for line in lines if line]
    return [f"<section><h2>{title}</h2>", *body, "</section>"] if body else []


def _list(items: Iterable[str], *, kind: str = "ul") -> str:
    rows = "".join(f"<li>{item}</li>" for item in items if item)
    return f"<{kind}>{rows}</{kind}>" if rows else ""


def _state(incident: Incident) -> str:
    waits = incident.is_open and any(approval.is_pending for approval in incident.approvals)
    kind = "good" if incident.phase is Phase.RECOVERED else "wait" if waits or not incident.is_open else "bad"
    word = "waits for an answer" if waits else phase_word(incident.phase)
    return f'<span class="state {kind}">{word}</span>'


def _when(incident: Incident) -> str:
    ended = f"; closed {_at(incident.closed_at)}" if incident.closed_at else "; open"
    attempt = f"; attempt {text(incident.attempt, NAME_CHARS)}" if incident.attempt else ""
    return f"Incident {text(incident.incident_id, 200)}; opened {_at(incident.opened_at)}{ended}{attempt}"


def _happening(incident: Incident, timeline: Sequence[TimelineEntry]) -> list[str]:
    lines = [f"<p>{HAPPENING[incident.phase]}</p>"]
    if timeline:
        lines.append(f'<p class="soft">{_at(timeline[-1].at)}</p><p>{text(timeline[-1].text)}</p>')
    if incident.evidence.conclusion:
        lines.append(f"<p>{text(incident.evidence.conclusion)}</p>")
    held = [hold for hold in incident.holds if hold.until is None] if incident.is_open else []
    lines.append(_list(f"Held back by {hold.guard.value.replace('_', ' ')}: {text(hold.text)}" for hold in held))
    return lines


def _asked(incident: Incident) -> list[str]:
    if not incident.is_open:
        return []
    return [
        f'<div class="box"><p><strong>May Rekindle {text(approval.what)}?</strong></p><p>{text(approval.why)}</p>'
        f'<p class="soft">Until {_at(approval.deadline_at)}; '
        f"without an answer it counts as {approval.default.value}.</p>"
        f"{command(f'rekindle approvals approve {_word(incident.incident_id)} {_word(approval.approval_id)}')}"
        f"{command(f'rekindle approvals deny {_word(incident.incident_id)} {_word(approval.approval_id)}')}</div>"
        for approval in incident.approvals
        if approval.is_pending
    ]


def _suspects(incident: Incident) -> list[str]:
    rows = [
        f"{text(suspect_word(suspicion))} ({suspicion.kind.value.replace('_', ' ')}): {text(suspicion.text)} "
        f'<span class="soft">{suspicion.reports} of {suspicion.world_size} ranks reported</span>'
        for suspicion in incident.evidence.suspicions
        if suspicion.ranks or suspicion.hosts or suspicion.clears_all
    ]
    return [
        _list(
            [
                *rows,
                *(
                    f"node {text(bad_node.node, NAME_CHARS)} is suspected to be broken"
                    for bad_node in incident.resubmission.bad_nodes
                ),
            ]
        )
    ]


def _figures(ledger: IncidentLedger) -> list[str]:
    """What is known in a grid; what is not, with the reason, in one folded line."""
    rows = ledger.named(
        *(ledger.took, "mttd_s", "steps_lost", "steps_saved", "lost_s", "gpu_hours_lost", "dollars_lost")
    )
    so_far = {"elapsed_s": "Since its onset"} if ledger.incident.is_open else {}
    known = "".join(
        f"<div><dt>{so_far.get(name) or heading(name)}</dt><dd>{amount(name, value.value)}</dd></div>"
        for name, value in rows
        if isinstance(value, Known)
    )
    unknown = [(name, value.why) for name, value in rows if not isinstance(value, Known)]
    names = ", ".join(NAMES[name] for name, _ in unknown)
    folded = _list(f"{heading(name)}: {text(why)}" for name, why in unknown)
    return [
        f"<dl>{known}</dl>" if known else "",
        f"<details><summary>Not known: {names}</summary>{folded}</details>" if unknown else "",
    ]


def _commands(incident: Incident, region: str) -> list[str]:
    shown = [(label, address(label, line) or command(line)) for label, line in commands_of(incident, region=region)]
    return [f"<p>{text(label, NAME_CHARS)}</p>{line}" for label, line in shown if line]


def _timeline(timeline: Sequence[TimelineEntry]) -> list[str]:
    rows = [_line(entry) for entry in timeline]
    if len(rows) > MAX_LINES:
        left = len(rows) - MAX_LINES
        rows = [
            *rows[:OLDEST_LINES],
            f'<span class="soft">{left} lines are left out here</span>',
            *rows[-(MAX_LINES - OLDEST_LINES) :],
        ]
    return [_list(rows, kind="ol")]


def _line(entry: TimelineEntry) -> str:
    done = ", ".join(text(action_word(action), NAME_CHARS) for action in entry.actions)
    by = f"{phase_word(entry.phase)}, rule {text(entry.rule, NAME_CHARS)}"
    return (
        f'<span class="soft">{_at(entry.at)}</span> {text(entry.text)} <span class="soft">({by}'
        f"{f'; {done}' if done else ''})</span>"
    )


def _evidence(incident: Incident) -> list[str]:
    kept = incident.signals[-MAX_SIGNALS:]
    rows = [f'<span class="soft">{_at(signal.occurred_at)}</span> {text(signal.summary)}' for signal in kept]
    more = incident.signals_seen - len(kept)
    body = _list([*rows, f'<span class="soft">and {more} more</span>' if more > 0 else ""])
    return [f"<details><summary>Signals: {incident.signals_seen}</summary>{body}</details>" if rows else ""]


def _answered(approval: Approval) -> str:
    detail = "approved" if approval.answer is ApprovalAnswer.APPROVED else "denied"
    comment = f": {text(approval.comment)}" if approval.comment else ""
    by = text(approval.by or "a person who is not named", NAME_CHARS)
    return f"{text(approval.what)}: {detail} by {by}, {_at(approval.answered_at)}{comment}"


def _show(incident: Incident) -> str:
    return one_line(f"rekindle show {_word(incident.incident_id)}", 300)


def _word(value: str) -> str:
    return shlex.quote(value)


def _at(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if moment else "at an unknown time"
