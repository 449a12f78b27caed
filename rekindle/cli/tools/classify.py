"""`rekindle classify [FILE]`: classifies each line of a log and names the root cause of a failure.

Memory is bounded for any input: lines are read as bytes in chunks, and only the head and the tail are kept of a line
that is longer than the classifier reads. With --json it prints one object per line, in order, also for ordinary lines,
and one for the root cause at the end; without it a table of the problems that were found, and the root cause.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

from rekindle.client.errors import BadFile
from rekindle.client.table import Column, Style, clean, render
from rekindle.signatures.causes import LINES_APART, Cause, Finding, root_cause
from rekindle.signatures.classifier import HEAD_BYTES, MAX_JSON_BYTES, TAIL_BYTES, Classifier, Verdict
from rekindle.signatures.labels import LABELS, Label
from rekindle.signatures.places import node_in, rank_in

CHUNK_BYTES: Final = 1 << 18
MAX_LINE_BYTES: Final = MAX_JSON_BYTES  # only the head and the tail are kept of a longer line
# At most so many findings, each a distinct (label, rule, node, rank, section of the log); further ones are counted
# together by label and rule.
MAX_FINDINGS: Final = 1000
MAX_TEXT_CHARS: Final = 200
_COLUMNS: Final = (
    Column("label"),
    Column("lines", right=True),
    Column("first", right=True),
    Column("fault"),
    Column("first response"),
    Column("rule"),
    Column("says"),
)


@dataclass(slots=True)
class _Row:
    """One label's row in the table: `verdict` and `text` are those of the first line that got the label."""

    count: int
    first_line: int
    verdict: Verdict
    text: str


