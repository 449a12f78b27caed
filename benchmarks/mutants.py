"""Which single faults in the decision code do the tests find? `make mutants [ARGS="--count 60 --seed 7"]`.

A copy of the repository gets one mutation at a time: a comparison, a constant, `and` for `or`, a condition or a guard
left out. The tests of that file's group (`GROUPS`) are run against it until one fails. A mutant that no test notices
survives and is printed with its place; it is either equivalent to the original or a hole in the tests.
"""

from __future__ import annotations

import argparse
import ast
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
LIMIT_S: Final = 900  # a mutant that makes the tests run on longer than that is found
GROUPS: Final = {  # the mutated files -> the tests that cover them, the cheapest first
    "rules of runs": (
        ("chalicelib/domain/rules/run",),
        ("tests/domain", "tests/guardrails tests/replay", "tests/services tests/recovery tests/proving"),
    ),
    "rules of nodes": (
        ("chalicelib/domain/rules/node", "chalicelib/domain/node"),
        ("tests/domain", "tests/guardrails_nodes", "tests/services tests/recovery tests/proving"),
    ),
    "guards": (
        ("chalicelib/domain/guards",),
        ("tests/guardrails", "tests/domain tests/guardrails_nodes", "tests/proving tests/services"),
    ),
    "store": (
        ("chalicelib/aws/dynamodb",),
        ("tests/adapters", "tests/services", "tests/api tests/guardrails tests/slack tests/notify tests/ledger"),
    ),
    "workflow": (
        ("chalicelib/recovery",),
        ("tests/recovery", "tests/services tests/guardrails tests/drills tests/proving"),
    ),
}
SWAPPED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
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


class Mutant(NamedTuple):
    group: str
    path: Path  # relative to the repository
    line: int
    kind: str
    before: str
    after: str
    span: tuple[int, int]  # of `before`, in the bytes of the file


def _mutations(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """(kind, the node to replace, what replaces it)."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            yield "comparison", node, ast.Compare(node.left, [SWAPPED[type(op)]()], node.comparators)
        case ast.BoolOp(op=op, values=values):
            yield "and/or", node, ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for dropped in range(len(values)):
                rest = values[:dropped] + values[dropped + 1 :]
                yield "condition left out", node, rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", node, operand
        case ast.Constant(value=bool(value)):
            yield "constant", node, ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", node, ast.Constant(value + 1)
        case ast.If(test=test, body=[ast.Return() | ast.Raise() | ast.Continue()], orelse=[]):
            yield "guard left out", test, ast.Constant(False)
        case ast.Expr(value=ast.Call()):
            yield "call left out", node, ast.Pass()


def mutants(group: str, path: Path) -> list[Mutant]:
    """All of one file, in its order; the file is parsed, never imported."""
    source = (ROOT / path).read_bytes()
    starts = [0]
    for row in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(row))
    found = []
    skipped: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):  # a parent comes before what is in it
        if node in skipped or isinstance(node, ast.JoinedStr | ast.arguments):  # words for people; defaults
            skipped.update(ast.iter_child_nodes(node))
            continue
        for kind, old, new in _mutations(node):
            assert isinstance(old, ast.expr | ast.stmt)
            assert old.end_lineno is not None
            assert old.end_col_offset is not None
            span = starts[old.lineno - 1] + old.col_offset, starts[old.end_lineno - 1] + old.end_col_offset
            text = ast.unparse(new)
            after = f"({text})" if isinstance(new, ast.expr) else text
            found.append(Mutant(group, path, old.lineno, kind, source[slice(*span)].decode(), after, span))
    return found


def chosen(count: int, seed: int) -> list[Mutant]:
    """`count` mutants, as many of each group, each of another line; the same for the same seed and source."""
    draw = random.Random(seed)
    drawn: list[list[Mutant]] = []
    for group, (folders, _) in GROUPS.items():
        paths = sorted(path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*.py"))
        every = [one for path in paths for one in mutants(group, path)]
        draw.shuffle(every)
        drawn.append(list({(one.path, one.line): one for one in every}.values()))
    quota, more = divmod(count, len(drawn))
    return [one for at, row in enumerate(drawn) for one in row[: quota + (at < more)]]


def failed(folder: Path, tests: str) -> bool:
    """Whether a test of `tests` fails in the copy in `folder`; one that hangs has failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not long", "-p", "no:cacheprovider", *tests.split()]
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, timeout=LIMIT_S).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def killed_by(folder: Path, mutant: Mutant) -> str:
    """The tests that found it; empty where it survived."""
    path = folder / mutant.path
    source = path.read_bytes()
    begin, end = mutant.span
    try:
        path.write_bytes(source[:begin] + mutant.after.encode() + source[end:])
        return next((tests for tests in GROUPS[mutant.group][1] if failed(folder, tests)), "")
    finally:
        path.write_bytes(source)


def copy_to(folder: Path) -> Path:
    """What git knows of, and what is new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=60, help="mutants (60)")
    parser.add_argument("--seed", type=int, default=7, help="which ones (7)")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once (2)")
    parser.add_argument("--group", choices=GROUPS, action="append", help="only these; may be given again")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    given = parser.parse_args()
    every = [one for one in chosen(given.count, given.seed) if given.group is None or one.group in given.group]
    if given.list:
        for one in every:
            print(f"{one.path}:{one.line}: {one.kind}: {one.before} -> {one.after}")
        return 0
    survived = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        copies: Queue[Path] = Queue()
        for number in range(given.jobs):
            copies.put(copy_to(Path(temporary) / str(number)))

        def run(mutant: Mutant) -> tuple[Mutant, str, float]:
            folder, began = copies.get(), time.monotonic()
            try:
                return mutant, killed_by(folder, mutant), time.monotonic() - began
            finally:
                copies.put(folder)

        with ThreadPoolExecutor(given.jobs) as pool:
            for mutant, tests, took in pool.map(run, every):
                verdict = f"killed by {tests}" if tests else "SURVIVED"
                print(f"{mutant.path}:{mutant.line}: {mutant.kind}: {verdict} ({took:.0f} s)", flush=True)
                if not tests:
                    survived.append(mutant)
    print(f"\nseed {given.seed}: {len(every)} mutants, {len(every) - len(survived)} killed, {len(survived)} survived")
    for one in survived:
        print(f"{one.path}:{one.line}: {one.kind}\n    {one.before}\n -> {one.after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
