"""`rekindle classify [FILE]`: what each line of a log says, and what the whole of it comes to.

Lines are read as bytes in chunks of a bounded size, whatever is in them; of a line that is longer than the classifier
reads, only head and tail are kept. With --json one object per line goes out in the order of the lines, also for
ordinary ones; without it a table of what was found, and the root cause.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

from rekindle.client.errors import BadFile
from rekindle.client.table import Column, Style, clean, render
from rekindle.signatures.causes import LINES_APART, Finding, root_cause
from rekindle.signatures.classifier import HEAD_BYTES, MAX_JSON_BYTES, TAIL_BYTES, Classifier, Verdict
from rekindle.signatures.labels import LABELS, Label
from rekindle.signatures.places import node_in, rank_in

CHUNK_BYTES: Final = 1 << 18
MAX_LINE_BYTES: Final = MAX_JSON_BYTES  # of a longer line, its two ends
# Distinct (label, rule, node, rank, stretch of the log) that are told apart; further ones are counted together.
MAX_PLACES: Final = 1000
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
    """One label's line in the table."""

    count: int
    first_line: int
    verdict: Verdict
    text: str


def register(commands: Any) -> None:
    """Add the command; it needs no service, so it takes none of its options."""
    help_ = "what each line of a log says, and the root cause"
    parser = commands.add_parser("classify", help=help_, description=help_, allow_abbrev=False)
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="the log (default: standard input)")
    parser.add_argument("--json", action="store_true", help="one object per line, in order, ordinary lines too")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Classify a file, or standard input. Raises: BadFile."""
    with _opened(args.file) as stream:
        lines = read_lines(stream)
        if args.json:
            run_objects(lines, sys.stdout)
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
        file = Path(name).open("rb")  # noqa: SIM115  closed below, where what the caller raises is no fault of the file
    except (OSError, ValueError) as err:
        raise BadFile(f"{clean(name)}: cannot be read: {clean(getattr(err, 'strerror', None) or err)}") from err
    with file:
        yield file


def read_lines(stream: BinaryIO) -> Iterator[list[bytes]]:
    """The lines of a stream, a chunk's worth at a time, without their ends; a last line without an end counts.

    What is kept of an unfinished line is bounded: its head and the newest of it.
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


def run_objects(chunks: Iterator[list[bytes]], out: TextIO) -> None:
    """One JSON object per line, flushed after each chunk, so that a log can be followed."""
    classify = Classifier().classify
    known: dict[Verdict, str] = {}
    for lines in chunks:
        notes = []
        for line in lines:
            verdict = classify(line)
            text = known.get(verdict)
            if text is None:
                text = known[verdict] = json.dumps(verdict.to_json())
            notes.append(text)
        notes.append("")
        out.write("\n".join(notes))
        out.flush()


def summary(chunks: Iterator[list[bytes]], style: Style) -> str:
    """The table of what was found, and the root cause, for people."""
    classifier = Classifier()
    rows: dict[Label, _Row] = {}
    findings: dict[tuple[Label, str, str | None, int | None, int], Finding] = {}
    number = 0
    for lines in chunks:
        for line in lines:
            number += 1
            verdict = classifier.classify(line)
            if verdict.label is Label.BENIGN:
                continue
            text = line[:HEAD_BYTES].decode("utf-8", "replace")
            _count(rows, verdict, number, text)
            key = (verdict.label, verdict.rule, node_in(text), rank_in(text), number // LINES_APART)
            if key not in findings and len(findings) >= MAX_PLACES:
                key = (verdict.label, verdict.rule, None, None, -1)
            known = findings.get(key)
            findings[key] = (
                replace(known, count=known.count + 1)
                if known
                else Finding(verdict=verdict, node=key[2], rank=key[3], at=float(number))
            )
    found = sum(row.count for row in rows.values())
    counted = "1 line" if number == 1 else f"{number:,} lines"
    parts = [f"{counted}, {found:,} of them {'says' if found == 1 else 'say'} that something is wrong"]
    if rows:
        cause = root_cause(findings.values(), is_one_log=True)
        shown = sorted(rows.items(), key=lambda item: (item[1].verdict.order, item[1].first_line))
        parts += [
            "",
            render(
                _COLUMNS,
                [
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
                ],
                style,
            ),
            "",
            f"root cause: {clean(cause.text)}",
            f"            {LABELS[cause.label].meaning}",
            f"asks for:   {cause.first_response.value}{_who(cause.suspects)}",
        ]
    return "\n".join(parts)


def _count(rows: dict[Label, _Row], verdict: Verdict, number: int, text: str) -> None:
    row = rows.get(verdict.label)
    if row is None:
        rows[verdict.label] = _Row(count=1, first_line=number, verdict=verdict, text=text[:MAX_TEXT_CHARS])
    else:
        row.count += 1


def _who(suspects: tuple[str, ...]) -> str:
    return f" ({', '.join(clean(suspect) for suspect in suspects[:8])})" if suspects else ""
