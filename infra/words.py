"""`python -m infra.words`: words that pages and docstrings do not use, each with its replacement.

Pages are the Markdown files of the repository (in decision records only the title, in the changelog only what is
unreleased). In Python files the docstrings, the other string literals and the names that are defined count. Comments,
inline code, links' targets and file names do not.

`words_baseline.json` holds, per file that is not clean yet, how many such words it may have. A file that is not in it
must have none; a count may only fall. `--baseline` writes the present counts, and refuses a higher sum unless
`--force` is given (for a merge of branches that each had their own).
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
BASELINE: Final = ROOT / "infra" / "words_baseline.json"
PYTHON_FOLDERS: Final = ("chalicelib", "rekindle", "localcloud", "simulation", "fleets", "infra", "benchmarks")
OWN: Final = "infra/words.py"
_RECORDS: Final = re.compile(r"docs/adr/\d{4}-")


@dataclass(frozen=True, slots=True)
class BannedWord:
    """One row: what is not written, what is written instead, and why."""

    pattern: str  # a regular expression over whole words, whatever their case
    instead: str
    why: str


_TERM: Final = "the glossary has one term for it"
_PLAIN: Final = "name the actor, or use the plain word"
BANNED: Final = (
    BannedWord(r"nobody", "no one; name who does not", _PLAIN),
    BannedWord(r"somebody", "someone; a person; name the actor", _PLAIN),
    BannedWord(r"whoever", "the user that; who", _PLAIN),
    BannedWord(r"by itself", "automatically; alone; without help", _PLAIN),
    BannedWord(r"so-manieth", "the number itself", "not a word"),
    BannedWord(r"told", "notified; reported; listed", _PLAIN),
    BannedWord(r"said", "reported; stated", _PLAIN),
    BannedWord(r"whiteboards?", "cluster state", _TERM),
    BannedWord(r"lemons?", "suspect hardware", _TERM),
    BannedWord(r"beats?", "heartbeat", _TERM),
    BannedWord(r"(?:each|every|first|last|next|one|this|two) looks?", "observation", _TERM),
    BannedWord(r"(?:bears?|bore|borne|bearing) (?:it |this |them |that )?out", "confirm", _PLAIN),
    BannedWord(r"mend(?:s|ed|ing)?", "fix; repair", _PLAIN),
    BannedWord(r"anew", "again", "archaic"),
    BannedWord(r"seldom", "rarely; name the interval", "archaic"),
    BannedWord(r"lest", "so that … not", "archaic"),
    BannedWord(r"for ever", "forever; without end", "archaic"),
    BannedWord(r"(?:for )?want of", "for lack of", "archaic"),
    BannedWord(r"(?:goes|went|going) on", "continues", _PLAIN),
    BannedWord(r"roll-backs?", "rollback", _TERM),
    BannedWord(r"(?:its|the|our|his) desk|household", "name the component", "no parables"),
    BannedWord(r"so-called|of course|obviously|simply", "leave it out", "adds nothing"),
)
_ANY: Final = re.compile("|".join(rf"(?P<w{number}>\b(?:{row.pattern})\b)" for number, row in enumerate(BANNED)), re.I)
# As one part of a name: `was_told`, `ToldBy`. Terms of a wire or of a library that hold one stay in the baseline.
NAME_PARTS: Final = frozenset({"nobody", "somebody", "whoever", "told", "said", "whiteboard", "mended", "anew"})
_NAME_ROWS: Final = {part: next(row for row in BANNED if re.fullmatch(row.pattern, part)) for part in NAME_PARTS}
_CAMEL: Final = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_FENCE: Final = re.compile(r"^\s*(```|~~~)")
_NOT_PROSE: Final = re.compile(
    r"``.+?``|`[^`]*`|\]\([^)]*\)|<!--.*?-->|https?://\S+|\b[\w./-]+\.(?:md|py|json|ya?ml)\b"
)


@dataclass(frozen=True, slots=True)
class WordHit:
    """One banned word, and its row."""

    line: int
    text: str
    row: BannedWord


def hits(text: str, first_line: int = 1) -> Iterator[WordHit]:
    """The banned words of a Markdown text or a docstring. Fenced and inline code is left out."""
    fenced = False
    for number, line in enumerate(text.splitlines(), first_line):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            for found in _ANY.finditer(_NOT_PROSE.sub(" ", line)):
                yield WordHit(number, found[0], BANNED[int(str(found.lastgroup)[1:])])


def _defined_names(node: ast.AST) -> Iterator[str]:
    """The names that this node defines: a function, a class, an argument, a variable, an attribute."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield name


def code_hits(source: str) -> Iterator[WordHit]:
    """The banned words of a module's names, where each is first defined, and of its literals other than docstrings."""
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    seen: set[str] = set()
    for node in ast.walk(tree):
        for name in _defined_names(node):
            for part in {part.lower() for part in _CAMEL.findall(name)} & NAME_PARTS:
                if name not in seen:
                    seen.add(name)
                    yield WordHit(getattr(node, "lineno", 0), name, _NAME_ROWS[part])
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            for hit in hits(node.value):
                yield WordHit(node.lineno, hit.text, hit.row)


def docstring_hits(source: str) -> Iterator[WordHit]:
    """The banned words of a module's docstrings, at the lines of the file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield from hits(first.value.value, first.lineno)


def hits_of(path: str, text: str) -> list[WordHit]:
    """The banned words of one file of the repository."""
    if path.endswith(".py"):
        rows = () if path == OWN else code_hits(text)  # this module lists the words
        return [*docstring_hits(text), *rows]
    if _RECORDS.match(path):
        text = text.partition("\n")[0]
    elif path == "CHANGELOG.md":
        text = re.split(r"^## \[\d", text, maxsplit=1, flags=re.M)[0]
    return list(hits(text))


def files(root: Path = ROOT) -> list[str]:
    """What is held to the list: tracked or new files that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md", "*.py"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    python = tuple(f"{folder}/" for folder in PYTHON_FOLDERS)
    return sorted(
        path
        for path in set(listed)
        if (root / path).is_file() and (path.endswith(".md") or path.startswith(python) or path == "app.py")
    )


def problems(found: Mapping[str, list[WordHit]], allowed: Mapping[str, int]) -> list[str]:
    """What breaks the rule: more words than the baseline allows, and entries of files that are clean by now."""
    lines = []
    for path, its in found.items():
        limit = allowed.get(path, 0)
        if len(its) > limit:
            lines.append(f"{path}: {len(its)} banned words, {limit} allowed")
            lines += [f"  {path}:{one.line}: {one.text!r}: {one.row.instead} ({one.row.why})" for one in its]
    lines += [f"{path}: clean or gone; take it out of {BASELINE.name}" for path in allowed if not found.get(path)]
    return lines


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 where a file breaks the rule."""
    parser = argparse.ArgumentParser(prog="python -m infra.words", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--baseline", action="store_true", help="write the present counts into the baseline")
    parser.add_argument("--force", action="store_true", help="with --baseline: also where their sum rises")
    given = parser.parse_args(argv)
    found = {path: its for path in files() if (its := hits_of(path, (ROOT / path).read_text(encoding="utf-8")))}
    allowed: dict[str, int] = json.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else {}
    if given.baseline:
        counts = {path: len(its) for path, its in found.items()}
        if sum(counts.values()) > sum(allowed.values()) and not given.force:
            sys.stderr.write(f"{sum(counts.values())} words, {sum(allowed.values())} allowed: the sum may only fall\n")
            return 1
        BASELINE.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
        return 0
    wrong = problems(found, allowed)
    sys.stderr.write("".join(f"{line}\n" for line in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
