"""`rekindle policy`: list, get, put, validate, diff.

A document is JSON in a file, or `-` for standard input.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rekindle.cli.service.target import connected
from rekindle.cli.terminal.confirm import ordering, random_key
from rekindle.cli.terminal.names import Kind, read
from rekindle.cli.terminal.output import answer, out_json, wants_json
from rekindle.client.api import Client, path
from rekindle.client.errors import BadFile, CommandFailed, Exit
from rekindle.client.shapes import day_and_time, member, objects, word
from rekindle.client.table import Column, Style, clean, render

MAX_BYTES: Final = 64 * 1024  # far beyond what the service takes (8 KB)


def listing(args: argparse.Namespace) -> int:
    """Every policy, one line each."""
    with connected(args, only_look=True) as client:
        body = client.get("/policies")
    columns = (Column("policy"), Column("version", right=True), Column("stored"))
    rows = [
        (
            word(policy, "name"),
            word(policy, "version"),
            "built in" if member(policy, "is_builtin") is True else day_and_time(policy, "modified_at"),
        )
        for policy in objects(body, "policies")
    ]
    return answer(args, body, render(columns, rows, Style.of(sys.stdout)))


def get(args: argparse.Namespace) -> int:
    """One policy: the document as it is stored, ready for `put`; with --effective every field with its value.

    The built-in policy is stored nowhere: its every field is shown.
    """
    with connected(args, only_look=True) as client:
        _, body = read(client, Kind.POLICY, args.name)
    if wants_json(args):
        out_json(body)
        return Exit.OK
    whole = args.effective or member(body, "is_builtin") is True
    out_json(member(body, "effective" if whole else "document"))
    problem = member(body, "problem")
    print(f"rekindle: {clean(args.name)}, version {clean(word(body, 'version'))}", file=sys.stderr)
    if problem:
        raise CommandFailed(f"the stored document cannot be used: {clean(problem)}")
    return Exit.OK


def put(args: argparse.Namespace) -> int:
    """Store a document in place of the version that is there, after showing what that changes."""
    document = read_document(args.file)
    with ordering(args) as order:
        difference = _difference(order.client, args.name, document)
        version = args.replaces if args.replaces is not None else member(difference, "version")
        body = {"document": document, "version": version}
        replaced = f"Store {clean(args.name)} in place of version {clean(version)}"
        order.confirm(f"{replaced}:\n{_changes(difference, Style())}")
        now = order.send("PUT", path("policies", args.name), body)
    version = clean(word(now, "version"))
    return answer(args, now, f"{clean(args.name)} is version {version} now: Incidents that open from now on use it.")


def validate(args: argparse.Namespace) -> int:
    """Every problem of a document with its field; nothing is stored. 1 if there is any."""
    document = read_document(args.file)
    body: dict[str, Any] = {"document": document}
    if args.name is not None:
        body["name"] = args.name
    with connected(args, only_look=True) as client:
        judged = client.order("POST", "/policies/validate", body, key=random_key())
    valid = member(judged, "valid") is True
    problems = [
        f"{clean(word(problem, 'field'))}: {clean(word(problem, 'problem'))}" for problem in objects(judged, "problems")
    ]
    answer(args, judged, f"{clean(args.file)} is a valid policy." if valid else "\n".join(problems))
    return Exit.OK if valid else Exit.FAILED


def diff(args: argparse.Namespace) -> int:
    """What would change, field by field. With --exit-code 1 if anything would."""
    document = read_document(args.file)
    with connected(args, only_look=True) as client:
        difference = _difference(client, args.name, document)
    answer(args, difference, _changes(difference, Style.of(sys.stdout)))
    return Exit.FAILED if args.exit_code and objects(difference, "changes") else Exit.OK


def _difference(client: Client, name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """What storing the document would change; nothing is stored."""
    return client.order("POST", path("policies", name, "diff"), {"document": document}, key=random_key())


def _changes(answer: Mapping[str, Any], style: Style) -> str:
    if member(answer, "problem"):
        return f"The stored document cannot be used ({clean(word(answer, 'problem'))}): it is replaced whole."
    changes = objects(answer, "changes")
    if not changes:
        return "Nothing changes."
    columns = (Column("field"), Column("now"), Column("then"))
    rows: Sequence[Sequence[object]] = [
        (word(change, "field"), json.dumps(member(change, "now")), json.dumps(member(change, "then")))
        for change in changes
    ]
    return render(columns, rows, style)


def read_document(name: str) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        BadFile: it cannot be read, is too large, or is not a JSON object.
    """
    try:
        text = sys.stdin.read(MAX_BYTES + 1) if name == "-" else _read_text(Path(name))
    except OSError as err:
        raise BadFile(f"{clean(name)}: {clean(err.strerror or err)}") from err
    except UnicodeDecodeError as err:
        raise BadFile(f"{clean(name)}: is not UTF-8 text") from err
    if len(text) > MAX_BYTES:
        raise BadFile(f"{clean(name)}: larger than the {MAX_BYTES} bytes that a document may have")
    try:
        document = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as err:
        raise BadFile(f"{clean(name)}: is not usable JSON ({clean(err)[:200]})") from err
    if not isinstance(document, dict):
        raise BadFile(f"{clean(name)}: must be a JSON object")
    return document


def _read_text(file: Path) -> str:
    with file.open(encoding="utf-8") as opened:
        return opened.read(MAX_BYTES + 1)


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object from JSON pairs; JSON alone would silently keep the last of two equal names.

    Raises:
        ValueError: a name occurs twice.
    """
    found: dict[str, Any] = {}
    for name, value in members:
        if name in found:
            raise ValueError(f"{name!r} stands twice")
        found[name] = value
    return found
