"""`python -m infra.mutate`: changes one line at a time in a copy of the tree, and counts the changes that tests notice.

The lines are drawn by a seed from the rules, the guards, the store, and the workflow. A change is one of: a comparison
turned or made strict, `and` for `or`, a `not` left out, a truth value turned, a number moved by one. Killed: a test of
that part fails or, where none of them does, one of the wider list. Tests run until the first failure; a survivor costs
both lists whole.
"""

from __future__ import annotations

import argparse
import ast
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rekindle.cli.options import whole

ROOT: Final = Path(__file__).resolve().parents[1]
# A part of the product, and the tests that must notice a change of it.
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "chalicelib/domain/rules": ("tests/domain", "tests/guardrails", "tests/guardrails_nodes"),
    "chalicelib/domain/guards": ("tests/guardrails", "tests/guardrails_nodes", "tests/domain"),
    "chalicelib/aws/dynamodb": ("tests/adapters", "tests/services"),
    "chalicelib/recovery": ("tests/recovery",),
}
# The tests that a survivor of its part's own tests meets before it counts as survived, less the part's own.
WIDER: Final = (
    "tests/domain",
    "tests/guardrails",
    "tests/guardrails_nodes",
    "tests/adapters",
    "tests/services",
    "tests/recovery",
    "tests/platforms",
    "tests/drills",
    "tests/api",
    "tests/ledger",
)
LIMIT_S: Final = 900.0
_TURNED: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed expression of a file: `was` stands at `line` and becomes `now`."""

    path: str
    line: int
    column: int
    end_column: int
    was: str
    now: str


def _changed(node: ast.expr) -> ast.expr | None:
    """The expression with one change; None where none of the changes applies to it."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _TURNED:
            return ast.Compare(left=left, ops=[_TURNED[type(op)]()], comparators=[right])
        case ast.BoolOp(op=op, values=values):
            return ast.BoolOp(op=ast.Or() if isinstance(op, ast.And) else ast.And(), values=values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=bool(value)):
            return ast.Constant(value=not value)
        case ast.Constant(value=int(value)):
            return ast.Constant(value=value + 1)
    return None


def mutants(path: str, source: str) -> Iterator[Mutant]:
    """Each change of each expression that stands on one line of its own text; none inside f-strings or annotations."""
    tree = ast.parse(source)
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        for outer in (
            *([node] if isinstance(node, ast.JoinedStr) else []),
            *([node.annotation] if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation else []),
        )
        for inner in ast.walk(outer)
    }
    lines = source.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr) or id(node) in skipped or node.lineno != node.end_lineno:
            continue
        changed = _changed(node)
        if changed is None or not lines[node.lineno - 1].isascii():
            continue
        was = lines[node.lineno - 1][node.col_offset : node.end_col_offset]
        now = f"({ast.unparse(changed)})"
        yield Mutant(path, node.lineno, node.col_offset, node.end_col_offset or 0, was, now)


def sample(part: str, count: int, rng: random.Random) -> list[Mutant]:
    """`count` changes of a part, each of another line."""
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for file in sorted((ROOT / part).rglob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        for mutant in mutants(path, file.read_text(encoding="utf-8")):
            by_line.setdefault((path, mutant.line), []).append(mutant)
    lines = rng.sample(sorted(by_line), min(count, len(by_line)))
    return [rng.choice(by_line[line]) for line in lines]


def fails(tree: Path, tests: Sequence[str]) -> bool:
    """One of the tests fails in the copy at `tree`, or they do not end."""
    command = [sys.executable, "-B", "-m", "pytest", "-p", "no:cacheprovider", "-q", "-x", "-m", "not long", *tests]
    try:
        return subprocess.run(command, cwd=tree, capture_output=True, timeout=LIMIT_S, check=False).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def is_killed(mutant: Mutant, tree: Path, tests: Sequence[str]) -> bool:
    """A test fails, or does not end, with the change made in the copy at `tree`; the copy is as before afterwards."""
    file = tree / mutant.path
    source = file.read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    text = lines[mutant.line - 1]
    lines[mutant.line - 1] = text[: mutant.column] + mutant.now + text[mutant.end_column :]
    file.write_text("".join(lines), encoding="utf-8")
    try:
        return fails(tree, tests)
    finally:
        file.write_text(source, encoding="utf-8")


def wider_tests(part: str) -> list[str]:
    """The further tests that a survivor of `part`'s own tests is run against."""
    return [tests for tests in WIDER if tests not in PARTS[part]]


def _count(text: str) -> int:
    """How many. Raises: ArgumentTypeError."""
    return whole(text, low=1, high=10_000)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.mutate", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=_count, default=60, help="changed lines, spread over the parts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", choices=list(PARTS), help="that part only")
    given = parser.parse_args(argv)
    parts = [given.part] if given.part else list(PARTS)
    rng = random.Random(given.seed)  # noqa: S311  a sample
    killed = survived = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".venv", ".git", "build", "__pycache__", ".*_cache"))
        for number, part in enumerate(parts):
            share = given.count // len(parts) + (number < given.count % len(parts))
            if share and fails(tree, [*PARTS[part], *wider_tests(part)]):
                print(f"the tests of {part} fail without any change: nothing can be counted", file=sys.stderr)
                return 2
            for mutant in sample(part, share, rng):
                is_dead = is_killed(mutant, tree, PARTS[part]) or is_killed(mutant, tree, wider_tests(part))
                killed, survived = killed + is_dead, survived + (not is_dead)
                verdict = "killed  " if is_dead else "SURVIVED"
                print(f"{verdict} {mutant.path}:{mutant.line}: {mutant.was}  ->  {mutant.now}", flush=True)
    print(f"{killed} killed, {survived} survived (seed {given.seed})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