def register(commands: Any) -> None:
    """Add the command. It does not use the service, so it has no options for reaching it."""
    help_ = "what each line of a log says, and the root cause"
    parser = commands.add_parser("classify", help=help_, description=help_, allow_abbrev=False)
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="the log (default: standard input)")
    parser.add_argument(
        "--json", action="store_true", help="one object per line, in order, ordinary lines too; last, the root cause"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Classify a file, or standard input. Raises: BadFile."""
    with _opened(args.file) as stream:
        lines = read_lines(stream)
        if args.json:
            print_objects(lines, sys.stdout)
        else:
            print(summary(lines, Style.of(sys.stdout)))
    return 0


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        if sys.stdin is None:
            raise BadFile("standard input: is closed")
        yield sys.stdin.buffer
        return
    try:
        file = Path(name).open("rb")  # noqa: SIM115  closed below; a caller's OSError must not become BadFile
    except (OSError, ValueError) as err:
        raise BadFile(f"{clean(name)}: cannot be read: {clean(getattr(err, 'strerror', None) or err)}") from err
    with file:
        yield file


def read_lines(stream: BinaryIO) -> Iterator[list[bytes]]:
    """The lines of a stream in lists, one list per chunk, without their newlines. The last line need not end in one.

    At most MAX_LINE_BYTES are kept of a line while it is being read: its head and its newest bytes.
    """
    pending = b""
    read = getattr(stream, "read1", stream.read)
    while chunk := read(CHUNK_BYTES):
        *whole, rest = chunk.split(b"\n")
        if whole:
            whole[0] = pending + whole[0]
            pending = rest
            yield [_shortened(line) for line in whole]
        else:
            pending += rest
        pending = _shortened(pending)
    if pending:
        yield [pending]


def _shortened(line: bytes) -> bytes:
    return line if len(line) <= MAX_LINE_BYTES else line[:HEAD_BYTES] + b"\n" + line[-TAIL_BYTES:]


def print_objects(chunks: Iterator[list[bytes]], out: TextIO) -> None:
    """One JSON object per line, flushed after each chunk, so that a log can be followed; the root cause as the last."""
    classifier, found = Classifier(), _Found()
    encoded: dict[Verdict, str] = {}  # most lines share a few verdicts
    number = 0
    for lines in chunks:
        texts: list[str] = []
        for line in lines:
            number += 1
            verdict = classifier.classify(line)
            fields = encoded.get(verdict)
            if fields is None:
                fields = encoded[verdict] = json.dumps(verdict.to_json())[1:]
            if verdict.label is Label.BENIGN:
                texts.append(f'{{"line": {number}, {fields}')
                continue
            read = line[:HEAD_BYTES].decode("utf-8", "replace")
            found.add(verdict, number, read)
            texts.append(f'{{"line": {number}, "text": {json.dumps(read.strip()[:MAX_TEXT_CHARS])}, {fields}')
        texts.append("")
        out.write("\n".join(texts))
        out.flush()
    out.write(json.dumps({"root_cause": _cause_object(root_cause(found.findings.values(), is_one_log=True))}) + "\n")


def _cause_object(cause: Cause) -> dict[str, Any]:
    finding = cause.finding
    if finding is None:
        return {"label": cause.label.value, "fault": None, "first_response": cause.first_response.value}
    return {
        **finding.verdict.to_json(),
        "line": int(finding.at or 0),
        "text": finding.text,
        "node": finding.node,
        "rank": finding.rank,
        "suspects": list(cause.suspects[:8]),
        "explanation": cause.text,
    }


def summary(chunks: Iterator[list[bytes]], style: Style) -> str:
    """The table of the problems that were found, and the root cause, for people."""
    classifier, found = Classifier(), _Found()
    number = 0
    for lines in chunks:
        for line in lines:
            number += 1
            verdict = classifier.classify(line)
            if verdict.label is not Label.BENIGN:
                found.add(verdict, number, line[:HEAD_BYTES].decode("utf-8", "replace"))
    problems = sum(row.count for row in found.rows.values())
    counted = "1 line" if number == 1 else f"{number:,} lines"
    parts = [f"{counted}, {problems:,} of them {'says' if problems == 1 else 'say'} that something is wrong"]
    if found.rows:
        cause = root_cause(found.findings.values(), is_one_log=True)
        parts += [
            "",
            _table(found.rows, style),
            "",
            f"root cause: {clean(cause.text)}",
            f"            {LABELS[cause.label].meaning}",
            f"asks for:   {cause.first_response.value}{_suspects(cause.suspects)}",
        ]
    return "\n".join(parts)


class _Found:
    """The problems of one log: `rows` for the table, by label; `findings` for the root cause, by place in the log."""

    def __init__(self) -> None:
        self.rows: dict[Label, _Row] = {}
        self.findings: dict[tuple[Label, str, str | None, int | None, int], Finding] = {}

    def add(self, verdict: Verdict, number: int, text: str) -> None:
        """Count a line: its verdict, its number from 1, and its head."""
        row = self.rows.get(verdict.label)
        if row is None:
            self.rows[verdict.label] = _Row(count=1, first_line=number, verdict=verdict, text=text[:MAX_TEXT_CHARS])
        else:
            row.count += 1
        key = (verdict.label, verdict.rule, node_in(text), rank_in(text), number // LINES_APART)
        if key not in self.findings and len(self.findings) >= MAX_FINDINGS:
            key = (verdict.label, verdict.rule, None, None, -1)
        known = self.findings.get(key)
        if known is not None:
            self.findings[key] = replace(known, count=known.count + 1)
        else:
            text = text.strip()[:MAX_TEXT_CHARS]
            self.findings[key] = Finding(verdict=verdict, node=key[2], rank=key[3], at=float(number), text=text)


def _table(rows: Mapping[Label, _Row], style: Style) -> str:
    """The rows by the order of their labels, then by their first line."""
    shown = sorted(rows.items(), key=lambda item: (item[1].verdict.order, item[1].first_line))
    cells = [
        (
            label.value,
            row.count,
            row.first_line,
            row.verdict.fault or "-",
            row.verdict.first_response.value,
            row.verdict.rule,
            clean(row.text.strip())[:120],
        )
        for label, row in shown
    ]
    return render(_COLUMNS, cells, style)


def _suspects(names: tuple[str, ...]) -> str:
    return f" ({', '.join(clean(name) for name in names[:8])})" if names else ""
