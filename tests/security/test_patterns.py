"""No regular expression takes exponential time over a long hostile text.

All patterns of all modules are tried, each against texts of hostile alphabets, in a process of its own. Nothing is
timed: a pattern that backtracks without end needs for ever, and the bound only ends that.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.long

CPU_LIMIT_S = 600  # all of them together need a few seconds
LENGTH = 400  # of each text; what is exponential never ends, what is quadratic takes milliseconds
ALPHABETS = (
    "a",
    "A",
    "1",
    "-",
    "_",
    ".",
    " ",
    "\t",
    "/",
    ":",
    "=",
    "\\",
    "<",
    "[",
    "(",
    '"',
    "a-",
    "a.",
    "a ",
    "1.",
    "ab=",
)
TAILS = ("", "!", "\n", "\x00", "é")

PROGRAM = """
import importlib, pkgutil, re, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({limit}, {limit}))
found = {{}}

def collect(value, where, depth=0):
    if isinstance(value, re.Pattern):
        found.setdefault((value.pattern, value.flags), where)
    elif depth < 4 and isinstance(value, dict):
        for one in [*value.keys(), *value.values()]:
            collect(one, where, depth + 1)
    elif depth < 4 and isinstance(value, (tuple, list, set, frozenset)):
        for one in value:
            collect(one, where, depth + 1)
    elif depth < 4 and hasattr(type(value), "__dataclass_fields__"):
        for name in type(value).__dataclass_fields__:
            collect(getattr(value, name, None), where, depth + 1)

for package in ("chalicelib", "rekindle"):
    root = importlib.import_module(package)
    for module in pkgutil.walk_packages(root.__path__, package + "."):
        if module.name.rpartition(".")[2] in {skipped} or module.name.startswith("rekindle.integrations"):
            continue
        loaded = importlib.import_module(module.name)
        for name, value in list(vars(loaded).items()):
            collect(value, module.name)
from chalicelib.api.operations.routes import OPERATIONS

def schemas(value, where):
    if isinstance(value, dict):
        if isinstance(value.get("pattern"), str):
            found.setdefault((value["pattern"], 0), where)
        for one in value.values():
            schemas(one, where)
    elif isinstance(value, (list, tuple)):
        for one in value:
            schemas(one, where)

for operation in OPERATIONS:
    schemas([operation.names, dict(operation.query), dict(operation.forms)], operation.name)

for (text, flags), where in found.items():
    pattern = re.compile(text, flags)
    is_bytes = isinstance(text, bytes)
    print(where, repr(text)[:200], flush=True)
    for alphabet in {alphabets}:
        for tail in {tails}:
            hostile = (alphabet * ({length} // len(alphabet))) + tail
            given = hostile.encode() if is_bytes else hostile
            pattern.search(given), pattern.match(given), pattern.fullmatch(given)
print("all", len(found), flush=True)
"""


def test_no_pattern_backtracks_without_end() -> None:
    program = PROGRAM.format(
        limit=CPU_LIMIT_S, alphabets=ALPHABETS, tails=TAILS, length=LENGTH, skipped=("__main__", "durable", "entry")
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"the last pattern did not end, or this failed: {lines[-1:]} {done.stderr[-500:]}"
    assert int(lines[-1].removeprefix("all ")) > 100
